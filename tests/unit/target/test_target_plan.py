from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.report.curve import points
from loadgen.target import (
    Wish,
    capacity_file,
    expected_attainment,
    nearest_rank,
    plan,
    read_rates,
    replicas_for,
)
from sidecar.derive.autoscale import load_capacity
from sidecar.errors import UserError
from tests.support import reports

rates = st.floats(min_value=0.01, max_value=1e5)
shares = st.floats(min_value=0.05, max_value=1.0)


@settings(max_examples=150, deadline=None)
@given(rates, rates, shares)
def test_replicas_are_enough_and_not_one_too_many(rate: float, peak: float, share: float) -> None:
    n = replicas_for(rate, peak, share)
    assert n * peak * share >= rate * (1 - 1e-8)
    assert n == 1 or (n - 1) * peak * share < rate


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5000), st.sampled_from([0.1, 0.7, 1.1, 3.3, 24.0]))
def test_an_exact_multiple_is_not_rounded_up(n: int, peak: float) -> None:
    assert replicas_for(n * peak, peak) == n


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_peak_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(UserError):
        replicas_for(10.0, bad)
    with pytest.raises(UserError):
        replicas_for(10.0, 5.0, bad)


def test_the_lower_end_of_the_interval_is_planned_with() -> None:
    report = reports.sweep()
    made = plan(report, Wish(30.0))
    assert report.peak.goodput_ci_rps is not None
    assert made.measured_low_rps == report.peak.goodput_ci_rps[0]
    assert made.planned_rps == pytest.approx(0.8 * report.peak.goodput_ci_rps[0])
    assert made.replicas == math.ceil(30 / made.planned_rps) == 10


def test_spare_replicas_come_on_top() -> None:
    assert plan(reports.sweep(), Wish(30.0, spare=2)).replicas == 12


def test_bounds_hold_and_too_low_a_maximum_is_said() -> None:
    assert plan(reports.sweep(), Wish(1.0, min_replicas=3)).replicas == 3
    made = plan(reports.sweep(), Wish(30.0, max_replicas=4))
    assert made.replicas == 4
    assert any("--max 4 is below the 10 replicas" in note for note in made.notes)
    with pytest.raises(UserError, match="--min 5 is above --max 4"):
        plan(reports.sweep(), Wish(30.0, min_replicas=5, max_replicas=4))


def test_planning_for_a_share_uses_the_load_that_keeps_it() -> None:
    made = plan(reports.sweep(), Wish(30.0, at=0.99))
    assert made.basis == "attainment 0.99"
    assert made.peak_load_per_replica == 20.0  # saturation is always over the peak's load
    assert made.target_saturation == pytest.approx(0.8 * 16 / 20)
    assert made.measured_rps == reports.level(16.0).goodput_rps


def test_a_share_that_no_load_held_is_refused() -> None:
    report = reports.sweep()
    lost = replace(report.peak, capacity=tuple(replace(c, load=None) for c in report.peak.capacity))
    with pytest.raises(UserError, match="no load measured held that share"):
        plan(replace(report, peak=lost), Wish(30.0, at=0.99))
    with pytest.raises(
        UserError, match=r"--at 0\.5: the report has no capacity for that share \(it has: 0\.99"
    ):
        plan(report, Wish(30.0, at=0.5))


def test_a_peak_beyond_an_attainment_capacity_is_not_exceeded() -> None:
    report = reports.sweep()
    beyond = replace(report.peak, capacity=(replace(report.peak.capacity[0], load=48.0),))
    assert plan(replace(report, peak=beyond), Wish(30.0, at=0.99)).target_saturation == pytest.approx(0.8)


def test_no_peak_no_target_not_even_by_force() -> None:
    with pytest.raises(UserError, match="names no goodput peak"):
        plan(reports.no_peak(), Wish(30.0), force=True)


def spoiled(**changes: Any) -> Any:
    report = reports.sweep()
    levels = tuple(replace(x, **changes) if x.load == 20.0 else x for x in report.levels)
    return replace(report, levels=levels)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"valid": False, "flags": ("client-limited: x",)}, "does not count: client-limited"),
        ({"tokens_estimated": True}, "no token counts"),
        ({"load": 21.0}, "is not in the report"),
    ],
)
def test_a_doubtful_peak_is_no_target_unless_forced_and_then_recorded(changes: Any, said: str) -> None:
    report = spoiled(**changes)
    with pytest.raises(UserError, match=said):
        plan(report, Wish(30.0))
    made = plan(report, Wish(30.0), force=True)
    assert any(said in doubt for doubt in made.forced)
    assert json.loads(capacity_file(report, made))["forced"] == list(made.forced)


