"""When requests are due in open loop: pure, seeded schedules.

Every process draws one schedule for the whole level, and worker i of N takes every N-th arrival of it. The
merged traffic is therefore the same, arrival by arrival, whatever the number of workers. Nothing is rescaled
to land on a wanted count: that would turn Poisson traffic into something more regular.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from sidecar.errors import UserError

Process = Literal["closed", "constant", "poisson", "gamma", "replay"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process. ``gap_cv`` is the coefficient of variation of the gaps and only matters for
    ``gamma``.

    ``replay`` takes its times from a trace (see `loadgen.workload.traces`).
    ``closed`` has no schedule of its own: each user sends when its previous answer has ended.
    """

    process: Process = "closed"
    gap_cv: float = 1.0

    @property
    def open_loop(self) -> bool:
        """True when requests are due at times of their own, answered or not."""
        return self.process != "closed"


def parse_arrivals(text: str) -> Arrivals:
    """Read ``poisson``, ``constant`` or ``gamma:4`` (4 is the gaps' coefficient of variation).

    Raises `UserError` for anything else.
    """
    name, _, tail = text.partition(":")
    if name in ("constant", "poisson") and not tail:
        return Arrivals("constant" if name == "constant" else "poisson")
    if name == "gamma":
        try:
            gap_cv = float(tail)
        except ValueError:
            gap_cv = math.nan
        if math.isfinite(gap_cv) and gap_cv > 0:
            return Arrivals("gamma", gap_cv)
        raise UserError(
            f"--arrivals {text}: write gamma:CV with the gaps' coefficient of variation, e.g. gamma:4"
        )
    raise UserError(f"--arrivals {text}: unknown; use constant, poisson or gamma:CV")


def _gaps(arrivals: Arrivals, rate_rps: float, rng: random.Random) -> Iterator[float]:
    mean_s = 1.0 / rate_rps
    if arrivals.process == "constant":
        while True:
            yield mean_s
    elif arrivals.process == "poisson":
        while True:
            yield rng.expovariate(rate_rps)
    elif arrivals.process == "gamma":
        # A gamma variable of shape k has CV 1/sqrt(k); the scale then fixes the mean.
        shape = 1.0 / arrivals.gap_cv**2
        while True:
            yield rng.gammavariate(shape, mean_s / shape)
    else:
        raise ValueError("a closed loop has no arrival schedule, and a replay has its trace's")


def arrival_times(
    arrivals: Arrivals, rate_rps: float, *, seed: int, worker: int = 0, workers: int = 1
) -> Iterator[float]:
    """Endless, increasing arrival times in seconds after the level's start, for one worker.

    The first arrival comes one gap after the start, never in a burst at zero. Equal seeds give equal times.
    Raises `ValueError` for a rate that is not positive or a closed loop.
    """
    if not (math.isfinite(rate_rps) and rate_rps > 0):
        raise ValueError(f"the arrival rate must be positive, got {rate_rps}")
    rng = random.Random(f"arrivals/{seed}")

    def all_times() -> Iterator[float]:
        at_s = 0.0
        for gap_s in _gaps(arrivals, rate_rps, rng):
            at_s += gap_s
            yield at_s

    return islice(all_times(), worker, None, workers)
