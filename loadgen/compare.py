"""Two sweeps against each other: differences with their uncertainty, and a gate for CI. Pure.

A is the baseline, B the candidate. A difference is called better or worse only when its 95 % interval leaves
out zero. The interval of a difference of two independent estimates is built from their own intervals by the
method of variance estimates recovery (MOVER; Zou and Donner, Statistics in Medicine 27, 2008).
With d = b - a, lower = d - sqrt((b - b_low)^2 + (a_high - a)^2) and
upper = d + sqrt((b_high - b)^2 + (a - a_low)^2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.report.curve import Point, kind_of, mean_interval, points
from loadgen.report.text import number, slo_bounds, stopped_text
from loadgen.results import Quantiles, SweepReport
from sidecar.errors import UserError

Interval = tuple[float, float]
Verdict = Literal["better", "worse", "within noise", "unknown"]

_LATENCIES = ("ttft", "tpot", "itl", "e2e")
METRICS = (
    "goodput",
    "tokens",
    "attainment",
    "capacity_99",
    "capacity_90",
    *(f"{which}_{q}" for which in _LATENCIES for q in ("p50", "p99")),
)
"""What can be compared and gated. ``goodput`` is at each report's own peak, so are ``tokens`` (of good
requests, per second) and ``attainment``; latencies are at the baseline's peak load, measured in both."""


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity in both reports. ``None`` is unknown; the interval is of b - a, 95 %."""

    name: str
    a: float | None
    b: float | None
    higher_is_better: bool
    interval: Interval | None = None
    load: float | None = None  # where it was taken, when not at each report's own peak

    @property
    def difference(self) -> float | None:
        """b - a."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """(b - a) / a; ``None`` when a is 0 or unknown."""
        return None if self.difference is None or not self.a else self.difference / self.a

    @property
    def relative_interval(self) -> Interval | None:
        """The interval over the baseline's value."""
        if self.interval is None or not self.a:
            return None
        return self.interval[0] / self.a, self.interval[1] / self.a

    @property
    def verdict(self) -> Verdict:
        """Better or worse only where the difference exceeds the noise."""
        if self.difference is None or self.interval is None:
            return "unknown"
        low, high = self.interval
        if low <= 0 <= high:
            return "within noise"
        return "better" if (low > 0) == self.higher_is_better else "worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``problems``: why the two are not the same experiment (no verdict holds); ``notes``: what to know."""

    peak: tuple[Change, ...]
    levels: tuple[Change, ...]  # goodput at each load that both measured
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def compare(a: SweepReport, b: SweepReport) -> Comparison:
    """Peaks, the curve at shared loads, and latencies at the baseline's peak load."""
    points_a = {p.load: p for p in points(a) if p.judged}
    points_b = {p.load: p for p in points(b) if p.judged}
    problems, notes = _differences(a, b)
    changes = [
        _change("goodput", _peak_goodput(a), _peak_goodput(b)),
        _change("tokens", _tokens(a, points_a), _tokens(b, points_b)),
        Change("attainment", a.peak.attainment, b.peak.attainment, True),
        Change("capacity_99", _capacity(a, 0.99), _capacity(b, 0.99), True),
        Change("capacity_90", _capacity(a, 0.9), _capacity(b, 0.9), True),
    ]
    same_kind = kind_of(a) == kind_of(b)
    load = a.peak.load if same_kind and a.peak.load in points_a and a.peak.load in points_b else None
    at_a, at_b = (points_a[load], points_b[load]) if load is not None else (None, None)
    for which in _LATENCIES:
        for q in ("p50", "p99"):
            name = f"{which}_{q}"
            changes.append(_change(name, _latency(at_a, which, q), _latency(at_b, which, q), False, load))
    if load is None and a.peak.load is not None:
        notes.append(
            f"B did not measure load {number(a.peak.load)}, the peak of A: latencies are not compared"
        )
    shared = sorted(points_a.keys() & points_b.keys()) if same_kind else []
    levels = [
        _change(
            "goodput",
            (points_a[x].goodput_rps, points_a[x].goodput_ci_rps),
            (points_b[x].goodput_rps, points_b[x].goodput_ci_rps),
            load=x,
        )
        for x in shared
    ]
    return Comparison(tuple(changes), tuple(levels), tuple(problems), tuple(notes))


Estimate = tuple[float | None, Interval | None]


def difference_interval(a: float, a_ci: Interval, b: float, b_ci: Interval) -> Interval:
    """95 % interval of b - a from the two estimates' own intervals (MOVER)."""
    d = b - a
    below = math.hypot(b - b_ci[0], a_ci[1] - a)
    above = math.hypot(b_ci[1] - b, a - a_ci[0])
    return d - below, d + above


def _change(
    name: str, a: Estimate, b: Estimate, higher_is_better: bool = True, load: float | None = None
) -> Change:
    interval = None
    if a[0] is not None and b[0] is not None and a[1] is not None and b[1] is not None:
        interval = difference_interval(a[0], a[1], b[0], b[1])
    return Change(name, a[0], b[0], higher_is_better, interval, load)


