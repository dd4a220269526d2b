"""Which signal an autoscaler should follow: what rises with load before attainment falls. Pure.

For each signal, over the measured loads up to the *fall* (the first load whose attainment is below 0.95):

- *rises*: the share of steps from one load to the next in which it rises;
- *shown before*: its value one load before the fall, over its value at the fall. Near 0 it says nothing until
  it is too late; at 1 or above it no longer tells the two loads apart.

A signal *leads* when it rises at every step and is between 0.2 and 0.97 there; it *lags* below 0.2; else it
is *blunt*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from loadgen.report.curve import Point, signal
from loadgen.results import LevelResult

FALL = 0.95
_MIN_POINTS = 3  # two loads before the fall and the fall itself

_CANDIDATES: tuple[tuple[str, Callable[[LevelResult], float | None]], ...] = (
    ("requests in flight", lambda level: level.in_flight_mean),
    ("output tokens/s", lambda level: level.output_tps),
    ("completed requests/s", lambda level: level.throughput_rps),
    ("TTFT p99", lambda level: level.ttft.p99_s),
    ("engine: running requests", lambda level: signal(level, "running")),
    ("engine: waiting requests", lambda level: signal(level, "waiting")),
    ("engine: KV cache use", lambda level: signal(level, "kv_usage")),
    ("engine: preemptions", lambda level: signal(level, "preemptions")),
    ("engine: queue time", lambda level: level.engine.get("queue_mean_s")),
)


@dataclass(frozen=True, slots=True)
class Signal:
    """One candidate. ``rises`` and ``shown_before`` are shares."""

    name: str
    rises: float
    shown_before: float
    verdict: Literal["leads", "lags", "blunt"]


def rank(points: Sequence[Point]) -> list[Signal]:
    """The candidates, best first; empty when attainment never falls or too little was measured before."""
    judged = [p for p in points if p.judged and p.attainment is not None]
    fall = next((i for i, p in enumerate(judged) if (p.attainment or 0.0) < FALL), None)
    if fall is None or fall + 1 < _MIN_POINTS:
        return []
    used = judged[: fall + 1]
    found = [
        s
        for name, get in _CANDIDATES
        if (s := _judge(name, [p.mean(get) for p in used], [p.mean(get) for p in judged])) is not None
    ]
    order = {"leads": 0, "blunt": 1, "lags": 2}
    # Among those that lead, the closer to proportional (half the fall's value at half its load), the better.
    ideal = used[-2].load / used[-1].load
    return sorted(found, key=lambda s: (order[s.verdict], abs(s.shown_before - ideal)))


def _judge(name: str, values: list[float | None], everywhere: list[float | None]) -> Signal | None:
    known = [v for v in values if v is not None]
    if len(known) != len(values):
        return None
    if known[-1] <= 0:  # nothing to see even at the fall: too late where it comes at all
        return Signal(name, 0.0, 0.0, "lags") if any(v for v in everywhere if v) else None
    steps = [b > a for a, b in pairwise(known)]
    rises = sum(steps) / len(steps)
    before = known[-2] / known[-1]
    if before < 0.2:
        return Signal(name, rises, before, "lags")
    return Signal(name, rises, before, "leads" if all(steps) and before <= 0.97 else "blunt")
