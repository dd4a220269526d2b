"""The admin server: /metrics, /healthz, /readyz, /autoscale, /goodput.json, and the status page at /."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from aiohttp import web

from sidecar.derive.autoscale import Autoscale
from sidecar.errors import UserError
from sidecar.publish.exposition import OPENMETRICS, TEXT, Family, accepts_openmetrics, render_in_steps
from sidecar.slices import Shared, Steps, in_slices

_EVENT_EVERY_S = 2.0
_MAX_WATCHERS = 16
_PACK_ASIDE_BYTES = 32 * 1024  # bodies from here on are compressed in a thread
_SECURITY = {
    # The page is one file: nothing else may load, whatever a label value tries.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from; each is called when it is asked for.

    The two that are work come in steps, so that requests passing by need not wait for a page.
    """

    families: Callable[[], Steps[list[Family]]]
    status: Callable[[], Steps[dict[str, Any]]]
    autoscale: Callable[[], Autoscale]
    scaling: Callable[[], dict[str, Any]]  # what else /autoscale tells
    not_ready: Callable[[], str | None]  # None when ready, else one sentence
    created_s: float


class Admin:
    """The server. ``port`` is valid after ``start``."""

    def __init__(self, sources: Sources, host: str, port: int) -> None:
        self._sources = sources
        self._host = host
        self._asked_port = port
        self._runner: web.AppRunner | None = None
        self._watchers = 0
        self._closing = asyncio.Event()
        self._page = resources.files("sidecar.publish").joinpath("status.html").read_text("utf-8")
        self._pages = {True: Shared(), False: Shared()}  # by whether it is OpenMetrics
        self._status = Shared()
        self._last: tuple[float, bytes] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises UserError if the address cannot be had."""
        app = web.Application(middlewares=[_guard])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/autoscale", self._autoscale),
                web.get("/goodput.json", self._goodput),
                web.get("/events", self._events),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._asked_port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise UserError(
                f"admin: cannot listen on {self._host}:{self._asked_port}: {error.strerror or error}"
            ) from None
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening; watchers of the page are sent away."""
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _index(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", headers=_SECURITY)

    async def _metrics(self, request: web.Request) -> web.Response:
        openmetrics = accepts_openmetrics(request.headers.get("Accept", ""))
        body = await self._pages[openmetrics].get(lambda: self._rendered(openmetrics))
        response = web.Response(
            body=body,
            headers={"Content-Type": OPENMETRICS if openmetrics else TEXT},
            zlib_executor_size=_PACK_ASIDE_BYTES,
        )
        response.enable_compression()
        return response

    async def _rendered(self, openmetrics: bool) -> bytes:
        found = await in_slices(self._sources.families())
        return await in_slices(
            render_in_steps(found, openmetrics=openmetrics, created_s=self._sources.created_s)
        )

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._sources.not_ready()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

    async def _autoscale(self, _request: web.Request) -> web.Response:
        found = self._sources.autoscale()
        body = {
            "saturation": found.saturation,
            "in_flight": found.in_flight,
            "source": found.source,
            "reason": found.reason,
            **self._sources.scaling(),
        }
        # An autoscaler takes any 200 as an answer and a missing number as 0: unknown must be an error.
        return web.json_response(body, status=503 if found.saturation is None else 200)

    async def _goodput(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._status_text(), content_type="application/json")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._watchers >= _MAX_WATCHERS:
            raise web.HTTPServiceUnavailable(text="too many watchers of the page\n")
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        self._watchers += 1
        try:
            while not self._closing.is_set():
                await response.write(b"data: " + await self._status_text() + b"\n\n")
                try:
                    await asyncio.wait_for(self._closing.wait(), _EVENT_EVERY_S)
                except TimeoutError:
                    continue
        except ConnectionError:
            pass  # the reader left
        finally:
            self._watchers -= 1
        return response

    async def _status_text(self) -> bytes:
        # Many watchers share one computation a second.
        now = asyncio.get_running_loop().time()
        if self._last is None or now - self._last[0] >= 1.0:
            self._last = (now, await self._status.get(self._status_now))
        return self._last[1]

    async def _status_now(self) -> bytes:
        found = await in_slices(self._sources.status())
        return json.dumps(found, allow_nan=False, ensure_ascii=True).encode("ascii")


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    response = await handler(request)
    if not response.prepared:
        response.headers.setdefault("Cache-Control", "no-store")
    return response
