"""Sliding windows: what belongs, what has left, and that memory stays constant."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.derive.windows import WINDOWS, Ring, Slot, WindowSpec, fluidity, slot_of, summarize
from sidecar.requests.slo import SloClass, judge
from tests.support.finished import S, finished

SLO = SloClass(ttft_s=0.5, tpot_s=0.05)


def slot(**how: object) -> Slot:
    record = finished(**how)  # type: ignore[arg-type]
    return slot_of(record, judge(record, SLO))


def test_a_request_leaves_a_window_after_its_length() -> None:
    ring = Ring(WindowSpec("10s", 10, 1))
    ring.add(slot(), 100 * S)
    assert ring.counts(109 * S).good == 1
    assert ring.counts(111 * S).good == 0


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.booleans()), max_size=60),
    st.sampled_from(WINDOWS),
)
@settings(max_examples=60, deadline=None)
def test_a_window_never_reaches_back_beyond_its_length(
    events: list[tuple[int, bool]], spec: WindowSpec
) -> None:
    ring = Ring(spec)
    events = sorted(events)
    for at_s, good in events:
        ring.add(slot(ttft_s=0.1 if good else 0.9), at_s * S)
    now_s = events[-1][0] if events else 0
    counts = ring.counts(now_s * S)
    inside = [e for e in events if e[0] > now_s - spec.length_s + spec.slot_s]
    possible = [e for e in events if e[0] > now_s - spec.length_s - 1]
    assert len(inside) <= counts.eligible <= len(possible)
    assert counts.good + sum(counts.badput.values()) == counts.eligible
    assert 0 < ring.covered_s(now_s * S, 0) <= spec.length_s
    assert len(ring) <= spec.length_s // spec.slot_s


def test_memory_is_the_same_after_a_day_as_after_an_hour() -> None:
    rings = [Ring(spec) for spec in WINDOWS]
    one = slot()
    sizes = []
    for hour in (1, 24):
        for at_s in range((hour - 1) * 3600, hour * 3600, 20):
            for ring in rings:
                ring.add(one, at_s * S)
        sizes.append([len(ring) for ring in rings])
    assert sizes[0] == sizes[1]


def test_rates_divide_by_what_was_watched() -> None:
    ring = Ring(WindowSpec("5m", 300, 15))
    for _ in range(40):
        ring.add(slot(), 20 * S)
    # The sidecar began 20 s ago: 40 good requests are 2 a second, not 40 / 300.
    summary = summarize(ring.merged(20 * S), "5m", ring.covered_s(20 * S, 0))
    assert summary.goodput_rps == 2.0
    assert summary.token_goodput_tps == 20.0


def test_attainment_is_absent_with_nothing_eligible() -> None:
    ring = Ring(WINDOWS[0])
    ring.add(slot(ttft_s=None), 5 * S)
    summary = summarize(ring.merged(5 * S), "10s", 5.0)
    assert summary.attainment is None
    assert summary.counts.not_eligible == {"unjudged": 1}
    assert summary.latencies["ttft"].quantiles_s["p99"] is None


def test_fluidity_passes_slack_on_and_a_late_token_resets_it() -> None:
    # Deadlines 0.5 s, then 0.1 s each. First token 0.3 s early; the gaps use 0.2, 0.2 and 0.35 s.
    record = finished(ttft_s=0.2, gaps_s=(0.2, 0.2, 0.35, 0.1))
    # slack: .3 -> .2 -> .1 -> -.15 (late, reset to 0) -> 0 (on time)
    assert fluidity(record, 0.5, 0.1) == (4, 5)
    assert fluidity(finished(ttft_s=0.6, gaps_s=(0.1, 0.11)), 0.5, 0.1) == (1, 3)


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 20)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_reading_often_changes_nothing(events: list[tuple[int, int]]) -> None:
    # Requests may come late, into a slot that is over: they were held for a scrape.
    read, unread = Ring(WINDOWS[2]), Ring(WINDOWS[2])
    one = slot()
    now_s = 0
    for at_s, late_s in sorted(events):
        now_s = at_s
        for ring in (read, unread):
            ring.add(one, max(0, at_s - late_s) * S)
        assert read.merged(now_s * S).counts == read.counts(now_s * S)
    assert read.merged(now_s * S) == unread.merged(now_s * S)
