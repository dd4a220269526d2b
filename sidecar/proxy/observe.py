"""Looking on without being noticed: the guard between the proxy's path and everything that measures.

On the path a ``Watch`` only notes what passed and when (a list append). The meter runs later, from the event
loop's next turn, when the bytes have left, and for many chunks at a time once the first token is known.
Whatever goes wrong there is counted by reason and ends the observation of that request; it never reaches
the request. Observing has a time budget: when it eats more than its share of the loop, it stops for a
while (``overload``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from sidecar.proxy.framing import WHOLE_CHUNKS
from sidecar.proxy.trace import TraceContext
from sidecar.requests.apis import RequestFacts, request_facts
from sidecar.requests.records import Api, End, RequestRecord
from sidecar.requests.stream import StreamMeter

_BATCH_BYTES = 64 * 1024
_END_BYTES = 32 * 1024  # of a request body larger than what is captured of it
_SLICE_NS = 200_000  # of observing between two looks at the sockets
_BEHIND = 2 * 64  # notes of a stream whose turn does not come: from here on slices have no limit
# Observing may take half of the loop's time, and save up one second of it; beyond that it pauses.
_SHARE = 0.5
_BURST_NS = 1_000_000_000
_PAUSE_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Started:
    """A model request whose last byte has arrived: what ``on_start`` gets. ``start_ns`` is that moment."""

    request_id: str
    api: Api
    path: str
    request_class: str
    facts: RequestFacts
    body: bytes  # the beginning of the request body, up to the capture limit
    start_ns: int
    trace: TraceContext | None = None


@dataclass(slots=True)
class Gate:
    """Runs the observers of one proxy, within a budget; counts what was not observed in ``dropped``."""

    on_record: Callable[[RequestRecord], None]
    on_start: Callable[[Started], None] | None = None
    capture_chars: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    _ready: deque[Watch] = field(default_factory=deque)
    behind: bool = False
    _scheduled: bool = False
    _debt_ns: float = 0.0
    _charged_ns: int = field(default_factory=lambda: time.monotonic_ns())
    _paused_until_ns: int = 0
    # Streams of one engine tick together; their batches, each of another size, do not.
    batches: Iterator[int] = field(default_factory=lambda: cycle(range(2 * 8, 2 * 24, 2)))

    def drop(self, reason: str) -> None:
        """Count one observation that did not happen."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def open(self) -> bool:
        """False while observing pauses for having been too slow."""
        return not self._paused_until_ns or time.monotonic_ns() >= self._paused_until_ns

    def schedule(self, watch: Watch) -> None:
        """Have ``watch`` work off what it noted, once the loop has written what is to be written."""
        watch.queued = True
        self._ready.append(watch)
        self._wake()

    @property
    def busy(self) -> bool:
        """True while something is scheduled."""
        return bool(self._ready)

    def run(self, limit_ns: int = _SLICE_NS) -> None:
        """Work off what is scheduled, for about ``limit_ns``; the rest has its turn after the next bytes.

        When streams bring more than such slices can take, memory comes first: then all is worked off at once,
        which slows the reading down, and the time budget decides whether that goes on.
        """
        self._scheduled = False
        if self.behind:
            self.behind = False
            limit_ns = _BURST_NS
        begin = now = time.monotonic_ns()
        paused = begin < self._paused_until_ns
        while self._ready and now - begin < limit_ns:
            watch = self._ready.popleft()
            if paused:
                watch.queued = False
                watch.give_up("overload")
            else:
                watch.work()
            now = time.monotonic_ns()
        if not paused:
            self._charge(begin, now)
        if self._ready:
            self._wake()

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.run)

    def _charge(self, begin: int, end: int) -> None:
        refund = (end - self._charged_ns) * _SHARE
        self._charged_ns = end
        self._debt_ns = max(0.0, self._debt_ns + (end - begin) - refund)
        if self._debt_ns > _BURST_NS:
            self._debt_ns = 0.0
            self._paused_until_ns = end + _PAUSE_NS


