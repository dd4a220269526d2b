"""Upstreams that die, stall, half-close, talk nonsense; clients that leave: nothing hangs, nothing leaks."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from contextlib import suppress

from sidecar.requests.records import RequestRecord
from tests.support.proxied import proxied, until
from tests.support.rawhttp import exchange, read_answer, request_bytes
from tests.support.upstream import Seen, chunk, reset, upstream, wait_closed

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"t"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
WAYS = (
    "fine",
    "reset before",
    "close before",
    "reset within",
    "close within",
    "half-close within",
    "stall before",
    "stall within",
    "garbage",
    "garbage head",
    "garbage chunk",
    "endless head",
    "surplus",
    "two lengths",
    "short body",
)
ROUNDS = 8
BODY = json.dumps({"model": "demo", "stream": True}).encode()


async def misbehave(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer in the way that the path names."""
    way = seen.header("x-way")
    await asyncio.sleep(random.random() * 0.01)
    if way == "fine":
        writer.write(HEAD + chunk(EVENT) * 3 + chunk(LAST) + b"0\r\n\r\n")
        return True
    if way == "reset before":
        reset(writer)
    elif way == "reset within":
        writer.write(HEAD + chunk(EVENT))
        await asyncio.sleep(0.01)
        reset(writer)
    elif way == "close within":
        writer.write(HEAD + chunk(EVENT) + b"9\r\nhal")
    elif way == "half-close within":
        writer.write(HEAD + chunk(EVENT))
        writer.write_eof()
        await wait_closed(seen, reader, 20)
    elif way in ("stall before", "stall within"):
        if way == "stall within":
            writer.write(HEAD + chunk(EVENT))
        await wait_closed(seen, reader, 20)
    elif way == "garbage":
        writer.write(os.urandom(5000))
        await wait_closed(seen, reader, 20)
    elif way == "garbage head":
        writer.write(b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n")
        await wait_closed(seen, reader, 20)
    elif way == "garbage chunk":
        writer.write(HEAD + chunk(EVENT) + b"zz\r\n" + os.urandom(100))
        await wait_closed(seen, reader, 20)
    elif way == "endless head":
        writer.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000)
        await wait_closed(seen, reader, 20)
    elif way == "surplus":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n")
        await wait_closed(seen, reader, 20)
    elif way == "two lengths":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk")
        await wait_closed(seen, reader, 20)
    elif way == "short body":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nok")
    return False


async def client(port: int, way: str, leaves: bool) -> tuple[str, int, bool]:
    """One request; sometimes the client leaves after the first bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request_bytes("POST", "/v1/chat/completions", [("Host", "a"), ("X-Way", way)], BODY))
        if leaves:
            with suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(reader.read(10), random.random() * 0.05)
            return way, 0, False
        answer = await read_answer(reader, limit_s=30)
        return way, answer.status, answer.complete
    finally:
        writer.close()


async def test_nothing_hangs_and_nothing_leaks() -> None:
    random.seed(5)
    records: list[RequestRecord] = []
    async with upstream(misbehave) as up, proxied(up.port, records=records, idle_timeout_s=1.0) as proxy:
        await exchange(proxy.port, request_bytes("GET", "/", [("Host", "a"), ("X-Way", "fine")]))
        await until(lambda: not proxy.clients)
        tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        work = [(way, number % 4 == 3) for way in WAYS for number in range(ROUNDS)]
        random.shuffle(work)
        outcomes: Counter[tuple[str, int, bool]] = Counter()
        stayed = 0
        for at in range(0, len(work), 32):
            batch = work[at : at + 32]
            done = await asyncio.gather(*(client(proxy.port, way, leaves) for way, leaves in batch))
            outcomes.update(d for d, (_, leaves) in zip(done, batch, strict=True) if not leaves)
            stayed += sum(not leaves for _, leaves in batch)
        await until(lambda: not proxy.clients and proxy.in_flight == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks and len(os.listdir("/proc/self/fd")) <= files)

        ways = {way: {(status, complete) for w, status, complete in outcomes if w == way} for way in WAYS}
        assert ways["fine"] == {(200, True)}
        assert ways["surplus"] == {(200, True)}
        assert ways["close before"] == ways["reset before"] == {(0, False)}
        assert ways["stall before"] == {(504, True)}
        for way in ("garbage", "garbage head", "endless head", "two lengths"):
            assert ways[way] == {(502, True)}, way
        for way in (
            "reset within",
            "close within",
            "half-close within",
            "stall within",
            "garbage chunk",
            "short body",
        ):
            assert ways[way] == {(200, False)}, way
        assert sum(outcomes.values()) == stayed
        # Each request that was read to its end left one record; none was observed twice.
        assert stayed <= len(records) <= len(work)
        assert proxy.dropped == {}
        answer = await exchange(proxy.port, request_bytes("GET", "/", [("Host", "a"), ("X-Way", "fine")]))
        assert answer.complete
