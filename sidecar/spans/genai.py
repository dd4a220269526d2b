"""From a finished request's record to its span: the convention's attributes and our ``goodput.*`` ones.

Pure. What is unknown is left out; a count is never written as 0 because it was not seen.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sidecar.redaction.filter import Content, Level, cut, fit
from sidecar.requests.records import Api, Outcome, RequestRecord
from sidecar.spans.model import Event, Kind, Span, Value
from sidecar.spans.semconv import Convention

if TYPE_CHECKING:
    from sidecar.requests.slo import Verdict

NAME_LIMIT = 256  # characters of a span name, model or id
DEFAULT_ATTRIBUTE_LIMIT = 16_384  # bytes of one content attribute
MOST_STALL_EVENTS = 16
_MOST_LISTED = 64
_OPERATIONS = {
    Api.CHAT: "chat",
    Api.MESSAGES: "chat",
    Api.RESPONSES: "chat",
    Api.COMPLETIONS: "text_completion",
}
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+@-]*\Z")


@dataclass(frozen=True, slots=True)
class EngineState:
    """What vLLM's last scraped page said when the request arrived; ``None``: not known."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # share, 0 to 1


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """What the request asked for, numbers and closed words only: nothing here can hold a text."""

    values: Mapping[str, Value] = field(default_factory=dict)  # by neutral key


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything about a request that its record does not hold."""

    start_wall_ns: int  # Unix time of the record's start
    trace_id: str
    span_id: str
    parent_span_id: str = ""
    trace_state: str = ""
    flags: int = 1
    parameters: RequestParameters = field(default_factory=RequestParameters)
    content: Content = field(default_factory=Content)
    model: str = ""  # as it may be shown
    response_id: str = ""
    response_model: str = ""
    engine: EngineState | None = None
    slo_class: str = ""
    stall_ns: int | None = None
    path: str = ""  # redacted, without query


@dataclass(frozen=True, slots=True)
class SpanStyle:
    """Settings of the form."""

    convention: Convention
    provider: str = "vllm"
    server_address: str = ""
    server_port: int | None = None
    level: Level = Level.DROP
    content_on_span: bool = False
    content_on_event: bool = False
    attribute_limit: int = DEFAULT_ATTRIBUTE_LIMIT


def is_identifier(text: str) -> bool:
    """True for what may be a model's name or an id: no blanks, no quotes, not long."""
    return 0 < len(text) <= NAME_LIMIT and bool(_IDENTIFIER.match(text))


def operation_name(api: Api) -> str:
    """The convention's operation; for what it does not name, the API's own name."""
    if api is Api.EMBEDDINGS:
        return "embeddings"
    return _OPERATIONS.get(api, api.value)


def request_parameters(body: Any) -> RequestParameters:
    """Parameters of a parsed request body, by neutral key; anything of the wrong type is left out."""
    if not isinstance(body, dict):
        return RequestParameters()
    found: dict[str, Value] = {}
    for key, name in (
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("frequency_penalty", "frequency_penalty"),
        ("presence_penalty", "presence_penalty"),
    ):
        if (number := _number(body.get(name))) is not None:
            found[key] = float(number)
    for key, names in (
        ("max_tokens", ("max_completion_tokens", "max_output_tokens", "max_tokens")),
        ("seed", ("seed",)),
        ("top_k", ("top_k",)),
        ("choice_count", ("n",)),
    ):
        for name in names:
            if (number := _number(body.get(name))) is not None and number == int(number):
                found[key] = int(number)
                break
    if found.get("top_k", 0) in (0, -1):
        found.pop("top_k", None)  # vLLM: all tokens, so the parameter does not apply
    if found.get("choice_count") == 1:
        del found["choice_count"]
    if body.get("stream") is True:
        found["stream"] = True
    if kind := _output_type(body):
        found["output_type"] = kind
    effort = body.get("reasoning_effort")
    if isinstance(body.get("reasoning"), dict):
        effort = body["reasoning"].get("effort", effort)
    if effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        found["reasoning_level"] = effort
    if body.get("encoding_format") in ("float", "base64"):
        found["encoding_formats"] = [body["encoding_format"]]
    return RequestParameters(found)


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if abs(value) < 2**53 else None


def _output_type(body: dict[str, Any]) -> str:
    wanted = body.get("response_format")
    if isinstance(body.get("text"), dict):
        wanted = body["text"].get("format", wanted)
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind in ("json_object", "json_schema"):
        return "json"
    return "text" if kind == "text" else ""


