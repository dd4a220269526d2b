"""Faults of the engine and of its page, under traffic. Each leaves the rig as it found it."""

from __future__ import annotations

import asyncio

from tests.soak.rig import Mode, Rig, Wrong, until


async def killed_and_restarted(rig: Rig) -> float:
    """Counters start anew at zero; the sidecar's own go on, no rate is negative."""
    before = (await rig.books()).total("goodput_engine_restarts_total")
    await asyncio.sleep(1)
    await rig.kill_engine()
    await until(lambda: rig.engine_is(False), "the sidecar saw that the engine is down")
    await asyncio.sleep(rig.hold_s / 2)
    await rig.start_engine()
    took = await until(lambda: rig.engine_is(True), "the sidecar saw the new engine")
    took += await until(rig.answering, "requests got through again")
    await asyncio.sleep(1.5)
    page = await rig.metrics()
    # A budget may be overdrawn, and a GPU stand out on either side.
    signed = ("goodput_error_budget", "goodput_gpu_outlier")
    negative = {key: value for key, value in page.items() if value < 0 and not key.startswith(signed)}
    if negative:
        raise Wrong(f"negative after the restart: {negative}")
    if sum(v for k, v in page.items() if k.startswith("goodput_engine_restarts_total")) != before + 1:
        raise Wrong("the restart was not counted once")
    import json

    engine = json.loads((await rig.get("/goodput.json"))[1])["engine"]
    for key in ("prompt_tps", "generation_tps"):
        rate = engine[key]
        if rate is not None and not 0 <= rate < 1e5:
            raise Wrong(f"{key} is {rate} after the restart")
    return took


async def stalled(rig: Rig) -> float:
    """Nothing moves in the engine, not even its page; every request then ends as it should."""
    rig.gate.set(Mode(held=True))
    await asyncio.sleep(rig.hold_s)
    if (await rig.get("/healthz"))[0] != 200:
        raise Wrong("the sidecar did not answer while the engine stood still")
    rig.gate.set(Mode())
    return await until(rig.answering, "requests got through again")


async def answers(rig: Rig, status: int) -> float:
    """Every model request gets the status; clients see exactly it."""
    rig.gate.set(Mode(status=status))
    await asyncio.sleep(rig.hold_s)
    rig.gate.set(Mode())
    return await until(rig.answering, "requests got through again")


async def cuts(rig: Rig) -> float:
    """Every third request loses its connection, before or within the answer; no client takes it for whole."""
    rig.gate.set(Mode(cut_every=3))
    await asyncio.sleep(rig.hold_s)
    rig.gate.set(Mode())
    return await until(rig.answering, "requests got through again")


async def page(rig: Rig, kind: str) -> float:
    """The page is no page: the engine is said to be down, nothing of it is believed, requests go on."""
    before = await rig.metrics()
    asked = len(rig.traffic.outcomes)
    rig.gate.set(Mode(page=kind))
    await until(lambda: rig.engine_is(False), f"the {kind} page was not believed")
    now = await rig.metrics()
    for key, value in now.items():
        if key.startswith("goodput_engine_generation_tokens_total") and value < before.get(key, 0):
            raise Wrong(f"{key} fell from {before.get(key)} to {value}")
    failed = {w for w in rig.traffic.whats(asked) if w not in ("ok", "left", "404")}
    if failed:
        raise Wrong(f"requests failed while only the page was bad: {failed}")
    rig.gate.set(Mode())
    return await until(lambda: rig.engine_is(True), "the page was believed again")
