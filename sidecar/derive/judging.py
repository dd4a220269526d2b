"""From a finished request to its verdict, waiting for the engine's word where that word decides. Pure.

Whether a stall is a preemption and whether a late first token is the queue's fault only the engine's page can
say, and its last scrape is usually older than the request. Such requests (and only those whose bucket hangs
on it) are held until a scrape from after their end has come, or for at most ``wait_ns``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sidecar.derive.attribution import Attribution
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import SloClass, Verdict, judge

Judged = tuple[RequestRecord, SloClass, Verdict]

_MAX_HELD = 10_000


@dataclass(slots=True)
class Judging:
    """Holds undecided requests. ``class_for`` names the class of a record."""

    class_for: Callable[[RequestRecord], SloClass]
    attribution: Attribution
    wait_ns: int = 3_000_000_000
    _held: list[tuple[int, RequestRecord]] = field(default_factory=list)

    @property
    def held(self) -> int:
        """How many requests wait for the engine's word."""
        return len(self._held)

    def take(self, record: RequestRecord, now_ns: int) -> Judged | None:
        """Judge a request that just ended; ``None`` when it is held and a scrape is wanted."""
        slo = self.class_for(record)
        verdict = judge(record, slo)
        known = self.attribution.last_ns is not None and len(self._held) < _MAX_HELD
        if not known or self._decided(record, slo, verdict):
            return record, slo, verdict
        if self.attribution.covers(record):
            return self._judge(record)
        self._held.append((now_ns, record))
        return None

    def settle(self, now_ns: int, *, all_of_them: bool = False) -> list[Judged]:
        """What can be judged now: covered by a scrape, or held long enough."""
        ready: list[Judged] = []
        still: list[tuple[int, RequestRecord]] = []
        for since_ns, record in self._held:
            if all_of_them or self.attribution.covers(record) or now_ns - since_ns >= self.wait_ns:
                ready.append(self._judge(record))
            else:
                still.append((since_ns, record))
        self._held = still
        return ready

    def _judge(self, record: RequestRecord) -> Judged:
        record = self.attribution.attribute(record)
        slo = self.class_for(record)
        return record, slo, judge(record, slo)

    @staticmethod
    def _decided(record: RequestRecord, slo: SloClass, now: Verdict) -> bool:
        if now.good or not now.eligible:
            return True
        told = replace(record, preemptions_rose=True)
        if record.queue_ns is None and record.ttft_ns is not None:
            told = replace(told, queue_ns=record.ttft_ns)
        return judge(told, slo).bucket == now.bucket