def build_span(record: RequestRecord, verdict: Verdict | None, scene: Scene, style: SpanStyle) -> Span:
    """The CLIENT span of one request.

    Start is the wall clock at the request's start; the end is that plus the monotonic duration, so a
    stepped clock cannot make it negative.
    """
    operation = operation_name(record.api)
    neutral = _conventional(record, scene, style, operation)
    attributes: dict[str, Value] = {}
    for key, value in neutral.items():
        name = style.convention.names.get(key)
        if name is not None:
            attributes[name] = value
    attributes.update(goodput_attributes(record, verdict, scene))
    logs: list[Event] = []
    _add_content(attributes, logs, record, scene, style)
    failed = record.outcome in (Outcome.ERROR, Outcome.REJECTED)
    return Span(
        trace_id=scene.trace_id,
        span_id=scene.span_id,
        parent_span_id=scene.parent_span_id,
        name=cut(f"{operation} {scene.model}".strip(), NAME_LIMIT),
        kind=Kind.CLIENT,
        start_ns=scene.start_wall_ns,
        end_ns=scene.start_wall_ns + max(0, record.e2e_ns),
        attributes=attributes,
        events=tuple(_moments(record, scene)),
        logs=tuple(logs),
        error=failed,
        error_message=error_type(record) or "" if failed else "",
        trace_state=scene.trace_state,
        flags=scene.flags,
        schema_url=style.convention.schema_url,
    )


def time_to_first_chunk_ns(record: RequestRecord) -> int | None:
    """From start to the first chunk of any kind, role-only ones too; not the time to the first token.

    ``None`` where the meter has not noted it (``extra["first_chunk_ns"]``) or nothing was streamed.
    """
    noted = record.extra.get("first_chunk_ns", "")
    return int(noted) - record.start_ns if record.streamed and noted.isdigit() else None


def error_type(record: RequestRecord) -> str | None:
    """``error.type``: the HTTP status of a refusal, else our kind of failure; ``None`` without one."""
    if record.outcome not in (Outcome.ERROR, Outcome.REJECTED):
        return None
    if record.status is not None and record.status >= 400:
        return str(record.status)
    return record.error_kind.value if record.error_kind is not None else "_OTHER"


def _conventional(record: RequestRecord, scene: Scene, style: SpanStyle, operation: str) -> dict[str, Value]:
    """Attributes by neutral key."""
    found: dict[str, Value] = {"operation": operation, "provider": style.provider}
    for key, text in (
        ("request_model", scene.model),
        ("response_id", scene.response_id),
        ("response_model", scene.response_model),
        ("server_address", style.server_address),
    ):
        if text:
            found[key] = cut(text, NAME_LIMIT)
    if style.server_port is not None:
        found["server_port"] = style.server_port
    found.update(scene.parameters.values)
    if "top_k" in found and not style.convention.top_k_is_int:
        found["top_k"] = float(found["top_k"])  # type: ignore[arg-type]
    if record.streamed:
        found["stream"] = True
    reasons = [c.finish_reason or "error" for c in sorted(record.choices, key=lambda c: c.index)]
    if reasons and any(c.finish_reason for c in record.choices):
        found["finish_reasons"] = reasons[:_MOST_LISTED]
    if (first_chunk_ns := time_to_first_chunk_ns(record)) is not None:
        found["time_to_first_chunk"] = _seconds(first_chunk_ns)
    if record.prompt_tokens is not None:
        found["input_tokens"] = record.prompt_tokens
    if record.output_tokens is not None and not record.tokens_estimated:
        found["output_tokens"] = record.output_tokens
    if record.cached_tokens is not None:
        found["cache_read"] = record.cached_tokens
    if record.reasoning_tokens is not None:
        found["reasoning_tokens"] = record.reasoning_tokens
    if (kind := error_type(record)) is not None:
        found["error_type"] = kind
    return found


