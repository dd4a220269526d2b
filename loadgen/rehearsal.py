"""A day of traffic against an autoscaler's target, in simulated time. Pure.

The fleet is a fluid: N requests in flight spread evenly over R ready replicas. Each replica serves, and does
good, as measured in the sweep at that load (linear between levels, flat beyond the last), so
dN/dt = arrivals - R x served(N/R).
That is coarse: no bursts within a second, no client gives up, balancing is perfect. What it does show is what
a signal and the scaler's own rules make of cold starts and of a rising or falling demand.

The scaler keeps Kubernetes' rules (autoscaling/v2): a decision every 15 seconds, tolerance 0.1,
ceil(ready x value / target) as for an external metric of type Value, the behaviour's stabilisation windows
and policies with selectPolicy Max, and the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadgen.report.curve import Point
from loadgen.report.curve import signal as engine_signal
from loadgen.results import LevelResult

SYNC_S = 15
TOLERANCE = 0.1
Series = Sequence[tuple[float, float]]  # (second, requests per second), rising in time


@dataclass(frozen=True, slots=True)
class Line:
    """Piecewise linear through measured points, flat beyond both ends."""

    points: tuple[tuple[float, float], ...]

    def __call__(self, x: float) -> float:
        """The value at ``x``."""
        if x <= self.points[0][0]:
            return self.points[0][1]
        for (x0, y0), (x1, y1) in pairwise(self.points):
            if x <= x1:
                return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica as measured, all against its requests in flight."""

    served: Line
    good: Line
    signals: dict[str, Line]


