"""Attributes, events, sampling and joining, where the cases do not reach."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.redaction.engine import Reason
from sidecar.redaction.filter import Content, Level
from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord
from sidecar.requests.slo import SloClass, judge
from sidecar.spans.genai import (
    MOST_STALL_EVENTS,
    RequestParameters,
    Scene,
    SpanStyle,
    build_span,
    error_type,
    operation_name,
    request_parameters,
)
from sidecar.spans.joins import Joins, Ours, request_ids
from sidecar.spans.otlp import as_json, attributes_of, key_values, spans_of, trace_request
from sidecar.spans.sampling import kept
from sidecar.spans.semconv import CONVENTIONS, NEUTRAL, convention

SCENE = Scene(start_wall_ns=10**18, trace_id="1" * 32, span_id="2" * 16, model="demo", stall_ns=100)
STYLE = SpanStyle(convention("v0.1.0"))


def record(**changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "api": Api.CHAT,
        "model": "demo",
        "streamed": True,
        "start_ns": 1000,
        "end_ns": 9000,
        "outcome": Outcome.COMPLETED,
        "status": 200,
        "first_ns": 2000,
        "last_ns": 8000,
        "choices": (ChoiceRecord(0, 5, 2000, 8000, 5, False, "stop"),),
    }
    return RequestRecord(**(values | changes))


@pytest.mark.parametrize(
    ("api", "name"),
    [
        (Api.CHAT, "chat"),
        (Api.MESSAGES, "chat"),
        (Api.RESPONSES, "chat"),
        (Api.COMPLETIONS, "text_completion"),
        (Api.EMBEDDINGS, "embeddings"),
        (Api.RERANK, "rerank"),
    ],
)
def test_operations(api: Api, name: str) -> None:
    assert operation_name(api) == name


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"temperature": 0, "top_p": 1}, {"temperature": 0.0, "top_p": 1.0}),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"n": 1}, {}),
        ({"n": 3}, {"choice_count": 3}),
        ({"top_k": -1}, {}),
        ({"top_k": 40, "top_logprobs": 5}, {"top_k": 40}),
        ({"stream": False}, {}),
        ({"stream": True, "seed": 7}, {"stream": True, "seed": 7}),
        ({"response_format": {"type": "json_schema"}}, {"output_type": "json"}),
        ({"reasoning_effort": "high"}, {"reasoning_level": "high"}),
        ({"reasoning_effort": "my mail is a@b.example"}, {}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_level": "low"}),
        ({"temperature": True, "max_tokens": "many", "seed": 1.5, "top_p": float("nan")}, {}),
        ("not a body", {}),
    ],
)
def test_parameters(body: Any, wanted: dict[str, Any]) -> None:
    assert request_parameters(body).values == wanted


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "n",
                "top_k",
                "seed",
                "max_tokens",
                "temperature",
                "stream",
                "reasoning",
                "response_format",
                "text",
                "encoding_format",
            ]
        ),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=8)
        | st.dictionaries(st.sampled_from(["type", "effort", "format"]), st.text(max_size=5)),
    )
)
def test_no_parameter_carries_a_text_of_the_caller(body: dict[str, Any]) -> None:
    closed = {"json", "text", "none", "minimal", "low", "medium", "high", "xhigh"}
    for value in request_parameters(body).values.values():
        assert not isinstance(value, str) or value in closed


def test_error_types() -> None:
    assert error_type(record()) is None
    assert error_type(record(outcome=Outcome.CLIENT_LEFT)) is None
    assert error_type(record(outcome=Outcome.REJECTED, status=503)) == "503"
    assert error_type(record(outcome=Outcome.ERROR, status=200, error_kind=ErrorKind.STREAM)) == "stream"
    assert error_type(record(outcome=Outcome.ERROR, status=None)) == "_OTHER"


def test_good_and_badput_are_on_the_span() -> None:
    slo = SloClass(ttft_s=0.5e-6, stall_s=1.0)
    bad = record()
    attributes = build_span(bad, judge(bad, slo), SCENE, STYLE).attributes
    assert attributes["goodput.good"] is False
    assert attributes["goodput.badput"] in ("queue", "prefill")
    assert attributes["goodput.misses"] == ["ttft"]
    good = record(first_ns=1100)
    attributes = build_span(good, judge(good, slo), SCENE, STYLE).attributes
    assert attributes["goodput.good"] is True
    assert "goodput.badput" not in attributes


def test_stall_events_are_bounded_and_at_their_moment() -> None:
    gaps = (50, *[200] * 40)
    span = build_span(record(gaps_ns=gaps), None, SCENE, STYLE)
    stalls = [e for e in span.events if e.name == "goodput.stall"]
    assert len(stalls) == MOST_STALL_EVENTS
    assert span.attributes["goodput.stalls"] == 40
    assert stalls[0].at_ns - span.start_ns == 1000 + 50
    assert stalls[0].attributes == {"goodput.stall.duration": 200 / 1e9}


def test_of_several_choices_the_moments_of_stalls_are_not_known() -> None:
    two = (ChoiceRecord(1, 2, 1, 2, 2, False, "stop"), ChoiceRecord(0, 2, 1, 2, 2, False, None))
    span = build_span(record(gaps_ns=(300, 300), choices=two), None, SCENE, STYLE)
    assert [e.name for e in span.events] == ["goodput.first_token"]
    assert span.attributes["gen_ai.response.finish_reasons"] == ["error", "stop"]


def test_answer_time_is_apart_from_the_first_token() -> None:
    span = build_span(record(first_answer_ns=5000, reasoning_tokens=3), None, SCENE, STYLE)
    assert span.attributes["goodput.time_to_first_token"] == 1e-6
    assert span.attributes["goodput.time_to_first_answer_token"] == 4e-6
    assert span.attributes["gen_ai.usage.reasoning.output_tokens"] == 3


def test_a_failure_is_said_and_nothing_else_is_lost() -> None:
    style = replace(STYLE, level=Level.REDACT, content_on_span=True)
    span = build_span(record(), None, replace(SCENE, content=Content(failed=Reason.BUDGET)), style)
    assert span.attributes["goodput.redaction"] == "failed"
    assert span.attributes["goodput.redaction.reason"] == "budget"
    assert span.attributes["gen_ai.request.model"] == "demo"
    assert "gen_ai.input.messages" not in span.attributes


def test_an_older_convention_has_no_names_for_content() -> None:
    content = Content(messages=[{"role": "user", "parts": []}])
    style = SpanStyle(convention("v1.36"), level=Level.REDACT, content_on_span=True)
    span = build_span(record(), None, replace(SCENE, content=content), style)
    assert not [name for name in span.attributes if "messages" in name]


@pytest.mark.parametrize(("version", "kind"), [("v0.1.0", int), ("v1.41", float), ("v1.36", float)])
def test_top_k_has_the_type_of_its_version(version: str, kind: type) -> None:
    scene = replace(SCENE, parameters=RequestParameters({"top_k": 20}))
    value = build_span(record(), None, scene, SpanStyle(convention(version))).attributes[
        "gen_ai.request.top_k"
    ]
    assert type(value) is kind


def test_every_name_of_every_version_is_understood() -> None:
    for table in CONVENTIONS.values():
        for key, name in table.names.items():
            assert NEUTRAL[name] == key
    assert NEUTRAL["gen_ai.usage.prompt_tokens"] == "input_tokens"
    assert NEUTRAL["gen_ai.usage.cache_creation.input_tokens"] == "cache_write"


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=6),
        st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=9)
        | st.lists(st.text(max_size=3), max_size=3),
        max_size=5,
    )
)
def test_attributes_survive_the_wire(values: dict[str, Any]) -> None:
    assert attributes_of(key_values(values)) == values


def test_a_span_survives_the_wire_and_json_is_json() -> None:
    span = replace(build_span(record(gaps_ns=(200, 10)), None, SCENE, STYLE), trace_state="a=b", error=True)
    (back,) = spans_of(trace_request([span], {"service.name": "x"}))
    assert replace(back, resource=None, attributes=dict(back.attributes)) == replace(
        span, attributes=dict(span.attributes)
    )
    json.loads(json.dumps(as_json([span], {"service.name": "x"}), allow_nan=False))


TRACES = [f"{i:032x}" for i in range(0, 2**56, 2**56 // 997)]


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_a_ratio_of_new_traces_is_kept(ratio: float) -> None:
    good = record()
    share = sum(kept(good, None, trace_id=t, parent_sampled=None, ratio=ratio) for t in TRACES) / len(TRACES)
    assert share == pytest.approx(ratio, abs=0.005)


def test_the_callers_word_counts_and_what_went_wrong_stays() -> None:
    good, refused = record(), record(outcome=Outcome.REJECTED, status=429)
    late = record(first_ns=8000)
    assert not kept(good, None, trace_id=TRACES[-1], parent_sampled=False, ratio=1.0)
    assert kept(good, None, trace_id=TRACES[0], parent_sampled=True, ratio=0.0)
    assert kept(refused, None, trace_id=TRACES[0], parent_sampled=False, ratio=0.0)
    assert not kept(refused, None, trace_id=TRACES[0], parent_sampled=False, ratio=0.0, keep_bad=False)
    verdict = judge(late, SloClass(ttft_s=1e-6))
    assert kept(late, verdict, trace_id=TRACES[0], parent_sampled=False, ratio=0.0)


@pytest.mark.parametrize(
    ("engine_id", "request_id"),
    [
        ("chatcmpl-req-1", "req-1"),
        ("cmpl-req-1-0", "req-1"),
        ("cmpl-0b8f-12", "0b8f"),
        ("req-1", "req-1"),
        ("chatcmpl-abc-7", "abc-7"),
    ],
)
def test_request_ids_of_vllm(engine_id: str, request_id: str) -> None:
    assert request_id in request_ids(engine_id)


def test_joins_forget_the_oldest() -> None:
    joins = Joins(most=2)
    for number in range(3):
        joins.put(Ours("1" * 32, f"{number:016x}"), f"r{number}")
    assert joins.find(f"{0:016x}", "") is None
    assert joins.find("", "chatcmpl-r0") is None
    assert joins.find("", "cmpl-r2-0") == Ours("1" * 32, f"{2:016x}")
