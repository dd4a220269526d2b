"""The figures of a level: the shared cases, and what must hold for any set of records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Arrivals
from loadgen.guards import client_limited, output_lengths, prefix_hit_rate, short_outputs, warm_prefix
from loadgen.plan import ClientHealth, LevelPlan, Measured
from loadgen.results import LevelResult
from loadgen.stats import quantiles_of
from loadgen.step import level_result, mean_in_flight, send_lags_ns
from loadgen.wire import rebase
from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord
from sidecar.requests.slo import SloClass

CASES = json.loads((Path(__file__).parents[2] / "cases" / "loadstats.json").read_text())["cases"]
CLOSE = 1e-9


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def record_of(row: dict[str, Any], *, open_loop: bool) -> RequestRecord:
    """A case's request as the record that the generator would have made of it."""
    sent, first = ns(row["sent_s"]), row.get("first_s")
    last = row.get("last_s", row.get("end_s"))
    tokens = row["n"]
    choice = ChoiceRecord(
        0,
        tokens,
        None if first is None else ns(first),
        None if first is None else ns(last),
        tokens,
        False,
        "length",
    )
    return RequestRecord(
        api=Api.CHAT,
        model="demo",
        streamed=True,
        start_ns=ns(row["scheduled_s"]) if open_loop else sent,
        end_ns=ns(row["end_s"]),
        outcome=Outcome(row["outcome"]),
        status=200 if row["outcome"] == "completed" else 429,
        first_ns=None if first is None else ns(first),
        last_ns=None if first is None else ns(last),
        output_chunks=tokens,
        output_tokens=tokens,
        choices=(choice,) if first is not None else (),
        scheduled_ns=ns(row["scheduled_s"]) if open_loop else None,
        sent_ns=sent,
    )


def from_worker(worker: dict[str, Any], row: dict[str, Any]) -> RequestRecord:
    """A record in the worker's own clock, re-based to the level's start as it would be before it travels."""
    hello = worker["hello"]
    at = row["sent_wall_s"]
    own = record_of(
        {
            "scheduled_s": at,
            "sent_s": at,
            "first_s": at + row["ttft_s"],
            "last_s": at + row["e2e_s"],
            "end_s": at + row["e2e_s"],
            **row,
        },
        open_loop=False,
    )
    return rebase(own, ns(hello["worker_wall_s"]) - ns(hello["master_s"]))


def measured_level(given_: dict[str, Any]) -> tuple[LevelResult, list[RequestRecord]]:
    open_loop = given_["mode"] == "open"
    records = [record_of(row, open_loop=open_loop) for row in given_.get("requests", [])]
    for worker in given_.get("workers", []):
        records += [from_worker(worker, row) for row in worker["requests"]]
    ends = [r.start_ns for r in records]
    start_s, end_s = given_.get("window_s", (0.0, (max(ends) + 1) / 1e9 if ends else 1.0))
    slo = given_.get("slo", {})
    plan = LevelPlan(
        load=1.0,
        arrivals=Arrivals("constant" if open_loop else "closed"),
        warmup_s=start_s,
        window_s=end_s - start_s,
        drain_limit_s=10.0,
        seed=0,
    )
    bounds = {name.replace("_ns", "_s"): value / 1e9 for name, value in slo.items()}
    measured = Measured(tuple(records), "", 0.0, ClientHealth(0.1, 0.001, "kernel"))
    return level_result(plan, measured, SloClass(**bounds)), records


def answers(given_: dict[str, Any]) -> dict[str, Any]:
    """Every figure a case may ask for, under its name there."""
    level, records = measured_level(given_)
    lags = [lag / 1e9 for lag in send_lags_ns(records)]
    done = [r for r in records if r.outcome is Outcome.COMPLETED]
    found: dict[str, Any] = {
        "counted": level.sent,
        "goodput_rps": level.goodput_rps,
        "attainment": level.attainment,
        "ttft_s": [r.ttft_ns / 1e9 for r in done if r.ttft_ns is not None],
        "tpot_s": [r.tpot_ns / 1e9 for r in done if r.tpot_ns is not None],
        "ttft_max_s": level.ttft.max_s,
        "ttft_p50": level.ttft.p50_s,
        "ttft_p99": level.ttft.p99_s,
        "tpot_p50": level.tpot.p50_s,
        "over_0.5_s": sum(t > ns(0.5) for r in done if (t := r.ttft_ns) is not None),
        "send_lag_max_s": max(lags, default=None),
        "client_limited": any(flag.startswith("client_limited") for flag in level.flags) and not level.valid,
    }
    if len(records) > 1:
        first, last = records[0].scheduled_ns, records[-1].scheduled_ns
        if first is not None and last is not None:
            found["offered_rps"] = (len(records) - 1) / ((last - first) / 1e9)
    if "ttft_values_s" in given_:
        q = quantiles_of(ns(value) for value in given_["ttft_values_s"])
        found |= {"ttft_max_s": q.max_s, "ttft_min_s": q.min_s, "ttft_p50": q.p50_s}
        found["ordered"] = {"min": q.min_s, "p50": q.p50_s, "p90": q.p90_s, "p99": q.p99_s, "max": q.max_s}
    if "prefix_before" in given_:
        before, after = given_["prefix_before"], given_["prefix_after"]
        rate = prefix_hit_rate(
            queries_before=before["queries"],
            hits_before=before["hits"],
            queries_after=after["queries"],
            hits_after=after["hits"],
        )
        finding = warm_prefix(rate, shared_prefix=False)
        found |= {"prefix_hit_rate": rate, "warns": str(finding)}
        assert warm_prefix(rate, shared_prefix=True) is None
    if "got_tokens" in given_:
        pairs = [(given_["asked_tokens"], got) for got in given_["got_tokens"]]
        lengths = output_lengths(pairs)
        assert lengths is not None
        found |= {
            "outputs_as_asked": lengths[0],
            "mean_tokens": lengths[1],
            "warns": str(short_outputs(pairs)),
        }
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    expect = dict(case["expect"])
    found = answers(case["input"])
    if "order" in expect:
        values = [found["ordered"][name] for name in expect.pop("order")]
        assert values == sorted(values)
        exact = sorted(case["input"]["ttft_values_s"])[24]
        assert found["ttft_p50"] == pytest.approx(exact, rel=expect.pop("relative_error_max"))
    for name, want in expect.items():
        if name.endswith("_between"):
            assert want[0] <= found[name.removesuffix("_between")] <= want[1]
        elif name == "warns":
            assert want in found["warns"]
        elif want is None or isinstance(want, bool):
            assert found[name] is want, name
        else:
            assert found[name] == pytest.approx(want, rel=CLOSE, abs=CLOSE), name


