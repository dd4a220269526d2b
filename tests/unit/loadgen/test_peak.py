"""The peak and the capacity drawn from measured levels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.peak import find_peak, points
from loadgen.results import LevelResult
from tests.support.levels import level

CASES = json.loads((Path(__file__).parents[2] / "cases" / "peak.json").read_text())["cases"]


def levels_of(steps: list[dict[str, Any]]) -> list[LevelResult]:
    return [
        level(step["load"], goodput, attainment=share, valid=not step.get("client_limited", False))
        for step in steps
        for goodput, share in zip(step["goodput_rps"], step["attainment"], strict=True)
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    expect = dict(case["expect"])
    shares = tuple(float(share) for share in expect.get("capacity", {}))
    peak = find_peak(levels_of(case["input"]["steps"]), shares or (0.99, 0.9))
    if "peak_load" in expect:
        assert peak.load == expect.pop("peak_load")
    if "peak_load_in" in expect:
        assert peak.load in expect.pop("peak_load_in")
    found = {c.share: c.load for c in peak.capacity}
    for share, load in expect.pop("capacity", {}).items():
        assert found[float(share)] == load, share
    if "bracketed" in expect:
        assert peak.bracketed is expect.pop("bracketed")
    if "excluded_loads" in expect:
        assert list(peak.excluded_loads) == expect.pop("excluded_loads")
    if expect.pop("says_how_sure", False):
        assert peak.goodput_ci_rps is not None
        assert peak.plateau == (16, 32)
    assert not expect, f"not checked: {expect}"
    assert peak.reason


def test_an_unmeetable_slo_names_the_floor() -> None:
    peak = find_peak([level(1, 0.0, attainment=0.0, ttft_s=0.7), level(2, 0.0, attainment=0.0, ttft_s=1.4)])
    assert peak.load is None
    assert "TTFT p50 0.7" in peak.reason


def test_a_server_that_fails_everything_has_no_peak() -> None:
    peak = find_peak([level(1, 0.0, attainment=0.0, completed=0, errors={"http": 9})])
    assert peak.load is None
    assert peak.goodput_rps is None
    assert "http" in peak.reason


def test_no_level_and_no_valid_level_say_so() -> None:
    assert find_peak([]).reason == "no level was measured"
    broken = find_peak([level(4, 5.0, valid=False, flags=("client_limited: late",))])
    assert broken.load is None
    assert "client_limited" in broken.reason


def test_a_peak_at_one_request_in_flight_has_nothing_below_it() -> None:
    assert find_peak([level(1, 5.0), level(2, 3.0)]).bracketed
    assert not find_peak([level(2, 5.0), level(4, 3.0)]).bracketed
    assert not find_peak([level(1, 5.0, kind="rate"), level(2, 3.0, kind="rate")]).bracketed


def test_repeats_pull_the_estimate_together() -> None:
    (point,) = points([level(8, 10.0, ci=(8, 12)), level(8, 11.0, ci=(9, 13))])
    assert point.goodput_rps == 10.5
    assert point.repeats == 2
    assert point.ci_rps is not None
    assert point.ci_rps[0] < 10.5 < point.ci_rps[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0, 100), st.floats(0, 1), st.booleans()),
        max_size=12,
    )
)
def test_the_peak_is_never_invented(rows: list[tuple[int, float, float, bool]]) -> None:
    measured = [level(load, good, attainment=share, valid=valid) for load, good, share, valid in rows]
    peak = find_peak(measured)
    valid_loads = {m.load for m in measured if m.valid}
    assert set(peak.excluded_loads) == {m.load for m in measured} - valid_loads
    if peak.load is None:
        assert peak.goodput_rps is None
        assert not peak.bracketed
    else:
        assert peak.load in valid_loads
        assert peak.plateau is not None
        assert peak.plateau[0] <= peak.load <= peak.plateau[1]
        assert peak.goodput_rps is not None
        assert peak.goodput_rps >= max(p.goodput_rps for p in points(measured)) - 1e-9
    for capacity in peak.capacity:
        assert capacity.load is None or capacity.load in valid_loads
