"""All of OTLP through one running sidecar: spans and metrics pushed, the gen_ai convention's among them, and
vLLM's own spans received, joined with ours and passed on."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from sidecar.errors import SettingsError
from sidecar.publish.push import pusher_of
from sidecar.slices import Steps
from sidecar.spans.model import Span
from sidecar.spans.otlp import trace_request
from tests.support.otlp_tap import OtlpTap
from tests.support.sidecar_process import Running, sidecar_process, wait_for
from tests.support.simulated import simulate_process

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"


@dataclass
class Collector:
    """A metrics endpoint and what it got, the latest message of each resource last."""

    url: str = ""
    got: list[ExportMetricsServiceRequest] = field(default_factory=list)

    def metric(self, name: str) -> Any:
        """The latest metric of that name; ``None`` where none came."""
        for message in reversed(self.got):
            for resource in message.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == name:
                            return metric
        return None

    def value(self, name: str) -> float | None:
        """The first point's value of a sum or gauge."""
        found = self.metric(name)
        if found is None:
            return None
        points = found.sum.data_points or found.gauge.data_points
        return float(points[0].as_double)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            message = ExportMetricsServiceRequest()
            message.ParseFromString(
                gzip.decompress(raw) if self.headers.get("content-encoding") == "gzip" else raw
            )
            found.got.append(message)
            self.send_response(200 if self.path == "/v1/metrics" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1/metrics"
    yield found
    server.shutdown()
    server.server_close()
    thread.join(10)


@dataclass
class Wired:
    """The running sidecar, its collectors, and the receiver's address."""

    sidecar: Running
    tap: OtlpTap
    collector: Collector
    receiver: str

    def ask(self) -> None:
        """One request that carries a trace."""
        answer = httpx.get(self.sidecar.proxy + "/v1/models", timeout=20, trust_env=False)
        model = answer.json()["data"][0]["id"]
        body = {"model": model, "prompt": "a b c", "max_tokens": 5, "stream": True, "ignore_eos": True}
        headers = {"traceparent": f"00-{PARENT}-00f067aa0ba902b7-01"}
        answer = httpx.post(
            self.sidecar.proxy + "/v1/completions", json=body, headers=headers, timeout=60, trust_env=False
        )
        assert answer.status_code == 200


@pytest.fixture(scope="module")
def wired(collector: Collector) -> Iterator[Wired]:
    with OtlpTap() as tap, simulate_process("--profile", "fast", "--max-seconds", "200") as (_, url):
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{tap.http_port}",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
            "OTEL_SERVICE_NAME": "chat",
        }
        receive = (
            *("--spans-receiver", "127.0.0.1"),
            *("--spans-receiver-grpc-port", "0", "--spans-receiver-http-port", "0"),
        )
        with sidecar_process(url, "--slo", "ttft=30,tpot=5", *receive, env=env) as sidecar:
            assert sidecar.process.stdout is not None
            line = sidecar.process.stdout.readline()
            assert line.startswith("span receiver listening on http://127.0.0.1:"), line
            wait_for(lambda: sidecar.get("/readyz").status_code == 200)
            yield Wired(sidecar, tap, collector, line.split()[4])


def test_a_span_for_each_request_and_its_trace_as_exemplar(wired: Wired) -> None:
    wired.ask()
    wait_for(lambda: wired.sidecar.metrics().get("goodput_spans_sent_total") == 1)
    (span,) = wired.tap.wait(1)
    assert span.trace_id == PARENT
    page = wired.sidecar.get("/metrics", Accept="application/openmetrics-text").text
    exemplars = [line for line in page.splitlines() if f'# {{trace_id="{PARENT}"}}' in line]
    assert any(line.startswith("goodput_ttft_seconds_bucket") for line in exemplars)


def test_metrics_are_pushed_ours_and_the_conventions(wired: Wired) -> None:
    wait_for(lambda: (wired.collector.value("goodput_good_requests") or 0) >= 1)
    resource = wired.collector.got[0].resource_metrics[0].resource
    assert {one.key: one.value.string_value for one in resource.attributes}["service.name"] == "chat"
    assert wired.collector.value("goodput_engine_up") == 1

    def duration() -> Any:
        return wired.collector.metric("gen_ai.server.request.duration")

    wait_for(lambda: duration() is not None)
    (point,) = duration().exponential_histogram.data_points
    attributes = {one.key: one.value.string_value for one in point.attributes}
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert (duration().unit, point.count) == ("s", 1)
    assert wired.collector.metric("gen_ai.server.time_to_first_token") is not None
    # The same on the page, in classic buckets with the SLO's bound among the edges.
    page = wired.sidecar.metrics()
    assert any(
        name.startswith("gen_ai_server_time_to_first_token_seconds_bucket") and 'le="30.0"' in name
        for name in page
    )


def test_vllms_span_is_received_joined_and_passed_on(wired: Wired) -> None:
    ours = next(span for span in wired.tap.wait(1) if span.trace_id == PARENT)
    theirs = Span(
        trace_id=PARENT,
        span_id="f5ecd9a794b3c53c",
        parent_span_id=ours.span_id,
        name="llm_request",
        kind=2,
        start_ns=ours.start_ns,
        end_ns=ours.end_ns,
        attributes={
            "gen_ai.request.id": "cmpl-946f4f35b8266153-0",
            "gen_ai.latency.time_in_queue": 0.25,
            "gen_ai.latency.e2e": 0.5,
            "gen_ai.prompt": "what nobody else may read",
        },
        resource={"service.name": "vllm"},
    )
    answer = httpx.post(
        wired.receiver + "/v1/traces",
        content=trace_request([theirs], {"service.name": "vllm"}).SerializeToString(),
        headers={"content-type": "application/x-protobuf"},
        timeout=20,
        trust_env=False,
    )
    assert answer.status_code == 200
    wait_for(lambda: wired.sidecar.metrics().get('goodput_received_request_spans_total{state="joined"}') == 1)
    passed = next(span for span in wired.tap.wait(2) if span.span_id == theirs.span_id)
    assert (passed.trace_id, passed.parent_span_id) == (PARENT, ours.span_id)
    assert passed.attributes["goodput.joined"] == "trace"
    assert "nobody else" not in repr(passed)


def test_metrics_are_pushed_once_more_at_the_end(wired: Wired) -> None:
    before = len(wired.collector.got)
    assert wired.sidecar.end() == 0
    assert len(wired.collector.got) > before


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("OTEL_METRICS_EXPORTER", "statsd"), ("OTEL_METRIC_EXPORT_INTERVAL", "soon")],
)
def test_a_wrong_variable_is_named(name: str, wrong: str) -> None:
    def nothing() -> Steps[list[Any]]:
        yield
        return []

    environ = {"OTEL_METRICS_EXPORTER": "otlp", name: wrong}
    with pytest.raises(SettingsError, match=name):
        pusher_of(environ, nothing, began_wall_s=0.0)
