"""What stands around the sidecar: an OTLP collector that can be down, slow or refusing; a GPU exporter."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2


@dataclass
class Collector:
    """``port`` is valid after ``open``, and kept when it is opened again."""

    port: int = 0
    status: int = 200
    delay_s: float = 0.0
    spans: int = 0
    text: bytes = b""  # the last payload, to search it
    _runner: web.AppRunner | None = None

    async def open(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/traces", self._traces)
        app.router.add_post("/{path:.*}", self._other)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def shut(self) -> None:
        """Stop listening and cut what is connected."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _traces(self, request: web.Request) -> web.Response:
        raw = await request.read()
        await asyncio.sleep(self.delay_s)
        if self.status == 200:
            message = trace_service_pb2.ExportTraceServiceRequest()
            message.ParseFromString(
                gzip.decompress(raw) if request.headers.get("Content-Encoding") == "gzip" else raw
            )
            self.text = message.SerializeToString()
            self.spans += sum(len(s.spans) for r in message.resource_spans for s in r.scope_spans)
        return web.Response(status=self.status, content_type="application/x-protobuf")

    async def _other(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=200, content_type="application/x-protobuf")


@dataclass
class Exporter:
    """A dcgm-exporter that can go away. ``port`` is valid after ``open``, and kept from then on."""

    port: int = 0
    looks: int = 0
    _runner: web.AppRunner | None = None

    async def open(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/metrics", self._page)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def shut(self) -> None:
        """Stop listening and cut what is connected."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _page(self, _request: web.Request) -> web.Response:
        self.looks += 1
        page = Path(__file__).parents[1] / "fixtures" / "gpu" / "dcgm_h100x8_t0.txt"
        return web.Response(body=page.read_bytes(), headers={"Content-Type": "text/plain; version=0.0.4"})
