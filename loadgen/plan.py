"""One load level: what is asked of the Locust processes, and what they bring back. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadgen.arrivals import Arrivals
from loadgen.guards import Finding
from loadgen.reconcile import Books
from sidecar.requests.records import RequestRecord


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """One level to be run. ``load`` is requests in flight (closed loop) or requests per second (open
    loop).
    """

    load: float
    arrivals: Arrivals
    warmup_s: float
    window_s: float
    drain_limit_s: float
    seed: int
    max_in_flight: int | None = None  # open loop: beyond it a due request waits, and that wait counts
    warmup_max_s: float | None = None  # the warm-up goes on until steady, at most so long; None: it is fixed
    number: int = 0  # which level of the sweep this is: makes its prompts differ from every other level's

    @property
    def window_ns(self) -> tuple[int, int]:
        """The measured window, in nanoseconds after the level's start, half-open."""
        return round(self.warmup_s * 1e9), round((self.warmup_s + self.window_s) * 1e9)


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """How the generator itself fared during the window; the worst of all workers."""

    cpu_share: float | None = None  # of one core
    loop_lag_p99_s: float | None = None
    stamp: str = "unknown"  # "kernel" or "read": who took the arrival times
    shared_stamp_share: float | None = None  # share of output reads that carried more than one event's bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """What the workers brought back from one level. All times count from the level's start."""

    records: tuple[RequestRecord, ...]
    started_wall: str
    drain_s: float
    client: ClientHealth = ClientHealth()
    cut_ns: int | None = None  # the level was interrupted at this moment
    engine: dict[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()  # noticed while running: a lost worker, a restarted server
    warmup_s: float | None = None  # how long the warm-up was, where it was not the plan's
    books: Books | None = None  # what client, sidecar and engine counted
