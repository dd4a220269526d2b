"""Faults around the sidecar: its collector, its clock, its clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import time
from urllib.parse import urlsplit

from tests.soak.rig import Rig, Wrong, until


async def _only_spans_suffer(rig: Rig, asked: int) -> None:
    failed = {w for w in rig.traffic.whats(asked) if w not in ("ok", "left", "404")}
    if failed:
        raise Wrong(f"requests failed with the collector: {failed}")


async def _spans_again(rig: Rig) -> float:
    had = rig.collector.spans
    return await until(lambda: rig.collector.spans > had, "spans arrived again")


async def collector_down(rig: Rig) -> float:
    """Nothing listens there."""
    asked = len(rig.traffic.outcomes)
    await rig.collector.shut()
    await asyncio.sleep(rig.hold_s)
    await _only_spans_suffer(rig, asked)
    await rig.collector.open()
    return await _spans_again(rig)


async def collector_slow(rig: Rig) -> float:
    """Each batch takes two seconds."""
    asked = len(rig.traffic.outcomes)
    rig.collector.delay_s = 2.0
    await asyncio.sleep(rig.hold_s)
    await _only_spans_suffer(rig, asked)
    rig.collector.delay_s = 0.0
    return await _spans_again(rig)


async def collector_refuses(rig: Rig, status: int) -> float:
    """Each batch is refused."""
    asked = len(rig.traffic.outcomes)
    rig.collector.status = status
    await asyncio.sleep(rig.hold_s)
    await _only_spans_suffer(rig, asked)
    rig.collector.status = 200
    return await _spans_again(rig)


async def exporter_gone(rig: Rig) -> float:
    """The GPU exporter goes away: its source says so, nothing old is shown as new, nothing else notices."""

    async def sees(up: bool) -> bool:
        page = await rig.metrics()
        return [v for k, v in page.items() if k.startswith("goodput_gpu_source_up")] == [float(up)]

    await until(lambda: sees(True), "the exporter was seen")
    asked = len(rig.traffic.outcomes)
    await rig.exporter.shut()
    await until(lambda: sees(False), "the exporter was missed")
    await asyncio.sleep(rig.hold_s)
    failed = {w for w in rig.traffic.whats(asked) if w not in ("ok", "left", "404")}
    if failed or not await rig.ready():
        raise Wrong(f"requests failed with the exporter: {failed}")
    await rig.exporter.open()
    return await until(lambda: sees(True), "the exporter was seen again")


async def clock_stepped(rig: Rig, offset_s: float) -> float:
    """The wall clock jumps there and back: durations, rates and windows do not notice."""
    before = json.loads((await rig.get("/goodput.json"))[1])
    rig.set_clock(offset_s)
    await asyncio.sleep(max(rig.hold_s, 1.5))  # /goodput.json is computed at most once a second
    during = json.loads((await rig.get("/goodput.json"))[1])
    page = await rig.metrics()
    rig.set_clock(0.0)
    shift_s = abs(offset_s)
    if not before["watched_s"] < during["watched_s"] < before["watched_s"] + shift_s / 2:
        raise Wrong(f"watched_s went from {before['watched_s']} to {during['watched_s']}")
    for name, window in during["overall"].items():
        for latency, found in window["latency"].items():
            if found["max_s"] is not None and not 0 <= found["max_s"] < shift_s / 2:
                raise Wrong(f"{latency} over {name} is {found['max_s']} s")
    for key, value in page.items():
        if key.startswith(("goodput_good_requests_per_second", "goodput_engine_last_scrape_age")) and not (
            0 <= value < shift_s / 2
        ):
            raise Wrong(f"{key} is {value}")
    if during["overall"]["1h"]["eligible"] < before["overall"]["1h"]["eligible"]:
        raise Wrong("requests fell out of their window")
    if not await rig.ready():
        raise Wrong("the sidecar is no longer ready")
    return await until(rig.answering, "requests got through")


def _request(rig: Rig, tokens: int, request_id: str) -> bytes:
    body = json.dumps(
        {
            "model": rig.model,
            "prompt": "word",
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request_id}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def _raw(rig: Rig, *, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(rig.proxy)
    return await asyncio.open_connection(parts.hostname, parts.port, limit=limit)


async def slow_readers(rig: Rig, count: int = 8) -> float:
    """Clients that read a few bytes at a time get their whole answer, and hold nobody else up."""

    async def one(number: int) -> None:
        reader, writer = await _raw(rig, limit=1024)
        began = time.monotonic()
        request_id = f"{rig.traffic.name}-slow-{number}-{began}"
        rig.traffic.note_begin()
        try:
            writer.write(_request(rig, 200, request_id))
            whole = b""
            while data := await reader.read(1024):
                whole += data
                await asyncio.sleep(0.02)
            what = "ok" if whole.endswith(b"0\r\n\r\n") and b"data: [DONE]" in whole else "broken"
            rig.traffic.note(
                f"{rig.traffic.name}-slow-{number}-{began}", "slow reader", what, time.monotonic() - began
            )
            if what != "ok":
                raise Wrong(f"a slow reader got {len(whole)} bytes, not the whole answer")
        finally:
            rig.traffic.note_end()
            writer.close()

    await asyncio.gather(*(one(number) for number in range(count)))
    return await until(rig.answering, "requests got through")


async def byte_a_second(rig: Rig, seconds: float = 4.0) -> float:
    """Clients whose head trickles in hold nobody up; they go away when they like."""
    writers = [(await _raw(rig))[1] for _ in range(20)]
    head = b"POST /v1/completions HTTP/1.1\r\nHost: example\r\n"
    end = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < end and sent < len(head):
        for writer in writers:
            writer.write(head[sent : sent + 1])
        sent += 1
        await asyncio.sleep(1)
    took = await until(rig.answering, "requests got through beside them")
    for writer in writers:
        writer.close()
    return took


async def idle_connections(rig: Rig, count: int) -> float:
    """Many connections that say nothing; the sidecar's descriptors come back when they leave."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(count, hard - 512)
    if soft < count + 512:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 512, hard))
    before = rig.sidecar.footprint()
    writers: list[asyncio.StreamWriter] = []
    try:
        for at in range(0, count, 100):
            opened = await asyncio.gather(*(_raw(rig) for _ in range(min(100, count - at))))
            writers += [writer for _, writer in opened]
        took = await until(rig.answering, "requests got through beside them")
        held = rig.sidecar.footprint()
        each_kib = (held["MiB"] - before["MiB"]) * 1024 / count
        if each_kib > 32:
            raise Wrong(f"an idle connection costs {each_kib:.0f} KiB")
    finally:
        for writer in writers:
            writer.close()
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    await until(
        lambda: rig.sidecar.footprint()["fds"] <= before["fds"] + 40, "their descriptors came back", 60
    )
    return took


async def shared_fate(rig: Rig) -> float:
    """All clients leave in the middle of their answers, at once."""
    asked = [asyncio.create_task(rig.traffic.ask("leaves", random.Random(n))) for n in range(20)]
    await asyncio.gather(*asked)
    return await until(rig.answering, "requests got through")
