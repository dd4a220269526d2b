"""Goodput bounds: always hold, cannot be tightened, say what they do not know, and check the exact count."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.bounds import BoundsCheck, consistent, goodput_bounds, goodput_of, joint
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.engine.quantiles import Share
from sidecar.engine.series import History
from sidecar.engine.view import Histogram
from sidecar.requests.judge import SloClass, judge
from sidecar.requests.records import Api, ChoiceRecord, Outcome, RequestRecord

EDGES = (0.1, 0.25, 0.5, 1.0, 2.5)


def observed(values, edges=EDGES) -> Histogram:
    all_edges = (*edges, math.inf)
    return Histogram(
        all_edges, tuple(float(sum(v <= e for v in values)) for e in all_edges), float(sum(values))
    )


def test_the_textbook_numbers():
    low, high = joint([Share(0.9, 0.9), Share(0.8, 0.8)])
    assert low == pytest.approx(0.7)
    assert high == 0.8
    assert joint([Share(0.4, 0.4), Share(0.5, 0.5)]) == (0.0, 0.4)
    assert joint([]) == (0.0, 1.0)


@pytest.mark.parametrize("met", list(itertools.product(range(5), repeat=3)))
def test_the_bounds_are_sharp(met):
    # All ways in which 4 requests can meet three bounds so many times each: the extremes are the bounds.
    ways = [list(itertools.combinations(range(4), n)) for n in met]
    joints = [len(set(a) & set(b) & set(c)) for a in ways[0] for b in ways[1] for c in ways[2]]
    low, high = joint([Share(n / 4, n / 4) for n in met])
    assert (min(joints), max(joints)) == (round(low * 4), round(high * 4))


_request = st.tuples(
    st.floats(0, 4), st.floats(0, 1), st.floats(0, 10), st.lists(st.floats(0, 3), max_size=6)
)
_bound = st.one_of(st.none(), st.sampled_from(EDGES), st.floats(0.01, 4))


@settings(max_examples=100, deadline=None)
@given(st.lists(_request, min_size=1, max_size=25), _bound, _bound, _bound, _bound, st.integers(0, 5))
def test_the_true_goodput_lies_within(requests, ttft_s, tpot_s, e2e_s, max_gap_s, aborted):
    slo = SloClass(ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=e2e_s, max_gap_s=max_gap_s)
    aborted = min(aborted, len(requests))
    good = sum(
        (ttft_s is None or ttft <= ttft_s)
        and (tpot_s is None or tpot <= tpot_s)
        and (e2e_s is None or e2e <= e2e_s)
        and (max_gap_s is None or max(gaps, default=0.0) <= max_gap_s)
        for ttft, tpot, e2e, gaps in requests[aborted:]
    )
    bounds = goodput_bounds(
        {
            "ttft": observed([r[0] for r in requests]),
            "request_tpot": observed([r[1] for r in requests]),
            "e2e": observed([r[2] for r in requests]),
            "itl": observed([gap for r in requests for gap in r[3]]),
        },
        slo,
        success_by_reason={"stop": float(len(requests) - aborted), "abort": float(aborted)},
    )
    if ttft_s is None and tpot_s is None and e2e_s is None and max_gap_s is None:
        assert bounds is None
        return
    assert bounds.good_low - 1e-9 <= good <= bounds.good_high + 1e-9
    assert consistent(bounds, good, len(requests), 0) is True


_MS = 1_000_000
_timed = st.tuples(st.integers(1, 3000), st.lists(st.integers(1, 1200), max_size=8), st.integers(0, 500))
_SLO = SloClass(ttft_s=0.5, tpot_s=0.25, max_gap_s=1.0, e2e_s=2.5)


def record_of(ttft_ms: int, gaps_ms: list[int], rest_ms: int) -> RequestRecord:
    first_ns = ttft_ms * _MS
    last_ns = first_ns + sum(gaps_ms) * _MS
    tokens = len(gaps_ms) + 1
    choice = ChoiceRecord(0, tokens, first_ns, last_ns, tokens, False, "stop")
    return RequestRecord(
        api=Api.CHAT,
        model="m",
        streamed=True,
        start_ns=0,
        end_ns=last_ns + rest_ms * _MS,
        outcome=Outcome.COMPLETED,
        status=200,
        first_ns=first_ns,
        last_ns=last_ns,
        output_chunks=tokens,
        output_tokens=tokens,
        choices=(choice,),
        gaps_ns=tuple(gap * _MS for gap in gaps_ms),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(_timed, min_size=1, max_size=20))
def test_what_the_judge_says_of_each_request_lies_within(timed):
    records = [record_of(*one) for one in timed]
    verdicts = [judge(record, _SLO) for record in records]
    # As the engine observes them: an answer of one token has a TPOT of 0 there.
    bounds = goodput_bounds(
        {
            "ttft": observed([record.ttft_ns / 1e9 for record in records]),
            "request_tpot": observed([(record.tpot_ns or 0) / 1e9 for record in records]),
            "e2e": observed([record.e2e_ns / 1e9 for record in records]),
            "itl": observed([gap / 1e9 for record in records for gap in record.gaps_ns]),
        },
        _SLO,
        success_by_reason={"stop": float(len(records))},
    )
    good = sum(verdict.good for verdict in verdicts)
    assert all(verdict.eligible for verdict in verdicts)
    assert BoundsCheck().compare(bounds, good, len(records), 0) is True


_lived = st.tuples(st.floats(-50, 100), st.floats(0, 4), st.lists(st.floats(0, 3), max_size=5), st.booleans())


@settings(max_examples=150, deadline=None)
@given(st.lists(_lived, min_size=1, max_size=25), _bound, _bound, _bound)
def test_over_a_window_that_requests_straddle_the_true_goodput_lies_within(lived, ttft_s, max_gap_s, e2e_s):
    # As vLLM counts: the first token and each gap when it comes, all else at the end. An abort may have none.
    def inside(at):
        return 0.0 <= at < 60.0

    ttfts, gaps_in, tpots, e2es, ended = [], [], [], [], {"stop": 0.0, "abort": 0.0}
    good = before = 0
    for start, ttft, gaps, aborted in lived:
        first, end = start + ttft, start + ttft + sum(gaps)
        tokens = not aborted or len(gaps) > 2
        if tokens and inside(first):
            ttfts.append(ttft)
        at = first
        for gap in gaps:
            at += gap
            if tokens and inside(at):
                gaps_in.append(gap)
        before += start < 0.0 <= end
        if inside(end):
            ended["abort" if aborted else "stop"] += 1
            e2es.append(end - start)
            tpots.append(sum(gaps) / len(gaps) if gaps else 0.0)
            good += (
                not aborted
                and (ttft_s is None or ttft <= ttft_s)
                and (max_gap_s is None or max(gaps, default=0.0) <= max_gap_s)
                and (e2e_s is None or end - start <= e2e_s)
            )
    bounds = goodput_bounds(
        {
            "ttft": observed(ttfts),
            "itl": observed(gaps_in),
            "e2e": observed(e2es),
            "request_tpot": observed(tpots),
        },
        SloClass(ttft_s=ttft_s, max_gap_s=max_gap_s, e2e_s=e2e_s),
        success_by_reason=ended,
        in_flight_before=float(before),
    )
    if bounds is not None:
        assert bounds.good_low - 1e-9 <= good <= bounds.good_high + 1e-9


def test_first_tokens_from_before_the_window_do_not_make_late_requests_good():
    # 20 of 100 requests were late with their first token, all of them before the window began.
    histograms = {"ttft": observed([0.05] * 80), "e2e": observed([2.0] * 100)}
    bounds = goodput_bounds(
        histograms, SloClass(ttft_s=0.1), success_by_reason={"stop": 100.0}, in_flight_before=20.0
    )
    assert (bounds.good_low, bounds.good_high) == (pytest.approx(80), pytest.approx(100))
    assert consistent(bounds, 80, 100, 0) is True
    # The other way round: 20 late first tokens belong to requests that still run.
    histograms = {"ttft": observed([0.05] * 100 + [1.0] * 20), "e2e": observed([2.0] * 100)}
    bounds = goodput_bounds(histograms, SloClass(ttft_s=0.1), success_by_reason={"stop": 100.0})
    assert (bounds.good_low, bounds.good_high) == (pytest.approx(80), pytest.approx(100))


def test_an_slo_bound_off_the_edges_widens_the_bounds_and_is_named():
    ttft = observed([0.05] * 6 + [0.3] * 2 + [0.6] * 2)
    on = goodput_bounds({"ttft": ttft, "e2e": ttft}, SloClass(ttft_s=0.5))
    off = goodput_bounds({"ttft": ttft, "e2e": ttft}, SloClass(ttft_s=0.4))
    assert (on.good_low, on.good_high, on.notes) == (8, 8, ())
    assert (off.good_low, off.good_high) == (6, 8)
    assert off.notes == (
        "ttft: the bound of 0.4 s is no bucket edge; it lies between 0.25 s and 0.5 s, "
        "either of which would be exact",
    )
    above = goodput_bounds({"ttft": ttft}, SloClass(ttft_s=10))
    assert "above the last edge, 2.5 s" in above.notes[0]


def test_what_the_page_cannot_judge_is_unknown_and_said():
    ttft = observed([0.05] * 4)
    bounds = goodput_bounds({"ttft": ttft}, SloClass(ttft_s=0.1, tpot_s=0.05))
    assert (bounds.good_low, bounds.good_high) == (0, 4)
    assert "request_time_per_output_token_seconds" in bounds.notes[0]
    by_length = goodput_bounds({"ttft": ttft}, SloClass(ttft_s=0.01, ttft_per_prompt_token_s=0.001))
    assert (by_length.good_low, by_length.good_high) == (0, 4)


def test_long_gaps_cost_at_most_a_request_each_and_at_least_one_in_all():
    ttft, itl = observed([0.05] * 10), observed([0.05] * 200 + [3.0] * 3)
    bounds = goodput_bounds({"ttft": ttft, "itl": itl}, SloClass(ttft_s=0.1, max_gap_s=1.0))
    assert bounds.good_low == pytest.approx(7)
    assert bounds.good_high == pytest.approx(9)


def test_aborts_and_errors_are_not_good_and_odd_reasons_are_uncertain():
    ttft = observed([0.05] * 10)
    reasons = {"stop": 5.0, "length": 1.0, "abort": 2.0, "error": 1.0, "repetition": 1.0}
    bounds = goodput_bounds({"ttft": ttft}, SloClass(ttft_s=0.1), success_by_reason=reasons)
    assert bounds.good_low == pytest.approx(6)
    assert bounds.good_high == pytest.approx(7)
    assert "repetition" in bounds.notes[-1]


def test_nothing_finished_gives_no_bounds():
    assert goodput_bounds({"ttft": observed([])}, SloClass(ttft_s=0.1)) is None
    assert goodput_bounds({}, SloClass(ttft_s=0.1)) is None
    assert goodput_bounds({"ttft": observed([1.0])}, SloClass()) is None


def test_the_self_check_counts_and_keeps_still_where_nothing_can_be_compared():
    ttft = observed([0.05] * 80 + [5.0] * 20)
    bounds = goodput_bounds({"ttft": ttft, "e2e": ttft}, SloClass(ttft_s=0.1))
    check = BoundsCheck()
    assert check.compare(bounds, good=80, finished=100, in_flight=2) is True
    assert check.compare(bounds, good=78, finished=100, in_flight=2) is True
    assert check.compare(bounds, good=60, finished=100, in_flight=2) is False
    assert check.compare(bounds, good=95, finished=100, in_flight=2) is False
    assert check.compare(bounds, good=10, finished=20, in_flight=2) is None
    assert check.compare(None, good=1, finished=1, in_flight=0) is None
    assert (check.inside, check.outside, check.not_comparable) == (2, 2, 2)
    assert check.last == "95 good requests, but the engine says 80 to 80"


def test_bounds_over_a_window_of_pages():
    def page(scale: int, running: int = 0) -> str:
        lines = [f'vllm:num_requests_running{{engine="0"}} {running}']
        for name, met in (("time_to_first_token_seconds", 9), ("request_time_per_output_token_seconds", 8)):
            lines.append(f'vllm:{name}_bucket{{engine="0",le="0.1"}} {met * scale}')
            lines.append(f'vllm:{name}_bucket{{engine="0",le="+Inf"}} {10 * scale}')
        lines.append(f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {10 * scale}')
        return "\n".join(lines) + "\n"

    history = History(interval_s=5)
    for at_s, scale in ((1, 100), (3, 101)):
        history.add(at_s * 10**9, map_page(parse(page(scale).encode()), "0.32.0"))
    slo = SloClass(ttft_s=0.1, tpot_s=0.1)
    bounds = goodput_of(history, slo, 3 * 10**9)
    assert bounds.requests == 10
    assert bounds.good_low == pytest.approx(7)
    assert bounds.good_high == pytest.approx(8)
    assert bounds.rps_low == pytest.approx(3.5)
    assert goodput_of(history, slo, 60 * 10**9) is None
    # With three requests running at the first page their first tokens may have come before it.
    busy = History(interval_s=5)
    for at_s, scale in ((1, 100), (3, 101)):
        busy.add(at_s * 10**9, map_page(parse(page(scale, running=3).encode()), "0.32.0"))
    assert busy.in_flight_before(3 * 10**9) == 3
    bounds = goodput_of(busy, slo, 3 * 10**9)
    assert (bounds.good_low, bounds.good_high) == (pytest.approx(4), pytest.approx(8))
