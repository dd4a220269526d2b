"""Other settings while running: what comes is judged by the new ones, what was counted stays."""

from __future__ import annotations

from sidecar.derive.autoscale import Capacity
from sidecar.derive.live import Live
from sidecar.requests.slo import SloPolicy, parse_slo
from tests.support.finished import S, finished


def test_new_bounds_judge_what_comes_and_nothing_before() -> None:
    live = Live(SloPolicy(default=parse_slo("ttft=1")), 0)
    live.add_record(finished(end_s=10, ttft_s=0.5), 10 * S, 10.0)
    edges = live.classes["demo", "default"].histograms["ttft"].edges_s
    live.reconfigure(SloPolicy(default=parse_slo("ttft=0.123")), Capacity(16))
    live.add_record(finished(end_s=11, ttft_s=0.5), 11 * S, 11.0)
    state = live.classes["demo", "default"]
    assert (state.totals.eligible, state.totals.good) == (2, 1)
    assert state.slo.ttft_s == live.slos[0].ttft_s == 0.123
    assert live.capacity == Capacity(16)
    assert state.histograms["ttft"].edges_s == edges


def test_a_class_that_is_gone_keeps_its_last_bounds() -> None:
    live = Live(SloPolicy(default=parse_slo("ttft=1", name="old")), 0)
    live.add_record(finished(end_s=10), 10 * S, 10.0)
    live.reconfigure(SloPolicy(default=parse_slo("ttft=2", name="new")), None)
    live.add_record(finished(end_s=11), 11 * S, 11.0)
    assert {name: state.slo.ttft_s for (_, name), state in live.classes.items()} == {"old": 1, "new": 2}
