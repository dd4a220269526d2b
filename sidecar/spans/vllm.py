"""vLLM's own spans: cleaned, given the convention's names, and joined to ours. Pure.

Known holes of those spans: a rejected or aborted request has none, an error status is never set,
parameters that are 0 are left out. So goodput comes from the stream; a record made of such a span can
only bound it from above (``record_of``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sidecar.requests.records import Api, ChoiceRecord, Outcome, RequestRecord
from sidecar.spans.coldstart import STARTUP_NAMES
from sidecar.spans.genai import is_identifier
from sidecar.spans.joins import Ours, request_ids
from sidecar.spans.model import Event, Kind, Span, Value
from sidecar.spans.semconv import NEUTRAL, Convention

REQUEST_SPAN = "llm_request"
Clean = Callable[[str], str | None]
"""A text that may leave, or ``None``."""

_CONTENT_KEYS = frozenset(
    {"input_messages", "output_messages", "system_instructions", "tool_definitions", "stop_sequences"}
)
_USAGE_KEYS = frozenset({"input_tokens", "output_tokens", "cache_read", "cache_write", "reasoning_tokens"})
_LATENCY = "gen_ai.latency."
_PLAIN = frozenset({"code.function", "code.namespace", "code.lineno", "error.type", "exception.type"})
_RESOURCE = ("service.", "telemetry.", "vllm.", "k8s.", "deployment.", "container.", "host.name", "gpu.")
_LONGEST = 256
_MOST_ATTRIBUTES = 96


def is_request(span: Span) -> bool:
    """True for the span of one request, of any vLLM version."""
    return span.name == REQUEST_SPAN or "gen_ai.latency.e2e" in span.attributes


def engine_request_id(span: Span) -> str:
    """vLLM's id of the request (``chatcmpl-...``), or ''."""
    value = span.attributes.get("gen_ai.request.id", "")
    return value if isinstance(value, str) else ""


def converted(
    span: Span,
    ours: Ours | None,
    convention: Convention,
    clean: Clean,
    *,
    provider: str = "vllm",
    texts: bool = False,
) -> Span:
    """The span as it may be forwarded.

    Only allowed attributes stay, and of texts only identifiers, cleaned; ``texts``: a cleaned error message
    may stay, too. The convention's names come beside vLLM's; token usage
    goes where our own span of the request has it, so that nobody adds it up twice. With ``ours`` the span
    is our span's child, also where vLLM was not given our trace.
    """
    attributes = _allowed(span.attributes, clean)
    joined: dict[str, Value] = {}
    trace_id, parent, kind = span.trace_id, span.parent_span_id, span.kind
    if is_request(span):
        attributes.update(_conventional(span, attributes, convention, provider))
        if ours is None:
            joined["goodput.joined"] = "none"
        elif span.parent_span_id == ours.span_id and span.trace_id == ours.trace_id:
            joined["goodput.joined"] = "trace"
        else:
            joined["goodput.joined"] = "request_id"
            joined["goodput.vllm.trace_id"] = span.trace_id
            trace_id, parent = ours.trace_id, ours.span_id
        if ours is not None and ours.usage:
            attributes = {k: v for k, v in attributes.items() if NEUTRAL.get(k) not in _USAGE_KEYS}
    return replace(
        span,
        trace_id=trace_id,
        parent_span_id=parent,
        kind=kind if kind in (1, 2, 3, 4, 5) else Kind.INTERNAL,
        name=span.name if span.name == REQUEST_SPAN or span.name in STARTUP_NAMES else "span",
        attributes={**attributes, **joined},
        events=tuple(_event(e, clean) for e in span.events[:16]),
        error_message=(clean(span.error_message) or "")[:_LONGEST] if texts else "",
        scope=_word(span.scope, clean) or "",
        resource=_resource(span.resource or {}, clean),
        schema_url=convention.schema_url if is_request(span) else span.schema_url,
    )


def _word(value: str, clean: Clean) -> str | None:
    """An identifier that may leave; ``None`` for free text, whatever is in it."""
    return clean(value) if is_identifier(value) else None


