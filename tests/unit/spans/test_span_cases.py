"""The span cases: record and scene in, one finished span out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.redaction.engine import Redactor
from sidecar.redaction.filter import ContentFilter, Level
from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord
from sidecar.spans.genai import Scene, SpanStyle, build_span, request_parameters
from sidecar.spans.model import Span
from sidecar.spans.otlp import spans_of, trace_request
from sidecar.spans.semconv import convention

CASES = json.loads((Path(__file__).parents[2] / "cases" / "span.json").read_text())["cases"]
REDACTOR = Redactor()


def body_of(given: dict[str, Any]) -> dict[str, Any]:
    body = json.loads(json.dumps(given["request"]))
    for message in body["messages"]:
        if "content_repeat" in message:
            repeat = message.pop("content_repeat")
            message["content"] = repeat["fill"] * repeat["count"]
    return body


def record_of(given: dict[str, Any], body: dict[str, Any]) -> RequestRecord:
    clock = given["clock"]
    start = round(clock["start"]["mono_s"] * 1e9)
    first_s = clock.get("first_token_mono_s", clock.get("first_token", {}).get("mono_s"))
    first = None if first_s is None else round(first_s * 1e9)
    end_s = clock["end_mono_s"] if "end_mono_s" in clock else clock["end"]["mono_s"]
    usage = given.get("usage") or {}
    status = given.get("status", 200)
    reasons = given.get("finish_reasons", [])
    order = given.get("arrival_order", range(len(reasons)))
    choices = tuple(ChoiceRecord(i, 1, first, first, None, False, reasons[i]) for i in order)
    outcome = Outcome.COMPLETED
    if status in (429, 503):
        outcome = Outcome.REJECTED
    elif given.get("ended_by") == "client_left":
        outcome = Outcome.CLIENT_LEFT
    return RequestRecord(
        api=Api.CHAT,
        model=body["model"],
        streamed=bool(body["stream"]) and status == 200,
        start_ns=start,
        end_ns=round(end_s * 1e9),
        outcome=outcome,
        status=status,
        error_kind=ErrorKind.HTTP if status >= 400 else None,
        first_ns=first,
        last_ns=first,
        output_chunks=2 if outcome is Outcome.CLIENT_LEFT else 7,
        output_tokens=usage.get("completion_tokens", 2 if outcome is Outcome.CLIENT_LEFT else None),
        tokens_estimated=not usage and outcome is Outcome.CLIENT_LEFT,
        prompt_tokens=usage.get("prompt_tokens"),
        choices=choices,
    )


def span_of(given: dict[str, Any], level: Level, version: str = "v0.1.0") -> Span:
    body = body_of(given)
    record = record_of(given, body)
    content = ContentFilter(level, lambda: REDACTOR).request(json.dumps(body).encode())
    scene = Scene(
        start_wall_ns=round(given["clock"]["start"]["wall_s"] * 1e9),
        trace_id="0af7651916cd43dd8448eb211c80319c",
        span_id="b7ad6b7169203331",
        parameters=request_parameters(body),
        content=content,
        model=body["model"],
        response_model=given.get("response_model", ""),
    )
    style = SpanStyle(
        convention(version),
        level=level,
        content_on_span=True,
        attribute_limit=given.get("attribute_limit", 16_384),
    )
    span = build_span(record, None, scene, style)
    # Through the wire form, so that what is checked is what a collector gets.
    (received,) = spans_of(trace_request([span], {"service.name": "test"}))
    return received


@pytest.mark.parametrize("level", [Level.DROP, Level.SHAPE, Level.REDACT])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_case(case: dict[str, Any], level: Level) -> None:
    given, expect = case["input"], case["expect"]
    span = span_of(given, level)
    if "start_wall_s" in expect:
        assert span.start_ns == round(expect["start_wall_s"] * 1e9)
    if "duration_s" in expect:
        assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(expect["duration_s"], rel=1e-9)
    if "status_error" in expect:
        assert span.error is expect["status_error"]
    if "ttft_s" in expect:
        assert span.attributes["goodput.time_to_first_token"] == pytest.approx(expect["ttft_s"], rel=1e-9)
    for name, value in expect.get("attributes", {}).items():
        assert span.attributes[name] == value
    for name in expect.get("absent_attributes", []):
        assert name not in span.attributes
    if "attribute_length_max" in expect:
        longest = max(len(v.encode()) for v in span.attributes.values() if isinstance(v, str))
        assert longest <= expect["attribute_length_max"]
        if level is Level.REDACT:
            messages = json.loads(str(span.attributes["gen_ai.input.messages"]))
            assert "more]" in messages[0]["parts"][0]["content"], "cut, and says so, and still JSON"


def test_an_estimate_is_named_as_one() -> None:
    case = next(c for c in CASES if c["id"] == "span-client-left")
    span = span_of(case["input"], Level.DROP)
    assert span.attributes["goodput.output_tokens.estimated"] == 2


@pytest.mark.parametrize(
    ("version", "provider", "stream"),
    [
        ("v0.1.0", "gen_ai.provider.name", True),
        ("v1.41", "gen_ai.provider.name", True),
        ("v1.36", "gen_ai.system", False),
    ],
)
def test_each_pinned_version_has_its_names(version: str, provider: str, stream: bool) -> None:
    span = span_of(CASES[0]["input"], Level.DROP, version)
    assert span.attributes[provider] == "vllm"
    assert ("gen_ai.request.stream" in span.attributes) is stream
    assert version.lstrip("v").rsplit(".", 1)[0] in span.schema_url
    assert span.name == "chat demo"
    assert span.kind == 3