def test_client_limited_speaks_of_the_generator_only() -> None:
    assert (
        client_limited(
            load=8,
            open_loop=False,
            failures=0,
            sent=10,
            send_lag_p99_s=None,
            in_flight_mean=7.99,
            cpu_share=None,
        )
        is None
    )


PLAN = LevelPlan(4, Arrivals(), warmup_s=1.0, window_s=4.0, drain_limit_s=5.0, seed=0)
SLO = SloClass(ttft_s=0.5, stall_s=1.0)


@st.composite
def any_record(draw: st.DrawFn) -> RequestRecord:
    start = draw(st.integers(0, 6_000_000_000))
    waited = draw(st.integers(0, 2_000_000_000))
    outcome = draw(st.sampled_from(list(Outcome)))
    failed = outcome in (Outcome.ERROR, Outcome.REJECTED)
    return RequestRecord(
        api=Api.CHAT,
        model="m",
        streamed=True,
        start_ns=start,
        end_ns=start + waited + draw(st.integers(0, 3_000_000_000)),
        outcome=outcome,
        error_kind=draw(st.sampled_from([ErrorKind.HTTP, ErrorKind.RESET])) if failed else None,
        first_ns=start + waited if draw(st.booleans()) or outcome is Outcome.COMPLETED else None,
        output_tokens=draw(st.integers(0, 99)),
        sent_ns=start,
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(any_record(), max_size=25))
def test_every_request_of_the_window_is_accounted_for_once(records: list[RequestRecord]) -> None:
    level = level_result(PLAN, Measured(tuple(records), "", 0.0), SLO)
    inside = [r for r in records if 1_000_000_000 <= r.start_ns < 5_000_000_000]
    assert level.sent == len(inside)
    assert level.good + sum(level.badput.values()) == level.eligible
    assert level.eligible + level.not_eligible == level.sent
    assert level.completed == sum(r.outcome is Outcome.COMPLETED for r in inside)
    assert level.ttft.count <= level.completed
    assert level.e2e.count == level.completed
    assert level.goodput_rps * level.window_s == pytest.approx(level.good)
    assert level.goodput_rps <= level.throughput_rps + 1e-9
    assert (level.attainment is None) == (level.eligible == 0)
    if level.goodput_ci_rps is not None:
        assert 0 <= level.goodput_ci_rps[0] <= level.goodput_rps <= level.goodput_ci_rps[1]


@settings(max_examples=40, deadline=None)
@given(st.lists(any_record(), max_size=15), st.integers(0, 2**50))
def test_the_workers_clock_does_not_matter(records: list[RequestRecord], origin: int) -> None:
    moved = [rebase(rebase(r, -origin), origin) for r in records]
    assert level_result(PLAN, Measured(tuple(moved), "", 0.0), SLO) == level_result(
        PLAN, Measured(tuple(records), "", 0.0), SLO
    )


def test_requests_in_flight_are_averaged_over_the_window_whoever_started_them() -> None:
    base = record_of(
        {"scheduled_s": 0.0, "sent_s": 0.0, "first_s": 0.5, "end_s": 3.0, "n": 2, "outcome": "completed"},
        open_loop=False,
    )
    late = replace(base, start_ns=ns(4.5), sent_ns=ns(4.5), end_ns=ns(9.0))
    assert mean_in_flight([base, late], PLAN.window_ns) == pytest.approx((2.0 + 0.5) / 4.0)


def test_a_cut_level_is_shorter_and_not_used() -> None:
    row = {"scheduled_s": 1.5, "sent_s": 1.5, "first_s": 1.6, "end_s": 2.0, "n": 2, "outcome": "completed"}
    records = tuple(record_of({**row, "sent_s": at}, open_loop=False) for at in (1.1, 1.5, 2.9))
    level = level_result(PLAN, Measured(records, "", 0.0, cut_ns=ns(2.5)), SLO)
    assert level.window_s == pytest.approx(1.5)
    assert level.sent == 2
    assert not level.valid
    assert level.flags[0].startswith("interrupted")
