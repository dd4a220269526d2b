"""Conversion of received spans: what may stay, whatever comes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.redaction.engine import Redactor
from sidecar.redaction.filter import ContentFilter, Level
from sidecar.spans.coldstart import ColdStarts
from sidecar.spans.joins import Ours
from sidecar.spans.model import Event, Span
from sidecar.spans.semconv import CONVENTIONS, NEUTRAL, convention
from sidecar.spans.vllm import converted, is_request, record_of

REDACTOR = Redactor()
CLEAN = ContentFilter(Level.DROP, lambda: REDACTOR).text
IDENTIFIER = re.compile(r"[A-Za-z0-9\[][\]\[A-Za-z0-9._:/+@-]*")


def span(**changes: Any) -> Span:
    values: dict[str, Any] = {
        "trace_id": "1" * 32,
        "span_id": "2" * 16,
        "parent_span_id": "",
        "name": "llm_request",
        "kind": 2,
        "start_ns": 10**9,
        "end_ns": 2 * 10**9,
        "attributes": {},
        "resource": {},
    }
    return Span(**(values | changes))


VALUES = (
    st.text(max_size=20)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.lists(st.text(max_size=5), max_size=3)
)
NAMES = st.sampled_from(
    [*NEUTRAL, "gen_ai.prompt", "vllm.x", "gen_ai.latency.e2e", "code.function"]
) | st.text(max_size=9)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=8), st.text(max_size=12), st.booleans())
def test_free_text_never_stays(attributes: dict[str, Any], word: str, ours: bool) -> None:
    parent = Ours("3" * 32, "4" * 16, True, True) if ours else None
    given_span = span(
        attributes=attributes,
        name=word,
        scope=word,
        events=(Event(word, 1, {"exception.message": word, "exception.type": word}),),
        error_message=word,
        resource={"service.name": word, "other": word},
    )
    made = converted(given_span, parent, convention("v0.1.0"), CLEAN)
    texts = [v for v in made.attributes.values() if isinstance(v, str)]
    texts += [
        t for v in made.attributes.values() if isinstance(v, list) for t in v if isinstance(t, str) and t
    ]
    texts += [str(v) for v in (made.resource or {}).values()]
    texts += [str(v) for e in made.events for v in e.attributes.values()]
    assert all(IDENTIFIER.fullmatch(text) for text in texts)
    assert made.error_message == ""
    assert made.name in ("llm_request", "span") or made.name == word
    if ours and is_request(given_span):
        assert not [n for n in made.attributes if n.startswith("gen_ai.usage.")]


@pytest.mark.parametrize("version", list(CONVENTIONS))
def test_old_names_get_the_chosen_versions_beside_them(version: str) -> None:
    old = {
        "gen_ai.request.id": "cmpl-r1-0",
        "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": 8,
        "gen_ai.request.n": 2,
        "gen_ai.latency.time_in_scheduler": 0.5,
    }
    made = converted(span(attributes=old), None, convention(version), CLEAN).attributes
    assert made["gen_ai.usage.input_tokens"] == made["gen_ai.usage.prompt_tokens"] == 5
    assert made["gen_ai.usage.output_tokens"] == 8
    assert made["gen_ai.request.choice.count"] == 2
    assert made["gen_ai.operation.name"] == "text_completion"
    assert made["gen_ai.latency.time_in_scheduler"] == 0.5
    assert made[convention(version).names["provider"]] == "vllm"


def test_one_choice_is_not_said() -> None:
    made = converted(span(attributes={"gen_ai.request.n": 1}), None, convention("v0.1.0"), CLEAN).attributes
    assert "gen_ai.request.choice.count" not in made


def test_a_record_of_a_span_has_the_engines_times() -> None:
    record = record_of(
        span(
            attributes={
                "gen_ai.request.id": "chatcmpl-r9",
                "gen_ai.latency.time_to_first_token": 0.25,
                "gen_ai.latency.time_in_model_decode": 0.5,
                "gen_ai.latency.time_in_queue": 0.1,
                "gen_ai.latency.e2e": 0.9,
                "gen_ai.usage.completion_tokens": 11,
            }
        )
    )
    assert record is not None
    assert record.ttft_ns == 250_000_000
    assert record.tpot_ns == 50_000_000
    assert record.e2e_ns == 900_000_000
    assert record.queue_ns == 100_000_000
    assert record.request_id == "r9"
    assert record_of(span(name="Load weights")) is None


def test_a_start_in_pieces_is_told_as_incomplete() -> None:
    starts = ColdStarts()
    assert starts.latest is None
    starts.take([span(name="Load weights"), span(name="Load weights", end_ns=4 * 10**9, span_id="5" * 16)])
    assert starts.latest is not None
    assert not starts.latest.complete
    assert starts.latest.phases_s == {"load_weights": 3.0, "other": 0.0}
    starts.take([span(name="Overall Loading", end_ns=11 * 10**9)])
    assert starts.latest.complete
    assert starts.latest.total_s == 10.0
    assert starts.latest.phases_s["other"] == 7.0
