"""Streams of all four protocols in which every kind of output, text and usage mixes, as event lists."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from sidecar.requests.records import Api
from tests.support.streams import NASTY

_TEXTS = st.one_of(st.sampled_from(NASTY), st.text(max_size=6), st.sampled_from(["a", " b", "é", "\ud83d"]))
_WRONG = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"null",
    b'""',
    b"\xff",
    b"\x00",
    b'"usage":{"completion_tokens":7}',
    b"\r",
)


@dataclass(frozen=True)
class Odd:
    """Events as bytes, each whole, of a request that asked for so many choices."""

    api: Api
    events: tuple[bytes, ...]
    choices: int


def _chat(draw: st.DrawFn, text: str, index: int, at: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(["content", "content", "reasoning", "refusal", "tool", "call", "audio"]))
    delta: dict[str, Any] = {
        "tool": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]},
        "call": {"function_call": {"arguments": text}},
        "audio": {"audio": {"data": text}},
    }.get(kind, {kind: text})
    choice = {"index": index, "delta": delta, "finish_reason": None}
    if draw(st.booleans()):
        choice = {"delta": delta, "finish_reason": None, "index": index}
    return {"id": f"i{at // 5}", "created": at // 3, "model": "m", "choices": [choice]}


def _responses(draw: st.DrawFn, text: str, at: int) -> dict[str, Any]:
    kinds = ["output_text.delta", "output_text.delta", "reasoning_text.delta", "output_text.done"]
    event = {"type": f"response.{draw(st.sampled_from(kinds))}", "item_id": "q", "delta": text}
    return {
        **event,
        "sequence_number": at,
        **({"obfuscation": "xy"[: at % 3]} if draw(st.booleans()) else {}),
    }


def _messages(draw: st.DrawFn, text: str) -> dict[str, Any]:
    kinds = [("text_delta", "text"), ("thinking_delta", "thinking"), ("input_json_delta", "partial_json")]
    kind, key = draw(st.sampled_from([*kinds, ("signature_delta", "signature")]))
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, key: text}}


@st.composite
def odd_streams(draw: st.DrawFn) -> Odd:
    """Some with one event damaged somewhere."""
    api = draw(st.sampled_from([Api.CHAT, Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES]))
    choices = draw(st.integers(1, 3)) if api in (Api.CHAT, Api.COMPLETIONS) else 1
    ascii_only, tight, counted = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    so_far = [0] * choices
    events = []
    for at in range(draw(st.integers(3, 14))):
        text, index = draw(_TEXTS), draw(st.integers(0, choices - 1))
        if api is Api.CHAT:
            event = _chat(draw, text, index, at)
        elif api is Api.COMPLETIONS:
            event = {"id": "i", "choices": [{"index": index, "text": text, "finish_reason": None}]}
        elif api is Api.MESSAGES:
            event = _messages(draw, text)
        else:
            event = _responses(draw, text, at)
        if counted and choices and "choices" in event:
            so_far[index] += draw(st.integers(0, 3))
            event["usage"] = {"prompt_tokens": 5, "completion_tokens": so_far[index], "total_tokens": at}
            if draw(st.booleans()):
                event["usage"]["completion_tokens_details"] = {"reasoning_tokens": at}
        separators = (",", ":") if tight else (", ", ": ")
        name = f"event: {event['type']}\n" if "type" in event else ""
        data = json.dumps(event, ensure_ascii=ascii_only, separators=separators)
        events.append(f"{name}data: {data}\n\n".encode("utf-8", "surrogatepass"))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(events) - 1))
        begin = draw(st.integers(0, len(events[at])))
        end = begin + draw(st.sampled_from([0, 0, 1, 4]))
        events[at] = events[at][:begin] + draw(st.sampled_from(_WRONG)) + events[at][end:]
    return Odd(api, (*events, b"data: [DONE]\n\n"), choices)
