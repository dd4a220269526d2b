"""A real sidecar process before an engine whose page wants a token, and what it then says of its scrapes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.metrics_server import MetricsServer, answer
from tests.support.sidecar_process import sidecar_process, wait_for

BUSY = (Path(__file__).parents[2] / "fixtures" / "vllm" / "0.32.0" / "metrics_busy.txt").read_bytes()
ADAPTERS = (
    b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="law,code",'
    b'waiting_lora_adapters="law"} 1.7e9\n'
)


@pytest.fixture
def engine() -> Iterator[MetricsServer]:
    server = MetricsServer(
        {
            "/metrics": [answer(BUSY + ADAPTERS + b"brand_new_family 1\n")],
            "/health": [answer(b"")],
        }
    )
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(done.wait, 120)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server
    done.set()
    thread.join(10)


def test_the_token_is_sent_never_shown_and_a_dead_engine_is_down(engine: MetricsServer) -> None:
    env = {"GOODPUT_ENGINE_TOKEN": "s3cret-token"}
    with sidecar_process(engine.url, "--scrape-interval-s", "2", env=env) as running:
        wait_for(lambda: running.metrics().get("goodput_engine_up") == 1)
        found = running.metrics()
        lines = BUSY.count(b"\n") + 2
        assert found["goodput_engine_scrape_lines"] == lines
        assert found["goodput_engine_scrape_bytes"] == len(BUSY + ADAPTERS) + len("brand_new_family 1\n")
        assert found["goodput_engine_unmapped_families"] == 1
        assert found['goodput_engine_lora_adapters{adapter="law",state="waiting"}'] == 1
        assert found['goodput_engine_lora_adapters{adapter="code",state="running"}'] == 1
        assert 0 < found["goodput_engine_scrape_duration_seconds"] < 2
        assert 0 < found["goodput_series"] == len(found) <= found["goodput_series_budget"]
        shown = "".join(running.get(path).text for path in ("/metrics", "/", "/goodput.json", "/autoscale"))
        assert "s3cret-token" not in shown
        heads = [head for head in engine.requests if head.startswith("GET /metrics ")]
        assert all("\r\nAuthorization: Bearer s3cret-token\r\n" in head for head in heads)
        # The engine process dies behind its living front end: the page still comes, its values do not count.
        engine.answers["/health"] = [answer(b"", status="503 Service Unavailable")]
        wait_for(lambda: running.metrics()["goodput_engine_up"] == 0)
        found = running.metrics()
        assert found['goodput_engine_down_reason{reason="unhealthy"}'] == 1
        assert not [name for name in found if name.startswith("goodput_engine_running_requests")]
        assert running.end() == 0