def _allowed(values: Mapping[str, Any], clean: Clean) -> dict[str, Value]:
    """Attributes on the list, of simple types. Everything else, content above all, is left behind."""
    kept: dict[str, Value] = {}
    for name, value in values.items():
        key = NEUTRAL.get(name)
        known = key is not None and key not in _CONTENT_KEYS
        if not (known or name.startswith((_LATENCY, "vllm.")) or name in _PLAIN):
            continue
        if len(kept) >= _MOST_ATTRIBUTES:
            break
        if isinstance(value, str):
            if (shown := _word(value, clean)) is not None:
                kept[name] = shown
        elif isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            kept[name] = value
        elif isinstance(value, list) and all(isinstance(v, str) and len(v) <= 32 for v in value):
            kept[name] = [_word(v, clean) or "" for v in value[:64]]
    return kept


def _resource(values: Mapping[str, Any], clean: Clean) -> dict[str, Value]:
    kept: dict[str, Value] = {}
    for name, value in values.items():
        if not name.startswith(_RESOURCE):
            continue
        if isinstance(value, bool | int | float):
            kept[name] = value
        elif isinstance(value, str) and (shown := _word(value, clean)) is not None:
            kept[name] = shown
    return kept


def _event(event: Event, clean: Clean) -> Event:
    """An event's moment and, of an exception, its type: messages and stack traces hold anything."""
    kept = {
        name: shown
        for name in ("exception.type",)
        if isinstance(value := event.attributes.get(name), str) and (shown := _word(value, clean))
    }
    return Event(_word(event.name, clean) or "event", event.at_ns, kept)


def _conventional(
    span: Span, allowed: Mapping[str, Value], convention: Convention, provider: str
) -> dict[str, Value]:
    """The chosen version's names for what vLLM says under its old ones."""
    added: dict[str, Value] = {}
    for name, value in allowed.items():
        key = NEUTRAL.get(name)
        if key is None or (key == "choice_count" and value == 1):
            continue
        wanted = convention.names.get(key)
        if wanted is not None and wanted not in allowed:
            added[wanted] = value
    identity = engine_request_id(span)
    operation = {"chatcmpl": "chat", "cmpl": "text_completion", "embd": "embeddings"}.get(
        identity.split("-", 1)[0]
    )
    if operation is not None:
        added[convention.names["operation"]] = operation
    added[convention.names["provider"]] = provider
    return added


def record_of(span: Span) -> RequestRecord | None:
    """The request as vLLM's span tells it; ``None`` for a span of something else.

    Its times are the engine's: no network, no gaps between tokens. Requests that failed have no span, so
    shares made of such records are upper bounds.
    """
    if not is_request(span):
        return None
    value = span.attributes
    ttft_s, tokens = (
        _float(value.get("gen_ai.latency.time_to_first_token")),
        _count(value, "completion_tokens"),
    )
    e2e_s = _float(value.get("gen_ai.latency.e2e"))
    end_ns = span.end_ns if e2e_s is None else span.start_ns + round(e2e_s * 1e9)
    decode_s = _float(value.get("gen_ai.latency.time_in_model_decode"))
    first_ns = None if ttft_s is None else span.start_ns + round(ttft_s * 1e9)
    last_ns = None if first_ns is None or decode_s is None else first_ns + round(decode_s * 1e9)
    queue_s = _float(value.get("gen_ai.latency.time_in_queue"))
    identity = engine_request_id(span)
    model = value.get("gen_ai.response.model", "")
    return RequestRecord(
        api=Api.COMPLETIONS if identity.startswith("cmpl") else Api.CHAT,
        model=model if isinstance(model, str) else "",
        streamed=True,
        start_ns=span.start_ns,
        end_ns=end_ns,
        outcome=Outcome.COMPLETED,
        first_ns=first_ns,
        last_ns=last_ns,
        output_chunks=tokens or 0,
        output_tokens=tokens,
        prompt_tokens=_count(value, "prompt_tokens"),
        choices=(ChoiceRecord(0, tokens or 0, first_ns, last_ns, tokens, False, None),),
        request_id=request_ids(identity)[-1] if identity else "",
        queue_ns=None if queue_s is None else round(queue_s * 1e9),
        warnings=("engine span: an upper bound, failed requests have none",),
    )


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _count(values: Mapping[str, Any], old: str) -> int | None:
    new = {"completion_tokens": "output_tokens", "prompt_tokens": "input_tokens"}[old]
    value = values.get(f"gen_ai.usage.{old}", values.get(f"gen_ai.usage.{new}"))
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
