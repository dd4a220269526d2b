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


def names_in(body: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """The models of a ``/v1/models`` answer and, apart, their adapters (which name a parent); empty for
    anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return frozenset(), frozenset()
    listed = found.get("data") if isinstance(found, dict) else None
    names: tuple[set[str], set[str]] = (set(), set())
    for entry in listed if isinstance(listed, list) else ():
        name = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(name, str) and name:
            names[bool(entry.get("parent"))].add(name)
    return frozenset(names[0]), frozenset(names[1])


async def watch_models(
    upstream: str, on_names: Callable[[frozenset[str]], None], stop: asyncio.Event
) -> None:
    """Ask every minute until ``stop``; models are told before adapters. A server that wants a key or has no
    such path tells nothing."""
    # Reading the system's certificates takes a tenth of a second, in which no request passes: only once, and
    # only where they are needed.
    verify = httpx.create_ssl_context() if upstream.startswith("https:") else False
    while not stop.is_set():
        found: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        with suppress(httpx.HTTPError):
            async with (
                httpx.AsyncClient(timeout=5.0, trust_env=False, verify=verify) as client,
                client.stream("GET", upstream.rstrip("/") + "/v1/models") as answer,
            ):
                body = b""
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        break
                if answer.status_code == 200:
                    found = names_in(body)
        for names in found:
            if names:
                on_names(names)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _EVERY_S if any(found) else _RETRY_S)
