"""The real vLLM sends its spans to the sidecar: joined to ours, tokens said once, start-up told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.sidecar_process import sidecar_process, wait_for

pytestmark = pytest.mark.real_vllm

SCRIPT = Path(__file__).with_name("real_vllm.sh")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spans_in(path: Path) -> list[dict[str, Any]]:
    """All spans of a lines file, attributes as a mapping."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        for entry in json.loads(line)["resourceSpans"]:
            for scope in entry["scopeSpans"]:
                for span in scope["spans"]:
                    values = {a["key"]: next(iter(a["value"].values()), None) for a in span["attributes"]}
                    found.append({**span, "attributes": values})
    return found


@pytest.mark.timeout(900)
def test_spans_of_a_real_vllm_arrive_joined(tmp_path: Path) -> None:
    setup = subprocess.run(["bash", SCRIPT, "setup"], capture_output=True, text=True, timeout=600)
    if setup.returncode:
        pytest.skip(f"vLLM for the CPU can't be installed here: {setup.stderr.strip()[-300:]}")
    vllm_port, grpc_port, http_port = free_port(), free_port(), free_port()
    lines = tmp_path / "spans.jsonl"
    url = f"http://127.0.0.1:{vllm_port}"
    with sidecar_process(
        url,
        *("--spans-file", str(lines), "--spans-receiver", "127.0.0.1"),
        *("--spans-receiver-grpc-port", str(grpc_port), "--spans-receiver-http-port", str(http_port)),
        env={"OTEL_BSP_SCHEDULE_DELAY": "100"},
    ) as sidecar:
        served = subprocess.run(
            [
                "bash",
                SCRIPT,
                "serve",
                str(vllm_port),
                "--otlp-traces-endpoint",
                f"http://127.0.0.1:{grpc_port}",
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=400,
            env={**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "500"},
        )
        if served.returncode:
            pytest.skip("vLLM was installed but did not become healthy; see its server log")
        pid = int(served.stdout.split()[-1])
        try:
            for number in range(6):
                chat = number % 2 == 0
                body: dict[str, Any] = {"model": "tiny-llama", "max_tokens": 6, "stream": number != 3}
                if body["stream"]:
                    body["stream_options"] = {"include_usage": True}
                body |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
                path = "/v1/chat/completions" if chat else "/v1/completions"
                answer = httpx.post(sidecar.proxy + path, json=body, timeout=120, trust_env=False)
                assert answer.status_code == 200
            refused = httpx.post(
                sidecar.proxy + "/v1/completions",
                json={"model": "tiny-llama", "prompt": "x " * 5000},
                timeout=60,
                trust_env=False,
            )
            assert refused.status_code == 400
            wait_for(lambda: len([s for s in spans_in(lines) if s["name"] == "llm_request"]) >= 6, 60)
            page = sidecar.metrics()
        finally:
            os.kill(pid, signal.SIGTERM)
        assert sidecar.end() == 0
    spans = spans_in(lines)
    ours = {s["spanId"]: s for s in spans if s["kind"] == 3}
    theirs = [s for s in spans if s["name"] == "llm_request"]
    assert len(ours) == 7, "the refused request has a span of ours, and none of vLLM's"
    assert len(theirs) == 6
    for span in theirs:
        assert span["attributes"]["goodput.joined"] == "trace"
        parent = ours[span["parentSpanId"]]
        assert span["traceId"] == parent["traceId"]
        said_here = "gen_ai.usage.output_tokens" in parent["attributes"]
        said_there = "gen_ai.usage.output_tokens" in span["attributes"]
        assert said_here != said_there, "tokens are said once"
        assert float(span["attributes"]["gen_ai.latency.time_in_queue"]) >= 0
    assert page['goodput_received_request_spans_total{state="joined"}'] == 6
    assert page['goodput_engine_cold_start_seconds{phase="total"}'] > 0
    assert 'goodput_engine_cold_start_seconds{phase="load_weights"}' in page
