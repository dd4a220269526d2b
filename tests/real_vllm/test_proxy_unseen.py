"""A real vLLM, directly and through the sidecar: same bytes, same ends, and no work for who has left."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from sidecar.engine.scrape import fetch_view
from tests.support.sidecar_process import sidecar_process, wait_for

pytestmark = pytest.mark.real_vllm

HOST = b"Host: llm.example\r\n"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
# What differs from one asking to the next, each of a fixed length.
_CHANGING = re.compile(rb'(?<=date: )[^\r]*|(?<="created":)\d+|(?<=-)[0-9a-f]{16}')


def get(target: bytes, fields: bytes = b"", *, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    """A request without a body."""
    return method + b" " + target + b" HTTP/" + version + b"\r\n" + HOST + fields + b"\r\n"


def post(body: bytes, fields: bytes = b"", *, kind: bytes = b"application/json") -> bytes:
    """A completion request."""
    length = b"Content-Length: %d\r\n" % len(body)
    return (
        get(b"/v1/completions", b"Content-Type: " + kind + b"\r\n" + length + fields, method=b"POST") + body
    )


def ask(**fields: object) -> bytes:
    """The body of a completion request whose answer is always the same."""
    whole = {"model": "tiny-llama", "prompt": "a", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    return json.dumps(whole | fields).encode()


def chunked(body: bytes, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    """A completion request in two chunks."""
    coded = b"".join(b"%x%s\r\n%s\r\n" % (len(p), extension, p) for p in (body[:9], body[9:]))
    fields = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    return get(b"/v1/completions", fields, method=b"POST") + coded + b"0\r\n" + trailer + b"\r\n"


REQUESTS = {
    "models": get(b"/v1/models"),
    "HEAD": get(b"/health", method=b"HEAD"),
    "HEAD not allowed": get(b"/v1/models", method=b"HEAD"),
    "OPTIONS": get(b"/v1/models", method=b"OPTIONS"),
    "OPTIONS *": get(b"*", method=b"OPTIONS"),
    "DELETE": get(b"/v1/models", method=b"DELETE"),
    "not found": get(b"/nope?x=%20y&x="),
    "two slashes": get(b"//v1/models"),
    "HTTP/1.0": get(b"/v1/models", version=b"1.0"),
    "HTTP/1.0 kept": get(b"/v1/models", b"Connection: keep-alive\r\n", version=b"1.0"),
    "close": get(b"/version", b"Connection: close\r\n"),
    "empty line first": b"\r\n" + get(b"/version"),
    "500 fields": get(b"/version", b"".join(b"X-%d: y\r\n" % n for n in range(500))),
    "50 kB field": get(b"/version", b"X: " + b"y" * 50_000 + b"\r\n"),
    "GET with a body": get(b"/version", b"Content-Length: 3\r\n") + b"abc",
    "completion": post(ask()),
    "stream": post(ask(stream=True)),
    "stream with usage": post(ask(stream=True, stream_options={"include_usage": True})),
    "two choices": post(ask(n=2, stream=True, max_tokens=1)),
    "chunked": chunked(ask()),
    "chunk extensions": chunked(ask(), extension=b";a=b"),
    "trailers": chunked(ask(), trailer=b"X-Sum: 1\r\n"),
    "100-continue": post(ask(), b"Expect: 100-continue\r\n"),
    "no JSON": post(b"{"),
    "other type": post(ask(), kind=b"text/plain"),
    "unknown model": post(ask(model="other")),
    "prompt too long": post(ask(prompt="a " * 5_000)),
    "pipelined": get(b"/v1/models") + get(b"/version"),
    "pipelined behind a completion": post(ask()) + get(b"/version", b"Connection: close\r\n"),
    "h2c": get(b"/version", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"),
    "WebSocket to nowhere": get(b"/nope", UPGRADE),
    "WebSocket": get(b"/v1/realtime", UPGRADE),
}


async def talk(base: str, raw: bytes, *, shut: bool = False) -> tuple[bytes, str]:
    """All that comes back, and how it ended: closed, reset, or open when nothing more came for a while."""
    reader, writer = await asyncio.open_connection(urlsplit(base).hostname, urlsplit(base).port)
    writer.write(raw)
    if shut:
        writer.write_eof()
    got = b""
    try:
        while data := await asyncio.wait_for(reader.read(65536), 3.0 if got else 60.0):
            got += data
        end = "closed"
    except TimeoutError:
        end = "open"
    except ConnectionError:
        end = "reset"
    writer.close()
    return _CHANGING.sub(b"*", got), end


async def test_the_same_bytes_and_the_same_end(real_vllm: str) -> None:
    with sidecar_process(real_vllm) as sidecar:
        limit = asyncio.Semaphore(8)

        async def both(raw: bytes) -> tuple[tuple[bytes, str], tuple[bytes, str]]:
            async with limit:
                return await talk(real_vllm, raw), await talk(sidecar.proxy, raw)

        found = await asyncio.gather(*(both(raw) for raw in REQUESTS.values()))
        for name, (direct, through) in zip(REQUESTS, found, strict=True):
            assert direct[0].startswith(b"HTTP/1.1 "), name
            assert through == direct, name


async def test_a_client_that_shuts_its_side_is_served_as_directly(real_vllm: str) -> None:
    with sidecar_process(real_vllm) as sidecar:
        for raw, answered in ((get(b"/health"), True), (get(b"/v1/models"), True), (post(ask()), False)):
            for base in (real_vllm, sidecar.proxy):
                got, end = await talk(base, raw, shut=True)
                assert (got.startswith(b"HTTP/1.1 200"), end) == (answered, "closed"), (base, raw[:30])


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def _shut(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [socket.socket.close, _shut, _reset], ids=["close", "shut", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_who_leaves_frees_the_engine(
    real_vllm: str, leave: Callable[[socket.socket], None], stream: bool
) -> None:
    def running() -> float | None:
        view = fetch_view(real_vllm, 10.0).view
        return view.total("running") if view is not None else None

    def kv_usage() -> float | None:
        view = fetch_view(real_vllm, 10.0).view
        return view.max("kv_usage") if view is not None else None

    with sidecar_process(real_vllm) as sidecar:
        where = urlsplit(sidecar.proxy)
        with socket.create_connection((where.hostname, where.port)) as client:
            client.sendall(post(ask(max_tokens=1_900, stream=stream)))
            wait_for(lambda: (running() or 0) == 1)
            leave(client)
            # 1,900 tokens take some ten times as long.
            wait_for(lambda: running() == 0, limit_s=5.0)
            assert kv_usage() == 0
        wait_for(lambda: sidecar.status()["proxy"]["in_flight"] == 0)
