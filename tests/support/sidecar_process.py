"""``goodput-sidecar run`` as the process a user starts, on free ports of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Running:
    """A running sidecar: its process and addresses."""

    process: subprocess.Popen[str]
    proxy: str
    admin: str

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask the admin server."""
        return httpx.get(self.admin + path, headers=headers, timeout=20, trust_env=False)

    def status(self) -> Any:
        """``/goodput.json``."""
        return self.get("/goodput.json").json()

    def metrics(self) -> dict[str, float]:
        """Samples of the metrics page, by their text."""
        lines = self.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    def end(self, number: int = signal.SIGTERM, limit_s: float = 30.0) -> int:
        """Signal it and wait; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(limit_s)


def wait_for(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Poll until true; fails after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


@contextlib.contextmanager
def sidecar_process(upstream: str, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    """A sidecar before ``upstream``; killed by its pid at the end if it still runs."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sidecar",
            "run",
            "--upstream",
            upstream,
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("GOODPUT_")} | (env or {}),
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(2)]
        assert [line[:3] for line in lines] == [["proxy", "listening", "on"], ["admin", "listening", "on"]], (
            lines,
            process.stderr.read() if process.stderr and process.poll() is not None else "",
        )
        yield Running(process, lines[0][3], lines[1][3])
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(20)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
