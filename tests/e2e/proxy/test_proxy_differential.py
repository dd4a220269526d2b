"""Generated requests and answers, sent directly and through the proxy: the same bytes on both ends."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import pairwise

from tests.support.proxied import proxied
from tests.support.upstream import Seen, chunk, upstream

CONNECTIONS = 110
SEED = 20261201


@dataclass(frozen=True)
class Plan:
    """One request and its answer as pieces of bytes, written with a turn of the loop between."""

    request: tuple[bytes, ...]
    answer: tuple[bytes, ...]
    closes: bool


def pieces(rng: random.Random, wire: bytes) -> tuple[bytes, ...]:
    """``wire`` cut at random places."""
    cuts = [rng.randrange(len(wire) + 1) for _ in range(rng.choice((0, 0, 1, 3, 9)))]
    edges = sorted({0, len(wire), *cuts})
    return tuple(wire[a:b] for a, b in pairwise(edges))


def chunked(rng: random.Random, content: bytes) -> bytes:
    """``content`` in the chunked coding, with what the coding allows."""
    out = b""
    while content:
        size = rng.choice((1, 7, 90, 300, 5000))
        part, content = content[:size], content[size:]
        line = rng.choice((b"%x", b"%X", b"00%x")) % len(part) + rng.choice((b"", b"", b";a=b", b';q="x y"'))
        out += line + b"\r\n" + part + b"\r\n"
    return out + b"0\r\n" + rng.choice((b"", b"", b"X-Sum: 1\r\n", b"A: b\r\nC: d e\r\n")) + b"\r\n"


def words(rng: random.Random, most: int) -> bytes:
    """Random bytes, sometimes text of a stream."""
    if rng.random() < 0.5:
        return rng.randbytes(rng.randrange(most))
    return b"".join(
        b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % n for n in range(rng.randrange(40))
    )


def headers(rng: random.Random) -> bytes:
    """A few fields as clients and servers write them."""
    known = [
        b"Accept: */*",
        b"accept-encoding: gzip, br",
        b"Cookie: a=1; b=\xe4",
        b"X-Odd:no blank",
        b"X-Wide:   many   ",
        b"X-Empty:",
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"Set-Cookie: a=1",
        b"Set-Cookie: b=2",
        b"Date: Tue, 01 Dec 2026 00:00:00 GMT",
        b"connection: keep-alive",
    ]
    return b"".join(line + b"\r\n" for line in rng.sample(known, rng.randrange(5)))


def make_plan(rng: random.Random, number: int, last: bool) -> Plan:
    """A random exchange; only the last of a connection may close it."""
    method = rng.choice((b"GET", b"POST", b"POST", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH"))
    path = rng.choice(
        (
            b"/v1/chat/completions",
            b"/v1/completions",
            b"/v1/models",
            b"/a%2Fb;c?x=%20&y",
            b"/v1/embeddings",
            b"//x/../y",
        )
    )
    head = (
        method
        + b" "
        + path
        + b" HTTP/1.1\r\nHost: llm.example\r\n"
        + headers(rng)
        + b"X-Plan: %d\r\n" % number
    )
    content = words(rng, 100_000 if rng.random() < 0.1 else 2000)
    if method in (b"GET", b"HEAD", b"DELETE", b"OPTIONS") and rng.random() < 0.8:
        request = head + b"\r\n"
    elif rng.random() < 0.4:
        request = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(rng, content)
    else:
        request = head + b"Content-Length: %d\r\n\r\n" % len(content) + content
    status = rng.choice(
        (b"200 OK", b"200 OK", b"200 ", b"201", b"204 No Content", b"304 Not Modified", b"400 Bad", b"500 X")
    )
    answer = b"HTTP/1.1 " + status + b"\r\n" + headers(rng)
    interim = rng.choice((b"", b"", b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"))
    content = words(rng, 200_000 if rng.random() < 0.1 else 2000)
    closes = last
    if method == b"HEAD" or status[:3] in (b"204", b"304"):
        answer += b"\r\n"
        closes = False
    elif rng.random() < 0.5:
        answer += b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(
            rng, content
        )
    elif last and rng.random() < 0.5:
        answer += b"Connection: close\r\n\r\n" + content
    else:
        answer += b"Content-Length: %d\r\n\r\n" % len(content) + content
        closes = False
    return Plan(pieces(rng, request), pieces(rng, interim + answer), closes)


async def play(port: int, plans: list[tuple[int, Plan]], pipelined: bool) -> list[bytes]:
    """One connection: every plan in turn; what came back for each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    got = []
    try:
        if pipelined:
            writer.write(b"".join(b"".join(plan.request) for _, plan in plans))
        for _, plan in plans:
            if not pipelined:
                for piece in plan.request:
                    writer.write(piece)
                    await asyncio.sleep(0)
            data = await asyncio.wait_for(reader.readexactly(sum(map(len, plan.answer))), 20)
            if plan.closes:
                data += await asyncio.wait_for(reader.read(), 20)
            got.append(data)
    finally:
        writer.close()
    return got


async def test_generated_exchanges_are_the_same_bytes() -> None:
    rng = random.Random(SEED)
    plans: dict[int, Plan] = {}
    connections: list[list[tuple[int, Plan]]] = []
    for _ in range(CONNECTIONS):
        count = rng.randrange(1, 6)
        mine = [(len(plans) + n, make_plan(rng, len(plans) + n, n == count - 1)) for n in range(count)]
        plans.update(mine)
        connections.append(mine)
    assert len(plans) > 250

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        plan = plans[int(seen.header("x-plan") or -1)]
        for piece in plan.answer:
            writer.write(piece)
            await asyncio.sleep(0)
        return not plan.closes

    async with upstream(script) as up, proxied(up.port, set_request_id=False) as proxy:
        results = []
        for port in (up.port, proxy.port):
            up.seen.clear()
            answers = []
            for number, mine in enumerate(connections):
                answers += await play(port, mine, pipelined=number % 5 == 0)
            results.append((answers, [seen.head + seen.raw_body for seen in up.seen]))
        (direct_answers, direct_requests), (answers, requests) = results
        assert direct_answers == [b"".join(plan.answer) for plan in plans.values()]
        assert answers == direct_answers
        assert direct_requests == [b"".join(plan.request) for plan in plans.values()]
        assert requests == direct_requests
        assert proxy.refused == {}
        assert proxy.broken == {}
        assert proxy.dropped == {}


async def test_many_streams_at_once_are_not_mixed_up() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        name = seen.target.encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(50):
            writer.write(chunk(b"data: %s %d\n\n" % (name, number)))
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")
        return True

    async def one(port: int, number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /%d/v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % number
        )
        try:
            return await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 20)
        finally:
            writer.close()

    async with upstream(script) as up, proxied(up.port) as proxy:
        through = await asyncio.gather(*(one(proxy.port, n) for n in range(60)))
        direct = await asyncio.gather(*(one(up.port, n) for n in range(60)))
        assert through == direct
        assert len(set(through)) == 60
