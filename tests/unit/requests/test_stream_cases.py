"""The shared stream cases: streams that real servers sent, each with the right answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.requests.records import ErrorKind, Outcome, RequestRecord
from sidecar.requests.slo import DEFAULT_SLO, judge
from tests.support.engine_cases import cases, close
from tests.support.stream_cases import play


def seconds(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def told(record: RequestRecord) -> dict[str, Any]:
    """The record in the cases' words. ``gaps_s`` there are those of the whole stream, not of each choice."""
    verdict = judge(record, DEFAULT_SLO)
    in_stream = record.error_kind is ErrorKind.STREAM
    refused = record.status is not None and record.status >= 400
    return {
        "output_chunks": record.output_chunks,
        "ttft_s": seconds(record.ttft_ns),
        "tpot_s": seconds(record.tpot_ns),
        "n": record.output_tokens,
        "estimated": record.tokens_estimated,
        "gaps_s": [gap / 1e9 for gap in record.stream_gaps_ns],
        "max_gap_s": seconds(max(record.stream_gaps_ns, default=None)),
        "chunk_tokens": None if record.chunk_tokens is None else list(record.chunk_tokens),
        "prompt_tokens": record.prompt_tokens,
        "finish_reasons": {str(c.index): c.finish_reason for c in record.choices if c.finish_reason},
        "text": {str(c.index): c.text for c in record.choices if c.text},
        "completed": record.outcome is Outcome.COMPLETED,
        "error": in_stream or refused,
        "e2e_s": seconds(record.e2e_ns),
        "bucket": verdict.bucket,
        "retry_after_s": record.retry_after_s,
    }


def agrees(got: Any, expected: Any) -> bool:
    if isinstance(expected, list) and isinstance(got, list):
        return len(got) == len(expected) and all(map(close, got, expected))
    if isinstance(expected, float) or isinstance(got, float):
        return close(got, expected)
    return bool(got == expected)


@pytest.mark.parametrize("case", cases("stream"))
def test_stream_case_gives_its_stated_result(case: dict[str, Any]) -> None:
    got = told(play(case["input"]))
    for key, expected in case["expect"].items():
        assert agrees(got[key], expected), f"{key}: {got[key]!r} instead of {expected!r}"


@pytest.mark.parametrize("case", [c for c in cases("stream") if c.values[0]["input"].get("also_bytewise")])
def test_stream_case_byte_by_byte_gives_the_identical_record(case: dict[str, Any]) -> None:
    assert play(case["input"], bytewise=True) == play(case["input"])


@pytest.mark.parametrize("case", cases("stream"))
def test_capturing_no_text_changes_nothing_else(case: dict[str, Any]) -> None:
    bare, full = play(case["input"], capture_chars=0), play(case["input"])
    assert all(choice.text is None for choice in bare.choices)
    assert bare == replace(full, choices=tuple(replace(choice, text=None) for choice in full.choices))
