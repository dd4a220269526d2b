"""The running sidecar sends a span for each request, and the trace id is on the latency buckets."""

from __future__ import annotations

import httpx

from tests.support.otlp_tap import OtlpTap
from tests.support.sidecar_process import sidecar_process, wait_for
from tests.support.simulated import simulate_process


def test_a_span_for_each_request_and_its_trace_as_exemplar() -> None:
    parent = "4bf92f3577b34da6a3ce929d0e0e4736"
    with OtlpTap() as tap, simulate_process("--profile", "fast", "--max-seconds", "120") as (_, url):
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{tap.http_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        with sidecar_process(url, env=env) as sidecar:
            wait_for(lambda: sidecar.get("/readyz").status_code == 200)
            model = httpx.get(sidecar.proxy + "/v1/models", timeout=20, trust_env=False).json()["data"][0][
                "id"
            ]
            body = {"model": model, "prompt": "a b c", "max_tokens": 5, "stream": True, "ignore_eos": True}
            headers = {"traceparent": f"00-{parent}-00f067aa0ba902b7-01"}
            httpx.post(
                sidecar.proxy + "/v1/completions", json=body, headers=headers, timeout=60, trust_env=False
            )
            wait_for(lambda: sidecar.metrics().get("goodput_spans_sent_total") == 1)
            (span,) = tap.wait(1)
            assert span.trace_id == parent
            page = sidecar.get("/metrics", Accept="application/openmetrics-text").text
            exemplars = [line for line in page.splitlines() if f'# {{trace_id="{parent}"}}' in line]
            assert any(line.startswith("goodput_ttft_seconds_bucket") for line in exemplars)
            assert sidecar.end() == 0
