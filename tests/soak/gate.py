"""Stands before the engine, breaks things on demand, and keeps the upstream's own log of every request.

It is the server that the sidecar sees as vLLM. What it did with each request is in ``log`` by request id:
``done 200``, ``status 503`` (its own answer), ``cut`` (it or the engine broke the connection off; ``cut 404``
when a client's fault was told before), ``left`` (the other side went away).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

BEGUN = "begun"


@dataclass(slots=True, kw_only=True)
class Mode:
    """What is broken now; the empty mode passes everything."""

    status: int | None = None  # model requests are answered with it
    cut_every: int = 0  # every n-th model request loses its connection, in turn before and within the answer
    held: bool = False  # nothing moves: no head, no chunk, no page
    page: str = ""  # garbage, truncated, trickle, huge: what GET /metrics answers


@dataclass
class Gate:
    """``port`` is valid after ``open``; ``engine`` is the URL of the engine behind."""

    engine: str
    port: int = 0
    mode: Mode = field(default_factory=Mode)
    log: dict[str, str] = field(default_factory=dict)
    pages: int = 0
    seen: int = 0
    shut_at: list[float] = field(default_factory=list)  # monotonic seconds
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Listen: on a free port the first time, on the same one from then on."""
        self._go.set()
        # Clients and scrapes that leave in the middle are what is tested here.
        logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=1024, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        # A connection each: a restarted engine must not meet one of its predecessor's.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0), timeout=aiohttp.ClientTimeout(120)
        )

    async def shut(self) -> None:
        """As if the server's process had died: nothing listens, every connection is cut."""
        self.shut_at.append(time.monotonic())
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for site in list(runner.sites):
                await site.stop()
            server = runner.server
            if server is not None:
                for handler in list(server.connections):
                    if handler.transport is not None:
                        handler.transport.abort()
            for request_id, what in self.log.items():
                if what == BEGUN:
                    self.log[request_id] = "cut"
            await runner.cleanup()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def set(self, mode: Mode) -> None:
        """Break what ``mode`` says from now on."""
        self.mode = mode
        if mode.held:
            self._go.clear()
        else:
            self._go.set()

    def count(self) -> int:
        """Requests that the log holds as begun and not ended."""
        return sum(what == BEGUN for what in self.log.values())

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            return await self._page(request)
        if request.method != "POST":
            await self._go.wait()
            return await self._pass(request, None, b"")
        request_id = request.headers.get("X-Request-Id", "")
        body = await request.read()
        self.seen += 1
        self.log[request_id] = BEGUN
        try:
            return await self._model(request, request_id, body)
        except (asyncio.CancelledError, ConnectionResetError):
            if self.log[request_id] == BEGUN:
                self.log[request_id] = "left"
            raise

    async def _model(self, request: web.Request, request_id: str, body: bytes) -> web.StreamResponse:
        if self.mode.status is not None:
            self.log[request_id] = f"status {self.mode.status}"
            return web.json_response(
                {"error": {"message": "injected", "code": self.mode.status}}, status=self.mode.status
            )
        chunks = None
        if self.mode.cut_every and self.seen % self.mode.cut_every == 0:
            chunks = 0 if self.seen // self.mode.cut_every % 2 else 1
        await self._go.wait()
        return await self._pass(request, request_id, body, cut_after=chunks)

    async def _pass(
        self, request: web.Request, request_id: str | None, body: bytes, *, cut_after: int | None = None
    ) -> web.StreamResponse:
        if cut_after == 0 or self._session is None:
            return self._cut(request, request_id)
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("content-type", "x-sim-fault")}
        try:
            async with self._session.request(
                request.method, self.engine + request.path_qs, data=body, headers=headers
            ) as up:
                answer = web.StreamResponse(
                    status=up.status, headers={"Content-Type": up.headers.get("Content-Type", "text/plain")}
                )
                await answer.prepare(request)
                passed = 0
                async for data in up.content.iter_any():
                    await self._go.wait()
                    # Before the chunk, so that what was cut is never whole; a shorter answer is not cut.
                    if cut_after is not None and passed >= cut_after:
                        return self._cut(request, request_id, up.status)
                    await answer.write(data)
                    passed += 1
                if request_id is not None:
                    self.log[request_id] = f"done {up.status}"
                await answer.write_eof()
                return answer
        except aiohttp.ClientConnectionResetError:
            if request_id is not None and self.log[request_id] == BEGUN:
                self.log[request_id] = "left"
            return web.Response(status=500)  # to nobody
        except aiohttp.ClientError:
            return self._cut(request, request_id)

    def _cut(self, request: web.Request, request_id: str | None, status: int = 0) -> web.Response:
        if request_id is not None:
            self.log[request_id] = f"cut {status}" if 400 <= status < 500 else "cut"
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        self.pages += 1
        await self._go.wait()
        if not self.mode.page:
            return await self._pass(request, None, b"")
        assert request.transport is not None
        if self.mode.page == "garbage":
            return web.Response(body=os.urandom(20_000), headers={"Content-Type": "text/plain"})
        if self.mode.page == "truncated":
            assert self._session is not None
            async with self._session.get(self.engine + "/metrics") as up:
                whole = await up.read()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(whole)}\r\n\r\n"
            request.transport.write(head.encode() + whole[: len(whole) // 2])  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
            request.transport.close()
            return web.Response()
        answer = web.StreamResponse(headers={"Content-Type": "text/plain; version=0.0.4"})
        await answer.prepare(request)
        began = time.monotonic()
        with suppress(ConnectionError):
            if self.mode.page == "trickle":
                while time.monotonic() - began < 20:
                    await answer.write(b"#")
                    await asyncio.sleep(0.2)
            else:  # huge
                line = b'vllm:generation_tokens_total{model_name="m%d"} 1\n'
                for block in range(2000):
                    await answer.write(b"".join(line % (block * 1000 + i) for i in range(1000)))
            await answer.write_eof()
        return answer
