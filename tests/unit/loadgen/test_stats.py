"""HDR quantiles by nearest rank, exact merging, batch means that cover the truth."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Arrivals
from loadgen.plan import LevelPlan
from loadgen.results import LevelResult
from loadgen.simulator.model import find_profile
from loadgen.stats import (
    Distribution,
    Started,
    batch_means_interval,
    batch_rates,
    batches_for,
    closed_loop_interval,
    mean_interval,
    quantiles_of,
    t_95,
)
from loadgen.step import level_result
from sidecar.requests.slo import SloClass
from tests.support.simulated_time import run_level

DURATIONS = st.lists(st.integers(0, 3_000_000_000_000), min_size=1, max_size=60)


def nearest_rank(values: list[int], share: float) -> int:
    return sorted(values)[max(1, math.ceil(share * len(values) - 1e-9)) - 1]


@settings(max_examples=60, deadline=None)
@given(values=DURATIONS, share=st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_percentiles_are_the_nearest_rank_within_a_thousandth(values: list[int], share: float) -> None:
    distribution = Distribution()
    distribution.record_all(values)
    exact_s = nearest_rank(values, share) / 1e9
    found = distribution.at(share)
    assert found is not None
    assert found == pytest.approx(exact_s, rel=1.1e-3, abs=1.1e-6)
    assert min(values) / 1e9 <= found <= max(values) / 1e9


@settings(max_examples=40, deadline=None)
@given(values=DURATIONS)
def test_quantiles_are_in_order(values: list[int]) -> None:
    q = quantiles_of(values)
    found = [q.min_s, q.p50_s, q.p90_s, q.p95_s, q.p99_s, q.p999_s, q.max_s]
    assert found == sorted(found)
    assert q.mean_s == pytest.approx(sum(values) / len(values) / 1e9)


@settings(max_examples=30, deadline=None)
@given(left=DURATIONS, right=DURATIONS)
def test_merging_equals_recording_together(left: list[int], right: list[int]) -> None:
    merged = Distribution()
    merged.record_all(left)
    other = Distribution()
    other.record_all(right)
    merged.add(other)
    together, parts = quantiles_of([*left, *right]), merged.quantiles()
    assert parts.mean_s == pytest.approx(together.mean_s)
    assert [parts.count, parts.p50_s, parts.p99_s, parts.max_s, parts.min_s] == [
        together.count,
        together.p50_s,
        together.p99_s,
        together.max_s,
        together.min_s,
    ]


def test_nothing_recorded_is_absent_and_a_negative_duration_is_a_bug() -> None:
    empty = quantiles_of([])
    assert empty.count == 0
    assert {empty.p50_s, empty.p99_s, empty.mean_s, empty.max_s} == {None}
    with pytest.raises(ValueError, match="negative"):
        Distribution().record(-1)
    empty_still = Distribution()
    with pytest.raises(ValueError, match="negative"):
        empty_still.record_all([5, -1])
    assert empty_still.quantiles() == empty


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.integers(0, 8_000_000_000_000), min_size=1, max_size=40))
def test_recording_many_at_once_equals_recording_each(values: list[int]) -> None:
    each = Distribution()
    for value in values:
        each.record(value)
    shares = [i / len(values) for i in range(1, len(values) + 1)]
    at_once = Distribution()
    at_once.record_all(values)
    assert [at_once.at(share) for share in shares] == [each.at(share) for share in shares]
    assert at_once.quantiles() == each.quantiles()


def test_batches_are_half_open_and_no_longer_than_requests_need() -> None:
    assert batch_rates([0.0, 0.5, 0.999, 1.0, 2.0], (0.0, 2.0), 2) == [3.0, 1.0]
    assert batches_for(8.0, 0.1) == 20
    assert batches_for(8.0, 1.0) == 8
    assert batches_for(8.0, 60.0) == 5
    assert batches_for(8.0, None) == 10


def test_intervals_need_two_values_and_use_students_factor() -> None:
    assert mean_interval([1.0]) is None
    assert mean_interval([1.0, 3.0]) == pytest.approx((2 - 12.706, 2 + 12.706))
    assert t_95(30) == 2.042
    assert 1.96 < t_95(100) < 2.0
    assert batch_means_interval([], (0.0, 8.0), 1.0) is None


def test_batch_means_cover_the_true_rate_of_a_clustered_process() -> None:
    """Good requests come in waves (as streams in step do); the plain binomial would be far too narrow."""
    rng = random.Random(3)
    covered = 0
    for _ in range(300):
        waves = [rng.uniform(0, 1) + k for k in range(-1, 21)]
        times = [w + rng.gauss(0, 0.05) for w in waves for _ in range(rng.choice([2, 4, 6]))]
        interval = batch_means_interval([t for t in times if 0 <= t < 20], (0.0, 20.0), 1.0)
        assert interval is not None
        covered += interval[0] <= 4.0 <= interval[1]
    assert 0.9 <= covered / 300 <= 1.0


def test_closed_loop_intervals_hold_the_simulators_long_run_and_are_narrower() -> None:
    profile = find_profile("demo")
    slo = SloClass(ttft_s=1.0, tpot_s=0.05)

    def run(window_s: float, seed: int) -> LevelResult:
        plan = LevelPlan(17, Arrivals(), 2.0, window_s, 20.0, seed)
        return level_result(plan, run_level(profile, plan, seed=seed), slo)

    truth = run(120.0, 99).goodput_rps
    runs = [run(6.0, seed) for seed in range(16)]
    intervals = [level.goodput_ci_rps for level in runs]
    covered = sum(ci is not None and ci[0] <= truth <= ci[1] for ci in intervals)
    assert covered >= 13
    wide = sum((ci[1] - ci[0]) / 2 for ci in intervals if ci is not None) / len(intervals)
    assert wide < 0.2 * truth


def test_an_interval_without_a_good_request_is_unknown() -> None:
    assert closed_loop_interval([Started(0.5, False, 1.0)], (0.0, 4.0)) is None
    assert closed_loop_interval([], (0.0, 4.0)) is None
