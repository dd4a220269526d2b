"""The sidecar checks itself: exact goodput must lie within what the engine's histograms allow.

Compared once a minute over the same two scrapes, with one SLO class only (the engine knows no classes) and
only when nearly all traffic goes through the sidecar; everything else is not comparable, which is no fault.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sidecar.engine.bounds import BoundsCheck, GoodputBounds, goodput_of
from sidecar.engine.series import History
from sidecar.requests.slo import SloClass

_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class _Mark:
    at_ns: int
    good: int
    finished: int
    in_flight: float


@dataclass(slots=True)
class SelfCheck:
    """Marks of the sidecar's own counters at each good scrape, and the outcomes so far."""

    outcomes: BoundsCheck = field(default_factory=BoundsCheck)
    _marks: deque[_Mark] = field(default_factory=deque)
    _checked_ns: int | None = None

    def at_scrape(
        self,
        at_ns: int,
        history: History,
        slo: SloClass | None,
        *,
        good: int,
        finished: int,
        in_flight: float,
    ) -> bool | None:
        """Take a good scrape. ``good`` and ``finished`` are totals since the start, ``slo`` is ``None`` with
        several classes in use. True or false where a check was due and possible, else ``None``."""
        self._marks.append(_Mark(at_ns, good, finished, in_flight))
        while self._marks[0].at_ns < at_ns - round(_EVERY_S * 1e9):
            self._marks.popleft()
        if self._checked_ns is None:
            self._checked_ns = at_ns
        if at_ns - self._checked_ns < _EVERY_S * 1e9:
            return None
        self._checked_ns = at_ns
        first = self._marks[0]
        if slo is None:
            return self.outcomes.compare(None, 0, 0, 0.0)
        bounds = goodput_of(history, slo, at_ns, _EVERY_S)
        # A request on its way through may be counted on one side before a scrape, on the other after it.
        straddling = max(in_flight, first.in_flight)
        return self.outcomes.compare(bounds, good - first.good, finished - first.finished, straddling)


def attainment_bounds(
    history: History, slo: SloClass, now_ns: int, window_s: float = 300.0
) -> GoodputBounds | None:
    """What the engine's own histograms allow, as if all its requests were of this class."""
    return goodput_of(history, slo, now_ns, window_s)
