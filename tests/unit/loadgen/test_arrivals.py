"""Arrival schedules: their statistics, their reproducibility, their division among workers."""

from __future__ import annotations

import json
import statistics
from heapq import merge
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Arrivals, arrival_times, parse_arrivals
from sidecar.errors import UserError

CASES = json.loads((Path(__file__).parents[2] / "cases" / "arrivals.json").read_text())["cases"]


def times(arrivals: Arrivals, rate_rps: float, count: int, **seeded: int) -> list[float]:
    return list(islice(arrival_times(arrivals, rate_rps, **{"seed": 1, **seeded}), count))


def gaps_of(at: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *at])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict) -> None:
    given_, expect = case["input"], case["expect"]
    arrivals = parse_arrivals(given_["process"])
    at = times(arrivals, given_["rate_rps"], given_["count"])
    gaps = gaps_of(at)
    mean = statistics.fmean(gaps)
    low, high = expect["mean_gap_s_between"]
    assert low <= mean <= high
    low, high = expect["gap_cv_between"]
    assert low <= statistics.stdev(gaps) / mean <= high
    assert at[0] > expect["first_at_s_above"]
    assert sum(moment == 0 for moment in at) <= expect["at_time_zero_max"]
    assert (at == sorted(at)) is expect["sorted"]
    assert (at == times(arrivals, given_["rate_rps"], given_["count"])) is expect["same_seed_same_times"]
    other = times(arrivals, given_["rate_rps"], given_["count"], seed=2)
    assert (at != other) is expect["other_seed_other_times"]


@pytest.mark.parametrize("gap_cv", [0.5, 1.0, 4.0])
def test_gamma_has_the_mean_and_spread_asked_for(gap_cv: float) -> None:
    gaps = gaps_of(times(Arrivals("gamma", gap_cv), 20.0, 60_000))
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(0.05, rel=0.06)
    assert statistics.stdev(gaps) / mean == pytest.approx(gap_cv, rel=0.1)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert times(Arrivals("constant"), 4.0, 4) == pytest.approx([0.25, 0.5, 0.75, 1.0])


@settings(max_examples=30, deadline=None)
@given(
    process=st.sampled_from(["constant", "poisson", "gamma"]),
    rate=st.floats(0.1, 1000),
    workers=st.integers(1, 7),
    seed=st.integers(0, 2**31),
)
def test_workers_share_one_schedule(process: str, rate: float, workers: int, seed: int) -> None:
    arrivals = parse_arrivals(f"{process}:3" if process == "gamma" else process)
    whole = times(arrivals, rate, 20 * workers, seed=seed)
    shares = [times(arrivals, rate, 20, seed=seed, worker=w, workers=workers) for w in range(workers)]
    assert list(merge(*shares)) == whole
    assert all(later >= earlier for earlier, later in pairwise(whole))


@pytest.mark.parametrize("text", ["gamma", "gamma:0", "gamma:x", "gamma:-1", "poisson:2", "bursty", ""])
def test_unknown_processes_are_named(text: str) -> None:
    with pytest.raises(UserError, match="--arrivals"):
        parse_arrivals(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        arrival_times(Arrivals("poisson"), rate, seed=0)
