"""Is a series flat? A least-squares line with the noise around it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slope:
    """``per_s``: units a second. ``error``: its standard error. ``noise``: standard deviation around the
    line, in units."""

    per_s: float
    error: float
    noise: float

    def flat(self, *, span_s: float, tolerance: float) -> bool:
        """True unless the rise is both beyond three standard errors and more than ``tolerance`` units over
        ``span_s`` seconds."""
        return self.per_s <= 3 * self.error or self.per_s * span_s <= tolerance


def slope_of(points: Sequence[tuple[float, float]]) -> Slope:
    """The line through (seconds, value) points. Raises ValueError below three points or without a span."""
    count = len(points)
    if count < 3:
        raise ValueError("a slope with its noise needs three points")
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        raise ValueError("all points lie at one time")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    variance = rest / (count - 2)
    return Slope(slope, math.sqrt(variance / spread), math.sqrt(variance))
