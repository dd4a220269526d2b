"""The shared judge cases: a verdict for each request, and sums that add up."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.requests.slo import Tally, judge
from tests.support.engine_cases import cases, close
from tests.support.stream_cases import judged_record, slo_of


@pytest.mark.parametrize("case", cases("judge"))
def test_judge_case_gives_its_stated_verdicts_and_sums(case: dict[str, Any]) -> None:
    slo = slo_of(case["input"]["slo"])
    window_s = case["input"]["window_s"]
    tally = Tally()
    verdicts = {}
    for request in case["input"]["requests"]:
        record = judged_record(request)
        verdict = judge(record, slo)
        tally.add(record, verdict)
        if not verdict.eligible:
            verdicts[request["id"]] = "not_eligible"
        else:
            verdicts[request["id"]] = "good" if verdict.good else str(verdict.bucket)
    expect = case["expect"]
    assert verdicts == expect["verdicts"]
    assert tally.eligible == expect["eligible"]
    assert tally.good == expect["good"]
    assert {str(bucket): n for bucket, n in tally.badput.items()} == expect["buckets"]
    assert tally.good + sum(tally.badput.values()) == tally.eligible
    assert close(tally.attainment, expect["attainment"])
    assert close(tally.goodput_rps(window_s), expect["goodput_rps"])
