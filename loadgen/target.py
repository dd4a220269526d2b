"""From a measured peak to replicas and the autoscaler's target. Pure; the objects are in `loadgen.manifests`.

The capacity file, which the sidecar reads (``goodput-sidecar run --capacity FILE``), is JSON (so also YAML)::

    {
      "format": 1,                      required
      "peak_load_per_replica": 20.0,    required, > 0: requests in flight where goodput peaks;
                                        saturation = requests in flight / this
      "target_saturation": 0.8,         required, > 0: what the autoscaler should hold
      "peak_goodput_rps": 4.53,         good requests per second there
      "peak_goodput_ci_rps": [3.9, 5.1] its 95 % interval, or null
      "peak_attainment": 0.94,          share of good requests there, or null
      "planned_rps_per_replica": 3.15,  what one replica is planned for: lower end of the interval x use share
      "basis": "peak",                  or "attainment 0.99": the point of the curve that is planned for
      "model": "...", "server": "...", "slo": {...}, "measured": "ISO 8601",
      "forced": []                      doubts that were overridden with --force, each a sentence
    }

A reader must accept further keys, refuse another ``format`` and treat ``null`` as unknown.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadgen.report.curve import Point, kind_of, points
from loadgen.report.text import number, percent, stopped_text
from loadgen.results import SweepReport
from sidecar.errors import UserError

CAPACITY_FORMAT = 1
_ROUND_OFF = 1e-9  # 96 / 24 must give 4 replicas, whatever floating point makes of it


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. ``at`` is ``None`` for the peak, or the share of requests that must be good."""

    rate_rps: float
    use_share: float = 0.8
    at: float | None = None
    spare: int = 0  # replicas that may fail and leave enough
    min_replicas: int = 1
    max_replicas: int | None = None
    usd_per_replica_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Replicas and targets, with what they rest on. ``None`` is unknown. Rates are requests per second."""

    rate_rps: float
    replicas: int
    min_replicas: int
    max_replicas: int
    basis: str
    measured_rps: float  # good requests per second of one replica at the basis
    measured_low_rps: float  # lower end of its interval, or the same where there is none
    planned_rps: float  # measured_low_rps x use_share
    use_share: float
    spare: int
    peak_load_per_replica: float
    target_saturation: float
    expected_attainment: float | None
    expected_goodput_rps: float | None
    usd_per_hour: float | None
    usd_per_million_good_tokens: float | None
    notes: tuple[str, ...]
    forced: tuple[str, ...]


def replicas_for(rate_rps: float, peak_rps_per_replica: float, use_share: float = 1.0) -> int:
    """Replicas that take ``rate_rps`` when each may use ``use_share`` of its measured peak; at least 1.

    ceil(rate / (peak x share)), exact quotients not rounded up by floating point. Raises `UserError` for
    values that are not positive and finite (the rate may be 0).
    """
    for name, value in (("the peak per replica", peak_rps_per_replica), ("the share to use", use_share)):
        if not math.isfinite(value) or value <= 0:
            raise UserError(f"{name} must be above 0, not {value}")
    if not math.isfinite(rate_rps) or rate_rps < 0:
        raise UserError(f"the rate must be 0 or more requests per second, not {rate_rps}")
    return max(1, math.ceil(rate_rps / (peak_rps_per_replica * use_share) * (1 - _ROUND_OFF)))


def doubts(report: SweepReport) -> list[str]:
    """Why this report should not become a target; empty when nothing speaks against it."""
    at_peak = next((p for p in points(report) if p.load == report.peak.load), None)
    if at_peak is None:
        return ["the level at the peak's load is not in the report"]
    found = []
    if not at_peak.valid:
        why = (
            "; ".join(dict.fromkeys(f for level in at_peak.levels for f in level.flags)) or "no reason given"
        )
        found.append(f"the level at the peak does not count: {why}")
    if any(level.tokens_estimated for level in at_peak.used):
        found.append("the server gave no token counts at the peak: TPOT is an estimate")
    return found


def plan(report: SweepReport, wish: Wish, *, force: bool = False) -> Plan:
    """Replicas and targets for ``wish``.

    Raises `UserError` when the report has no peak, does not hold the share asked for, or gives cause for
    doubt and ``force`` is not set.
    """
    peak = report.peak
    if peak.load is None or peak.goodput_rps is None or peak.goodput_rps <= 0:
        raise UserError(f"the report names no goodput peak ({peak.reason}); there is nothing to plan with")
    against = doubts(report)
    if against and not force:
        raise UserError(
            f"not a sound target: {'; '.join(against)}; sweep again, or use --force, which is recorded"
        )
    by_load = {p.load: p for p in points(report)}
    basis, load = _basis(report, wish.at)
    point = by_load.get(load)
    if load == peak.load:
        measured, ci = peak.goodput_rps, peak.goodput_ci_rps
    elif point is not None and point.goodput_rps > 0:
        measured, ci = point.goodput_rps, point.goodput_ci_rps
    else:
        raise UserError(f"the level at load {number(load)} is not in the report or has no goodput")
    low = ci[0] if ci is not None and ci[0] > 0 else measured
    peak_in_flight = _in_flight(report, by_load.get(peak.load), peak.load)
    in_flight = _in_flight(report, point, load)
    needed = replicas_for(wish.rate_rps, low, wish.use_share) + wish.spare
    replicas = max(needed, wish.min_replicas)
    ceiling = wish.max_replicas if wish.max_replicas is not None else max(2 * replicas, replicas + 1)
    if wish.min_replicas > ceiling:
        raise UserError(f"--min {wish.min_replicas} is above --max {ceiling}")
    each = wish.rate_rps / max(1, min(replicas, ceiling) - wish.spare)
    expected = expected_attainment(list(by_load.values()), each)
    dollars = wish.usd_per_replica_hour
    return Plan(
        rate_rps=wish.rate_rps,
        replicas=min(replicas, ceiling),
        min_replicas=wish.min_replicas,
        max_replicas=ceiling,
        basis=basis,
        measured_rps=measured,
        measured_low_rps=low,
        planned_rps=low * wish.use_share,
        use_share=wish.use_share,
        spare=wish.spare,
        peak_load_per_replica=peak_in_flight,
        target_saturation=wish.use_share * in_flight / peak_in_flight,
        expected_attainment=expected,
        expected_goodput_rps=None if expected is None else expected * wish.rate_rps,
        usd_per_hour=None if dollars is None else dollars * min(replicas, ceiling),
        usd_per_million_good_tokens=_token_price(point, wish, min(replicas, ceiling), expected),
        notes=tuple(_notes(report, wish, ci, needed, ceiling)),
        forced=tuple(against),
    )


def _basis(report: SweepReport, share: float | None) -> tuple[str, float]:
    """The point of the curve to plan for: its name and load."""
    if share is None:
        assert report.peak.load is not None
        return "peak", report.peak.load
    found = next((c for c in report.peak.capacity if math.isclose(c.share, share)), None)
    if found is None:
        known = ", ".join(str(c.share) for c in report.peak.capacity) or "none"
        raise UserError(f"--at {share}: the report has no capacity for that share (it has: {known})")
    if found.load is None:
        raise UserError(f"--at {share}: no load measured held that share of good requests")
    assert report.peak.load is not None
    # Beyond the peak a replica does less good: more load there is no more capacity.
    return f"attainment {share:g}", min(found.load, report.peak.load)


def _in_flight(report: SweepReport, point: Point | None, load: float) -> float:
    """Requests in flight at a load: itself when loads are concurrency, else as measured in that level."""
    if kind_of(report) == "concurrency":
        return load
    measured = point.mean(lambda level: level.in_flight_mean) if point is not None else None
    if not measured:
        raise UserError(
            f"the level at {number(load)} requests/s has no in_flight_mean, which saturation needs; "
            "use a sweep over concurrency"
        )
    return measured


def expected_attainment(measured: list[Point], rate_rps: float) -> float | None:
    """Share of good requests at an arrival rate per replica, read off the measured curve.

    Linear between levels, over the part where the served rate still rises; the first level's attainment below
    it, ``None`` above it. Says nothing of bursts: arrivals burstier than the sweep's do worse.
    """
    curve: list[tuple[float, float]] = []
    for p in sorted(measured, key=lambda p: p.load):
        served = p.mean(lambda level: level.eligible / level.window_s if level.window_s > 0 else None)
        share = p.attainment
        if not p.judged or served is None or share is None:
            continue
        if curve and served <= curve[-1][0]:
            break
        curve.append((served, share))
    if not curve or rate_rps > curve[-1][0]:
        return None
    if rate_rps <= curve[0][0]:
        return curve[0][1]
    (r0, a0), (r1, a1) = next((a, b) for a, b in pairwise(curve) if a[0] <= rate_rps <= b[0])
    return a0 + (a1 - a0) * (rate_rps - r0) / (r1 - r0)


def _token_price(point: Point | None, wish: Wish, replicas: int, expected: float | None) -> float | None:
    """Dollars per million output tokens of good requests at the demanded rate."""
    if wish.usd_per_replica_hour is None or point is None or expected is None:
        return None
    per_good = point.mean(
        lambda level: level.token_goodput_tps / level.goodput_rps if level.goodput_rps > 0 else None
    )
    tokens_per_hour = (per_good or 0.0) * expected * wish.rate_rps * 3600
    return wish.usd_per_replica_hour * replicas / tokens_per_hour * 1e6 if tokens_per_hour > 0 else None


def _notes(
    report: SweepReport, wish: Wish, ci: tuple[float, float] | None, needed: int, ceiling: int
) -> list[str]:
    peak, said = report.peak, []
    if ci is None or ci[0] <= 0:
        said.append(
            "no lower bound of the goodput is known: the measured mean was used, which may be too high"
        )
    if not peak.bracketed:
        said.append("the peak is a lower bound: goodput was still rising at the highest load measured")
    if wish.at is None and peak.attainment is not None and peak.attainment < 0.95:
        said.append(
            f"at the peak only {percent(peak.attainment)} of the requests are good; consider --at 0.99"
        )
    if needed > ceiling:
        said.append(f"--max {ceiling} is below the {needed} replicas that the rate needs")
    if early := stopped_text(report.stopped):
        said.append(early.rstrip("."))
    return [*said, *report.flags]


def capacity_file(report: SweepReport, made: Plan) -> str:
    """The capacity file as JSON text; its format is in the module's first lines."""
    peak = report.peak
    content: dict[str, Any] = {
        "format": CAPACITY_FORMAT,
        "peak_load_per_replica": made.peak_load_per_replica,
        "target_saturation": made.target_saturation,
        "peak_goodput_rps": peak.goodput_rps,
        "peak_goodput_ci_rps": peak.goodput_ci_rps,
        "peak_attainment": peak.attainment,
        "planned_rps_per_replica": made.planned_rps,
        "basis": made.basis,
        "model": report.model,
        "server": report.server,
        "slo": report.slo,
        "measured": report.created_wall,
        "forced": list(made.forced),
    }
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def read_rates(text: str, source: str) -> list[float]:
    """Rates from a series: a number a line, or CSV whose last column is the rate; a header line may lead."""
    rates: list[float] = []
    for n, raw in enumerate(text.splitlines(), 1):
        cell = raw.split(",")[-1].strip()
        if not cell or raw.lstrip().startswith("#"):
            continue
        try:
            rate = float(cell)
        except ValueError:
            if n == 1:
                continue
            raise UserError(
                f"{source}: line {n}: a rate in requests per second is expected, not {cell[:40]!r}"
            ) from None
        if not math.isfinite(rate) or rate < 0:
            raise UserError(f"{source}: line {n}: a rate must be 0 or more, not {cell[:40]!r}")
        rates.append(rate)
    if not rates:
        raise UserError(f"{source}: no rates; one number a line (requests per second) is expected")
    return rates


def nearest_rank(values: list[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - _ROUND_OFF) - 1)]