def goodput_attributes(record: RequestRecord, verdict: Verdict | None, scene: Scene) -> dict[str, Value]:
    """What no convention names yet; times in seconds, under ``goodput.``."""
    values: dict[str, Any] = {
        "outcome": record.outcome.value,
        "time_to_first_token": _optional_seconds(record.ttft_ns),
        "time_per_output_token": _optional_seconds(record.tpot_ns),
        "time_to_first_answer_token": None
        if record.first_answer_ns is None
        else _seconds(record.first_answer_ns - record.start_ns),
        "queue_time": _optional_seconds(record.queue_ns),
        "output_chunks": record.output_chunks if record.streamed else None,
        "request_id": cut(record.request_id, NAME_LIMIT) if is_identifier(record.request_id) else None,
        "path": cut(scene.path, NAME_LIMIT) or None,
        "slo.class": cut(scene.slo_class, NAME_LIMIT) or None,
        "warnings": [cut(w, NAME_LIMIT) for w in record.warnings[:8]] or None,
        "preemptions_rose": True if record.preemptions_rose else None,
    }
    if record.output_tokens is not None and record.tokens_estimated:
        values["output_tokens.estimated"] = record.output_tokens
    if record.gaps_ns:
        ordered = sorted(record.gaps_ns)
        values["itl.p50"] = _seconds(nearest_rank(ordered, 0.5))
        values["itl.p99"] = _seconds(nearest_rank(ordered, 0.99))
        values["itl.max"] = _seconds(ordered[-1])
        if scene.stall_ns is not None:
            values["stalls"] = sum(1 for gap in ordered if gap > scene.stall_ns)
    if verdict is not None:
        values["judged"] = verdict.judged
        values["eligible"] = verdict.eligible
        if verdict.eligible:
            values["good"] = verdict.good
        if verdict.bucket is not None:
            values["badput"] = str(verdict.bucket.value)
        values["misses"] = [str(getattr(m, "value", m)) for m in verdict.misses][:_MOST_LISTED] or None
    if scene.engine is not None:
        values["engine.running"] = scene.engine.running
        values["engine.waiting"] = scene.engine.waiting
        values["engine.kv_usage"] = scene.engine.kv_usage
    return {f"goodput.{key}": value for key, value in values.items() if value is not None}


def nearest_rank(ordered: Sequence[int], share: float) -> int:
    """The smallest value at or above the share of all values; ``ordered`` ascending, not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _seconds(ns: float) -> float:
    return ns / 1e9


def _optional_seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


def _moments(record: RequestRecord, scene: Scene) -> list[Event]:
    """The first token, and each stall where its moment is known (one choice), at most 16."""

    def wall(at_ns: int) -> int:
        return scene.start_wall_ns + (at_ns - record.start_ns)

    events = []
    if record.first_ns is not None:
        events.append(Event("goodput.first_token", wall(record.first_ns)))
    if record.first_ns is None or scene.stall_ns is None or len(record.choices) > 1:
        return events
    at_ns = record.first_ns
    stalls = 0
    for gap in record.gaps_ns:
        if gap > scene.stall_ns and stalls < MOST_STALL_EVENTS:
            stalls += 1
            events.append(Event("goodput.stall", wall(at_ns), {"goodput.stall.duration": _seconds(gap)}))
        at_ns += gap
    return events


def _add_content(
    attributes: dict[str, Value], logs: list[Event], record: RequestRecord, scene: Scene, style: SpanStyle
) -> None:
    """Content by level and switch; a failure is said on the span, and then nothing of it is there."""
    content = scene.content
    # The event has the span's attributes of the convention, too.
    attributes_before = {name: value for name, value in attributes.items() if not name.startswith("goodput.")}
    if content.failed is not None:
        attributes["goodput.redaction"] = "failed"
        attributes["goodput.redaction.reason"] = content.failed.value
        return
    if style.level is Level.DROP or not (style.content_on_span or style.content_on_event):
        return
    attributes["goodput.redaction"] = style.level.value
    names = style.convention.names
    shown: dict[str, Any] = {}
    for key, value in (
        ("system_instructions", content.system),
        ("input_messages", content.messages),
        ("output_messages", content.output),
        ("tool_definitions", content.tools),
    ):
        if value and key in names:
            shown[names[key]] = value
    if style.content_on_span:
        for name, value in shown.items():
            text = fit(value, style.attribute_limit)
            if text is not None:
                attributes[name] = text
            else:
                attributes["goodput.content.omitted"] = True
        if content.stop:
            attributes[names["stop_sequences"]] = [cut(s, NAME_LIMIT) for s in content.stop[:16]]
        if content.user:
            attributes["goodput.request.user"] = cut(content.user, NAME_LIMIT)
    if style.content_on_event and shown:
        # An event carries structure, not JSON text; the limit holds for both.
        fitted = {name: fit(value, style.attribute_limit) for name, value in shown.items()}
        details = {name: json.loads(text) for name, text in fitted.items() if text is not None}
        end_ns = scene.start_wall_ns + max(0, record.e2e_ns)
        logs.append(
            Event("gen_ai.client.inference.operation.details", end_ns, {**attributes_before, **details})
        )
