"""The true curve against the engine itself, run on a virtual clock in a closed loop."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from loadgen.simulator.model import find_profile, true_curve, true_peak, true_point
from loadgen.simulator.profile import Bounds, Span, Workload
from tests.support.virtual_loop import VirtualLevel, run_level

DEMO = find_profile("demo")
# Stated tolerances of the model. Means: a few percent. Attainment in the flank, where a percent of TPOT
# moves a tenth of the requests across the bound: 0.1. Two minutes of virtual time leave about 1000 requests
# and their own noise.
MEAN = 0.04
FLANK = 0.1
WINDOW_S = 120.0


@cache
def level(load: int, profile_name: str = "demo") -> VirtualLevel:
    profile = find_profile(profile_name)
    return run_level(profile, profile.workload, profile.slo, load, window_s=WINDOW_S)


@pytest.mark.parametrize("load", [1, 4, 8, 14, 16, 18, 20, 22, 28, 32, 48])
def test_the_model_tells_what_the_engine_does(load: int) -> None:
    true, run = true_point(DEMO, DEMO.workload, DEMO.slo, load), level(load)
    assert run.throughput_rps == pytest.approx(true.throughput_rps, rel=MEAN)
    assert run.tpot_s == pytest.approx(true.tpot_s, rel=MEAN)
    assert run.ttft_s == pytest.approx(true.ttft_s, rel=2 * MEAN)
    assert run.attainment == pytest.approx(true.attainment, abs=FLANK)
    assert run.preemptions == 0


def test_both_have_the_same_peak() -> None:
    levels = [8, 12, 14, 15, 16, 17, 18, 19, 20, 22, 24, 32]
    true = true_peak(DEMO, DEMO.workload, DEMO.slo, levels)
    found = max((level(load) for load in levels), key=lambda run: run.goodput_rps)
    assert abs(found.load - true.load) <= 1
    assert found.goodput_rps == pytest.approx(true.goodput_rps, rel=MEAN)


def test_another_machine_another_workload_another_slo() -> None:
    """Compute-bound, long prompts in chunks, judged by its gaps and its end as well."""
    profile = replace(DEMO, max_batched_tokens=256, max_batch=12)
    workload = Workload(Span(64, 320), Span(8, 40))
    for slo in (Bounds(tpot_s=0.04), Bounds(max_gap_s=0.06), Bounds(e2e_s=0.9), Bounds(ttft_s=0.25)):
        for load in (2, 6, 10, 14):
            true = true_point(profile, workload, slo, load)
            run = run_level(profile, workload, slo, load, window_s=WINDOW_S)
            assert run.throughput_rps == pytest.approx(true.throughput_rps, rel=0.08), (slo, load)
            assert run.attainment == pytest.approx(true.attainment, abs=0.2), (slo, load)


def test_where_the_cache_fills_the_model_says_so_and_bounds_throughput() -> None:
    profile = find_profile("small-kv")
    points = true_curve(profile, profile.workload, Bounds(), [4, 24])
    roomy, full = (run_level(profile, profile.workload, Bounds(), p.load, window_s=WINDOW_S) for p in points)
    assert [p.kv_limited for p in points] == [False, True]
    assert roomy.preemptions == 0
    assert roomy.throughput_rps == pytest.approx(points[0].throughput_rps, rel=MEAN)
    assert full.preemptions > 0
    assert full.throughput_rps <= points[1].throughput_rps * (1 + MEAN)
