"""The whole part as the runtime uses it: proxy before a server that sends spans as vLLM does."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sidecar.proxy.server import Proxy, ProxySettings
from sidecar.publish.exposition import render
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import DEFAULT_SLO, judge
from sidecar.spans.model import Span
from sidecar.spans.otlp import trace_request
from sidecar.spans.receiver import ReceiverSettings
from sidecar.spans.service import SpanService
from sidecar.spans.settings import OtlpSettings, SpanSettings
from tests.support.otlp_tap import OtlpTap


def chunk(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "demo", "choices": [choice]}).encode() + b"\n\n"


class LikeVllm:
    """Answers a chat and sends a span for it, child of the trace context it was given."""

    def __init__(self, receiver_port: int) -> None:
        self.receiver = f"http://127.0.0.1:{receiver_port}/v1/traces"

    async def chat(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk("one"))
        await response.write(chunk(" two", "stop"))
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        _, trace, parent, _ = request.headers["traceparent"].split("-")
        span = Span(
            trace_id=trace,
            span_id="ab" * 8,
            parent_span_id=parent,
            name="llm_request",
            kind=2,
            start_ns=1,
            end_ns=2,
            attributes={
                "gen_ai.request.id": f"chatcmpl-{request.headers['x-request-id']}",
                "gen_ai.usage.prompt_tokens": 3,
                "gen_ai.usage.completion_tokens": 2,
                "gen_ai.latency.time_in_queue": 0.25,
                "gen_ai.latency.e2e": 0.5,
            },
            resource={"service.name": "vllm"},
        )
        async with httpx.AsyncClient(trust_env=False) as client:
            payload = trace_request([span], {}).SerializeToString()
            await client.post(
                self.receiver, content=payload, headers={"content-type": "application/x-protobuf"}
            )
        return response


async def test_our_span_and_vllms_arrive_as_parent_and_child_with_tokens_said_once() -> None:
    with OtlpTap() as tap:
        settings = SpanSettings(
            exporter="otlp", otlp=OtlpSettings(f"127.0.0.1:{tap.grpc_port}", "grpc"), interval_s=0.05
        )
        service = SpanService(
            settings,
            receiver=ReceiverSettings(grpc_port=0, http_port=0),
            server=("127.0.0.1", 8000),
            slos=[DEFAULT_SLO],
        )
        await service.start()
        assert service.receiver is not None
        assert service.receiver.http_port is not None
        app = web.Application()
        app.router.add_post("/v1/chat/completions", LikeVllm(service.receiver.http_port).chat)
        upstream = web.AppRunner(app, access_log=None)
        await upstream.setup()
        await web.TCPSite(upstream, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{upstream.addresses[0][1]}"

        def ended(record: RequestRecord) -> None:
            service.on_judged((record, DEFAULT_SLO, judge(record, DEFAULT_SLO)))

        proxy = Proxy(service.proxy_settings(ProxySettings(url, listen_port=0)), on_record=ended)
        service.attach(proxy)
        await proxy.start()
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                answer = await client.post(
                    f"http://127.0.0.1:{proxy.port}/v1/chat/completions",
                    json={"model": "demo", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
                )
                assert "two" in answer.text
            spans = await asyncio.to_thread(tap.wait, 2, 30)
        finally:
            await proxy.close()
            await service.close()
            await upstream.cleanup()
    ours = next(s for s in spans if s.kind == 3)
    theirs = next(s for s in spans if s.kind == 2)
    assert theirs.parent_span_id == ours.span_id
    assert theirs.trace_id == ours.trace_id
    assert theirs.attributes["goodput.joined"] == "trace"
    assert theirs.attributes["gen_ai.latency.time_in_queue"] == 0.25
    assert ours.attributes["gen_ai.usage.output_tokens"] == 2
    assert not [name for name in theirs.attributes if name.startswith("gen_ai.usage.")]
    assert ours.attributes["goodput.good"] is True
    page = render(service.families(), openmetrics=True).decode()
    values = {
        (s.name, s.labels.get("state", "")): s.value
        for f in text_string_to_metric_families(page)
        for s in f.samples
    }
    assert values["goodput_spans_sent_total", ""] == 2
    assert values["goodput_received_request_spans_total", "joined"] == 1
    assert values["goodput_engine_span_requests_total", ""] == 1
    assert "upper bound" in page
    assert values["gen_ai_server_request_duration_seconds_count", ""] == 1


def test_metrics_are_pushed_as_otlp() -> None:
    got: list[bytes] = []
    came = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            got.append(gzip.decompress(raw) if self.headers.get("content-encoding") == "gzip" else raw)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            came.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1/metrics"
    service = SpanService(
        SpanSettings(), slos=[DEFAULT_SLO], push=OtlpSettings(url, compression="gzip"), push_interval_s=0.05
    )
    try:
        assert came.wait(20)
    finally:
        asyncio.run(service.close())
        server.shutdown()
        server.server_close()
    message = ExportMetricsServiceRequest()
    message.ParseFromString(got[0])
    assert message.resource_metrics[0].scope_metrics[0].scope.name == "goodput-sidecar"
    assert service.push is not None
    assert service.push.sent >= 1
