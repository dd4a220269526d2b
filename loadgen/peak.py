"""From measured levels to the goodput peak and the attainment capacity. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadgen.results import Capacity, LevelResult, Peak
from loadgen.stats import mean_interval, t_95

# Two readings closer than this share of the higher one are the same height to a capacity engineer.
SAME_HEIGHT = 0.01


@dataclass(frozen=True, slots=True)
class Point:
    """All valid measurements of one load, put together."""

    load: float
    goodput_rps: float
    ci_rps: tuple[float, float] | None
    attainment: float | None  # over all requests of the repeats
    repeats: int
    throughput_rps: float

    @property
    def error_rps(self) -> float | None:
        """Standard error of the goodput, read back from the interval (Student's factor of about six
        batches).
        """
        if self.ci_rps is None:
            return None
        return (self.ci_rps[1] - self.ci_rps[0]) / 2 / t_95(5)


def points(levels: Iterable[LevelResult]) -> list[Point]:
    """One point a load, lowest load first. Invalid levels are left out; repeats are averaged."""
    by_load: dict[float, list[LevelResult]] = {}
    for level in levels:
        if level.valid:
            by_load.setdefault(level.load, []).append(level)
    return [_point(load, repeats) for load, repeats in sorted(by_load.items())]


def _point(load: float, repeats: Sequence[LevelResult]) -> Point:
    n = len(repeats)
    mean = sum(level.goodput_rps for level in repeats) / n
    eligible = sum(level.eligible for level in repeats)
    good = sum(level.good for level in repeats)
    return Point(
        load=load,
        goodput_rps=mean,
        ci_rps=_combined_interval(mean, repeats),
        attainment=good / eligible if eligible else None,
        repeats=n,
        throughput_rps=sum(level.throughput_rps for level in repeats) / n,
    )


def _combined_interval(mean: float, repeats: Sequence[LevelResult]) -> tuple[float, float] | None:
    """Interval of the repeats' mean: the wider of what each saw inside its window and what they differ by.

    With two or three repeats Student's factor is so large that the spread alone says little, hence both, and
    the spread's factor is held to that of three degrees of freedom.
    """
    n = len(repeats)
    halves = [(ci[1] - ci[0]) / 2 for level in repeats if (ci := level.goodput_ci_rps) is not None]
    within = math.sqrt(sum(half**2 for half in halves)) / n if len(halves) == n else None
    between = None
    if n >= 2:
        interval = mean_interval([level.goodput_rps for level in repeats])
        assert interval is not None
        between = (interval[1] - interval[0]) / 2 * min(1.0, t_95(3) / t_95(n - 1))
    known = [half for half in (within, between) if half is not None]
    if not known:
        return None
    if n == 1:
        ci = repeats[0].goodput_ci_rps
        assert ci is not None
        return ci
    return max(0.0, mean - max(known)), mean + max(known)


def same_height(a: Point, b: Point) -> bool:
    """Whether the measurements cannot tell two loads' goodput apart."""
    difference = abs(a.goodput_rps - b.goodput_rps)
    if difference <= SAME_HEIGHT * max(a.goodput_rps, b.goodput_rps):
        return True
    if a.error_rps is None or b.error_rps is None:
        return False
    return difference <= 1.96 * math.hypot(a.error_rps, b.error_rps)


def _plateau(curve: Sequence[Point], best: Point) -> tuple[float, float]:
    """The run of neighbouring loads around the best one that are as high as it, as far as can be told."""
    at = curve.index(best)
    low = high = at
    while low > 0 and same_height(curve[low - 1], best):
        low -= 1
    while high + 1 < len(curve) and same_height(curve[high + 1], best):
        high += 1
    return curve[low].load, curve[high].load


def find_peak(levels: Sequence[LevelResult], shares: Sequence[float] = (0.99, 0.9)) -> Peak:
    """Where goodput peaks among the levels, and the highest load at which each share of attainment still
    holds.

    ``shares`` are between 0 and 1. Invalid levels take no part and are listed as excluded. Where no level has
    a good request, the peak is absent and the reason says why: a server that fails everything has no best
    load.
    """
    curve = points(levels)
    measured = {point.load for point in curve}
    excluded = tuple(sorted({level.load for level in levels} - measured))
    capacity = tuple(
        Capacity(
            share,
            max((p.load for p in curve if p.attainment is not None and p.attainment >= share), default=None),
        )
        for share in shares
    )
    if not curve or all(point.goodput_rps <= 0 for point in curve):
        return Peak(
            load=None,
            goodput_rps=None,
            goodput_ci_rps=None,
            attainment=None,
            bracketed=False,
            reason=_why_none(levels, curve),
            capacity=capacity,
            excluded_loads=excluded,
        )
    best = max(curve, key=lambda point: (point.goodput_rps, -point.load))
    plateau = _plateau(curve, best)
    kind = next(level.kind for level in levels if level.valid)
    above = plateau[1] < curve[-1].load
    lowest_possible = kind == "concurrency" and plateau[0] <= 1
    below = plateau[0] > curve[0].load or lowest_possible
    return Peak(
        load=best.load,
        goodput_rps=best.goodput_rps,
        goodput_ci_rps=best.ci_rps,
        attainment=best.attainment,
        bracketed=above and below,
        reason=_reason(best, plateau, above, below, excluded, kind),
        plateau=plateau,
        capacity=capacity,
        excluded_loads=excluded,
    )


def _unit(kind: str) -> str:
    return "requests in flight" if kind == "concurrency" else "requests/s offered"


def _why_none(levels: Sequence[LevelResult], curve: Sequence[Point]) -> str:
    if not levels:
        return "no level was measured"
    if not curve:
        first = levels[0].flags[0] if levels[0].flags else "unknown reason"
        return f"no level is valid ({first})"
    valid = [level for level in levels if level.valid]
    if not any(level.completed for level in valid):
        kinds = sorted({kind for level in valid for kind in level.errors})
        return "no request was completed" + (f" (errors: {', '.join(kinds)})" if kinds else "")
    lowest = min(valid, key=lambda level: level.load)
    floor = f"TTFT p50 {lowest.ttft.p50_s:.3f} s" if lowest.ttft.p50_s is not None else "TTFT unknown"
    if lowest.tpot.p50_s is not None:
        floor += f", TPOT p50 {lowest.tpot.p50_s:.4f} s"
    return f"no request met the SLO at any load; at the lowest load ({lowest.load:g}) it stands at {floor}"


def _reason(
    best: Point,
    plateau: tuple[float, float],
    above: bool,
    below: bool,
    excluded: Sequence[float],
    kind: str,
) -> str:
    text = f"goodput is highest at {best.load:g} {_unit(kind)}"
    if plateau[0] != plateau[1]:
        text += f", and cannot be told apart from {plateau[0]:g} to {plateau[1]:g}"
    if not above:
        beyond = [load for load in excluded if load > best.load]
        text += "; no higher load shows a fall, so the peak may lie above" + (
            f" ({', '.join(f'{load:g}' for load in beyond)} could not be used)" if beyond else ""
        )
    if not below:
        text += "; no lower load shows a fall, so the peak may lie below"
    return text
