"""What a serving process asks of the operating system and of the interpreter."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Coroutine
from contextlib import suppress
from types import ModuleType


def raise_file_limit() -> None:
    """As many open files as are allowed: each stream needs two, and containers often start with 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """What is there after the start stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


def run_on_best_loop(main: Coroutine[object, object, None]) -> None:
    """Run on uvloop where it is installed, else on asyncio's own loop."""
    uvloop: ModuleType | None
    try:
        import uvloop
    except ImportError:  # of uvloop alone: one from within ``main`` must be seen
        uvloop = None
    if uvloop is None:
        asyncio.run(main)
    else:
        uvloop.run(main)
