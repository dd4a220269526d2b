"""The proxy: listens, keeps count, sweeps away what stands still, drains and closes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sidecar.errors import UserError
from sidecar.proxy.client import ClientSide
from sidecar.proxy.observe import Gate, Started
from sidecar.proxy.settings import ProxySettings
from sidecar.requests.records import RequestRecord

__all__ = ["Proxy", "ProxySettings", "Started"]

_BACKLOG = 4096


class Proxy:
    """One listening address before one upstream.

    ``on_record`` gets the record of each finished model request, ``on_start`` each one whose last byte has
    arrived; both run on the event loop after the bytes have gone, and what they raise is swallowed and
    counted in ``dropped`` (by reason). ``refused`` counts requests answered here, ``broken`` what the
    upstream did wrong.
    """

    def __init__(
        self,
        settings: ProxySettings,
        *,
        on_record: Callable[[RequestRecord], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        on_start: Callable[[Started], None] | None = None,
    ) -> None:
        self.settings = settings
        self.clock_ns = clock_ns
        self.upstream_address = settings.address()
        self.gate = Gate(on_record, on_start, settings.capture_chars)
        self.in_flight = 0
        self.requests = 0
        self.refused: dict[str, int] = {}
        self.broken: dict[str, int] = {}
        self.clients: set[ClientSide] = set()
        self.draining = False
        self._server: asyncio.Server | None = None
        self._port = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    @property
    def dropped(self) -> dict[str, int]:
        """Observations that did not happen, by reason."""
        return self.gate.dropped

    @property
    def port(self) -> int:
        """The port that is listened on (0 before ``start``)."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises UserError if the address cannot be had."""
        loop = asyncio.get_running_loop()
        host, port = self.settings.listen_host, self.settings.listen_port
        try:
            self._server = await loop.create_server(lambda: ClientSide(self), host, port, backlog=_BACKLOG)
        except OSError as error:
            raise UserError(f"listen: cannot listen on {host}:{port}: {error.strerror or error}") from None
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweep()

    async def drain(self, limit_s: float) -> bool:
        """Stop accepting, let what is in flight finish; True if all of it did within ``limit_s`` seconds."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for client in tuple(self.clients):
            client.close_if_idle()
        loop = asyncio.get_running_loop()
        limit = loop.time() + limit_s
        while self.in_flight or self.clients:
            left = limit - loop.time() if self.in_flight else min(limit - loop.time(), 1.0)
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(left, 0.0))
            except TimeoutError:
                break
        while self.gate.busy:  # records of the last requests  # noqa: ASYNC110
            await asyncio.sleep(0)
        return self.in_flight == 0

    async def close(self) -> None:
        """End at once: every connection is cut, on both sides; records of cut requests are still given
        out."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for client in tuple(self.clients):
            client.cut()
        for _ in range(100):
            if not self.clients:
                break
            await asyncio.sleep(0.01)
        while self.gate.busy:
            self.gate.run()

    def count(self, counter: dict[str, int], reason: str) -> None:
        """Add one to ``refused`` or ``broken``."""
        counter[reason] = counter.get(reason, 0) + 1

    def changed(self) -> None:
        """A request or a connection has ended."""
        self._changed.set()

    def _sweep(self) -> None:
        now = self.clock_ns()
        for client in tuple(self.clients):
            client.check(now)
        shortest = min(self.settings.head_timeout_s, self.settings.idle_timeout_s)
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(min(5.0, max(0.02, shortest / 4)), self._sweep)
