"""Processes for the proxy's benchmark: the source of streams, and what can stand between it and a client.

``python -m tests.bench.proxy_peers KIND UPSTREAM_PORT`` listens on a free port of 127.0.0.1, prints it, and
runs until its standard input is closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Callable

import aiohttp
import uvloop
from aiohttp import web

from sidecar.proxy.server import Proxy, ProxySettings

# One token as vLLM streams it; its text is the moment of sending, in nanoseconds.
_EVENT = (
    b'data: {"id":"chatcmpl-2f9c1d4e8a7b4c6d9e0f1a2b3c4d5e6f","object":"chat.completion.chunk",'
    b'"created":1796066234,'
    b'"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"delta":{"content":" %020d"},'
    b'"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
_SIZE = b"%x\r\n" % len(_EVENT % 0)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def event() -> bytes:
    """One chunk with the time of now."""
    return _SIZE + _EVENT % time.monotonic_ns() + b"\r\n"


class Source(asyncio.Protocol):
    """A vLLM that streams: ``POST /paced/PERIOD_MS/COUNT/PHASE`` or ``POST /fast/0/COUNT/0``.

    Paced streams tick like an engine: those of one PHASE (0 to 999 thousandths of the period) go together.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.left = 0
        self.period_s = 0.0
        self.due = 0.0
        self.blocked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        head, _, _ = data.partition(b"\r\n")
        _, kind, period, count, phase = head.split(b" ")[1].split(b"?")[0].split(b"/v1/")[0].split(b"/")
        self.left, self.period_s = int(count), int(period) / 1000
        self.transport.write(_HEAD + event())
        self.left -= 1
        loop = asyncio.get_running_loop()
        if kind == b"fast":
            loop.call_soon(self.rush)
        elif self.left > 0:
            whole = loop.time() // self.period_s
            self.due = (whole + 1 + int(phase) / 1000) * self.period_s
            loop.call_at(self.due, self.tick)
        else:
            self.transport.write(b"0\r\n\r\n")

    def tick(self) -> None:
        """The next token of a paced stream."""
        if self.transport.is_closing():
            return
        self.transport.write(event())
        self.left -= 1
        if self.left > 0:
            self.due += self.period_s
            asyncio.get_running_loop().call_at(self.due, self.tick)
        else:
            self.transport.write(b"0\r\n\r\n")

    def rush(self) -> None:
        """As much as is taken; 8 tokens to a turn of the loop, so that every stream gets its turn."""
        if self.transport.is_closing() or self.blocked:
            return
        for _ in range(min(8, self.left)):
            self.transport.write(event())
        self.left -= min(8, self.left)
        if self.left:
            asyncio.get_running_loop().call_soon(self.rush)
        else:
            self.transport.write(b"0\r\n\r\n")

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        self.rush()


class _RelayBack(asyncio.Protocol):
    def __init__(self, front: asyncio.Transport) -> None:
        self.front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.front.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.front.close()


class Relay(asyncio.Protocol):
    """The floor: bytes from socket to socket on the same event loop, nothing looked at."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.back: asyncio.Transport | None = None
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.task = asyncio.get_running_loop().create_task(self.connect())

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        back, _ = await loop.create_connection(lambda: _RelayBack(self.transport), "127.0.0.1", self.port)
        self.back = back
        back.write(self.early)

    def data_received(self, data: bytes) -> None:
        if self.back is None:
            self.early += data
        else:
            self.back.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.back is not None:
            self.back.abort()


async def _listen(factory: Callable[[], asyncio.Protocol]) -> int:
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0, backlog=4096)
    return int(server.sockets[0].getsockname()[1])


async def _aiohttp(port: int) -> int:
    """aiohttp in the plain way: read a chunk, write a chunk."""
    session = aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
    )

    async def handle(request: web.Request) -> web.StreamResponse:
        async with session.request(
            request.method, request.rel_url, headers=request.headers, data=request.content
        ) as answer:
            out = web.StreamResponse(status=answer.status, headers=answer.headers)
            await out.prepare(request)
            async for data in answer.content.iter_any():
                await out.write(data)
            await out.write_eof()
            return out

    logging.getLogger("aiohttp").disabled = True  # it would log each stream that the bench leaves
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    return int(runner.addresses[0][1])


async def _sidecar(port: int, observe: bool) -> int:
    proxy = Proxy(
        ProxySettings(f"http://127.0.0.1:{port}", listen_port=0, observe=observe),
        on_record=lambda record: None,
    )
    await proxy.start()
    asyncio.get_running_loop().call_later(1.0, _tell_drops, proxy)
    return proxy.port


def _tell_drops(proxy: Proxy) -> None:
    """What was not observed would make the figures too good: say so where the bench looks."""
    if proxy.dropped or proxy.broken or proxy.refused:
        print(f"not clean: {proxy.dropped} {proxy.broken} {proxy.refused}", file=sys.stderr, flush=True)
    else:
        asyncio.get_running_loop().call_later(1.0, _tell_drops, proxy)


async def run(kind: str, port: int) -> None:
    """Start one kind of process."""
    if kind == "source":
        own = await _listen(Source)
    elif kind == "relay":
        own = await _listen(lambda: Relay(port))
    elif kind in ("aiohttp", "aiohttp-uvloop"):
        own = await _aiohttp(port)
    elif kind in ("sidecar", "pass-only"):
        own = await _sidecar(port, observe=kind == "sidecar")
    else:
        raise SystemExit(f"no such kind: {kind}")
    print(own, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def open_files() -> None:
    """As many open files as are allowed: thousands of streams need two sockets each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    open_files()
    # The plain way to use aiohttp, web.run_app, is the standard loop; the other kind is for comparison.
    start = asyncio.run if sys.argv[1] == "aiohttp" else uvloop.run
    start(run(sys.argv[1], int(sys.argv[2])))