def replica_of(points: Sequence[Point], in_flight: Callable[[Point], float | None]) -> Replica | None:
    """The measured replica; ``None`` where fewer than two levels count. Idle is added as the origin."""
    found = sorted((n, p) for p in points if p.judged and (n := in_flight(p)) is not None and n > 0)
    if len(found) < 2:
        return None

    def line(get: Callable[[LevelResult], float | None]) -> Line | None:
        known = [(n, v) for n, p in found if (v := p.mean(get)) is not None]
        return Line(((0.0, 0.0), *known)) if len(known) == len(found) else None

    served, good = line(lambda level: level.throughput_rps), line(lambda level: level.goodput_rps)
    if served is None or good is None:
        return None
    signals = {}
    for key in ("waiting", "running", "kv_usage"):
        if (made := line(lambda level, key=key: engine_signal(level, key))) is not None:  # type: ignore[misc]
            signals[key] = made
    return Replica(served, good, signals)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the scaler may do. Times are seconds; ``up`` and ``down`` as in the behaviour of an HPA."""

    min_replicas: int
    max_replicas: int
    cold_start_s: float
    up_percent: float = 100.0
    up_pods: int = 1
    up_period_s: float = 120.0
    down_percent: float = 10.0
    down_pods: int = 1
    down_period_s: float = 60.0
    down_window_s: float = 300.0


@dataclass(slots=True)
class Scaler:
    """Kubernetes' rules over one signal; ``decide`` is called every `SYNC_S`."""

    policy: Policy
    replicas: int
    _wanted: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now_s: float, ready: int, ratio: float) -> int:
        """The new number of replicas, from the signal's value over its target."""
        policy = self.policy
        wanted = self.replicas if abs(ratio - 1) <= TOLERANCE + 1e-9 else math.ceil(ratio * ready - 1e-9)
        wanted = min(max(wanted, policy.min_replicas), policy.max_replicas)
        self._wanted = [(t, n) for t, n in self._wanted if now_s - t <= policy.down_window_s] + [
            (now_s, wanted)
        ]
        if wanted < self.replicas:  # scale down no further than any recommendation of the window
            wanted = min(self.replicas, max(n for _, n in self._wanted))
        if wanted > self.replicas:
            start = self.replicas - self._changed(now_s, policy.up_period_s, up=True)
            limit = max(start + policy.up_pods, math.ceil(start * (1 + policy.up_percent / 100)))
            wanted = min(wanted, max(limit, self.replicas))
        elif wanted < self.replicas:
            start = self.replicas + self._changed(now_s, policy.down_period_s, up=False)
            limit = min(start - policy.down_pods, math.floor(start * (1 - policy.down_percent / 100)))
            wanted = max(wanted, min(limit, self.replicas))
        if wanted != self.replicas:
            self._changes.append((now_s, wanted - self.replicas))
            self.replicas = wanted
        return self.replicas

    def _changed(self, now_s: float, period_s: float, *, up: bool) -> int:
        """Replicas added (or removed) within the period just past."""
        recent = [change for t, change in self._changes if now_s - t < period_s]
        return sum(abs(change) for change in recent if (change > 0) == up)

    @property
    def turns(self) -> int:
        """How often it went from adding to removing or back: flapping."""
        signs = [change > 0 for _, change in self._changes]
        return sum(a != b for a, b in pairwise(signs))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the day. ``good_share`` is of all requests that arrived."""

    good_share: float
    lost: float  # requests that were not good, or not served by the end
    replica_hours: float
    most_replicas: int
    turns: int


def rehearse(
    replica: Replica, signal: Line, target: float, policy: Policy, traffic: Series, start_replicas: int
) -> Outcome:
    """Play ``traffic`` (held between its points) second by second."""
    scaler = Scaler(policy, min(max(start_replicas, policy.min_replicas), policy.max_replicas))
    ready_at = [0.0] * scaler.replicas
    follow = _follower(replica.served)
    in_flight = _settled(replica, traffic[0][1], scaler.replicas)
    arrived = good = seconds = 0.0
    most = scaler.replicas
    index = 0
    for now in range(int(traffic[0][0]), int(traffic[-1][0])):
        while index + 1 < len(traffic) and traffic[index + 1][0] <= now:
            index += 1
        rate = traffic[index][1]
        ready = max(1, sum(t <= now for t in ready_at))
        in_flight = ready * follow((in_flight + rate) / ready)
        arrived += rate
        good += ready * replica.good(in_flight / ready)
        seconds += len(ready_at)
        if now % SYNC_S == 0:
            wanted = scaler.decide(now, ready, signal(in_flight / ready) / target)
            while len(ready_at) < wanted:
                ready_at.append(now + policy.cold_start_s)
            # What still starts goes first, as Kubernetes does it.
            ready_at = sorted(ready_at)[:wanted]
            most = max(most, wanted)
    good = min(good, arrived)
    share = good / arrived if arrived else 1.0
    return Outcome(share, arrived - good, seconds / 3600, most, scaler.turns)


def _follower(served: Line) -> Callable[[float], float]:
    """From n + served(n) back to n: a second of implicit Euler, stable however short the requests are."""
    rising: list[tuple[float, float]] = []
    for n, rate in served.points:
        if not rising or n + rate > rising[-1][0]:
            rising.append((n + rate, n))
    line, (last_total, last_n) = Line(tuple(rising)), rising[-1]

    def follow(total: float) -> float:
        return line(total) if total <= last_total else last_n + total - last_total

    return follow


def _settled(replica: Replica, rate: float, replicas: int) -> float:
    """Requests in flight once arrivals and service balance; the last measured load where they cannot."""
    low, high = 0.0, replica.served.points[-1][0]
    for _ in range(60):
        middle = (low + high) / 2
        if replica.served(middle) * replicas < rate:
            low = middle
        else:
            high = middle
    return high * replicas


def synthetic_day(peak_rps: float) -> list[tuple[float, float]]:
    """24 hours by the minute: a quiet night, a peak at 14:00, a burst of half as much again at 10:00."""
    day = []
    for minute in range(24 * 60 + 1):
        hour = minute / 60
        shape = 0.2 + 0.8 * max(0.0, math.sin(math.pi * (hour - 6) / 16)) if 6 <= hour <= 22 else 0.2
        burst = 1.5 if 600 <= minute < 615 else 1.0
        day.append((minute * 60.0, peak_rps * shape * burst))
    return day
