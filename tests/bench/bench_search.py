"""How near the search comes to the true peak, how often its interval holds, what it spends: in simulated
time.

Forty servers are made from the simulator's profiles (speed, overhead, batch, lengths, SLO varied) and swept
without sockets by the real search and the real figures. Truth is a long run of the same engine at every load
near the found and the stated peak, so that it has no model error; a uniform grid of the same spacing shows
what the search saves.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from loadgen.arrivals import Arrivals
from loadgen.plan import LevelPlan
from loadgen.results import LevelResult
from loadgen.search import PeakSearch, parse_levels
from loadgen.simulator.model import find_profile, true_peak
from loadgen.simulator.profile import Profile, Span, Workload
from loadgen.step import level_result
from sidecar.requests.slo import SloClass
from tests.support.simulated_time import run_level

SERVERS = 40
HIGHEST = 48
WINDOW_S, TRUTH_S = 12.0, 90.0


def server(number: int) -> tuple[Profile, SloClass]:
    """One made-up server and the SLO it is swept for."""
    rng = random.Random(number)
    base = find_profile("demo")
    pace = rng.uniform(0.7, 2.0)
    low = rng.randint(8, 24)
    workload = Workload(Span(32, rng.randint(64, 700)), Span(low, low + rng.randint(8, 48)))
    profile = replace(
        base,
        name=f"made-{number}",
        bandwidth_bytes_per_s=base.bandwidth_bytes_per_s * pace,
        step_overhead_s=base.step_overhead_s * rng.uniform(0.5, 2.0),
        sequence_overhead_s=base.sequence_overhead_s * rng.uniform(0.5, 2.0),
        max_batch=rng.choice([16, 24, 32]),
        workload=workload,
    )
    tpot = rng.uniform(0.03, 0.06)
    return profile, SloClass(ttft_s=rng.uniform(0.5, 2.0), tpot_s=tpot)


def level(profile: Profile, slo: SloClass, load: float, seed: int, window_s: float) -> LevelResult:
    """One level in simulated time."""
    plan = LevelPlan(load, Arrivals(), 2.0, window_s, 30.0, seed)
    return level_result(plan, run_level(profile, plan, seed=seed), slo)


@dataclass(frozen=True, slots=True)
class Found:
    """How one sweep went; shares are ``None`` where neither search nor truth has a peak."""

    near: bool
    share: float | None  # of the true best goodput, at the load found
    held: bool
    requests: int
    grid_requests: float
    levels: int


def study(number: int) -> Found:
    """Sweep one server and compare with its truth."""
    profile, slo = server(number)
    model = true_peak(profile, profile.workload, slo, range(1, HIGHEST + 1))
    search = PeakSearch(parse_levels(f"2..{HIGHEST}", whole=True), max_levels=12)
    while (load := search.ask()) is not None:
        search.tell(level(profile, slo, load, 1000 * number + len(search.told) + 1, WINDOW_S))
    peak = search.result()
    requests, levels = sum(one.sent for one in search.told), len(search.told)
    if peak.load is None or model.goodput_rps <= 0:
        return Found(peak.load is None and model.goodput_rps <= 0, None, False, requests, 0.0, levels)
    around = {int(peak.load), *(model.load + d for d in (-1, 0, 1) if model.load + d >= 1)}
    truth = {at: level(profile, slo, at, 7, TRUTH_S).goodput_rps for at in around}
    there, ci = truth[int(peak.load)], peak.goodput_ci_rps
    share = there / max(truth.values())
    # An equally fine uniform grid: one level for every 6 % of the peak's load, each as long as ours.
    grid = HIGHEST / max(1.0, 0.06 * peak.load) * WINDOW_S * there
    return Found(share >= 0.97, share, ci is not None and ci[0] <= there <= ci[1], requests, grid, levels)


def main() -> int:
    """Print the table; 1 when a target was missed."""
    with ProcessPoolExecutor(max_workers=2) as pool:
        found = list(pool.map(study, range(SERVERS)))
    named = [one for one in found if one.share is not None]
    near = sum(one.near for one in found) / SERVERS
    least = min(one.share for one in named if one.share is not None)
    held = sum(one.held for one in named) / len(named)
    spent = sum(one.requests for one in named) / sum(one.grid_requests for one in named)
    levels = sum(one.levels for one in found) / SERVERS
    rows = [
        ("share of servers within 3 % of the true best", near, 0.95, near >= 0.95),
        ("least share of the true best", least, 0.9, least >= 0.9),
        ("share of 95 % intervals that hold the truth", held, 0.9, held >= 0.9),
        ("requests, of a uniform grid's", spent, 0.5, spent <= 0.5),
        ("levels a sweep", levels, 12.0, levels <= 12),
    ]
    print(f"{'':46} {'figure':>8} {'target':>7}  ok")
    for what, figure, target, ok in rows:
        print(f"{what:46} {figure:8.3f} {target:7.2f}  {'yes' if ok else 'NO'}")
    return int(not all(ok for *_, ok in rows))


if __name__ == "__main__":
    sys.exit(main())
