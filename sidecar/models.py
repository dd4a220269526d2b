"""Which models the server serves, adapters too: asked at ``/v1/models`` now and then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

import httpx

_MAX_BYTES = 1024 * 1024
_EVERY_S = 60.0
_RETRY_S = 5.0


def names_in(body: bytes) -> frozenset[str]:
    """The model names of a ``/v1/models`` answer; empty for anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return frozenset()
    listed = found.get("data") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        return frozenset()
    names = (entry.get("id") for entry in listed if isinstance(entry, dict))
    return frozenset(name for name in names if isinstance(name, str) and name)


async def watch_models(
    upstream: str, on_names: Callable[[frozenset[str]], None], stop: asyncio.Event
) -> None:
    """Ask every minute until ``stop``. A server that wants a key or has no such path tells nothing."""
    while not stop.is_set():
        names: frozenset[str] = frozenset()
        with suppress(httpx.HTTPError):
            async with (
                httpx.AsyncClient(timeout=5.0, trust_env=False) as client,
                client.stream("GET", upstream.rstrip("/") + "/v1/models") as answer,
            ):
                body = b""
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        break
                if answer.status_code == 200:
                    names = names_in(body)
        if names:
            on_names(names)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _EVERY_S if names else _RETRY_S)
