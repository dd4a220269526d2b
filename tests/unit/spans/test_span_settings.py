"""Settings: the standard variables, and every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.redaction.filter import Level
from sidecar.spans.service import SpanOptions, span_settings
from sidecar.spans.settings import CAPTURE_VARIABLE, SpanSettings, from_environment, otlp_settings


def test_nothing_asked_for_means_no_export_and_no_content() -> None:
    settings = from_environment({})
    assert settings.exporter == "none"
    assert not settings.captures


def test_an_endpoint_turns_export_on_and_gets_its_path() -> None:
    settings = from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"})
    assert settings.exporter == "otlp"
    assert settings.otlp is not None
    assert settings.otlp.endpoint == "http://collector:4318/v1/traces"


def test_the_signals_own_endpoint_is_used_as_it_stands() -> None:
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://common:4318",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://own:1/x",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1, b=two%20words",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
    }
    otlp = otlp_settings(given)
    assert otlp.endpoint == "https://own:1/x"
    assert otlp.headers == {"a": "1", "b": "two words"}
    assert otlp.timeout_s == 2.5
    assert otlp.compression == "gzip"
    assert not otlp.insecure
    assert "two words" not in repr(otlp), "headers hold credentials"


def test_grpc_takes_host_and_port() -> None:
    otlp = otlp_settings(
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}
    )
    assert (otlp.endpoint, otlp.protocol, otlp.insecure) == ("collector:4317", "grpc", True)


@pytest.mark.parametrize(
    ("word", "on_span", "on_event"),
    [
        ("NO_CONTENT", False, False),
        ("span_only", True, False),
        ("EVENT_ONLY", False, True),
        ("SPAN_AND_EVENT", True, True),
        ("", False, False),
    ],
)
def test_the_capture_variable(word: str, on_span: bool, on_event: bool) -> None:
    settings = from_environment({CAPTURE_VARIABLE: word})
    assert (settings.content_on_span, settings.content_on_event) == (on_span, on_event)
    assert settings.level is (Level.REDACT if on_span or on_event else Level.DROP)
    assert not settings.notes


@pytest.mark.parametrize("word", ["true", "1", "yes", "ALL"])
def test_anything_else_means_no_content_and_is_told(word: str) -> None:
    settings = from_environment({CAPTURE_VARIABLE: word})
    assert not settings.captures
    assert len(settings.notes) == 1
    assert CAPTURE_VARIABLE in settings.notes[0]


def test_full_needs_its_second_switch_and_is_told() -> None:
    with pytest.raises(SettingsError, match="allow_full_content"):
        SpanSettings(level=Level.FULL)
    assert any("unredacted" in note for note in SpanSettings(level=Level.FULL, allow_full=True).notes)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
            "OTEL_EXPORTER_OTLP_TIMEOUT",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_COMPRESSION": "br"},
            "OTEL_EXPORTER_OTLP_COMPRESSION",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_HEADERS": "novalue"},
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "x"}, "OTEL_TRACES_SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "sample ratio"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a"}, "OTEL_RESOURCE_ATTRIBUTES"),
    ],
)
def test_mistakes_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        from_environment(given)


def test_sampler_resource_and_batching() -> None:
    settings = from_environment(
        {
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=chat,k8s.pod.name=p1",
            "OTEL_BSP_SCHEDULE_DELAY": "250",
        }
    )
    assert (settings.sample_ratio, settings.follow_parent) == (0.25, True)
    assert settings.service_name == "chat"
    assert settings.resource == {"k8s.pod.name": "p1"}
    assert settings.interval_s == 0.25


def test_the_sdk_switch_turns_all_off() -> None:
    given = {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert from_environment(given).exporter == "none"


def test_options_of_an_operator(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef\n")
    options = SpanOptions(
        content="redact",
        semconv="v1.41",
        redaction_key_file=str(key),
        redaction_regions="us, gb",
        spans_file=str(tmp_path / "spans.jsonl"),
    )
    settings = span_settings(options, {})
    assert settings.key == b"0123456789abcdef"
    assert "0123456789abcdef" not in repr(settings)
    assert settings.regions == ("US", "GB")
    assert settings.captures
    assert settings.exporter == "file"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SpanOptions(content="some"), "content"),
        (SpanOptions(semconv="v2"), "semconv"),
        (SpanOptions(content="full"), "allow_full_content"),
        (SpanOptions(redaction_key_file="/nowhere"), "redaction_key_file"),
    ],
)
def test_wrong_options_are_named(options: SpanOptions, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        span_settings(options, {})
