"""One GPU against its peers: robust outliers, never a fleet's average. Pure.

The score is (value - median) / (1.4826 x MAD): like a z score, but one bad board moves neither the middle nor
the scale. Where the peers agree (a MAD near 0, as with clocks) the scale is a floor, a share of the median,
so that a step of 15 MHz is no outlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

_MAD_TO_SD = 1.4826
FLOOR = 0.02  # of the median
OUTLIER = 5.0  # scores beyond this stand out
FEWEST = 3  # of two, none can be told to be the odd one


@dataclass(frozen=True, slots=True)
class Standing:
    """A value among its peers'. ``ratio`` of the median, ``score`` in robust standard deviations."""

    value: float
    median: float
    ratio: float | None
    score: float

    @property
    def outlier(self) -> bool:
        """Whether it stands out either way."""
        return abs(self.score) >= OUTLIER


def standings(values: Mapping[str, float], *, floor: float = FLOOR) -> dict[str, Standing]:
    """Each member's standing; empty with fewer than three members, or where nothing can be compared."""
    if len(values) < FEWEST:
        return {}
    middle = median(values.values())
    mad = median(abs(value - middle) for value in values.values())
    scale = max(_MAD_TO_SD * mad, floor * abs(middle))
    if scale <= 0:
        return {}
    return {
        key: Standing(value, middle, value / middle if middle else None, (value - middle) / scale)
        for key, value in values.items()
    }


def straggler_sentence(name: str, ratio: float, what: str, since: str, reasons: tuple[str, ...]) -> str:
    """``GPU 3 runs at 71 % of its peers' clock since 14:02, reason: thermal``."""
    reason = ", ".join(reasons) if reasons else "not given by the driver"
    return f"{name} runs at {round(100 * ratio)} % of its peers' {what} since {since}, reason: {reason}"


@dataclass(slots=True)
class OutlierWatch:
    """Remembers since when each member stands out in a signal. Times are the caller's (Unix seconds)."""

    _since: dict[tuple[str, str], float]

    def __init__(self) -> None:
        self._since = {}

    def update(self, signal: str, found: Mapping[str, Standing], at_s: float) -> dict[str, float]:
        """Member -> since when it has been an outlier without a break, for those that are one now."""
        now = {key for key, standing in found.items() if standing.outlier}
        for old in [key for key in self._since if key[0] == signal and key[1] not in now]:
            del self._since[old]
        for member in now:
            self._since.setdefault((signal, member), at_s)
        return {member: self._since[(signal, member)] for member in now}
