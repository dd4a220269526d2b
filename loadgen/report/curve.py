"""What the report says, worked out once for the page, the terminal and the comparison. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.report.text import BUCKET_MEANING, number, percent
from loadgen.results import LevelResult, Quantiles, SweepReport
from loadgen.stats import t_95


@dataclass(frozen=True, slots=True)
class Point:
    """One load with all its repeats. Means are over the valid repeats, or over all when none is valid."""

    load: float
    levels: tuple[LevelResult, ...]

    @property
    def valid(self) -> bool:
        """True when at least one repeat counts."""
        return any(level.valid for level in self.levels)

    @property
    def judged(self) -> bool:
        """True when a repeat that counts had anything to judge; else its goodput is no measurement."""
        return self.valid and any(level.eligible for level in self.used)

    @property
    def used(self) -> tuple[LevelResult, ...]:
        """The repeats that the means are taken over."""
        return tuple(level for level in self.levels if level.valid) or self.levels

    def mean(self, get: Callable[[LevelResult], float | None]) -> float | None:
        """Mean of what is known; ``None`` when nothing is."""
        known = [v for level in self.used if (v := get(level)) is not None and math.isfinite(v)]
        return sum(known) / len(known) if known else None

    @property
    def goodput_rps(self) -> float:
        """Mean goodput, requests per second."""
        return self.mean(lambda level: level.goodput_rps) or 0.0

    @property
    def throughput_rps(self) -> float:
        """Mean completed requests per second."""
        return self.mean(lambda level: level.throughput_rps) or 0.0

    @property
    def attainment(self) -> float | None:
        """Good over eligible, all used repeats together; ``None`` with nothing eligible."""
        eligible = sum(level.eligible for level in self.used)
        return sum(level.good for level in self.used) / eligible if eligible else None

    @property
    def goodput_ci_rps(self) -> tuple[float, float] | None:
        """95 % interval of the mean goodput; see `mean_interval`."""
        return mean_interval([(level.goodput_rps, level.goodput_ci_rps) for level in self.used])

    def quantile(self, which: str, name: str) -> float | None:
        """Mean over repeats of one percentile, say ``quantile("ttft", "p99_s")``, in seconds."""

        def get(level: LevelResult) -> float | None:
            quantiles: Quantiles = getattr(level, which)
            value: float | None = getattr(quantiles, name)
            return value if quantiles.count else None

        return self.mean(get)

    def shares(self) -> dict[str, float]:
        """``good`` and each badput bucket as a share of the eligible requests; empty with none."""
        eligible = sum(level.eligible for level in self.used)
        if not eligible:
            return {}
        out = {"good": sum(level.good for level in self.used) / eligible}
        for level in self.used:
            for bucket, n in level.badput.items():
                out[bucket] = out.get(bucket, 0.0) + n / eligible
        return out


def mean_interval(
    repeats: Sequence[tuple[float, tuple[float, float] | None]],
) -> tuple[float, float] | None:
    """95 % interval of a mean of repeats, each a (value, its own 95 % interval or ``None``).

    One repeat: its own interval. Several: the wider of what the repeats' own intervals say together (half
    widths in quadrature over n) and, from three repeats on, Student's interval of their spread. Two repeats
    without intervals of their own say nothing certain: ``None``.
    """
    n = len(repeats)
    if n == 0:
        return None
    if n == 1:
        return repeats[0][1]
    mean = sum(v for v, _ in repeats) / n
    halves = []
    own = [(v - ci[0], ci[1] - v) for v, ci in repeats if ci is not None]
    if len(own) == n:
        halves.append(math.sqrt(sum(max(low, high) ** 2 for low, high in own)) / n)
    if n >= 3:
        spread = math.sqrt(sum((v - mean) ** 2 for v, _ in repeats) / (n - 1))
        halves.append(t_95(n - 1) * spread / math.sqrt(n))
    if not halves:
        return None
    half = max(halves)
    return mean - half, mean + half


def points(report: SweepReport) -> list[Point]:
    """The levels grouped by load, rising."""
    by_load: dict[float, list[LevelResult]] = {}
    for level in report.levels:
        by_load.setdefault(level.load, []).append(level)
    return [Point(load, tuple(by_load[load])) for load in sorted(by_load)]


def kind_of(report: SweepReport) -> str:
    """``concurrency`` or ``rate``: what the loads of this sweep count."""
    return report.levels[0].kind if report.levels else "concurrency"


def peak_point(report: SweepReport) -> Point | None:
    """The point at the peak's load, ``None`` where no peak could be named or it was not itself measured."""
    return next((p for p in points(report) if p.load == report.peak.load), None)


