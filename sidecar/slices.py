"""Long work on the event loop in slices, so that nobody's bytes wait for it.

Such work is a generator that yields wherever it may be interrupted and returns its result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

SLICE_S = 0.002


def at_once(work: Steps[T]) -> T:
    """Do all of it now."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


async def in_slices(work: Steps[T], *, slice_s: float = SLICE_S) -> T:
    """Do it in slices of about ``slice_s``, with a pause as long after each: the loop stays half free."""
    while True:
        end_s = time.monotonic() + slice_s
        try:
            while time.monotonic() < end_s:
                next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(slice_s)


class Shared:
    """One computation at a time: whoever asks while it runs gets the same result."""

    def __init__(self) -> None:
        self._running: asyncio.Future[bytes] | None = None

    async def get(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The result of the running computation, or of ``make``. A caller that leaves does not end it."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(make())
        return await asyncio.shield(self._running)