class Watch:
    """One model request on its way through. All ``note_*`` methods are cheap and never raise."""

    __slots__ = (
        "_api",
        "_body",
        "_body_end",
        "_body_room",
        "_end",
        "_facts",
        "_gate",
        "_head",
        "_held",
        "_meter",
        "_over",
        "_request_class",
        "_request_id",
        "_start_ns",
        "_started",
        "_target",
        "_trace",
        "enough",
        "notes",
        "queued",
    )

    def __init__(
        self,
        gate: Gate,
        api: Api,
        *,
        target: str,
        request_class: str,
        request_id: str,
        trace: TraceContext | None,
        capture: int,
    ) -> None:
        self._gate = gate
        self._api = api
        self._target = target
        self._request_class = request_class
        self._request_id = request_id
        self._trace = trace
        self._body = bytearray()
        self._body_room = capture
        self._body_end = b""
        self._start_ns: int | None = None
        self._facts: RequestFacts | None = None
        self._started = False
        self._head: tuple[int, list[tuple[str, str]], int] | None = None
        # Bytes and their time in turn, without an object for each pair. A negative time: the bytes are one
        # whole chunk still in the transfer coding.
        self.notes: list[Any] = []
        self.enough = 2  # notes that make it worth while to run the meter
        self._held = 0
        self._meter: StreamMeter | None = None
        self._end: tuple[End, int] | None = None
        self._over = False
        self.queued = False

    def note_request_bytes(self, data: bytes) -> None:
        """A piece of the request body; only its beginning is kept, and the last of its end."""
        if self._started:
            return
        room = self._body_room
        if room > 0:
            self._body += data[:room]
        self._body_room = room - len(data)
        if self._body_room < 0:
            self._body_end = (self._body_end + data[max(room, 0) :])[-_END_BYTES:]

    def note_request_end(self, at_ns: int) -> None:
        """The request's last byte has arrived."""
        self._start_ns = at_ns
        if self._gate.on_start is not None or self._body:  # a body need not be kept while the engine works
            self.later()

    def note_head(self, status: int, headers: list[tuple[str, str]], at_ns: int) -> None:
        """The answer's head."""
        self._head = (status, headers, at_ns)

    def note_chunk(self, data: bytes, at_ns: int) -> None:
        """A piece of the answer's body, transfer coding taken off."""
        self.notes.append(data)
        self.notes.append(at_ns)
        self._held += len(data)
        if len(self.notes) >= self.enough or self._held >= _BATCH_BYTES:
            self.later()

    def note_end(self, end: End, at_ns: int) -> None:
        """The answer is over."""
        if self._end is None:
            self._end = (end, at_ns)
            self.later()

    def give_up(self, reason: str) -> None:
        """Stop observing this request and count why."""
        if not self._over:
            self._over = True
            self._gate.drop(reason)
        self.notes.clear()
        self._body = bytearray()
        self._body_end = b""
        self._meter = None

    def work(self) -> None:
        """Feed the meter with what was noted. Called by the gate only; never raises."""
        self.queued = False
        if self._over:
            self.notes.clear()
            return
        step = "facts"
        try:
            if not self._started and (self._start_ns is not None or self._head or self._end):
                self._begin()
            step = "meter"
            if self._started:
                self._measure()
            if self._end is not None:
                self._over = True
                record = self._finish(*self._end)
                step = "on_record"
                self._gate.on_record(record)
        except Exception:
            self._over = False
            self.give_up(step)

    def _begin(self) -> None:
        self._started = True
        body = bytes(self._body)
        complete = self._start_ns is not None and self._body_room >= 0  # else the facts are a guess
        end = self._body_end
        if 0 < len(end) < _END_BYTES:
            end = (body[-_END_BYTES:] + end)[-_END_BYTES:]
        self._body, self._body_end, self._body_room = bytearray(), b"", 0
        self._facts = facts = request_facts(self._api, body, end=end)
        if self._start_ns is None:  # answered before the request was complete
            known = self._head[2] if self._head else self._end[1] if self._end else 0
            self._start_ns = known
        self._meter = StreamMeter(
            self._api,
            start_ns=self._start_ns,
            choices=facts.choices,
            model=facts.model,
            capture_chars=self._gate.capture_chars,
            echo=facts.echo,
            stream=facts.stream if complete or facts.stream else None,
        )
        if self._gate.on_start is not None:
            start = Started(
                request_id=self._request_id,
                api=self._api,
                path=self._target,
                request_class=self._request_class,
                facts=facts,
                body=body,
                start_ns=self._start_ns,
                trace=self._trace,
            )
            try:
                self._gate.on_start(start)
            except Exception:
                self._gate.drop("on_start")

    def _measure(self) -> None:
        meter = self._meter
        assert meter is not None
        if self._head is not None:
            meter.on_headers(*self._head)
            self._head = None
        feed, notes = meter.feed, iter(self.notes)
        for data, at_ns in zip(notes, notes, strict=True):
            if at_ns < 0:
                feed(data[len(WHOLE_CHUNKS[len(data)]) : -2], -at_ns)
            else:
                feed(data, at_ns)
        self.notes.clear()
        self._held = 0
        self.enough = 2 if meter.first_ns is None else next(self._gate.batches)

    def _finish(self, end: End, at_ns: int) -> RequestRecord:
        assert self._meter is not None
        record = self._meter.finish(end, at_ns)
        extra = dict(record.extra)
        if self._trace is not None:
            extra["trace_id"] = self._trace.trace_id
            extra["span_id"] = self._trace.span_id
            extra["parent_span_id"] = self._trace.parent_span_id
            extra["trace_flags"] = self._trace.flags
        return replace(
            record,
            request_id=self._request_id,
            path=self._target,
            request_class=self._request_class,
            extra=extra,
        )

    def later(self) -> None:
        """Have the gate run the meter over what is noted."""
        if not self.queued:
            self._gate.schedule(self)
        elif len(self.notes) > _BEHIND or self._held > 4 * _BATCH_BYTES:
            self._gate.behind = True
