"""Latency histograms in constant memory.

``LogHistogram`` buckets as an HDR histogram does: within each power of two of the unit, 64 equal steps, so
any value is known to 1.6 %. Adding two is exact, a quantile is the nearest rank's bucket. It stands beside
the hdrhistogram package's, which the load generator uses, for its memory: only buckets that hold something
take any, where that package keeps an array of all, too much for the hundreds of slots of sliding windows.
``EdgeHistogram`` counts between given edges, for Prometheus' classic histograms.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sidecar.requests.histogram import hdr_indexes

_STEPS_BITS = 6
_STEPS = 1 << _STEPS_BITS
_UNIT_NS = 1_000  # one microsecond: below 64 of them every microsecond has its own bucket
_MAX_NS = _UNIT_NS << 35  # 9.5 hours; longer values count there


def bucket_of(value_ns: float) -> int:
    """The bucket of a duration in nanoseconds."""
    return _buckets_of([int(value_ns)])[0]


def _buckets_of(values_ns: Sequence[int]) -> list[int]:
    if min(values_ns) < 0 or max(values_ns) > _MAX_NS:
        values_ns = [min(max(value, 0), _MAX_NS) for value in values_ns]
    return hdr_indexes([value // _UNIT_NS for value in values_ns], _STEPS_BITS)


def bucket_top_ns(bucket: int) -> int:
    """The largest duration (nanoseconds, whole microseconds) that falls into the bucket."""
    if bucket < 2 * _STEPS:
        return bucket * _UNIT_NS
    shift = (bucket >> _STEPS_BITS) - 1
    return ((((bucket - (shift << _STEPS_BITS)) + 1) << shift) - 1) * _UNIT_NS


@dataclass(slots=True)
class LogHistogram:
    """Counts of durations by bucket."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    max_ns: float = 0.0

    def add(self, value_ns: float, times: int = 1) -> None:
        """Count one duration in nanoseconds, ``times`` times."""
        bucket = bucket_of(value_ns)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += times
        if value_ns > self.max_ns:
            self.max_ns = value_ns

    def add_all(self, values_ns: Sequence[int]) -> None:
        """Count many durations: the same as ``add`` for each, for the gaps of a long answer."""
        if not values_ns:
            return
        counts = self.counts
        for bucket, times in Counter(_buckets_of(values_ns)).items():
            counts[bucket] = counts.get(bucket, 0) + times
        self.total += len(values_ns)
        self.max_ns = max(self.max_ns, max(values_ns))

    def merge(self, other: LogHistogram) -> None:
        """Add all of another histogram."""
        counts = self.counts
        if not counts:
            counts.update(other.counts)  # a copy, which is much faster than adding
        else:
            for bucket, count in other.counts.items():
                counts[bucket] = counts.get(bucket, 0) + count
        self.total += other.total
        self.max_ns = max(self.max_ns, other.max_ns)

    def quantiles_s(self, shares: Sequence[float]) -> list[float | None]:
        """Nearest-rank quantiles in seconds; ``shares`` must rise. ``None`` each for an empty histogram."""
        if not self.total:
            return [None] * len(shares)
        found: list[float | None] = []
        ordered = sorted(self.counts)
        seen, at = 0, -1
        for share in shares:
            rank = max(1, math.ceil(share * self.total - 1e-9))
            while seen < rank:
                at += 1
                seen += self.counts[ordered[at]]
            found.append(min(bucket_top_ns(ordered[at]), self.max_ns) / 1e9)
        return found


@dataclass(slots=True)
class EdgeHistogram:
    """A classic histogram over the life of the process: ``counts[i]`` between edge ``i-1`` and edge ``i``.

    Edges are seconds, inclusive above (Prometheus' ``le``), rising; one more count stands for +Inf.
    """

    edges_s: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum_s: float = 0.0
    _edges_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges_s) + 1)
        # An edge and a duration that means the same must compare equal: both are whole nanoseconds.
        self._edges_ns = [round(edge * 1e9) for edge in self.edges_s]

    def add(self, value_ns: float) -> int:
        """Count one duration in nanoseconds; returns the index of its bucket."""
        at = bisect_left(self._edges_ns, value_ns)
        self.counts[at] += 1
        self.sum_s += value_ns / 1e9
        return at

    def add_all(self, values_ns: Sequence[int]) -> None:
        """Count many durations in nanoseconds."""
        counts, edges = self.counts, self._edges_ns
        for value in values_ns:
            counts[bisect_left(edges, value)] += 1
        self.sum_s += sum(values_ns) / 1e9

    def cumulative(self) -> list[int]:
        """Counts at or below each edge, the last for +Inf."""
        total, out = 0, []
        for count in self.counts:
            total += count
            out.append(total)
        return out


def with_edges(base: Sequence[float], more: Iterable[float | None]) -> tuple[float, ...]:
    """``base`` with further edges (seconds) put in where they belong: SLO bounds, so that the share of
    requests within the bound can be read off exactly."""
    return tuple(sorted({*base, *(edge for edge in more if edge is not None and edge > 0)}))