def test_what_weakens_the_plan_is_noted() -> None:
    notes = " ".join(plan(reports.not_bracketed(), Wish(5.0)).notes)
    assert "lower bound" in notes
    assert "its budget was spent" in notes
    report = reports.sweep()
    unsure = replace(report, peak=replace(report.peak, goodput_ci_rps=None, attainment=0.6))
    notes = " ".join(plan(unsure, Wish(5.0)).notes)
    assert "measured mean was used" in notes
    assert "only 60.0 % of the requests are good; consider --at 0.99" in notes


def rate_sweep(in_flight: float | None) -> Any:
    base = reports.sweep()
    levels = tuple(replace(x, kind="rate", load=x.load / 5, in_flight_mean=in_flight) for x in base.levels)
    return replace(base, levels=levels, peak=replace(base.peak, load=4.0))


def test_a_sweep_over_rates_takes_its_load_from_the_requests_in_flight() -> None:
    made = plan(rate_sweep(17.5), Wish(30.0))
    assert made.peak_load_per_replica == 17.5
    assert made.target_saturation == pytest.approx(0.8)
    with pytest.raises(UserError, match="no in_flight_mean"):
        plan(rate_sweep(None), Wish(30.0))


def test_the_expected_attainment_is_read_off_the_rising_curve() -> None:
    found = points(reports.sweep())
    by_load = {p.load: p for p in found}

    def served(load: float) -> float:
        return by_load[load].levels[0].eligible / 60

    assert expected_attainment(found, 0.01) == by_load[1.0].attainment
    assert expected_attainment(found, served(24.0)) == pytest.approx(by_load[24.0].attainment)
    middle = expected_attainment(found, (served(20.0) + served(24.0)) / 2)
    a20, a24 = by_load[20.0].attainment, by_load[24.0].attainment
    assert a20 is not None
    assert a24 is not None
    assert middle == pytest.approx((a20 + a24) / 2)
    assert expected_attainment(found, 1e6) is None
    assert expected_attainment([], 1.0) is None


def test_cost_is_per_hour_and_per_million_good_tokens() -> None:
    made = plan(reports.sweep(), Wish(30.0, usd_per_replica_hour=3.6))
    assert made.usd_per_hour == pytest.approx(36.0)
    assert made.expected_attainment is not None
    tokens_per_hour = 100 * 30.0 * made.expected_attainment * 3600  # the fixture's answers have 100 tokens
    assert made.usd_per_million_good_tokens == pytest.approx(36.0 / tokens_per_hour * 1e6)
    assert plan(reports.sweep(), Wish(30.0)).usd_per_hour is None


def test_the_sidecar_reads_the_capacity_file(tmp_path: Path) -> None:
    report = reports.sweep()
    made = plan(report, Wish(30.0))
    path = tmp_path / "capacity.json"
    path.write_text(capacity_file(report, made), encoding="utf-8")
    read = load_capacity(path)
    assert read.peak_load == 20.0
    assert read.target_saturation == pytest.approx(0.8)
    assert read.peak_goodput_rps == report.peak.goodput_rps
    assert read.model == report.model


def test_rates_are_read_from_lists_and_tables() -> None:
    assert read_rates("1\n2.5\n\n# note\n3", "r") == [1.0, 2.5, 3.0]
    assert read_rates("time,rate\n0,4\n60,5\n", "r") == [4.0, 5.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rates"),
        ("rate\n", "no rates"),
        ("1\nx\n", "line 2"),
        ("1\n-3", "line 2"),
        ("1\nnan", "line 2"),
    ],
)
def test_rates_that_are_none_are_named(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"r.csv: .*{said}|r.csv: {said}"):
        read_rates(text, "r.csv")


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.51, 3.0), (1.0, 4.0), (0.0001, 1.0)])
def test_percentiles_are_nearest_rank(share: float, expected: float) -> None:
    assert nearest_rank([4.0, 2.0, 1.0, 3.0], share) == expected
