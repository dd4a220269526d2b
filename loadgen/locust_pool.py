"""The sweep's end of the Locust processes: starts them, gives orders, gathers what they measured."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import msgpack  # type: ignore[import-untyped]

from loadgen.guards import Finding
from loadgen.orders import Setup, level_order, setup_order
from loadgen.plan import ClientHealth, LevelPlan, Measured
from loadgen.processes import die_with_parent
from loadgen.steady import SHORTEST_S, Reading, Steady
from loadgen.wire import unpack
from sidecar.requests.records import RequestRecord

_START_LIMIT_S = 60.0
_AFTER_LIMIT_S = 60.0  # beyond a level's own longest time: records of a large level take a while to come over
_CUT_LIMIT_S = 10.0
_WINDOW_AHEAD_S = 0.4  # every process must have heard of the window before it begins

Tick = Callable[[dict[str, Any]], None]


class LoadFailed(Exception):
    """The Locust processes can do no more: one sentence says why."""


class _Worker:
    """One Locust process and the thread that reads what it says."""

    def __init__(self, index: int, said: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        self.index = index
        self._said = said
        self._log = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.locust_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is the sweep's to answer
            preexec_fn=die_with_parent,
        )
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        unpacker = msgpack.Unpacker(max_buffer_size=2**31 - 1)
        while data := os.read(self.process.stdout.fileno(), 1 << 20):
            unpacker.feed(data)
            for message in unpacker:
                self._said.put((self.index, message))
        self._said.put((self.index, None))

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        while data := os.read(self.process.stderr.fileno(), 65536):
            self._log = (self._log + data)[-4000:]

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(msgpack.packb(order))
            self.process.stdin.flush()

    def last_words(self) -> str:
        lines = self._log.decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {self.process.poll()}"

    def stop(self) -> None:
        self.tell({"do": "quit"})
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(3.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5.0)
        for thread in self._threads:
            thread.join(2.0)


class LocustPool:
    """One or more Locust processes on this machine that run levels together.

    Use as a context manager: whatever happens, the processes are gone at its end.
    """

    def __init__(self, setup: Setup, *, stopped: Callable[[], bool] = lambda: False) -> None:
        self._setup = setup
        self._stopped = stopped
        self._said: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._workers: list[_Worker] = []

    def __enter__(self) -> LocustPool:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The processes' ids."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _start(self) -> None:
        for index in range(self._setup.workers):
            worker = _Worker(index, self._said)
            self._workers.append(worker)
            worker.tell(setup_order(self._setup))
        ready: set[int] = set()
        deadline = time.monotonic() + _START_LIMIT_S
        while len(ready) < len(self._workers) and not self._stopped():
            index, message = self._hear(deadline)
            if message is None and index >= 0:
                raise LoadFailed(f"the Locust process could not start: {self._workers[index].last_words()}")
            if message is not None and message["event"] == "ready":
                ready.add(index)
            if time.monotonic() > deadline:
                raise LoadFailed(f"the Locust process was not ready after {_START_LIMIT_S:.0f} s")

    def _hear(self, deadline: float) -> tuple[int, dict[str, Any] | None]:
        """The next message; (-1, None) when a moment passed without one."""
        try:
            return self._said.get(timeout=max(0.0, min(0.1, deadline - time.monotonic())))
        except queue.Empty:
            return -1, None

    def run_level(
        self, plan: LevelPlan, on_tick: Tick, *, on_phase: Callable[[str], None] | None = None
    ) -> Measured:
        """Run one level on all processes and put together what they measured.

        ``on_tick`` gets the newest figures of all workers, summed; ``on_phase`` the name of each phase as it
        begins. A stop request cuts the level short: what came back until then is returned, marked as cut.
        Raises `LoadFailed` when no process is left or none answers.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        steady: Steady | None = None
        if plan.warmup_max_s is not None and plan.warmup_s >= SHORTEST_S:
            # The processes are told the longest warm-up, and again once it may end: should that word be lost,
            # the level still runs.
            steady = Steady(plan.warmup_s)
            plan = replace(plan, warmup_s=max(plan.warmup_s, plan.warmup_max_s))
        for place, worker in enumerate(self._workers):
            worker.tell(level_order(plan, place, len(self._workers)))
        waiting = {worker.index for worker in self._workers}
        ticks: dict[int, dict[str, Any]] = {}
        results: list[dict[str, Any]] = []
        findings: list[Finding] = []
        phases: set[str] = set()
        longest_s = plan.warmup_s + plan.window_s + plan.drain_limit_s + _AFTER_LIMIT_S
        deadline = time.monotonic() + longest_s
        cut = False
        while waiting:
            if self._stopped() and not cut:
                cut = True
                deadline = time.monotonic() + _CUT_LIMIT_S
                for worker in self._workers:
                    worker.tell({"do": "cut"})
            if time.monotonic() > deadline:
                if cut:
                    break
                raise LoadFailed(f"a Locust process did not finish its level within {longest_s:.0f} s")
            index, message = self._hear(deadline)
            if message is None:
                if index in waiting:
                    waiting.discard(index)
                    findings.append(self._lost(index))
                continue
            if message["event"] == "level":
                waiting.discard(index)
                results.append(message)
            elif message["event"] == "broken":
                raise LoadFailed(f"a Locust process failed: {message['reason']}")
            elif message["event"] == "tick":
                ticks[index] = message
                total = _sum_ticks(ticks)
                on_tick(total)
                if steady is not None and total["phase"] == "warmup" and len(ticks) == len(self._workers):
                    steady.add(_reading(total))
                    if steady.reached:
                        steady = None
                        start_ns = round((total["elapsed_s"] + _WINDOW_AHEAD_S) * 1e9)
                        for worker in self._workers:
                            worker.tell({"do": "window", "start_ns": start_ns})
            elif message["event"] == "phase" and message["phase"] not in phases:
                phases.add(message["phase"])
                if on_phase is not None:
                    on_phase(message["phase"])
        if not results and not cut:
            raise LoadFailed(findings[0].text if findings else "no Locust process is left")
        if steady is not None and not cut:
            findings.append(
                Finding(
                    "not_steady",
                    f"throughput or TTFT had not settled after {plan.warmup_s:g} s of warm-up; raise "
                    "--warmup-max-s, or the load is more than the server can take",
                )
            )
        return _measured(plan, started, results, cut, findings)

    def _lost(self, index: int) -> Finding:
        lost = next(worker for worker in self._workers if worker.index == index)
        words = lost.last_words()
        lost.stop()
        self._workers = [worker for worker in self._workers if worker is not lost]
        return Finding("worker_lost", f"a Locust process ended in mid-level: {words}", voids=True)


