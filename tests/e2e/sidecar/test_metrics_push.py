"""The running sidecar pushes its metrics by OTLP: while it runs, and once more when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.sidecar_process import sidecar_process, wait_for
from tests.support.simulated import simulate_process


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    """A collector's metrics endpoint and what it got."""
    got: list[ExportMetricsServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = ExportMetricsServiceRequest()
            message.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            got.append(message)
            self.send_response(200 if self.path == "/v1/metrics" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    server.server_close()
    thread.join(10)


def value(message: ExportMetricsServiceRequest, name: str) -> Any:
    """The first point's value of a sum or gauge; ``None`` where it is not in the message."""
    for metric in message.resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == name:
            points = metric.sum.data_points or metric.gauge.data_points
            return points[0].as_double
    return None


def test_metrics_are_pushed_until_the_end(collector: tuple[str, list[ExportMetricsServiceRequest]]) -> None:
    url, got = collector
    env = {
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
        "OTEL_SERVICE_NAME": "chat",
    }
    with (
        simulate_process("--profile", "fast", "--max-seconds", "120") as (_, upstream),
        sidecar_process(upstream, "--slo", "ttft=30", env=env) as sidecar,
    ):
        wait_for(lambda: any(value(m, "goodput_engine_up") == 1 for m in got))
        assert got[0].resource_metrics[0].resource.attributes[0].value.string_value == "chat"
        model = httpx.get(sidecar.proxy + "/v1/models", timeout=20, trust_env=False).json()["data"][0]["id"]
        body = {"model": model, "prompt": "a b", "max_tokens": 4, "stream": True, "ignore_eos": True}
        httpx.post(sidecar.proxy + "/v1/completions", json=body, timeout=60, trust_env=False)
        wait_for(lambda: value(got[-1], "goodput_good_requests") == 1)
        before = len(got)
        assert sidecar.end() == 0
        assert len(got) > before


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("OTEL_METRICS_EXPORTER", "statsd"), ("OTEL_METRIC_EXPORT_INTERVAL", "soon")],
)
def test_a_wrong_variable_is_named(name: str, wrong: str) -> None:
    from sidecar.errors import SettingsError
    from sidecar.publish.push import pusher_of

    environ = {"OTEL_METRICS_EXPORTER": "otlp", name: wrong}
    with pytest.raises(SettingsError, match=name):
        pusher_of(environ, list, began_wall_s=0.0)
