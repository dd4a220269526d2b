"""The simulator for other tests: inside this event loop, or as the process that a user starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from loadgen.simulator.profile import Profile, find_profile
from loadgen.simulator.server import Simulator

SIMULATE = (sys.executable, "-c", "import sys; from loadgen.cli import main; sys.exit(main())", "simulate")


@contextlib.asynccontextmanager
async def simulated(profile: Profile | str = "fast", **settings: Any) -> AsyncIterator[Simulator]:
    """A running simulator on a free port of this machine."""
    simulator = Simulator(find_profile(profile) if isinstance(profile, str) else profile, **settings)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.close()


async def until(condition: Callable[[], bool], *, limit_s: float = 20.0) -> None:
    """Wait for something that must come; fails after ``limit_s``."""
    async with asyncio.timeout(limit_s):
        # The condition is plain state of the engine, which tells nobody when it changes.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def simulate_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``goodput-loadgen simulate`` on a free port: the process and its URL. Ended at the end, by its pid."""
    process = subprocess.Popen(
        [*SIMULATE, "--port", "0", "--max-seconds", "60", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("simulator listening on http://127.0.0.1:"), (line, process.poll())
        yield process, line.split()[-1]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
