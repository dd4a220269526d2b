from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.compare import METRICS, Change, Rule, compare, difference_interval, parse_rule, rule_on
from loadgen.results import SweepReport
from sidecar.errors import UserError
from tests.support import reports


def long(scale: float) -> SweepReport:
    """A sweep with windows long enough that its intervals are about one per cent wide."""
    base = reports.sweep(scale)
    levels = tuple(reports.level(x.load, scale=scale, window_s=6000.0) for x in base.levels)
    best = next(x for x in levels if x.load == base.peak.load)
    peak = replace(base.peak, goodput_rps=best.goodput_rps, goodput_ci_rps=best.goodput_ci_rps)
    return replace(base, levels=levels, peak=peak)


def change(name: str, a: SweepReport, b: SweepReport) -> Change:
    return next(c for c in compare(a, b).peak if c.name == name)


def test_the_same_report_shows_no_difference() -> None:
    found = compare(reports.sweep(), reports.sweep())
    assert found.problems == ()
    for c in (*found.peak, *found.levels):
        assert c.difference == 0
        assert c.verdict in ("within noise", "unknown")
    assert [c.load for c in found.levels] == list(reports.LOADS)


def test_a_difference_beyond_the_noise_has_a_verdict() -> None:
    slower, faster = long(0.9), long(1.1)
    assert change("goodput", long(1.0), slower).verdict == "worse"
    assert change("goodput", long(1.0), faster).verdict == "better"
    assert change("goodput", slower, faster).verdict == "better"


def test_the_same_difference_within_the_noise_has_none() -> None:
    assert change("goodput", reports.sweep(), reports.sweep(0.9)).verdict == "within noise"


def test_latencies_get_a_verdict_only_from_repeats() -> None:
    assert change("ttft_p99", reports.sweep(), reports.sweep(0.8)).verdict == "unknown"

    def repeated(factor: float) -> SweepReport:
        base = reports.sweep()
        levels = tuple(
            replace(x, tpot=replace(x.tpot, p99_s=(x.tpot.p99_s or 0) * factor * f))
            for f in (0.99, 1.0, 1.01)
            for x in base.levels
        )
        return replace(base, levels=levels)

    assert change("tpot_p99", repeated(1.0), repeated(1.2)).verdict == "worse"
    assert change("tpot_p99", repeated(1.2), repeated(1.0)).verdict == "better"
    assert change("tpot_p99", repeated(1.0), repeated(1.001)).verdict == "within noise"


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(7)
    held, runs = 0, 2000
    for _ in range(runs):
        a, b = rng.gauss(10, 0.5), rng.gauss(11, 0.8)
        low, high = difference_interval(a, (a - 0.98, a + 0.98), b, (b - 1.568, b + 1.568))
        held += low <= 1.0 <= high
    assert 0.935 <= held / runs <= 0.965


@settings(max_examples=100, deadline=None)
@given(*[st.floats(min_value=0, max_value=1e3)] * 6)
def test_swapping_the_reports_mirrors_the_interval(
    a: float, a_down: float, a_up: float, b: float, b_down: float, b_up: float
) -> None:
    a_ci, b_ci = (a - a_down, a + a_up), (b - b_down, b + b_up)
    low, high = difference_interval(a, a_ci, b, b_ci)
    assert low <= b - a <= high
    assert difference_interval(b, b_ci, a, a_ci) == pytest.approx((-high, -low))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slo": {**reports.SLO, "ttft_s": 1.0}}, "SLO bounds differ"),
        ({"workload": {"prompt_tokens": 9}}, "workloads differ in output_tokens, prompt_tokens, requests"),
        (
            {"levels": tuple(reports.level(x, kind="rate") for x in reports.LOADS)},
            "A sweeps concurrency, B sweeps rate",
        ),
        (
            {"levels": tuple(reports.level(x, valid=x != 20.0) for x in reports.LOADS)},
            "the level at the peak of B does not count",
        ),
    ],
)
def test_what_is_not_the_same_experiment_is_not_judged(changes: dict[str, Any], said: str) -> None:
    found = compare(reports.sweep(), reports.sweep(**changes))
    assert any(said in p for p in found.problems)
    (ruling,) = rule_on([Rule("goodput", 0.05)], found)
    assert ruling.result == "undecided"
    (forced,) = rule_on([Rule("goodput", 0.05)], found, force=True)
    assert forced.result == "pass"


def test_what_only_needs_saying_is_a_note() -> None:
    found = compare(reports.sweep(), replace(reports.not_bracketed(), model="other", seed=5))
    assert found.problems == ()
    notes = " ".join(found.notes)
    assert "the peak of B is a lower bound" in notes
    assert "model: A demo-8b, B other" in notes
    assert "B did not measure load 20" in notes


def ruled(rule: str, a: SweepReport, b: SweepReport) -> str:
    (ruling,) = rule_on([parse_rule(rule)], compare(a, b))
    return ruling.result


def test_the_gate() -> None:
    assert ruled("goodput:5%", long(1.0), long(0.9)) == "fail"
    assert ruled("goodput:20%", long(1.0), long(0.9)) == "pass"
    assert ruled("goodput:5%", long(0.9), long(1.0)) == "pass"
    assert ruled("goodput:5%", reports.sweep(), reports.sweep(0.9)) == "undecided"
    assert (
        ruled("tpot_p99:5", reports.sweep(), reports.sweep(0.9)) == "fail"
    )  # noise unknown: said, but failed
    assert ruled("tpot_p99:15", reports.sweep(), reports.sweep(0.9)) == "pass"


def test_a_candidate_without_a_good_request_fails_and_one_without_a_peak_is_undecided() -> None:
    assert ruled("goodput:50%", long(1.0), reports.no_peak()) == "fail"
    unknown = replace(reports.sweep(), peak=reports.no_peak().peak)
    assert ruled("goodput:50%", long(1.0), unknown) == "undecided"
    assert ruled("goodput:5%", reports.no_peak(), long(1.0)) == "undecided"


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_can_be_ruled_on(metric: str) -> None:
    assert ruled(f"{metric}:0%", reports.sweep(), reports.sweep()) == "pass"


@pytest.mark.parametrize(
    "text", ["goodput", "goodput:", "goodput:x", "goodput:-1", "goodput:nan", "speed:5", ":5"]
)
def test_a_wrong_rule_is_one_clear_line(text: str) -> None:
    with pytest.raises(UserError, match="--fail-if"):
        parse_rule(text)


def test_a_rule_takes_per_cent_with_or_without_the_sign() -> None:
    assert parse_rule("goodput:5%") == parse_rule(" goodput: 5") == Rule("goodput", 0.05)
