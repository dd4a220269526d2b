"""A running proxy for tests, with what it noted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sidecar.proxy.server import Proxy, ProxySettings
from sidecar.requests.records import RequestRecord


@asynccontextmanager
async def proxied(
    upstream_port: int,
    *,
    on_record: Callable[[RequestRecord], None] | None = None,
    records: list[RequestRecord] | None = None,
    on_start: Callable[[Any], None] | None = None,
    **settings: Any,
) -> AsyncIterator[Proxy]:
    """A proxy on a free port before the given upstream port; records go to ``records``."""
    sink = on_record or (records if records is not None else []).append
    proxy = Proxy(
        ProxySettings(f"http://127.0.0.1:{upstream_port}", listen_port=0, **settings),
        on_record=sink,
        on_start=on_start,
    )
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.005)
