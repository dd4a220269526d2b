"""One engine against its peers behind the same server (data parallel ranks): times between tokens. Pure.

Each rank has GPUs of its own, so a rank whose mean gap stands out is where a slow GPU shows in what users
feel. In decode the mean gap is the step's time, which vLLM does not export by rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.derive.spread import Standing, standings
from sidecar.engine.view import EngineView, HistogramSignal

_FEWEST = 20  # observations of a rank that make its mean worth comparing

# Name of the spread -> histogram whose mean is compared.
SPREADS = {"itl": "itl", "tpot": "request_tpot"}
_MAX_ENGINES = 64


@dataclass(slots=True)
class _Rank:
    """Sum and count of one histogram since it was first seen, made reset-aware."""

    sum: float
    count: float
    grown_sum: float = 0.0
    grown_count: float = 0.0

    def add(self, total: float, count: float) -> None:
        """Take the next raw values; a count that fell is a restart."""
        if count < self.count:
            self.grown_sum += total
            self.grown_count += count
        else:
            self.grown_sum += total - self.sum
            self.grown_count += count - self.count
        self.sum, self.count = total, count


@dataclass(slots=True)
class EngineSpread:
    """Means per engine over a window of ``window_s`` seconds."""

    window_s: float = 300.0
    _ranks: dict[tuple[str, str], _Rank] = field(default_factory=dict)
    _entries: deque[tuple[int, dict[tuple[str, str], tuple[float, float]]]] = field(default_factory=deque)

    def add(self, at_ns: int, view: EngineView) -> None:
        """Take one view, in time order; a view seen before adds nothing."""
        if self._entries and at_ns <= self._entries[-1][0]:
            return
        for spread, name in SPREADS.items():
            found = view.histograms.get(name)
            for engine, (total, count) in _by_engine(found).items() if found is not None else ():
                rank = self._ranks.get((spread, engine))
                if rank is None and len(self._ranks) >= _MAX_ENGINES * len(SPREADS):
                    continue
                if rank is None:
                    self._ranks[(spread, engine)] = _Rank(total, count)
                else:
                    rank.add(total, count)
        now = {key: (rank.grown_sum, rank.grown_count) for key, rank in self._ranks.items()}
        self._entries.append((at_ns, now))
        horizon = at_ns - int(self.window_s * 1e9)
        while len(self._entries) > 2 and self._entries[1][0] <= horizon:
            self._entries.popleft()

    def standings(self) -> dict[str, dict[str, Standing]]:
        """Spread -> engine -> its mean's standing; empty with fewer than three engines at work."""
        if len(self._entries) < 2:
            return {}
        first, last = self._entries[0][1], self._entries[-1][1]
        means: dict[str, dict[str, float]] = {}
        for (spread, engine), (total, count) in last.items():
            before_sum, before_count = first.get((spread, engine), (0.0, 0.0))
            seen = count - before_count
            if seen >= _FEWEST:
                means.setdefault(spread, {})[engine] = (total - before_sum) / seen
        return {spread: found for spread, values in means.items() if (found := standings(values, floor=0.05))}


def _by_engine(signal: HistogramSignal) -> Mapping[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for one, histogram in signal.series.items():
        if histogram.sum is None or not one.engine:
            continue
        total, count = found.get(one.engine, (0.0, 0.0))
        found[one.engine] = (total + histogram.sum, count + histogram.count)
    return found
