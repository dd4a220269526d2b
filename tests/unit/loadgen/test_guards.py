"""The limits beyond which a level is not believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadgen.guards import (
    Expectations,
    client_limited,
    examine,
    output_lengths,
    prefix_hit_rate,
    short_outputs,
    warm_prefix,
)
from sidecar.requests.records import Api, ErrorKind, Outcome, RequestRecord


def record(
    outcome: Outcome = Outcome.COMPLETED, asked: int = 8, got: int = 8, model: str = "m"
) -> RequestRecord:
    return RequestRecord(
        api=Api.CHAT,
        model=model,
        streamed=True,
        start_ns=0,
        end_ns=10**9,
        outcome=outcome,
        error_kind=None if outcome is Outcome.COMPLETED else ErrorKind.HTTP,
        output_tokens=got,
        extra={"asked_tokens": str(asked)},
    )


def limits(**changes: Any) -> dict[str, Any]:
    return {
        "load": 10.0,
        "open_loop": False,
        "failures": 0,
        "sent": 100,
        "send_lag_p99_s": None,
        "in_flight_mean": 9.9,
        "cpu_share": 0.5,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "limited"),
    [
        ({}, False),
        ({"in_flight_mean": 8.0}, True),
        ({"in_flight_mean": 8.0, "failures": 50}, False),
        ({"cpu_share": 0.99}, True),
        ({"open_loop": True, "send_lag_p99_s": 0.002}, False),
        ({"open_loop": True, "send_lag_p99_s": 0.5}, True),
        ({"open_loop": True, "in_flight_mean": 1.0}, False),
    ],
)
def test_when_the_generator_is_the_bottleneck(changes: dict[str, Any], limited: bool) -> None:
    finding = client_limited(**limits(**changes))
    assert (finding is not None) is limited
    if finding is not None:
        assert finding.voids
        assert "--workers" in finding.text


def examined(records: list[RequestRecord], **changes: Any) -> list[str]:
    findings = examine(
        **{
            "load": 1.0,
            "open_loop": False,
            "records": records,
            "send_lag_p99_s": None,
            "in_flight_mean": 1.0,
            "cpu_share": 0.1,
            "loop_lag_p99_s": 0.001,
            "stamp": "kernel",
            "shared_stamp_share": 0.01,
            "engine": {},
            "expectations": Expectations(exact_outputs=True, model="m"),
            "cut": False,
            **changes,
        }
    )
    voiding = [finding.voids for finding in findings]
    assert voiding == sorted(voiding, reverse=True)
    return [finding.code for finding in findings]


def test_a_clean_level_has_no_finding() -> None:
    assert examined([record()] * 20) == []


def test_each_trouble_has_its_finding() -> None:
    assert examined([]) == ["empty"]
    assert examined([record()], cut=True) == ["interrupted"]
    left = [record(Outcome.CLIENT_LEFT)] * 9  # by Ctrl-C: no failures of the server
    assert examined([record(), *left], cut=True) == ["interrupted"]
    assert examined(left, cut=True) == ["interrupted"]
    assert examined([record(), record(Outcome.ERROR), *left], cut=True) == ["interrupted", "failures"]
    assert examined([record(), *left]) == ["failures"]
    assert examined([record(Outcome.ERROR)] * 3) == ["all_failed"]
    assert examined([record()] * 30 + [record(Outcome.ERROR)]) == ["failures"]
    assert examined([record(got=2)] * 5) == ["output_length"]
    assert examined([record(model="other")] * 5) == ["other_model"]
    assert examined([record()] * 5, stamp="read", loop_lag_p99_s=0.2) == ["late_stamps"]
    assert examined([record()] * 5, stamp="kernel", loop_lag_p99_s=0.2) == []
    assert examined([record()] * 5, loop_lag_p99_s=0.2, shared_stamp_share=0.5) == ["late_stamps"]
    assert examined([record()] * 5, loop_lag_p99_s=0.002, shared_stamp_share=0.5) == []
    busy = {"running_mean": 9.0, "waiting_mean": 1.0}
    assert examined([record()] * 5, engine=busy, in_flight_mean=1.0) == ["foreign_traffic"]
    assert examined([record()] * 5, engine=busy, in_flight_mean=9.0, load=9.0) == []
    assert examined([record()] * 5, engine={"prefix_hit_rate": 0.6}) == ["prefix_cache"]


def test_outputs_of_another_length_count_only_where_exact_ones_were_asked() -> None:
    assert examined([record(got=2)] * 5, expectations=Expectations()) == []
    assert output_lengths([]) is None
    assert short_outputs([]) is None


def test_a_prefix_shared_on_purpose_is_no_finding() -> None:
    assert warm_prefix(0.9, shared_prefix=True) is None
    assert warm_prefix(None, shared_prefix=False) is None


def test_a_hit_rate_needs_queries_and_no_reset() -> None:
    rate = {"queries_before": 0, "hits_before": 0, "queries_after": 10, "hits_after": 5}
    assert prefix_hit_rate(**rate) == 0.5
    assert prefix_hit_rate(**{**rate, "queries_after": 0}) is None
    assert prefix_hit_rate(**{**rate, "hits_before": 9}) is None


def test_a_hit_rate_is_held_against_what_the_workload_shares_itself() -> None:
    assert warm_prefix(0.55, own_rate=0.5) is None
    assert warm_prefix(0.9, own_rate=None) is None
    found = warm_prefix(0.8, own_rate=0.5)
    assert found is not None
    assert "shares only 50%" in found.text


def test_each_class_may_ask_for_a_model_of_its_own() -> None:
    adapter = replace(record(model="lora"), extra={"asked_model": "lora"})
    assert examined([record(), adapter] * 5) == []
    assert examined([record(), replace(adapter, model="m")] * 5) == ["other_model"]


def test_answers_of_a_class_that_ends_by_itself_may_be_short() -> None:
    own_end = replace(record(got=2), request_class="free")
    expectations = Expectations(exact_outputs=True, model="m", inexact_classes=frozenset({"free"}))
    assert examined([record(), own_end] * 5, expectations=expectations) == []
    assert examined([record(got=2), own_end] * 5, expectations=expectations) == ["output_length"]


def test_users_who_think_are_not_a_generator_that_lags() -> None:
    idle = {"in_flight_mean": 0.5, "load": 4.0}
    assert examined([record()] * 5, **idle) == ["client_limited"]
    assert examined([record()] * 5, expectations=Expectations(model="m", thinks=True), **idle) == []