def _peak_goodput(report: SweepReport) -> Estimate:
    """The peak's goodput; 0 for certain where levels that count had no good request at all."""
    peak = report.peak
    judged = [p for p in points(report) if p.judged]
    if peak.goodput_rps is None and judged and all(p.goodput_rps == 0 for p in judged):
        return 0.0, (0.0, 0.0)
    return peak.goodput_rps, peak.goodput_ci_rps


def _capacity(report: SweepReport, share: float) -> float | None:
    return next((c.load for c in report.peak.capacity if math.isclose(c.share, share)), None)


def _tokens(report: SweepReport, found: dict[float, Point]) -> Estimate:
    point = found.get(report.peak.load) if report.peak.load is not None else None
    if point is None:
        return None, None
    repeats = [(level.token_goodput_tps, None) for level in point.used]
    return point.mean(lambda level: level.token_goodput_tps), mean_interval(repeats)


def _latency(point: Point | None, which: str, q: str) -> Estimate:
    """A percentile, with an interval only where at least three repeats show how much it wavers."""
    if point is None:
        return None, None
    known: list[float] = []
    for level in point.used:
        quantiles: Quantiles = getattr(level, which)
        value = getattr(quantiles, f"{q}_s")
        if quantiles.count and value is not None:
            known.append(value)
    if not known:
        return None, None
    return sum(known) / len(known), mean_interval([(v, None) for v in known])


def _differences(a: SweepReport, b: SweepReport) -> tuple[list[str], list[str]]:
    problems, notes = [], []
    if kind_of(a) != kind_of(b):
        problems.append(f"A sweeps {kind_of(a)}, B sweeps {kind_of(b)}")
    if slo_bounds(a.slo) != slo_bounds(b.slo):
        problems.append("the SLO bounds differ: good does not mean the same in both")
    if a.workload != b.workload:
        keys = sorted(
            k for k in a.workload.keys() | b.workload.keys() if a.workload.get(k) != b.workload.get(k)
        )
        problems.append(f"the workloads differ in {', '.join(keys)}")
    for name, report in (("A", a), ("B", b)):
        if report.peak.load is None:
            notes.append(f"{name} has no peak: {report.peak.reason.rstrip('.')}")
        elif not report.peak.bracketed:
            notes.append(f"the peak of {name} is a lower bound: goodput still rises at its highest load")
        elif not any(p.load == report.peak.load and p.judged for p in points(report)):
            problems.append(f"the level at the peak of {name} does not count")
        if early := stopped_text(report.stopped):
            notes.append(f"{name}: {early.rstrip('.')}")
    for what in ("model", "server"):
        if getattr(a, what) != getattr(b, what):
            notes.append(f"{what}: A {getattr(a, what) or 'unknown'}, B {getattr(b, what) or 'unknown'}")
    return problems, notes


@dataclass(frozen=True, slots=True)
class Rule:
    """Fail when ``metric`` is worse in B by more than ``margin`` (0.05: five per cent of A)."""

    metric: str
    margin: float


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule came to, with the sentence that says why."""

    rule: Rule
    result: Literal["pass", "fail", "undecided"]
    why: str


def parse_rule(text: str) -> Rule:
    """``goodput:5%`` (or ``goodput:5``). Raises `UserError` naming what would be right."""
    metric, _, margin = text.partition(":")
    metric = metric.strip()
    if metric not in METRICS:
        raise UserError(f"--fail-if {text}: {metric!r} is not one of {', '.join(METRICS)}")
    try:
        value = float(margin.strip().removesuffix("%"))
    except ValueError:
        raise UserError(f"--fail-if {text}: write METRIC:PERCENT, for example goodput:5%") from None
    if not math.isfinite(value) or not 0 <= value <= 1000:
        raise UserError(f"--fail-if {text}: the margin is a percentage from 0 to 1000")
    return Rule(metric, value / 100)


def rule_on(rules: Sequence[Rule], found: Comparison, *, force: bool = False) -> list[Ruling]:
    """Judge each rule.

    ``fail``: worse by more than the margin, and the interval leaves out zero (where there is an interval).
    ``undecided``: worse by more than the margin but within the noise; or unknown; or, without ``force``, the
    two reports are not the same experiment. ``pass``: anything else.
    """
    by_name = {change.name: change for change in found.peak}
    return [_rule_on(rule, by_name[rule.metric], () if force else found.problems) for rule in rules]


def _rule_on(rule: Rule, change: Change, problems: Sequence[str]) -> Ruling:
    if problems:
        return Ruling(rule, "undecided", f"not the same experiment: {'; '.join(problems)}")
    relative = change.relative
    if relative is None:
        missing = [n for n, v in (("A", change.a), ("B", change.b)) if v is None]
        why = f"not known in {' and '.join(missing)}" if missing else "A is 0, so there is no relative change"
        return Ruling(rule, "undecided", why)
    worse = -relative if change.higher_is_better else relative
    shown = f"{relative:+.1%}"
    if worse <= rule.margin:
        return Ruling(rule, "pass", f"{shown}, within the margin of {rule.margin:.1%}")
    if change.verdict == "within noise":
        return Ruling(
            rule, "undecided", f"{shown}, beyond the margin of {rule.margin:.1%} but within the noise"
        )
    noise = " (noise unknown)" if change.verdict == "unknown" else ""
    return Ruling(rule, "fail", f"{shown}, worse than the margin of {rule.margin:.1%}{noise}")
