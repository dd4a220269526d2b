"""Quantiles and shares from cumulative buckets, with the bounds that the buckets really give.

A histogram knows between which two edges a rank lies, nothing more. The interpolated value is offered
because people want one number (linear inside the bucket, as Prometheus does), the edges go with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sidecar.engine.view import Histogram


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile. ``at_least``: the rank lies above the last finite edge, ``value`` is only a lower bound.

    ``low`` and ``high`` are the edges of the bucket that holds the rank; ``high`` is ``None`` for +Inf.
    """

    q: float
    value: float
    at_least: bool
    low: float
    high: float | None

    def text(self, unit: str = "s") -> str:
        """For people: ``0.25 s (0.1 to 0.25)``, or ``above 2560 s``."""
        if self.at_least:
            return f"above {self.low:g} {unit}"
        return f"{self.value:.4g} {unit} ({self.low:g} to {self.high:g})"


@dataclass(frozen=True, slots=True)
class Share:
    """The share of observations at or below a bound lies in [``low``, ``high``].

    ``below`` and ``above`` are the edges around the bound (``None``: there is none); ``exact`` when the
    bound is an edge itself.
    """

    low: float
    high: float
    below: float | None = None
    above: float | None = None

    @property
    def exact(self) -> bool:
        """No uncertainty from the buckets."""
        return self.low == self.high


def quantile(histogram: Histogram, q: float) -> Quantile | None:
    """The ``q`` quantile (0..1), ``None`` without observations. Raises ``ValueError`` for another ``q``."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    total = histogram.count
    if not total > 0:
        return None
    rank = _rank(q, total)
    before = 0.0
    low = 0.0
    for edge, upto in zip(histogram.edges, histogram.cumulative, strict=True):
        if upto > before and upto >= rank:
            if math.isinf(edge):
                return Quantile(q, low, True, low, None)
            # Prometheus takes the first edge itself where it is not above zero: there is no width to share.
            value = edge if edge <= 0 else low + (edge - low) * max(rank - before, 0.0) / (upto - before)
            return Quantile(q, value, False, min(low, edge), edge)
        before = max(before, upto)
        low = max(low, edge) if math.isfinite(edge) else low
    return None  # unreachable for a histogram with its +Inf bucket


def within(histogram: Histogram, bound: float) -> Share | None:
    """The share of observations <= ``bound`` (same unit as the edges), ``None`` without observations."""
    total = histogram.count
    if not total > 0:
        return None
    low_count, below = 0.0, None
    for edge, upto in zip(histogram.edges, histogram.cumulative, strict=True):
        if edge <= bound or math.isclose(edge, bound, rel_tol=1e-12):
            low_count, below = upto, edge
            if edge == bound or math.isclose(edge, bound, rel_tol=1e-12):
                return Share(upto / total, upto / total, edge, edge)
        else:
            return Share(low_count / total, upto / total, below, None if math.isinf(edge) else edge)
    return Share(1.0, 1.0, below, None)


def without_one_token(tpot: Histogram, output_tokens: Histogram) -> Histogram | None:
    """The TPOT histogram without the answers of at most one token, which have no TPOT and observe 0.

    ``output_tokens`` is the histogram of answer lengths over the same window; it needs an edge at 1.
    ``None`` where it has none, or where nothing would be left.
    """
    single = next(
        (c for e, c in zip(output_tokens.edges, output_tokens.cumulative, strict=True) if e == 1.0), None
    )
    if single is None:
        return None
    single = min(single, tpot.cumulative[0])  # all zeros lie in the lowest bucket
    if tpot.count - single <= 0:
        return None
    return Histogram(tpot.edges, tuple(c - single for c in tpot.cumulative), tpot.sum)


def _rank(q: float, total: float) -> float:
    rank = q * total
    nearest = round(rank)
    # 0.07 * 100 is 7.000000000000001: without this it would fall into the next bucket.
    return float(nearest) if math.isclose(rank, nearest, rel_tol=1e-9) else rank
