"""Latency histograms in constant memory.

``LogHistogram`` buckets like an HDR histogram: within each power of two of the unit, 64 equal steps, so any
value is known to 1.6 %. Only buckets that hold something take memory, adding two is exact, and a quantile is
the nearest rank's bucket. ``EdgeHistogram`` counts between given edges, for Prometheus' classic histograms.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_STEPS_BITS = 6
_STEPS = 1 << _STEPS_BITS
_UNIT_NS = 1_000  # one microsecond: below 64 of them every microsecond has its own bucket
_MAX_UNITS = 1 << 35  # 9.5 hours; longer values count there


def bucket_of(value_ns: float) -> int:
    """The bucket of a duration in nanoseconds."""
    units = min(max(int(value_ns) // _UNIT_NS, 0), _MAX_UNITS)
    shift = max(units.bit_length() - _STEPS_BITS - 1, 0)
    return (shift << _STEPS_BITS) + (units >> shift)


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
        for value in values_ns:
            units = value // _UNIT_NS
            if units < 2 * _STEPS:
                bucket = units if units > 0 else 0
            elif units < _MAX_UNITS:
                shift = units.bit_length() - _STEPS_BITS - 1
                bucket = (shift << _STEPS_BITS) + (units >> shift)
            else:
                bucket = bucket_of(value)
            counts[bucket] = counts.get(bucket, 0) + 1
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
