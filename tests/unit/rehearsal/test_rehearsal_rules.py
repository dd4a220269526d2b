from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.rehearsal import Line, Policy, Replica, Scaler, rehearse, replica_of, synthetic_day
from loadgen.report.curve import points
from tests.support import reports

POLICY = Policy(min_replicas=1, max_replicas=20, cold_start_s=60.0)


def test_a_line_is_flat_beyond_its_ends() -> None:
    line = Line(((0.0, 0.0), (10.0, 5.0), (20.0, 4.0)))
    assert [line(x) for x in (-1, 5, 10, 15, 99)] == [0.0, 2.5, 5.0, 4.5, 4.0]


@pytest.mark.parametrize(
    ("ready", "ratio", "wanted"),
    [
        (4, 1.0, 4),
        (4, 1.1, 4),  # within the tolerance of a tenth
        (4, 0.91, 4),
        (4, 1.11, 5),
        (4, 1.5, 6),
        (4, 9.0, 8),  # no more than double within a period
    ],
)
def test_one_decision(ready: int, ratio: float, wanted: int) -> None:
    assert Scaler(POLICY, 4).decide(0.0, ready, ratio) == wanted


def test_doubling_waits_for_the_period() -> None:
    scaler = Scaler(POLICY, 2)
    assert [scaler.decide(t, 2, 10.0) for t in (0, 15, 60, 119)] == [4, 4, 4, 4]
    assert scaler.decide(120.0, 4, 10.0) == 8


def test_scaling_down_waits_for_the_window_and_is_slow() -> None:
    scaler = Scaler(POLICY, 10)
    scaler.decide(0.0, 10, 1.0)
    assert [scaler.decide(t, 10, 0.3) for t in (15, 150, 300)] == [10, 10, 10]
    assert scaler.decide(315.0, 10, 0.3) == 9  # a tenth, or one, per minute
    assert scaler.decide(330.0, 9, 0.3) == 9
    assert scaler.decide(375.0, 9, 0.3) == 8


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(min_value=0, max_value=50), min_size=1, max_size=60), st.integers(1, 20))
def test_the_bounds_always_hold(ratios: list[float], start: int) -> None:
    policy = Policy(min_replicas=2, max_replicas=12, cold_start_s=60.0)
    scaler = Scaler(policy, min(max(start, 2), 12))
    for i, ratio in enumerate(ratios):
        assert 2 <= scaler.decide(15.0 * i, scaler.replicas, ratio) <= 12


def test_turns_count_changes_of_direction() -> None:
    scaler = Scaler(Policy(1, 20, 60.0, up_period_s=15, down_period_s=15, down_window_s=0), 4)
    for i, ratio in enumerate((2.0, 2.0, 0.2, 0.2, 2.0)):
        scaler.decide(15.0 * i, scaler.replicas, ratio)
    assert scaler.turns == 2


SATURATION = Line(((0.0, 0.0), (1e6, 1e6 / 10)))


def ideal(latency_s: float) -> Replica:
    """Serves n / latency up to 10 in flight, all of it good; beyond, the same and nothing good."""
    top = 10 / latency_s
    return Replica(
        served=Line(((0.0, 0.0), (10.0, top))),
        good=Line(((0.0, 0.0), (10.0, top), (10.5, 0.0))),
        signals={},
    )


@pytest.mark.parametrize("latency_s", [0.01, 1.0, 20.0])
def test_a_steady_load_within_capacity_loses_nothing(latency_s: float) -> None:
    replica = ideal(latency_s)
    rate = 4 * 10 / latency_s * 0.5
    outcome = rehearse(replica, SATURATION, 0.5, POLICY, [(0.0, rate), (3600.0, rate)], 4)
    assert outcome.good_share == pytest.approx(1.0, abs=1e-4)
    assert outcome.most_replicas == 4
    assert outcome.turns == 0
    assert outcome.replica_hours == pytest.approx(4.0)


def test_a_step_costs_what_the_cold_start_lasts() -> None:
    def lost(cold_start_s: float) -> float:
        policy = Policy(1, 20, cold_start_s, up_period_s=max(15.0, cold_start_s))
        step = [(0.0, 20.0), (600.0, 60.0), (3600.0, 60.0)]
        return rehearse(ideal(1.0), SATURATION, 0.8, policy, step, 3).lost

    assert 0 < lost(15.0) < lost(120.0) < lost(600.0)


def test_a_ceiling_that_is_too_low_is_seen() -> None:
    policy = Policy(1, 2, 30.0)
    outcome = rehearse(ideal(1.0), SATURATION, 0.8, policy, [(0.0, 50.0), (3600.0, 50.0)], 2)
    assert outcome.most_replicas == 2
    assert outcome.good_share < 0.1


def test_the_measured_replica_goes_through_its_levels() -> None:
    found = points(reports.sweep())
    replica = replica_of(found, lambda p: p.load)
    assert replica is not None
    for p in found:
        assert replica.served(p.load) == pytest.approx(p.throughput_rps)
        assert replica.good(p.load) == pytest.approx(p.goodput_rps)
    assert replica.served(0.0) == 0.0
    assert replica.signals.keys() == {"waiting", "running", "kv_usage"}
    assert replica.signals["waiting"](64.0) == 32.0
    assert replica_of(found[:1], lambda p: p.load) is None


def test_the_synthetic_day_is_a_day_with_its_peak() -> None:
    day = synthetic_day(100.0)
    assert day[0][0] == 0
    assert day[-1][0] == 86400
    assert all(b[0] > a[0] for a, b in pairwise(day))
    calm = [rate for second, rate in day if not 36000 <= second < 36900]
    assert max(calm) == pytest.approx(100.0)
    assert min(calm) == pytest.approx(20.0)
