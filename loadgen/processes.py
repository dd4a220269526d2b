"""Child processes that never outlive the command that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from sidecar.errors import UserError

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """In the child, before exec: have the kernel end it when its parent is gone, however that went."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A process in its own group. A terminal's Ctrl-C does not reach it; `stop` does.

    Its output is read line by line in a thread, so that it can never block on a full pipe; the last lines are
    kept for the message when it dies.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._lines: deque[str] = deque(maxlen=20)
        self._found: dict[str, str] = {}
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's id, which is also its group's."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line.rstrip())
                before, mark, after = line.partition(" listening on ")
                if mark:
                    self._found[before.strip()] = after.strip()
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def address(self, what: str, *, limit_s: float, stopped: Callable[[], bool] = lambda: False) -> str:
        """Wait for the line ``<what> listening on URL`` and return the URL.

        Raises `UserError` when the process ends first or the limit passes, `KeyboardInterrupt` as soon as
        ``stopped`` turns true.
        """
        deadline = time.monotonic() + limit_s
        with self._news:
            while what not in self._found:
                if stopped():
                    raise KeyboardInterrupt
                if not self.alive and not self._reader.is_alive():
                    raise UserError(f"the {self.name} ended before it listened: {self.last_words()}")
                if time.monotonic() > deadline:
                    raise UserError(
                        f"the {self.name} did not listen within {limit_s:.0f} s: {self.last_words()}"
                    )
                self._news.wait(0.1)
            return self._found[what]

    def last_words(self) -> str:
        """The last line it printed."""
        return self._lines[-1] if self._lines else "no output"

    def stop(self, limit_s: float = 10.0) -> None:
        """End it and its whole group: politely, then not. Safe to call again."""
        for sign, patience_s in ((signal.SIGTERM, limit_s), (signal.SIGKILL, 5.0)):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience_s)
        # Whatever it started in its group and left behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reader.join(2.0)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Interrupt:
    """Turns SIGINT and SIGTERM into a flag, so that what was measured is kept; the third one ends at once.

    Use as a context manager in the main thread; the old handlers come back at its end.
    """

    def __init__(self) -> None:
        self._count = 0
        self._old: dict[signal.Signals, object] = {}

    def __call__(self) -> bool:
        return self._count > 0

    def __enter__(self) -> Interrupt:
        for sign in (signal.SIGINT, signal.SIGTERM):
            self._old[sign] = signal.signal(sign, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sign, old in self._old.items():
            signal.signal(sign, old)  # type: ignore[arg-type]

    def _handle(self, sign: int, frame: object) -> None:
        self._count += 1
        if self._count >= 3:
            raise KeyboardInterrupt


def patiently(work: Callable[[], T], stopped: Callable[[], bool]) -> T:
    """Do blocking work in a thread, so that a stop request need not wait for it.

    Returns what it returns and raises what it raises; raises `KeyboardInterrupt` as soon as a stop is asked
    for.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        if stopped():
            raise KeyboardInterrupt
    if errors:
        raise errors[0]
    return results[0]
