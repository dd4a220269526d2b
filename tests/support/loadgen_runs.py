"""Run goodput-loadgen and servers for it as real processes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from loadgen.cli import main
from loadgen.processes import Child

ROOT = Path(__file__).parents[2]


@dataclass
class Ran:
    status: int
    out: str
    err: str


def loadgen(*args: str) -> Ran:
    """Run one command to its end, in this process (Locust still runs in its own)."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(args)
    return Ran(status, out.getvalue(), err.getvalue())


@contextmanager
def simulator(*args: str) -> Iterator[str]:
    """The built-in simulator; yields its URL."""
    command = [sys.executable, "-m", "loadgen.cli", "simulate", "--port", "0", "--max-seconds", "150", *args]
    with Child("simulator", command) as child:
        yield child.address("simulator", limit_s=30)


@contextmanager
def fake_llm(mode: str, *args: str) -> Iterator[str]:
    """The scripted server; yields its URL."""
    with Child("fake", [sys.executable, "-m", "tests.support.fake_llm", "--mode", mode, *args]) as child:
        yield child.address("fake", limit_s=30)


def descendants(pid: int) -> set[int]:
    """Ids of all processes that descend from this one, by /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def running(pids: set[int]) -> set[int]:
    """Those that still run (a zombie does not)."""
    alive = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.add(pid)
    return alive


class Interrupted:
    """A command that is stopped by a signal when its output shows a certain text."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.cli", *args],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.out = ""

    def wait_for(self, text: str, limit_s: float = 60.0) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_s
        while text not in self.out:
            line = self.process.stdout.readline()
            assert line, f"ended without {text!r}: {self.out}"
            assert time.monotonic() < deadline, self.out
            self.out += line

    def stop(self, sign: signal.Signals, *, group: bool = True, limit_s: float = 40.0) -> Ran:
        """Send the signal as a terminal does (to the whole group) or as ``kill`` does; wait for the end."""
        if group:
            os.killpg(self.process.pid, sign)
        else:
            self.process.send_signal(sign)
        rest, _ = self.process.communicate(timeout=limit_s)
        return Ran(self.process.returncode, self.out + rest, "")

    def __enter__(self) -> Interrupted:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