@dataclass(frozen=True, slots=True)
class Limit:
    """What takes the goodput away. ``bucket`` is ``None`` where nothing measured says."""

    bucket: str | None
    title: str
    text: str


def limit_of(report: SweepReport) -> Limit:
    """What breaks first: the largest badput bucket at the first load above the peak, else at the peak."""
    measured = [p for p in points(report) if p.judged]
    peak = report.peak.load
    if not measured:
        return Limit(None, "Not known", "No level gave a result that counts.")
    if peak is None:
        worst = _largest(measured[0])
        if worst is None:
            return Limit(None, "Not known", report.peak.reason)
        share = measured[0].shares()[worst]
        at = f"Already at load {number(measured[0].load)}"
        text = f"{at}, {percent(share)} of the requests are lost: {_meaning(worst)}."
        return Limit(worst, worst, text)
    above = [p for p in measured if p.load > peak]
    where = above[0] if above else next((p for p in measured if p.load == peak), measured[-1])
    worst = _largest(where)
    if worst is None or (not above and not report.peak.bracketed and where.shares()[worst] < 0.01):
        text = f"Nothing up to load {number(measured[-1].load)}, the highest one measured, took goodput away."
        return Limit(None, "No limit reached", text)
    lost = 1 - where.shares()["good"]
    at = f"At load {number(where.load)}"
    if where.load > peak:
        at += ", the next one measured above the peak"
    share = where.shares()[worst]
    text = f"{at}, {percent(lost)} of the requests are not good"
    part = "all" if math.isclose(share, lost) else f"{percent(share / lost)} of those"
    text += f", {part} because {_because(worst)}."
    return Limit(worst, worst, text + _engine_hint(where))


def _largest(point: Point) -> str | None:
    bad = {b: s for b, s in point.shares().items() if b != "good" and s > 0}
    return max(bad, key=lambda b: bad[b]) if bad else None


def _meaning(bucket: str) -> str:
    return BUCKET_MEANING.get(bucket, bucket)


def _because(bucket: str) -> str:
    if bucket in ("queue", "prefill"):
        where = (
            "mostly waiting for a place in the batch" if bucket == "queue" else "mostly in the prefill itself"
        )
        return f"the first token came late, {where}"
    return _meaning(bucket)


def _engine_hint(point: Point) -> str:
    """What the engine's own signals add, where they were scraped."""
    said = []
    kv = point.mean(lambda level: signal(level, "kv_usage"))
    waiting = point.mean(lambda level: signal(level, "waiting"))
    preempted = point.mean(lambda level: signal(level, "preemptions"))
    if kv is not None and kv >= 0.95:
        said.append(f"KV cache {kv:.0%} full")
    if preempted:
        said.append(f"{number(preempted)} requests preempted")
    if waiting is not None and waiting >= 1:
        said.append(f"{number(waiting)} waiting")
    return f" In the engine then: {', '.join(said)}." if said else ""


def signal(level: LevelResult, name: str) -> float | None:
    """An engine signal by canonical name, whether kept plain or as a mean or increase over the window."""
    for key in (name, f"{name}_mean", f"{name}_increase", f"{name}_total"):
        if key in level.engine:
            return level.engine[key]
    return None
