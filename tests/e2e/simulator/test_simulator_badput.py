"""Every kind of badput can be provoked with the simulator, and the judge puts it into its bucket.

Only simulated time is relied on. A slow machine makes it longer; a token that came late can make the time
to the next shorter, but by no more than the quarter of a second after which the simulator starts afresh:
all margins are wider.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import aiohttp

from loadgen.simulator.profile import find_profile
from loadgen.simulator.server import Simulator
from sidecar.requests.records import Api, End, RequestRecord
from sidecar.requests.slo import Bucket, SloClass, judge
from sidecar.requests.stream import StreamMeter
from tests.support.simulated import simulated, until

STEP_S = 0.02
SLOW = replace(find_profile("fast"), step_overhead_s=STEP_S)
NO_BOUNDS = {
    "ttft_s": None,
    "tpot_s": None,
    "itl_p99_s": None,
    "max_gap_s": None,
    "e2e_s": None,
    "stall_s": None,
}


def slo(**bounds: float) -> SloClass:
    return SloClass(name="test", **(NO_BOUNDS | bounds))


async def ask(
    simulator: Simulator,
    *,
    prompt: int = 8,
    tokens: int = 10,
    fault: str = "",
    leave: asyncio.Event | None = None,
) -> RequestRecord:
    """One streamed request, measured; with ``leave`` the client goes when that is set."""
    body: dict[str, Any] = {
        "prompt": "x " * prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    meter = StreamMeter(Api.COMPLETIONS, start_ns=time.monotonic_ns())
    end = End.EOF

    async def read() -> None:
        nonlocal end
        url, headers = f"{simulator.url}/v1/completions", {"x-sim-fault": fault}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as answer,
        ):
            meter.on_headers(answer.status, answer.headers.items(), time.monotonic_ns())
            try:
                async for data in answer.content.iter_any():
                    meter.feed(data, time.monotonic_ns())
            except aiohttp.ClientPayloadError:
                end = End.RESET

    reading = asyncio.create_task(read())
    if leave is not None:
        await leave.wait()
        end = End.CLIENT_LEFT
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    else:
        await asyncio.wait_for(reading, 60)
    return meter.finish(end, time.monotonic_ns())


async def test_a_request_within_its_bounds_is_good() -> None:
    async with simulated(SLOW) as simulator:
        verdict = judge(await ask(simulator), slo(ttft_s=30, tpot_s=30, max_gap_s=30, e2e_s=60))
        assert (verdict.good, verdict.bucket) == (True, None)


async def test_rejected_and_error() -> None:
    async with simulated(SLOW) as simulator:
        bounds = slo(ttft_s=30)
        rejected = await ask(simulator, fault="reject=1,retry_after_s=7")
        assert judge(rejected, bounds).bucket is Bucket.REJECTED
        assert rejected.retry_after_s == 7
        for fault in ("error=1", "drop=1", "error_event=1"):
            assert judge(await ask(simulator, fault=fault), bounds).bucket is Bucket.ERROR


async def test_queue_when_the_larger_part_of_ttft_was_waiting() -> None:
    async with simulated(replace(SLOW, max_batch=1)) as simulator:
        stats = simulator.engine.stats
        first = asyncio.create_task(ask(simulator, tokens=30))
        await until(lambda: len(simulator.engine.running) == 1)
        second = await ask(simulator, tokens=2)
        await first
        assert stats.queue.count == 2
        second = replace(second, queue_ns=round(stats.queue.total * 1e9))
        assert judge(second, slo(ttft_s=5 * STEP_S)).bucket is Bucket.QUEUE


async def test_prefill_when_the_prompt_itself_took_too_long() -> None:
    # 1000 prompt tokens in chunks of 100: ten steps, nobody before it.
    async with simulated(replace(SLOW, max_batched_tokens=100)) as simulator:
        record = await ask(simulator, prompt=1000, tokens=2)
        record = replace(record, queue_ns=round(simulator.engine.stats.queue.total * 1e9))
        assert judge(record, slo(ttft_s=8 * STEP_S)).bucket is Bucket.PREFILL


async def test_decode_when_every_step_is_too_slow() -> None:
    async with simulated(SLOW) as simulator:
        assert judge(await ask(simulator, tokens=30), slo(tpot_s=0.4 * STEP_S)).bucket is Bucket.DECODE


async def test_stall_when_one_pause_breaks_it() -> None:
    async with simulated(SLOW) as simulator:
        record = await ask(simulator, fault="stall=1,stall_s=1.5,stall_after=5")
        assert judge(record, slo(max_gap_s=1.2)).bucket is Bucket.STALL
        assert record.output_tokens == 10


async def test_preemption_when_the_pause_came_with_one() -> None:
    profile = replace(SLOW, block_size=16, kv_blocks=8, max_model_len=128)
    async with simulated(profile) as simulator:
        old = asyncio.create_task(ask(simulator, prompt=48, tokens=60))
        await until(lambda: len(simulator.engine.running) == 1)
        young = await ask(simulator, prompt=32, tokens=40)
        await old
        assert simulator.engine.stats.preemptions == 1
        assert young.output_tokens == 40
        young = replace(young, preemptions_rose=True)
        # Out of the cache until the older one is through: over 25 of its steps.
        assert judge(young, slo(max_gap_s=10 * STEP_S)).bucket is Bucket.PREEMPTION


async def test_e2e_when_only_the_whole_takes_too_long() -> None:
    async with simulated(SLOW) as simulator:
        assert judge(await ask(simulator, tokens=20), slo(ttft_s=30, e2e_s=18 * STEP_S)).bucket is Bucket.E2E


async def test_abandoned_when_the_client_leaves_after_a_bound_broke() -> None:
    async with simulated(replace(SLOW, max_batch=1)) as simulator:
        first = asyncio.create_task(ask(simulator, tokens=60))
        await until(lambda: len(simulator.engine.running) == 1)
        leave = asyncio.Event()
        second = asyncio.create_task(ask(simulator, leave=leave))
        await until(lambda: len(simulator.engine.waiting) == 1)
        steps = simulator.engine.stats.steps
        await until(lambda: simulator.engine.stats.steps >= steps + 25)
        leave.set()
        assert judge(await second, slo(ttft_s=5 * STEP_S)).bucket is Bucket.ABANDONED
        await first
        await until(lambda: simulator.engine.unfinished == 0)
        assert simulator.engine.stats.success["abort"] == 1
