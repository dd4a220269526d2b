"""Spans recorded from a real vLLM 0.32.0, sent to the receiver through real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from sidecar.errors import UserError
from sidecar.redaction.engine import Redactor
from sidecar.redaction.filter import ContentFilter, Level
from sidecar.spans.intake import Intake
from sidecar.spans.joins import Joins, Ours
from sidecar.spans.model import Event, Span
from sidecar.spans.otlp import trace_request
from sidecar.spans.receiver import OtlpReceiver, ReceiverSettings
from sidecar.spans.semconv import convention

FOLDER = Path(__file__).parents[2] / "fixtures" / "vllm" / "0.32.0"
TRUTH = {t["request_id"]: t for t in json.loads((FOLDER / "otlp_truth.json").read_text())}
KINDS = {"SPAN_KIND_INTERNAL": 1, "SPAN_KIND_SERVER": 2}
REDACTOR = Redactor()


def recorded() -> list[list[Span]]:
    """The batches as vLLM sent them."""
    batches = []
    for batch in json.loads((FOLDER / "otlp_spans.json").read_text()):
        batches.append(
            [
                Span(
                    trace_id=s["traceId"],
                    span_id=s["spanId"],
                    parent_span_id=s.get("parentSpanId", ""),
                    name=s["name"],
                    kind=KINDS[s["kind"]],
                    start_ns=int(s["startTimeUnixNano"]),
                    end_ns=int(s["endTimeUnixNano"]),
                    attributes=s["attributes"],
                    flags=s["flags"],
                    scope=batch["scope"]["name"],
                    resource=batch["resource"],
                )
                for s in batch["spans"]
            ]
        )
    return batches


class Setup:
    """A listening receiver and what it passed on."""

    def __init__(self) -> None:
        self.joins = Joins()
        self.passed: list[Span] = []
        clean = ContentFilter(Level.DROP, lambda: REDACTOR).text
        self.records: list[Any] = []
        self.intake = Intake(
            self.joins, convention("v0.1.0"), clean, self.passed.append, on_record=self.records.append
        )
        self.receiver = OtlpReceiver(ReceiverSettings(grpc_port=0, http_port=0), self.intake)

    async def send(self, spans: list[Span], protocol: str) -> None:
        request = trace_request(spans, {})
        if protocol == "grpc":
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{self.receiver.grpc_port}", compression=grpc.Compression.Gzip
            ) as channel:
                await trace_service_pb2_grpc.TraceServiceStub(channel).Export(request, timeout=20)
            return
        headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(
                self.url, content=gzip.compress(request.SerializeToString()), headers=headers
            )
        assert answer.status_code == 200
        trace_service_pb2.ExportTraceServiceResponse().ParseFromString(answer.content)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.receiver.http_port}/v1/traces"


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    await made.receiver.start()
    yield made
    await made.receiver.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_every_recorded_span_arrives_joined(setup: Setup, protocol: str) -> None:
    for request_id, truth in TRUTH.items():
        trace_id = truth.get("trace_id", "f" * 31 + "1")
        span_id = truth.get("span_id", f"{abs(hash(request_id)) % 2**64:016x}")
        setup.joins.put(Ours(trace_id, span_id, finished=True, usage=True), request_id)
    for batch in recorded():
        await setup.send(batch, protocol)
    requests = [s for s in setup.passed if s.name == "llm_request"]
    assert len(requests) == 20
    by_id: dict[str, list[Span]] = {}
    for span in requests:
        by_id.setdefault(str(span.attributes["gen_ai.request.id"]), []).append(span)
    # The three warm-up requests were sent past the proxy.
    assert setup.intake.counts["joined"] == 17
    assert setup.intake.counts["unjoined"] == 3
    chat = by_id["chatcmpl-trace-chat"][0]
    assert chat.attributes["goodput.joined"] == "trace"
    assert chat.parent_span_id == TRUTH["trace-chat"]["span_id"]
    lonely = by_id["chatcmpl-trace-chat_no_traceparent"][0]
    assert lonely.attributes["goodput.joined"] == "request_id"
    assert lonely.attributes["goodput.vllm.trace_id"] == "72d088abfec877fc5ccef614d6fbf28c"
    assert lonely.trace_id == "f" * 31 + "1"
    assert {len(by_id[f"cmpl-trace-batch2-{i}"]) for i in (0, 1)} == {1}
    for span in requests:
        joined = span.attributes["goodput.joined"] != "none"
        has_usage = any(name.startswith("gen_ai.usage.") for name in span.attributes)
        assert has_usage is not joined, "tokens are said once"
        assert span.attributes["gen_ai.latency.time_in_queue"] >= 0
        assert "gen_ai.latency.time_in_model_prefill" in span.attributes
        assert "gen_ai.latency.time_in_model_decode" in span.attributes
        assert span.attributes["gen_ai.provider.name"] == "vllm"
        assert span.attributes["gen_ai.operation.name"] in ("chat", "text_completion")
    unjoined = next(s for s in requests if s.attributes["goodput.joined"] == "none")
    assert (
        unjoined.attributes["gen_ai.usage.input_tokens"] == unjoined.attributes["gen_ai.usage.prompt_tokens"]
    )
    assert unjoined.attributes["gen_ai.usage.output_tokens"] == 8


async def test_rejected_and_aborted_requests_leave_no_span_so_a_span_record_is_a_bound(setup: Setup) -> None:
    for batch in recorded():
        await setup.send(batch, "grpc")
    seen = {r.request_id for r in setup.records}
    assert len(setup.records) == 20
    for missing in ("trace-cancelled", "trace-too_long", "trace-not_found"):
        assert missing in TRUTH
        assert missing not in seen
    chat = next(r for r in setup.records if r.request_id == "trace-chat")
    truth = TRUTH["trace-chat"]
    assert (chat.prompt_tokens, chat.output_tokens) == (9, 8)
    assert chat.e2e_ns / 1e9 <= truth["e2e_s"]
    assert chat.ttft_ns is not None
    assert chat.ttft_ns / 1e9 <= truth["first_event_s"]
    assert any("bound" in w for w in chat.warnings)


async def test_start_up_spans_become_a_cold_start(setup: Setup) -> None:
    for batch in recorded():
        await setup.send(batch, "http")
    start = setup.intake.cold_starts.latest
    assert start is not None
    assert start.complete
    assert start.total_s == pytest.approx(28.313604318)
    assert start.phases_s["load_weights"] == pytest.approx(0.030820462)
    assert start.phases_s["kv_cache"] == pytest.approx(0.850705247)
    assert sum(start.phases_s.values()) == pytest.approx(start.total_s)


async def test_a_span_waits_for_its_request_to_end_here(setup: Setup) -> None:
    span = next(
        s for b in recorded() for s in b if s.attributes.get("gen_ai.request.id") == "chatcmpl-trace-chat"
    )
    setup.joins.put(Ours(span.trace_id, span.parent_span_id), "trace-chat")
    await setup.send([span], "grpc")
    assert not setup.passed
    setup.joins.put(Ours(span.trace_id, span.parent_span_id, finished=True, usage=True), "trace-chat")
    for _ in range(200):
        if setup.passed:
            break
        await asyncio.sleep(0.05)
    assert setup.passed[0].attributes["goodput.joined"] == "trace"
    assert not [name for name in setup.passed[0].attributes if name.startswith("gen_ai.usage.")]


async def test_what_was_not_sampled_is_not_passed_on(setup: Setup) -> None:
    span = next(
        s for b in recorded() for s in b if s.attributes.get("gen_ai.request.id") == "chatcmpl-trace-chat"
    )
    setup.joins.put(
        Ours(span.trace_id, span.parent_span_id, finished=True, usage=True, kept=False), "trace-chat"
    )
    await setup.send([span], "http")
    assert not setup.passed
    assert setup.intake.counts["sampled_out"] == 1


async def test_received_texts_are_filtered(setup: Setup) -> None:
    canary = "canary-7731"
    span = Span(
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_span_id="",
        name="llm_request",
        kind=2,
        start_ns=1,
        end_ns=2,
        attributes={
            "gen_ai.request.id": "chatcmpl-dana@example.com",
            "gen_ai.prompt": canary,
            "gen_ai.input.messages": canary,
            "gen_ai.request.stop_sequences": [canary],
            "http.url": f"http://x/{canary}",
            "gen_ai.latency.e2e": 0.5,
            "llm.usage.completion_tokens": 4,
            "code.filepath": f"/home/{canary}/x.py",
        },
        events=(Event("exception", 1, {"exception.type": "ValueError", "exception.message": canary}),),
        error=True,
        error_message="gail@example.com failed",
        resource={"service.name": "vllm", "host.owner": canary},
    )
    await setup.send([span], "http")
    (passed,) = setup.passed
    assert canary not in repr(passed)
    assert "example.com" not in repr(passed)
    assert passed.events[0].attributes == {"exception.type": "ValueError"}
    assert passed.error_message == ""
    assert passed.error
    assert passed.attributes["gen_ai.usage.output_tokens"] == 4, "an old name is understood"


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"\xff\xff\xff\xff", {"content-type": "application/x-protobuf"}, 400, "malformed"),
        (b"{}", {"content-type": "application/json"}, 415, "media_type"),
        (b"x", {"content-type": "application/x-protobuf", "content-encoding": "br"}, 415, "encoding"),
        (
            b"no gzip",
            {"content-type": "application/x-protobuf", "content-encoding": "gzip"},
            400,
            "malformed",
        ),
        (
            gzip.compress(b"\0" * (17 << 20)),
            {"content-type": "application/x-protobuf", "content-encoding": "gzip"},
            413,
            "too_large",
        ),
    ],
)
async def test_what_is_no_message_is_refused_and_counted(
    setup: Setup, body: bytes, headers: dict[str, str], status: int, reason: str
) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(setup.url, content=body, headers=headers)
    assert answer.status_code == status
    assert setup.receiver.refused == {reason: 1}


async def test_a_span_with_wrong_ids_does_not_cost_the_others(setup: Setup) -> None:
    # A collector refuses the whole batch for such an id.
    message = trace_request([Span("1" * 32, "2" * 16, "", "load", 1, 1, 2, {})], {})
    spans = message.resource_spans[0].scope_spans[0].spans
    for trace_id, span_id in ((b"", b""), (b"x", b"y"), (b"1" * 40, b"2" * 40), (bytes(16), bytes(8))):
        spans.add(trace_id=trace_id, span_id=span_id, name="load")
    async with httpx.AsyncClient(trust_env=False) as client:
        kind = {"content-type": "application/x-protobuf"}
        answer = await client.post(setup.url, content=message.SerializeToString(), headers=kind)
    assert answer.status_code == 200
    assert setup.receiver.refused == {"ids": 4}
    assert [span.trace_id for span in setup.passed] == ["1" * 32]


async def test_very_many_spans_are_refused_and_hold_nobody_up(setup: Setup) -> None:
    message = trace_request([], {})
    spans = message.resource_spans.add().scope_spans.add().spans
    for _ in range(60_000):
        spans.add(trace_id=b"1" * 16, span_id=b"2" * 8, name="x")
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        kind = {"content-type": "application/x-protobuf"}
        answer = await client.post(setup.url, content=message.SerializeToString(), headers=kind)
    assert answer.status_code == 413
    assert setup.receiver.refused["too_large"] == 1
    assert not setup.passed


async def test_a_taken_port_is_one_clear_line(setup: Setup) -> None:
    taken = OtlpReceiver(ReceiverSettings(grpc_port=setup.receiver.grpc_port, http_port=None), setup.intake)
    with pytest.raises(UserError, match="cannot listen"):
        await taken.start()
