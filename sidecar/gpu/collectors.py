"""Where readings come from: an exporter's page over HTTP, or the driver's library. Each fails on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from sidecar.engine.body import PageError
from sidecar.engine.exposition import Parser
from sidecar.engine.page import Page
from sidecar.gpu.nvml import Nvml, NvmlMissing
from sidecar.gpu.reading import Reading

_MAX_BYTES = 32 * 1024 * 1024
_ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"


class CollectError(Exception):
    """A look that gave nothing. ``code`` is a short bounded word for a label."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code


class Collector(Protocol):
    """One source of readings."""

    name: str

    async def collect(self) -> Reading:
        """One look. Raises CollectError."""

    async def close(self) -> None:
        """Let go of what it holds."""


class PageCollector:
    """An exporter's metrics page. ``url`` may be its base or the page itself."""

    def __init__(self, name: str, url: str, read: Callable[[Page], Reading], timeout_s: float) -> None:
        self.name = name
        base = url.rstrip("/")
        self.url = base if base.endswith("/metrics") else f"{base}/metrics"
        self._read = read
        self._timeout_s = timeout_s
        self._parser = Parser(max_bytes=_MAX_BYTES)

    async def collect(self) -> Reading:
        """Fetch and read the page."""
        try:
            async with asyncio.timeout(self._timeout_s):
                page = await self._fetch()
        except TimeoutError:
            raise CollectError(f"no whole page within {self._timeout_s:g} s", "timeout") from None
        except httpx.TimeoutException:
            raise CollectError(f"no answer within {self._timeout_s:g} s", "timeout") from None
        except httpx.ConnectError:
            raise CollectError("nobody listens there", "connect") from None
        except httpx.HTTPError as error:
            raise CollectError(f"the answer broke off: {type(error).__name__}", "read") from None
        except PageError as error:
            raise CollectError(error.reason, error.code) from None
        reading = self._read(page)
        if not reading.gpus:
            raise CollectError(reading.notes[0] if reading.notes else "no GPU on the page", "no_gpu")
        return reading

    async def close(self) -> None:
        """Nothing is held between two looks."""

    async def _fetch(self) -> Page:
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip"}
        async with (
            httpx.AsyncClient(
                timeout=self._timeout_s,
                trust_env=False,
                headers=headers,
                # Made for each look: nothing is verified over plain HTTP, and certificates are slow to load.
                verify=self.url.startswith("https"),
            ) as client,
            client.stream("GET", self.url) as response,
        ):
            if response.status_code != 200:
                raise CollectError(f"HTTP {response.status_code}", "status")
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise CollectError(f"page larger than {_MAX_BYTES} bytes", "too_large")
            length = response.headers.get("content-length", "")
            return self._parser.parse(
                bytes(body),
                content_type=response.headers.get("content-type", ""),
                content_encoding=response.headers.get("content-encoding", ""),
                content_length=int(length) if length.isdigit() else None,
            )


@dataclass(slots=True)
class NvmlCollector:
    """The driver's library, asked in a thread: its calls block, for seconds when a board is sick."""

    nvml: Nvml = field(default_factory=Nvml)
    timeout_s: float = 10.0
    name: str = "nvml"
    _asking: asyncio.Task[Reading] | None = None

    async def collect(self) -> Reading:
        """One look. A call that hangs is waited for at the next look, never started twice."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(asyncio.to_thread(self.nvml.read))
        try:
            return await asyncio.wait_for(asyncio.shield(self._asking), self.timeout_s)
        except TimeoutError:
            raise CollectError(f"the driver did not answer within {self.timeout_s:g} s", "timeout") from None
        except NvmlMissing as error:
            raise CollectError(str(error), error.code) from None

    async def close(self) -> None:
        """Let go of the library, unless it hangs."""
        if self._asking is None or self._asking.done():
            await asyncio.to_thread(self.nvml.close)
