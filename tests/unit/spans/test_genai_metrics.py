"""The convention's metrics: exact shares at the SLO bounds, and exponential histograms."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sidecar.publish.exposition import render
from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord
from sidecar.requests.slo import SloClass
from sidecar.spans.exphist import ExponentialHistogram, bucket_of
from sidecar.spans.genai_metrics import GenAiMetrics
from sidecar.spans.otlp import attributes_of
from sidecar.spans.semconv import convention

SLOS = [SloClass(ttft_s=0.333, tpot_s=0.0421, e2e_s=7.77, max_gap_s=1.11)]


def record(ttft_s: float, e2e_s: float = 2.0, **changes: Any) -> RequestRecord:
    first = round(ttft_s * 1e9)
    end = round(e2e_s * 1e9)
    values: dict[str, Any] = {
        "api": Api.CHAT,
        "model": "demo",
        "streamed": True,
        "start_ns": 0,
        "end_ns": end,
        "outcome": Outcome.COMPLETED,
        "status": 200,
        "first_ns": first,
        "last_ns": end,
        "output_tokens": 11,
        "prompt_tokens": 5,
        "choices": (ChoiceRecord(0, 11, first, end, 11, False, "stop"),),
        "gaps_ns": ((end - first) // 10,) * 10,
        "extra": {"first_chunk_ns": str(first - 10)},
    }
    return RequestRecord(**(values | changes))


def made(version: str = "v0.1.0") -> GenAiMetrics:
    metrics = GenAiMetrics(convention(version), SLOS, server=("127.0.0.1", 8000), started_unix_ns=5)
    for ttft_s in (0.1, 0.333, 0.334, 0.5):
        metrics.observe(record(ttft_s), "demo")
    metrics.observe(
        record(0.2, outcome=Outcome.REJECTED, status=429, error_kind=ErrorKind.HTTP, output_tokens=None,
               prompt_tokens=None, choices=(), first_ns=None, gaps_ns=()),
        "demo",
    )  # fmt: skip
    return metrics


def samples(metrics: GenAiMetrics) -> dict[tuple[str, str], float]:
    """(sample name, le or error) -> value of a page that a strict parser takes."""
    text = render(metrics.families(), openmetrics=False).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.labels.get("le") or sample.labels.get("error_type", "")
            found[sample.name, key] = found.get((sample.name, key), 0.0) + sample.value
    return found


def test_a_bound_is_an_edge_so_the_share_within_it_is_exact() -> None:
    page = samples(made())
    assert page["gen_ai_server_time_to_first_token_seconds_bucket", "0.333"] == 2
    assert page["gen_ai_server_time_to_first_token_seconds_count", ""] == 4
    assert page["gen_ai_server_request_duration_seconds_bucket", "7.77"] == 5
    assert page["gen_ai_client_inference_time_per_output_chunk_seconds_bucket", "1.11"] == 40
    assert page["gen_ai_server_request_duration_seconds_count", "429"] == 1
    assert page["gen_ai_client_inference_usage_input_tokens_total", ""] == 20
    assert page["gen_ai_client_inference_usage_output_tokens_total", ""] == 44


@pytest.mark.parametrize(
    ("version", "there", "not_there"),
    [
        ("v0.1.0", "gen_ai_client_inference_duration_seconds", "gen_ai_client_operation_duration_seconds"),
        (
            "v1.41",
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "gen_ai_client_inference_duration_seconds",
        ),
        (
            "v1.36",
            "gen_ai_client_operation_duration_seconds",
            "gen_ai_client_operation_time_to_first_chunk_seconds",
        ),
    ],
)
def test_names_follow_the_version(version: str, there: str, not_there: str) -> None:
    names = {family.name for family in made(version).families()}
    assert there in names
    assert not_there not in names
    assert "gen_ai_server_time_per_output_token_seconds" in names


def test_otlp_has_exponential_histograms_and_counters() -> None:
    message = made().request(99, {"service.name": "x"})
    metrics = {m.name: m for m in message.resource_metrics[0].scope_metrics[0].metrics}
    ttft = metrics["gen_ai.server.time_to_first_token"]
    assert ttft.unit == "s"
    (point,) = ttft.exponential_histogram.data_points
    assert (point.count, point.start_time_unix_nano, point.time_unix_nano) == (4, 5, 99)
    assert sum(point.positive.bucket_counts) == 4
    assert attributes_of(point.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "demo",
        "server.address": "127.0.0.1",
        "server.port": 8000,
    }
    durations = metrics["gen_ai.server.request.duration"].exponential_histogram.data_points
    assert sorted(attributes_of(p.attributes).get("error.type", "") for p in durations) == ["", "429"]
    usage = metrics["gen_ai.client.inference.usage.output_tokens"].sum
    assert usage.is_monotonic
    assert usage.data_points[0].as_int == 44
    assert attributes_of(usage.data_points[0].attributes)["gen_ai.token.modality"] == "unknown"


def test_models_without_number_become_one() -> None:
    metrics = GenAiMetrics(convention("v0.1.0"), SLOS)
    for number in range(2000):
        metrics.observe(record(0.1), f"m{number}")
    labels = {dict(labels)["gen_ai_request_model"] for f in metrics.families() for labels, _ in f.samples}
    assert "_OTHER" in labels
    assert len(labels) < 600


def bound(index: int, scale: int) -> float:
    """The lower bound of a bucket, without a rounded base."""
    return 2.0 ** (index / 2.0**scale)


VALUES = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=60)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_every_value_lies_in_its_bucket(values: list[float]) -> None:
    histogram = ExponentialHistogram(most=20)
    for value in values:
        histogram.add(value)
    assert histogram.count == len(values) == sum(histogram.counts)
    assert len(histogram.counts) <= 20
    assert histogram.sum == pytest.approx(math.fsum(values))
    for value in values:
        index = bucket_of(value, histogram.scale)
        assert histogram.offset <= index < histogram.offset + len(histogram.counts)
        assert bound(index, histogram.scale) <= value * (1 + 1e-9)
        assert value <= bound(index + 1, histogram.scale) * (1 + 1e-9)


@pytest.mark.parametrize("scale", [-3, -1, 0, 1, 5])
def test_a_power_of_two_belongs_to_the_bucket_below_it(scale: int) -> None:
    for power in (-8, 0, 8, 16):
        value = 2.0**power
        index = bucket_of(value, scale)
        assert bound(index, scale) < value <= bound(index + 1, scale)


def test_zero_is_counted_apart_and_nonsense_not_at_all() -> None:
    histogram = ExponentialHistogram()
    for value in (0.0, math.nan, math.inf, -1.0):
        histogram.add(value)
    assert (histogram.count, histogram.zeros, histogram.counts) == (1, 1, [])
