"""One level under way inside one Locust process: its phases, its requests, its records.

Runs under gevent. The decisions (windows, verdicts, figures) are made elsewhere from the records that leave
here.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gevent
from gevent.event import Event

from loadgen.arrivals import arrival_times
from loadgen.plan import ClientHealth, LevelPlan
from loadgen.stats import Distribution
from loadgen.stream_client import Exchange, StreamClient
from loadgen.wire import rebase
from loadgen.workload.mix import MixMaker
from loadgen.workload.sessions import Session
from loadgen.workload.spec import PreparedRequest
from sidecar.requests.records import End, ErrorKind, Outcome, RequestRecord

# A user whose request failed waits before its next one, twice as long each time: a server that refuses
# everything must not be hammered as fast as the generator can. Failures are counted all the same.
_BACKOFF_S = 0.05
_BACKOFF_MAX_S = 1.0
_SETTLE_LIMIT_S = 10.0
_LAG_EVERY_S = 0.02
_SPIN_NS = 1_500_000  # the loop's timers are whole milliseconds: the last stretch before a due time is spun
_EDGE_NS = 50_000_000
_CAPTURE_CHARS = 200_000  # of an answer that the next turn of its conversation sends back

Say = Callable[[dict[str, Any]], None]


class LevelRun:
    """State of one level in this process. ``users`` is this worker's share of a closed loop."""

    def __init__(
        self,
        plan: LevelPlan,
        *,
        client: StreamClient,
        maker: MixMaker,
        model: str,
        worker: int,
        workers: int,
        timeout_s: float,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self.plan = plan
        self._client = client
        self._maker = maker
        self._model = model
        self._worker = worker
        self._workers = workers
        self._timeout_s = timeout_s
        self._on_record = on_record
        self._serial = worker
        self._records: list[RequestRecord] = []
        self._over: deque[tuple[Exchange, int | None, PreparedRequest, RequestRecord | None]] = (
            deque()
        )  # ended, records still to be made
        self._pending = 0  # requests of the measured window that are not over
        self._senders: set[gevent.Greenlet] = set()
        self._slot = Event()
        self._stop = Event()
        self._sooner = Event()
        self._dispatched_ns = 0  # open loop: every arrival due before this has been sent
        self._lags = Distribution()
        self._failures = 0
        self._tokens = 0
        self._ttft_sum_s = 0.0
        self._ttft_count = 0
        self._rng = random.Random(f"users/{plan.seed}/{plan.number}/{worker}")
        self._t0_ns = 0
        self._cpu: tuple[float, float] | None = None
        self._cpu_share: float | None = None
        self._reads_before = self._reads()
        self.sending = False
        self.phase = "new"

    @property
    def users(self) -> int:
        """Locust users this process needs: its share of a closed loop, one dispatcher in open loop."""
        if self.plan.arrivals.open_loop:
            return 1
        load = int(self.plan.load)
        return load // self._workers + (self._worker < load % self._workers)

    # Called from Locust users:

    def closed_loop(self) -> None:
        """One user of a closed loop: request after request, until the level stops sending."""
        # Users that start together stay in step and hit the server in waves: spread their starts.
        self._stop.wait(self._rng.uniform(0, min(1.0, self.plan.warmup_s / 2)))
        backoff_s = _BACKOFF_S
        while self.sending:
            serial = self._next_serial()
            session = self._maker.session(self.plan.number, serial)
            if self._one(None, serial) if session is None else self._talk(session):
                backoff_s = _BACKOFF_S
            else:
                self._stop.wait(backoff_s)
                backoff_s = min(_BACKOFF_MAX_S, 2 * backoff_s)

    def open_loop(self) -> None:
        """The dispatcher of an open loop: a greenlet for each arrival at its due time, answered or not."""
        plan = self.plan
        ceiling = None if plan.max_in_flight is None else max(1, plan.max_in_flight // self._workers)
        trace = self._maker.trace
        times = (
            arrival_times(
                plan.arrivals, plan.load, seed=plan.seed, worker=self._worker, workers=self._workers
            )
            if trace is None
            else trace.times(plan.load, worker=self._worker, workers=self._workers)
        )
        for at_s in times:
            due_ns = self._t0_ns + round(at_s * 1e9)
            self._dispatched_ns = due_ns
            self._wait_until(due_ns)
            while ceiling is not None and len(self._senders) >= ceiling and self.sending:
                self._slot.clear()
                self._slot.wait(1.0)
            if not self.sending:
                self._give_up_unsent(due_ns, times)
                return
            sender = gevent.spawn(self._one, due_ns, self._next_serial())
            self._senders.add(sender)
            sender.rawlink(self._sender_ended)

    def _sender_ended(self, sender: gevent.Greenlet) -> None:
        self._senders.discard(sender)
        self._slot.set()

    def _wait_until(self, due_ns: int) -> None:
        while self.sending:
            left_ns = due_ns - time.monotonic_ns()
            if left_ns <= 0:
                return
            if left_ns > _SPIN_NS:
                self._stop.wait((left_ns - _SPIN_NS) / 1e9)
            else:
                gevent.sleep(0)

    def _give_up_unsent(self, first_due_ns: int, later: Any) -> None:
        """A request that was due in the window but never left is a failed one, not one that never was."""
        now_ns = time.monotonic_ns()
        window_end_ns = self._t0_ns + self.plan.window_ns[1]
        due_ns = first_due_ns
        while due_ns < min(window_end_ns, now_ns):
            request = self._maker.make(self.plan.number, self._next_serial())
            self._records.append(
                RequestRecord(
                    api=request.api,
                    model=request.model or self._model,
                    streamed=True,
                    start_ns=due_ns,
                    end_ns=now_ns,
                    outcome=Outcome.ERROR,
                    error_kind=ErrorKind.TIMEOUT,
                    error="never sent: the ceiling on requests in flight was reached",
                    scheduled_ns=due_ns,
                    request_class=request.request_class,
                )
            )
            due_ns = self._t0_ns + round(next(later) * 1e9)

    def _next_serial(self) -> int:
        serial = self._serial
        self._serial += self._workers
        return serial

    def _one(self, due_ns: int | None, serial: int) -> bool:
        """Send one request and wait for its end; whether any output came."""
        return self._send(self._maker.make(self.plan.number, serial), due_ns)[0].gave_output

    def _talk(self, session: Session) -> bool:
        """One conversation, turn after turn; whether its last answer had any output."""
        request = session.next(None)
        exchange: Exchange | None = None
        while request is not None and self.sending:
            exchange, text = self._send(request, None, capture_chars=_CAPTURE_CHARS)
            if text is None:
                break
            request = session.next(text)
            if request is not None:
                self._stop.wait(session.think_s())
        return exchange is not None and exchange.gave_output

    def _send(
        self, request: PreparedRequest, due_ns: int | None, *, capture_chars: int = 0
    ) -> tuple[Exchange, str | None]:
        """Send one request and wait for its end. The text of a completed answer, where it is captured."""
        began_ns = time.monotonic_ns() if due_ns is None else due_ns
        start_ns, end_ns = (self._t0_ns + edge for edge in self.plan.window_ns)
        counts = start_ns - _EDGE_NS <= began_ns < end_ns
        self._pending += counts
        try:
            exchange = self._client.request(
                request.wire,
                request.api,
                model=request.model or self._model,
                scheduled_ns=due_ns,
                timeout_s=self._timeout_s,
                capture_chars=capture_chars,
            )
        finally:
            self._pending -= counts
        record, text = None, None
        if capture_chars:  # the next turn needs the answer now; nobody else shall have it
            record = exchange.record()
            if record.outcome is Outcome.COMPLETED:
                text = "".join(choice.text or "" for choice in record.choices)
            record = replace(record, choices=tuple(replace(c, text=None) for c in record.choices))
        self._over.append((exchange, due_ns, request, record))
        return exchange, text

    def _close_record(self) -> None:
        exchange, due_ns, request, made = self._over.popleft()
        record = exchange.record() if made is None else made
        record = replace(
            record,
            scheduled_ns=due_ns,
            sent_ns=exchange.sent_ns,
            request_class=request.request_class,
            extra=record.extra | asked_of(request),
        )
        self._records.append(record)
        self._failures += record.outcome is not Outcome.COMPLETED
        self._tokens += record.output_tokens or 0
        if record.ttft_ns is not None:
            self._ttft_sum_s += record.ttft_ns / 1e9
            self._ttft_count += 1
        self._on_record(record)

    def _close_records(self) -> None:
        """Make records while the loop has nothing better to do: streams that end together must not queue for
        it.
        """
        while True:
            if self._over:
                gevent.idle()
                if self._over:
                    self._close_record()
            else:
                gevent.sleep(0.005)

    # Called by the process:

    def run(self, say: Say, start_users: Callable[[int], None]) -> None:
        """Run all phases; returns when the level is over or `cut` was called. Blocks this greenlet only."""
        gc.collect()
        gc.disable()  # a collection in the middle of a level is a pause that looks like the server's
        lag = gevent.spawn(self._watch_lag)
        ticker = gevent.spawn(self._tick, say)
        closer = gevent.spawn(self._close_records)
        self._t0_ns = time.monotonic_ns()
        self.sending = True
        try:
            self._enter("warmup", say)
            start_users(self.users)
            self._warm_up()
            self._enter("window", say)
            self._cpu = _cpu_now()
            self._sleep_until(self.plan.window_ns[1])
            self._take_cpu()
            self._enter("drain", say)
            self._drain()
        finally:
            self.sending = False
            lag.kill()
            ticker.kill()
            closer.kill()
            gevent.killall(list(self._senders))
            while self._over:
                self._close_record()
            gc.enable()

    def _warm_up(self) -> None:
        while not self._stop.is_set():
            left_ns = self._t0_ns + self.plan.window_ns[0] - time.monotonic_ns()
            if left_ns <= 0:
                return
            self._sooner.wait(left_ns / 1e9)
            self._sooner.clear()

    def begin_window(self, start_ns: int) -> None:
        """The load is steady: the window begins at this moment after the level's start, not when planned.

        Must come before that moment; one that comes too late begins it now.
        """
        if self.phase == "warmup":
            start_ns = max(start_ns, time.monotonic_ns() - self._t0_ns)
            self.plan = replace(self.plan, warmup_s=start_ns / 1e9)
            self._sooner.set()

    def cut(self) -> None:
        """Stop now: no more requests; those under way are closed."""
        self.sending = False
        self._stop.set()
        self._sooner.set()

    def _sleep_until(self, offset_ns: int) -> None:
        while not self._stop.is_set():
            left_ns = self._t0_ns + offset_ns - time.monotonic_ns()
            if left_ns <= 0:
                return
            self._stop.wait(left_ns / 1e9)

    def _window_is_over(self) -> bool:
        end_ns = self._t0_ns + self.plan.window_ns[1]
        return self._pending == 0 and (not self.plan.arrivals.open_loop or self._dispatched_ns >= end_ns)

    def _drain(self) -> None:
        """Keep the load up until the window's requests have ended, then let the rest end without new ones."""
        limit_ns = time.monotonic_ns() + round(self.plan.drain_limit_s * 1e9)
        while not self._stop.is_set() and time.monotonic_ns() < limit_ns and not self._window_is_over():
            self._stop.wait(0.02)
        self.sending = False
        if self._pending or self._stop.is_set():
            self._client.abort_all(End.TIMEOUT if not self._stop.is_set() else End.CLIENT_LEFT)
        limit_ns = time.monotonic_ns() + round(_SETTLE_LIMIT_S * 1e9)
        while self._client.in_flight and not self._stop.is_set() and time.monotonic_ns() < limit_ns:
            gevent.sleep(0.02)
        self._stop.set()
        self._client.abort_all(End.CLIENT_LEFT)
        gevent.sleep(0.01)  # let the aborted requests write their records

    def outcome(self) -> dict[str, Any]:
        """What this worker measured, times counted from the level's start."""
        now_ns = time.monotonic_ns()
        reads, shared = (now - then for now, then in zip(self._reads(), self._reads_before, strict=True))
        clock = self._client.clock
        return {
            "records": [rebase(record, self._t0_ns) for record in self._records],
            "ended_ns": now_ns - self._t0_ns,
            "warmup_s": self.plan.warmup_s,
            "client": ClientHealth(
                cpu_share=self._cpu_share,
                loop_lag_p99_s=self._lags.at(0.99),
                stamp="kernel" if clock.kernel_stamps > clock.read_stamps else "read",
                shared_stamp_share=shared / reads if reads else None,
            ),
        }

    def _reads(self) -> tuple[int, int]:
        return self._client.counts.event_reads, self._client.counts.shared_reads

    def _enter(self, phase: str, say: Say) -> None:
        self.phase = phase
        say({"event": "phase", "phase": phase})

    def _take_cpu(self) -> None:
        if self._cpu is not None:
            wall_s, cpu_s = (now - then for now, then in zip(_cpu_now(), self._cpu, strict=True))
            self._cpu_share = cpu_s / wall_s if wall_s > 0 else None

    def _watch_lag(self) -> None:
        while True:
            before_ns = time.monotonic_ns()
            gevent.sleep(_LAG_EVERY_S)
            late_ns = time.monotonic_ns() - before_ns - round(_LAG_EVERY_S * 1e9)
            if self.phase == "window":
                self._lags.record(max(0, late_ns))

    def _tick(self, say: Say) -> None:
        while True:
            gevent.sleep(0.5)
            say(
                {
                    "event": "tick",
                    "phase": self.phase,
                    "elapsed_s": (time.monotonic_ns() - self._t0_ns) / 1e9,
                    "done": len(self._records) + len(self._over),
                    "failed": self._failures,
                    "tokens": self._tokens,
                    "ttft_sum_s": self._ttft_sum_s,
                    "ttft_count": self._ttft_count,
                    "in_flight": self._client.in_flight,
                }
            )


def asked_of(request: PreparedRequest) -> dict[str, str]:
    """What was asked for, kept with the record so that it can be held against the answer."""
    asked = {"asked_tokens": str(request.asked_tokens)}
    if request.model:
        asked["asked_model"] = request.model
    if request.turn:
        asked["turn"] = str(request.turn)
    return asked


def _cpu_now() -> tuple[float, float]:
    """(wall, CPU) seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), usage.ru_utime + usage.ru_stime
