"""What the engine's counters say about one request: preemptions during it, and the waiting part of its TTFT.

The engine tells neither for a single request on its metrics page, so both are read from the scrapes around
it: the last whose page had come when the request started and the first that was asked for after its end (a
page on its way while the request ended may or may not count it). From that follows:

* ``preemptions_rose`` is true when the preemption counter rose between those two. The span is a little longer
  than the request (by up to a scrape interval on the left), so a preemption just before it counts too.
* ``queue_ns`` is TTFT times the engine's waiting share over that span: increase of the queue-time sum over
  increase of the queue-time and prefill-time sums. (Not over the TTFT sum: vLLM counts TTFT at the first
  token but queue and prefill time at the request's end, so in a burst TTFT is counted for requests whose
  waiting is not.) It is the share of an average request of the span, not of this very one. Without those
  histograms a queue that was empty at every scrape of the span gives 0; otherwise it stays unknown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from sidecar.engine.view import EngineView
from sidecar.requests.records import RequestRecord

_KEEP_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Running totals at one scrape, made to rise only (a decrease is a reset and adds the new value).

    What they say held at some time between ``asked_ns`` and ``at_ns``, when the page had come.
    """

    at_ns: int
    asked_ns: int
    preemptions: float | None
    queue_sum_s: float | None
    prefill_sum_s: float | None
    waiting: float | None


@dataclass(slots=True)
class _Rising:
    total: float = 0.0
    last: float | None = None

    def take(self, value: float | None) -> float | None:
        if value is None:
            return None
        if self.last is not None:
            self.total += value - self.last if value >= self.last else value
        self.last = value
        return self.total


@dataclass(slots=True)
class Attribution:
    """The recent scrapes, and the answers for a request that ended."""

    limit: int = 2048
    _readings: deque[Reading] = field(default_factory=deque)
    _preemptions: _Rising = field(default_factory=_Rising)
    _queue: _Rising = field(default_factory=_Rising)
    _prefill: _Rising = field(default_factory=_Rising)

    def add(self, at_ns: int, view: EngineView, duration_s: float = 0.0) -> None:
        """Take one good scrape; ``at_ns`` is the monotonic time at which its page had arrived, ``duration_s``
        how long that took."""
        queue, prefill = view.histogram("queue"), view.histogram("prefill")
        self._readings.append(
            Reading(
                at_ns,
                at_ns - round(duration_s * 1e9),
                self._preemptions.take(view.total("preemptions")),
                self._queue.take(queue.sum if queue else None),
                self._prefill.take(prefill.sum if prefill else None),
                view.total("waiting"),
            )
        )
        while len(self._readings) > self.limit or self._readings[0].at_ns < at_ns - _KEEP_NS:
            self._readings.popleft()

    @property
    def last_ns(self) -> int | None:
        """When the last good scrape was taken."""
        return self._readings[-1].at_ns if self._readings else None

    def covers(self, record: RequestRecord) -> bool:
        """A scrape that was asked for after the request's end is there."""
        return bool(self._readings) and self._readings[-1].asked_ns >= record.end_ns

    def attribute(self, record: RequestRecord) -> RequestRecord:
        """The record with ``preemptions_rose`` and, where unset, ``queue_ns``, as far as they are known."""
        span = self._span(record.start_ns, record.end_ns)
        if len(span) < 2:
            return record
        first, last = span[0], span[-1]
        rose = (
            first.preemptions is not None
            and last.preemptions is not None
            and last.preemptions > first.preemptions
        )
        queue_ns = record.queue_ns
        ttft_ns = record.ttft_ns
        if queue_ns is None and ttft_ns is not None:
            share = self._waiting_share(span)
            queue_ns = None if share is None else round(ttft_ns * share)
        return replace(record, preemptions_rose=record.preemptions_rose or rose, queue_ns=queue_ns)

    def _span(self, start_ns: int, end_ns: int) -> list[Reading]:
        span: list[Reading] = []
        for reading in reversed(self._readings):
            if reading.asked_ns >= end_ns and span and span[-1].asked_ns >= end_ns:
                span[-1] = reading  # an earlier one that still lies after the end
            else:
                span.append(reading)
            if reading.at_ns <= start_ns:
                break
        return span[::-1]

    @staticmethod
    def _waiting_share(span: list[Reading]) -> float | None:
        first, last = span[0], span[-1]
        if (
            first.queue_sum_s is not None
            and last.queue_sum_s is not None
            and first.prefill_sum_s is not None
            and last.prefill_sum_s is not None
        ):
            queued_s = last.queue_sum_s - first.queue_sum_s
            before_first_s = queued_s + last.prefill_sum_s - first.prefill_sum_s
            if before_first_s > 0:
                return queued_s / before_first_s
        if all(reading.waiting == 0 for reading in span):
            return 0.0
        return None
