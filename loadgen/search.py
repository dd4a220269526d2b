"""Which load to measure next: a pure ask/tell search for the goodput peak.

First a grid that doubles, until goodput has clearly fallen; then levels between the best one and its
neighbours, where they tell most about the peak; then repeats where noise, not load, decides which of two is
higher. The same answers always lead to the same questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadgen.peak import Point, find_peak, points, same_height
from loadgen.results import LevelResult, Peak
from sidecar.errors import UserError

# The doubling grid ends after so many levels in a row below the first share of the best goodput, or after
# one below the second.
FALLEN_SHARE = 0.6
FALLEN_LEVELS = 2
FALLEN_FAR_SHARE = 0.2
# A gap that can bring less than this share more than the best is left alone.
WORTHWHILE = 0.02
# Throughput above the best level that is below this share of its own has fallen, noise allowed for.
HOLDS_SHARE = 0.98
# Neighbours closer than this share of the load need no level between them.
RESOLUTION = 0.06
MAX_REPEATS = 3
# Levels without one good request, from the lowest up, after which the SLO cannot be met.
HOPELESS_LEVELS = 3

__all__ = ["Levels", "PeakSearch", "find_peak", "parse_levels"]


class Levels:
    """The loads asked for: a range to be searched, or a fixed list to be measured as it stands."""

    def __init__(self, *, low: float, high: float, fixed: tuple[float, ...] = ()) -> None:
        self.low = low
        self.high = high
        self.fixed = fixed

    @property
    def grid(self) -> list[float]:
        """The loads measured first, lowest first."""
        if self.fixed:
            return list(self.fixed)
        loads = [self.low]
        while loads[-1] * 2 <= self.high:
            loads.append(loads[-1] * 2)
        if loads[-1] < self.high:
            loads.append(self.high)
        return loads


def parse_levels(text: str, *, whole: bool) -> Levels:
    """Read ``1..32`` (search that range) or ``1,2,4`` (exactly these). ``whole``: only whole numbers make
    sense.

    Raises `UserError` naming what would be right.
    """
    example = "1..32 or 1,2,4,8" if whole else "0.5..8 or 0.5,1,2"
    ranged = ".." in text
    try:
        numbers = [float(part) for part in text.split(".." if ranged else ",")]
    except ValueError:
        raise UserError(f"--levels {text}: not numbers; write {example}") from None
    if any(not math.isfinite(n) or n <= 0 for n in numbers) or (whole and any(n % 1 for n in numbers)):
        raise UserError(
            f"--levels {text}: each level must be a positive {'whole ' * whole}number, as in {example}"
        )
    if not ranged:
        return Levels(low=min(numbers), high=max(numbers), fixed=tuple(sorted(set(numbers))))
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise UserError(f"--levels {text}: write LOWEST..HIGHEST, as in {example}")
    return Levels(low=numbers[0], high=numbers[1])


class PeakSearch:
    """Ask which load to measure, tell what came of it, until ``ask`` returns ``None``.

    A load that was told as invalid is asked for once more and then left alone. ``max_levels`` bounds how many
    levels are asked for in all, ``max_repeats`` how often one load is measured where noise hides which of two
    is better (1: each load once). Neighbours closer than ``resolution`` (a share of the load) need no level
    between them. The caller spends time and may stop at any moment: ``result`` always stands.
    """

    def __init__(
        self,
        levels: Levels,
        *,
        whole: bool = True,
        max_levels: int = 40,
        max_repeats: int = MAX_REPEATS,
        resolution: float = RESOLUTION,
    ) -> None:
        self._levels = levels
        self._whole = whole
        self._max_levels = max_levels
        self._max_repeats = max_repeats
        self._resolution = resolution
        self._grid = levels.grid
        self._told: list[LevelResult] = []
        self.stopped = ""  # why the search is over, for a person; empty while it goes on

    @property
    def told(self) -> Sequence[LevelResult]:
        """Every level measured so far, in order."""
        return self._told

    def tell(self, level: LevelResult) -> None:
        """Take note of one measured level, valid or not."""
        self._told.append(level)

    def result(self, shares: Sequence[float] = (0.99, 0.9)) -> Peak:
        """The peak as far as it is known now."""
        return find_peak(self._told, shares)

    def ask(self) -> float | None:
        """The next load to measure, or ``None`` when nothing more is worth measuring (see ``stopped``)."""
        load = self._next_of_grid()
        if load is None and not self._levels.fixed:
            load = self._refinement()
        if load is not None and len(self._told) >= self._max_levels:
            self.stopped = f"the limit of {self._max_levels} levels was reached"
            return None
        if load is None and not self.stopped:
            self.stopped = "complete"
        return load

    def remaining(self) -> tuple[int, int]:
        """(fewest, likely) number of levels still to come: for the progress display, not a promise."""
        tried = {level.load for level in self._told}
        grid = sum(load not in tried for load in self._grid)
        if self._levels.fixed or self.stopped:
            return (0, 0) if self.stopped else (grid, grid)
        return grid, grid + max(0, 4 - max(0, len(self._told) - len(self._grid)))

    def _tries(self, load: float) -> int:
        return sum(level.load == load for level in self._told)

    def _unusable(self, load: float) -> bool:
        """Told at least twice and never valid."""
        return self._tries(load) >= 2 and not any(t.valid for t in self._told if t.load == load)

    def _needs_retry(self, load: float) -> bool:
        tries = [level for level in self._told if level.load == load]
        return len(tries) == 1 and not tries[0].valid

    def _next_of_grid(self) -> float | None:
        curve = points(self._told)
        if not self._levels.fixed and self._has_fallen(curve):
            return None
        if not self._levels.fixed and self._is_hopeless(curve):
            self.stopped = (
                f"no good request in the {HOPELESS_LEVELS} lowest levels: this SLO cannot be met here"
            )
            return None
        for load in self._grid:
            if self._needs_retry(load):
                return load
            if self._tries(load) == 0:
                if not self._levels.fixed and any(
                    self._unusable(lower) for lower in self._grid if lower < load
                ):
                    return None  # a generator that could not hold a lower load will not hold this one
                return load
        return None

    @staticmethod
    def _has_fallen(curve: Sequence[Point]) -> bool:
        best = max((point.goodput_rps for point in curve), default=0.0)
        if best <= 0:
            return False
        last = [point.goodput_rps / best for point in curve[-FALLEN_LEVELS:]]
        return last[-1] < FALLEN_FAR_SHARE or (len(last) == FALLEN_LEVELS and max(last) < FALLEN_SHARE)

    @staticmethod
    def _is_hopeless(curve: Sequence[Point]) -> bool:
        return len(curve) >= HOPELESS_LEVELS and all(p.goodput_rps <= 0 for p in curve)

    def _refinement(self) -> float | None:
        """A load between the best and a neighbour, else a repeat of one of those that noise cannot tell
        apart.
        """
        curve = points(self._told)
        if not curve or all(point.goodput_rps <= 0 for point in curve):
            return None
        best = max(curve, key=lambda point: (point.goodput_rps, -point.load))
        at = curve.index(best)
        noise = (best.error_rps or 0.0) / best.goodput_rps
        fallen = best.throughput_rps * (HOLDS_SHARE - 2 * noise)
        thrashes = any(point.throughput_rps < fallen for point in curve[at + 1 :])
        promises = []
        for low, high in ((at - 1, at), (at, at + 1)):
            if low < 0 or high >= len(curve):
                continue
            middle = self._between(curve[low].load, curve[high].load)
            if middle is None or self._unusable(middle):
                continue
            if self._needs_retry(middle):
                return middle
            promise = _promise(curve[low], curve[high], best, thrashes, noise)
            if promise > 0:
                promises.append((promise, middle))
        if promises:
            return max(promises)[1]
        rivals = [
            p for p in curve if abs(curve.index(p) - at) <= 2 and p is not best and same_height(p, best)
        ]
        for point in sorted([best, *rivals], key=lambda p: (p.repeats, -p.goodput_rps)):
            if rivals and point.repeats < self._max_repeats:
                return point.load
        return None

    def _between(self, low: float, high: float) -> float | None:
        if high - low <= max(self._resolution * high, 1.0 if self._whole else 0.0):
            return None
        middle = math.sqrt(low * high)
        if not self._whole:
            return float(f"{middle:.3g}")
        rounded = float(round(middle))
        return rounded if low < rounded < high else None


def _promise(low: Point, high: Point, best: Point, thrashes: bool, noise: float) -> float:
    """What a load between two neighbours, one of them the best, may bring; 0 for nothing, else comparable.

    As long as throughput does not fall with load, nothing between two loads can have more than the upper
    one's throughput at the lower one's attainment (which does not rise with load). Below a best level without
    badput that leaves nothing to be found, which sends the search to the side of the fall; there the upper
    one's throughput is given the benefit of the doubt (``noise``, the best one's relative standard error).
    Where throughput itself falls (``thrashes``), the wider gap with the higher far end promises more.
    """
    if thrashes or low.attainment is None:
        far = low if high is best else high
        return math.log(high.load / low.load) * (0.01 + far.goodput_rps / best.goodput_rps)
    ceiling = max(low.throughput_rps, high.throughput_rps) * low.attainment
    if low is best:
        ceiling *= 1 + noise
    gain = ceiling / best.goodput_rps - 1.0
    return gain if gain > WORTHWHILE else 0.0
