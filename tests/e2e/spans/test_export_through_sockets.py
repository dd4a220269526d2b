"""Spans from record to a real collector and back, attribute by attribute."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.proxy.observe import Started
from sidecar.proxy.trace import TraceContext
from sidecar.redaction.filter import Level
from sidecar.requests.apis import RequestFacts
from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord
from sidecar.spans.genai import EngineState
from sidecar.spans.otlp import attributes_of
from sidecar.spans.recorder import RequestContext, SpanRecorder
from sidecar.spans.settings import OtlpSettings, SpanSettings
from tests.support.otlp_tap import OtlpTap

TRACE, OURS, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "53ce929d0e0e4736"
BODY = {
    "model": "demo",
    "stream": True,
    "max_tokens": 64,
    "temperature": 0,
    "top_k": 20,
    "seed": 7,
    "stop": ["mail me at stop@example.com"],
    "user": "user-77@example.com",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Write to dana@example.com about 4111 1111 1111 1111"},
    ],
}


def started(start_ns: int, body: bytes, *, trace: TraceContext | None, request_id: str = "req-1") -> Started:
    return Started(
        request_id=request_id,
        api=Api.CHAT,
        path="/v1/chat/completions?key=abc",
        request_class="",
        facts=RequestFacts("demo", True, 1, True, 3),
        body=body,
        start_ns=start_ns,
        trace=trace,
    )


def record(start_ns: int, *, trace: TraceContext | None, **changes: Any) -> RequestRecord:
    extra = {}
    if trace is not None:
        extra = {
            "trace_id": trace.trace_id,
            "span_id": trace.span_id,
            "parent_span_id": trace.parent_span_id,
            "trace_flags": trace.flags,
        }
    values: dict[str, Any] = {
        "api": Api.CHAT,
        "model": "demo",
        "streamed": True,
        "start_ns": start_ns,
        "end_ns": start_ns + 1_000_000_000,
        "outcome": Outcome.COMPLETED,
        "status": 200,
        "first_ns": start_ns + 400_000_000,
        "last_ns": start_ns + 900_000_000,
        "output_chunks": 4,
        "output_tokens": 4,
        "prompt_tokens": 9,
        "cached_tokens": 3,
        "choices": (
            ChoiceRecord(
                0,
                4,
                start_ns + 400_000_000,
                start_ns + 900_000_000,
                4,
                False,
                "stop",
                "call gail@example.com",
            ),
        ),
        "gaps_ns": (20_000_000, 460_000_000, 20_000_000),
        "first_answer_ns": start_ns + 420_000_000,
        "request_id": "req-1",
        "path": "/v1/chat/completions?key=abc",
        "extra": extra | {"first_chunk_ns": str(start_ns + 390_000_000)},
    }
    return RequestRecord(**(values | changes))


def settings(tap: OtlpTap, protocol: str, **changes: Any) -> SpanSettings:
    if protocol == "grpc":
        otlp = OtlpSettings(f"127.0.0.1:{tap.grpc_port}", "grpc", {"x-tenant": "t1"}, compression="gzip")
        logs = otlp
    else:
        url = f"http://127.0.0.1:{tap.http_port}/v1/traces"
        otlp = OtlpSettings(url, "http/protobuf", {"x-tenant": "t1"}, compression="gzip")
        logs = OtlpSettings(url.replace("traces", "logs"), "http/protobuf")
    return SpanSettings(exporter="otlp", otlp=otlp, otlp_logs=logs, interval_s=0.05, **changes)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_gets_every_attribute(protocol: str) -> None:
    trace = TraceContext(TRACE, OURS, CALLER, "01")
    with OtlpTap() as tap:
        recorder = SpanRecorder(
            settings(tap, protocol, level=Level.REDACT, content_on_span=True, content_on_event=True),
            server_address="127.0.0.1",
            server_port=8000,
            engine_state=lambda: EngineState(3, 2, 0.5),
            wall_ns=lambda: 1_796_066_200_000_000_000,
            clock_ns=lambda: 50_000_000_000,
        )
        try:
            recorder.started(started(50_000_000_000, json.dumps(BODY).encode(), trace=trace))
            recorder.record(
                record(50_000_000_000, trace=trace), None, RequestContext(slo_class="chat", stall_s=0.25)
            )
            assert recorder.flush(20)
        finally:
            recorder.close()
        (span,) = tap.wait(1)
        headers = tap.headers[0]
        logs = list(tap.logs)
    assert headers["x-tenant"] == "t1"
    assert (span.trace_id, span.span_id, span.parent_span_id) == (TRACE, OURS, CALLER)
    assert (span.name, span.kind, span.error) == ("chat demo", 3, False)
    assert span.start_ns == 1_796_066_200_000_000_000
    assert span.end_ns - span.start_ns == 1_000_000_000
    attributes = dict(span.attributes)
    messages = json.loads(attributes.pop("gen_ai.input.messages"))
    output = json.loads(attributes.pop("gen_ai.output.messages"))
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[1]["parts"] == [{"type": "text", "content": "Write to [EMAIL] about [CARD]"}]
    assert output[0]["parts"] == [{"type": "text", "content": "call [EMAIL]"}]
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "demo",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_k": 20,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ["mail me at [EMAIL]"],
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.39,
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "goodput.outcome": "completed",
        "goodput.time_to_first_token": 0.4,
        "goodput.time_to_first_answer_token": 0.42,
        "goodput.time_per_output_token": pytest.approx(0.5 / 3),
        "goodput.itl.p50": 0.02,
        "goodput.itl.p99": 0.46,
        "goodput.itl.max": 0.46,
        "goodput.stalls": 1,
        "goodput.output_chunks": 4,
        "goodput.slo.class": "chat",
        "goodput.request_id": "req-1",
        "goodput.path": "/v1/chat/completions",
        "goodput.engine.running": 3,
        "goodput.engine.waiting": 2,
        "goodput.engine.kv_usage": 0.5,
        "goodput.redaction": "redact",
        "goodput.request.user": "[EMAIL]",
    }
    events = {e.name: e for e in span.events}
    assert events["goodput.first_token"].at_ns - span.start_ns == 400_000_000
    assert events["goodput.stall"].at_ns - span.start_ns == 420_000_000
    assert list(events) == ["goodput.first_token", "goodput.stall"]
    (event,) = logs[0].resource_logs[0].scope_logs[0].log_records
    assert event.event_name == "gen_ai.client.inference.operation.details"
    assert (event.trace_id.hex(), event.span_id.hex()) == (TRACE, OURS)
    details = attributes_of(event.attributes)
    assert details["gen_ai.input.messages"] == messages, "structure on an event, not JSON text"
    assert details["gen_ai.request.model"] == "demo"


def test_content_is_off_by_default_and_the_span_whole_otherwise() -> None:
    with OtlpTap() as tap:
        recorder = SpanRecorder(settings(tap, "http/protobuf"))
        try:
            now = time.monotonic_ns()
            recorder.started(started(now, json.dumps(BODY).encode(), trace=None))
            recorder.record(record(now, trace=None))
            assert recorder.flush(20)
        finally:
            recorder.close()
        (span,) = tap.wait(1)
        raw = b"".join(tap.raw)
    assert not [name for name in span.attributes if "messages" in name or "stop_sequences" in name]
    assert b"example.com" not in raw
    assert len(span.trace_id) == 32
    assert span.attributes["gen_ai.request.max_tokens"] == 64


def test_sampled_out_by_the_caller_but_errors_stay() -> None:
    with OtlpTap() as tap:
        recorder = SpanRecorder(settings(tap, "grpc"))
        try:
            for number, outcome in enumerate([Outcome.COMPLETED, Outcome.REJECTED]):
                trace = TraceContext(TRACE, f"{number + 1:016x}", CALLER, "00")
                status = 200 if outcome is Outcome.COMPLETED else 503
                recorder.record(
                    record(1, trace=trace, outcome=outcome, status=status, error_kind=ErrorKind.HTTP)
                )
            assert recorder.flush(20)
        finally:
            recorder.close()
        (span,) = tap.wait(1)
    assert span.attributes["error.type"] == "503"
    assert span.error
    assert recorder.sampled_out == 1


def test_a_collector_that_is_down_costs_spans_and_no_time() -> None:
    with OtlpTap() as tap:
        gone = settings(tap, "http/protobuf", queue=4, batch=2)
    recorder = SpanRecorder(gone)
    try:
        for number in range(50):
            recorder.record(record(1, trace=None, request_id=f"r{number}"))
        deadline = time.monotonic() + 20
        while recorder.exporter.dropped["queue_full"] < 40 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        recorder.close(0.5)
    assert recorder.exporter.sent == 0
    dropped = recorder.exporter.dropped
    assert sum(dropped.values()) == 50
    assert dropped["queue_full"] >= 40


def test_a_collector_with_a_hiccup_gets_the_spans_once() -> None:
    with OtlpTap(status=[503, 429]) as tap:
        recorder = SpanRecorder(settings(tap, "http/protobuf"))
        recorder.exporter._sleep = lambda _: None
        try:
            recorder.record(record(1, trace=None))
            assert recorder.flush(20)
        finally:
            recorder.close()
        assert len(tap.wait(1)) == 1
    assert recorder.exporter.sent == 1
    assert not recorder.exporter.dropped


def test_a_collector_that_refuses_is_not_asked_again() -> None:
    with OtlpTap(status=[400]) as tap:
        recorder = SpanRecorder(settings(tap, "http/protobuf"))
        try:
            recorder.record(record(1, trace=None))
            assert recorder.flush(20)
        finally:
            recorder.close()
        assert not tap.spans
    assert recorder.exporter.dropped == {"rejected": 1}


def test_lines_of_a_file_are_otlp_json(tmp_path: Path) -> None:
    target = tmp_path / "spans.jsonl"
    recorder = SpanRecorder(SpanSettings(exporter="file", file=target, interval_s=0.05))
    try:
        recorder.record(record(1, trace=None))
        recorder.record(record(2, trace=None))
        assert recorder.flush(20)
    finally:
        recorder.close()
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(lines) == 2
    span = lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert span["name"] == "chat demo"
    assert {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}} in span["attributes"]
    assert target.stat().st_mode & 0o077 == 0


def test_a_full_work_queue_drops_content_and_says_so() -> None:
    with OtlpTap() as tap:
        given = settings(tap, "http/protobuf", level=Level.REDACT, content_on_span=True, work_bytes=10)
        recorder = SpanRecorder(given)
        try:
            now = time.monotonic_ns()
            recorder.started(started(now, json.dumps(BODY).encode(), trace=None))
            recorder.record(record(now, trace=None))
            assert recorder.flush(20)
        finally:
            recorder.close()
        (span,) = tap.wait(1)
    assert span.attributes["goodput.redaction"] == "failed"
    assert span.attributes["goodput.redaction.reason"] == "queue_full"
    assert recorder.filter.counts.failures["queue_full"] == 1
