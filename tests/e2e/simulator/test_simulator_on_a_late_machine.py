"""A machine that lags behind the simulated engine: nobody is answered before having asked."""

from __future__ import annotations

import asyncio
import time

import httpx

from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from tests.support.simulated import simulated


async def test_no_time_on_the_page_is_negative_however_late_the_machine_is() -> None:
    async with (
        simulated("fast") as simulator,
        httpx.AsyncClient(base_url=simulator.url, timeout=60, trust_env=False) as client,
    ):

        async def ask(tokens: int) -> None:
            body = {"model": "fast-tiny", "prompt": "a b", "max_tokens": tokens, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200

        long = asyncio.create_task(ask(2000))
        short: list[asyncio.Task[None]] = []
        for _ in range(15):
            short.append(asyncio.create_task(ask(2)))
            await asyncio.sleep(0.002)
            time.sleep(0.12)  # noqa: ASYNC251 (the whole process stands still, as on a starved machine)
        await asyncio.gather(long, *short)
        page = await client.get("/metrics")
    view = map_page(parse(page.content, content_type=page.headers["content-type"]))
    for name in ("ttft", "e2e", "queue", "prefill", "decode", "itl"):
        histogram = view.histograms.get(name)
        if histogram is not None:
            for one in histogram.series.values():
                assert one.sum is not None
                assert one.sum >= 0, name
    assert sum(h.cumulative[-1] for h in view.histograms["ttft"].series.values()) == 16