def _reading(total: dict[str, Any]) -> Reading:
    return Reading(
        total["elapsed_s"], total["done"], total["tokens"], total["ttft_sum_s"], total["ttft_count"]
    )


def _sum_ticks(ticks: dict[int, dict[str, Any]]) -> dict[str, Any]:
    newest = max(ticks.values(), key=lambda tick: float(tick["elapsed_s"]))
    sums = {
        name: sum(tick[name] for tick in ticks.values())
        for name in ("done", "failed", "tokens", "in_flight", "ttft_sum_s", "ttft_count")
    }
    return {"phase": newest["phase"], "elapsed_s": newest["elapsed_s"], **sums}


def _worst(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _measured(
    plan: LevelPlan, started: str, results: list[dict[str, Any]], cut: bool, findings: list[Finding]
) -> Measured:
    records: list[RequestRecord] = []
    for result in results:
        records += unpack(result["records"])
    # The window begins for all when it has begun for the last of them.
    plan = replace(plan, warmup_s=max((r["warmup_s"] for r in results), default=plan.warmup_s))
    health = [ClientHealth(*result["client"]) for result in results]
    ended_ns = max((int(result["ended_ns"]) for result in results), default=0)
    return Measured(
        records=tuple(records),
        started_wall=started,
        drain_s=max(0.0, (ended_ns - plan.window_ns[1]) / 1e9),
        client=ClientHealth(
            cpu_share=_worst([h.cpu_share for h in health]),
            loop_lag_p99_s=_worst([h.loop_lag_p99_s for h in health]),
            stamp="kernel" if health and all(h.stamp == "kernel" for h in health) else "read",
            shared_stamp_share=_worst([h.shared_stamp_share for h in health]),
        ),
        cut_ns=min(ended_ns, plan.window_ns[1]) if cut else None,
        findings=tuple(findings),
        warmup_s=plan.warmup_s,
    )
