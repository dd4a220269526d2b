"""The judge's rules beyond the shared cases, one by one, and that every verdict has exactly one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord
from sidecar.requests.slo import Bucket, SloClass, Tally, judge, nearest_rank, stalls

MS = 1_000_000
SLO = SloClass(ttft_s=0.5, tpot_s=0.05, max_gap_s=2.0, e2e_s=60.0, stall_s=0.5)


def record(gaps_ms: list[int] | None = None, ttft_ms: int | None = 200, **changes: Any) -> RequestRecord:
    """A completed one-choice stream with these gaps, one token a chunk."""
    gaps = tuple(gap * MS for gap in (gaps_ms if gaps_ms is not None else [30] * 10))
    first_ns = None if ttft_ms is None else ttft_ms * MS
    last_ns = None if first_ns is None else first_ns + sum(gaps)
    count = 0 if first_ns is None else len(gaps) + 1
    choice = ChoiceRecord(0, count, first_ns, last_ns, count, False, "stop")
    made = RequestRecord(
        api=Api.CHAT,
        model="demo",
        streamed=True,
        start_ns=0,
        end_ns=(last_ns or 0) + 10 * MS,
        outcome=Outcome.COMPLETED,
        first_ns=first_ns,
        last_ns=last_ns,
        output_chunks=count,
        output_tokens=count,
        choices=(choice,),
        gaps_ns=gaps,
    )
    return replace(made, **changes)


def test_a_stall_that_alone_breaks_the_gap_bound() -> None:
    verdict = judge(record([30] * 200 + [2_001]), SLO)
    assert (verdict.bucket, verdict.misses) == (Bucket.STALL, ("max_gap",))
    assert stalls(record([30] * 200 + [2_001]), SLO) == 1


def test_the_same_stall_within_a_rise_of_preemptions() -> None:
    assert judge(record([30] * 200 + [2_001], preemptions_rose=True), SLO).bucket is Bucket.PREEMPTION


def test_slow_throughout_is_decode_though_there_is_a_stall() -> None:
    verdict = judge(record([80] * 50 + [600], preemptions_rose=True), SLO)
    assert (verdict.bucket, verdict.misses) == (Bucket.DECODE, ("tpot",))


def test_a_gap_bound_is_itself_a_stall_threshold() -> None:
    assert judge(record([30] * 10 + [900]), SloClass(max_gap_s=0.8)).bucket is Bucket.STALL


def test_itl_p99_misses() -> None:
    slo = SloClass(itl_p99_s=0.1, stall_s=0.5)
    assert judge(record([30] * 99 + [5_000]), slo).good  # one in a hundred lies above the 99th percentile
    assert judge(record([30] * 98 + [5_000] * 2), slo).bucket is Bucket.STALL
    assert judge(record([120] * 100), slo).bucket is Bucket.DECODE


def test_ttft_grows_with_the_prompt() -> None:
    slo = SloClass(ttft_s=0.1, ttft_per_prompt_token_s=0.001)
    assert judge(record(ttft_ms=200, prompt_tokens=100), slo).good
    assert judge(record(ttft_ms=200, prompt_tokens=99), slo).misses == ("ttft",)


def test_an_unknown_prompt_length_constrains_nothing() -> None:
    slo = SloClass(ttft_s=0.1, ttft_per_prompt_token_s=0.001)
    late = judge(record(ttft_ms=200), slo)
    assert (late.judged, late.eligible) == (False, False)
    assert judge(record(ttft_ms=100), slo).good  # met whatever the length


def test_waiting_must_be_the_larger_part_of_a_missed_ttft() -> None:
    assert judge(record(ttft_ms=600, queue_ns=301 * MS), SLO).bucket is Bucket.QUEUE
    assert judge(record(ttft_ms=600, queue_ns=300 * MS), SLO).bucket is Bucket.PREFILL
    assert judge(record(ttft_ms=600), SLO).bucket is Bucket.PREFILL


def test_all_misses_are_kept_and_the_first_cause_names_the_bucket() -> None:
    verdict = judge(record([90] * 10 + [3_000], ttft_ms=900), replace(SLO, e2e_s=1.0))
    assert verdict.bucket is Bucket.PREFILL
    assert verdict.misses == ("ttft", "tpot", "max_gap", "e2e")


def test_not_streamed_is_judged_by_its_end_or_not_at_all() -> None:
    answer = record([], ttft_ms=None, streamed=False, end_ns=3_000 * MS)
    assert judge(answer, SloClass(e2e_s=3.0)).good
    assert judge(answer, SloClass(e2e_s=2.9)).bucket is Bucket.E2E
    unjudged = judge(answer, SloClass(ttft_s=0.5, tpot_s=0.05))
    assert (unjudged.judged, unjudged.eligible, unjudged.bucket) == (False, False, None)


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_only_the_clients_own_fault_is_not_eligible(kind: ErrorKind) -> None:
    failed = record(outcome=Outcome.ERROR, error_kind=kind)
    verdict = judge(failed, SLO)
    assert verdict.bucket is Bucket.ERROR
    assert verdict.eligible is (kind is not ErrorKind.CLIENT)
    assert judge(failed, replace(SLO, client_errors_eligible=True)).eligible


def test_a_client_that_left_in_a_pause_beyond_the_bound_was_driven_away() -> None:
    left = record(outcome=Outcome.CLIENT_LEFT)
    assert left.last_ns is not None
    assert not judge(replace(left, end_ns=left.last_ns + 2_000 * MS), SLO).eligible
    driven = judge(replace(left, end_ns=left.last_ns + 2_001 * MS), SLO)
    assert (driven.bucket, driven.misses) == (Bucket.ABANDONED, ("max_gap",))


def test_a_client_of_an_answer_not_streamed_did_not_wait_for_a_first_token() -> None:
    left = record([], ttft_ms=None, streamed=False, outcome=Outcome.CLIENT_LEFT, end_ns=5_000 * MS)
    assert not judge(left, SLO).eligible
    assert judge(left, replace(SLO, e2e_s=4.0)).bucket is Bucket.ABANDONED


def test_the_worst_choice_decides_the_pace_without_stalls() -> None:
    first = ChoiceRecord(0, 11, 0, 300 * MS, 11, False, "stop")
    second = ChoiceRecord(1, 11, 0, 1_270 * MS, 11, False, "stop")
    gaps = (30 * MS,) * 10 + (30 * MS,) * 9 + (1_000 * MS,)
    both = record(choices=(first, second), gaps_ns=gaps)
    assert judge(both, SLO).bucket is Bucket.STALL
    slow = replace(second, last_ns=1_900 * MS)
    assert judge(
        record(choices=(first, slow), gaps_ns=(*gaps[:10], *(100 * MS,) * 9, 1_000 * MS)), SLO
    ).bucket is (Bucket.DECODE)


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(100, 0.99, 99), (101, 0.99, 100), (1, 0.99, 1), (10, 0.5, 5), (3, 0.0, 1)],
)
def test_nearest_rank(count: int, share: float, expected: int) -> None:
    assert nearest_rank(list(range(count, 0, -1)), share) == expected


bounds = st.one_of(st.none(), st.sampled_from((0.01, 0.1, 0.5, 2.0)))
classes = st.builds(
    SloClass,
    ttft_s=bounds,
    tpot_s=bounds,
    itl_p99_s=bounds,
    max_gap_s=bounds,
    e2e_s=bounds,
    stall_s=bounds,
    ttft_per_prompt_token_s=st.sampled_from((None, 0.001)),
    client_errors_eligible=st.booleans(),
)
records = st.builds(
    record,
    st.lists(st.integers(0, 3_000), max_size=12),
    st.one_of(st.none(), st.integers(0, 3_000)),
    outcome=st.sampled_from(Outcome),
    error_kind=st.sampled_from((None, *ErrorKind)),
    streamed=st.booleans(),
    queue_ns=st.one_of(st.none(), st.integers(0, 3_000 * MS)),
    prompt_tokens=st.one_of(st.none(), st.integers(0, 3_000)),
    preemptions_rose=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(records, classes), max_size=12))
def test_good_and_badput_always_add_up_to_eligible(pairs: list[tuple[RequestRecord, SloClass]]) -> None:
    tally, halves = Tally(), (Tally(), Tally())
    for i, (one, slo) in enumerate(pairs):
        verdict = judge(one, slo)
        tally.add(one, verdict)
        halves[i % 2].add(one, verdict)
        assert not (verdict.good and (verdict.misses or verdict.bucket or not verdict.eligible))
        assert not verdict.eligible or verdict.good or verdict.bucket
    assert tally.good + sum(tally.badput.values()) == tally.eligible
    assert tally.eligible + sum(tally.not_eligible.values()) == tally.requests == len(pairs)
    assert (tally.attainment is None) == (tally.eligible == 0)
    halves[0].merge(halves[1])
    assert halves[0] == tally
