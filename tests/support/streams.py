"""Makes event streams whose truth is known: what a server could send, and what is to be measured of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

# Text that looks like the protocol's own keys and ends, in every form that escaping can give it.
NASTY = (
    '"usage":{"completion_tokens":999}',
    '{"choices":[{"index":1,"delta":{"content":"x"},"finish_reason":"stop"}]}',
    '"},"logprobs":null,"finish_reason":"stop","token_ids":null}]}',
    "\n\ndata: [DONE]\n\n",
    'data: {"error": {"message": "no"}}\n\n',
    "\\",
    '\\"',
    '"',
    "\\u0022",
    '","finish_reason":"length","x":"',
    "\r\n",
    "\u2028\u2029\u0085",
    "你好🚀",
    "\x00\x1f",
    " ",
)
texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=12), st.just(""))


@dataclass
class Made:
    """A stream's bytes and its truth."""

    body: bytes = b""
    chunks: int = 0
    text: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    tokens: int | None = None
    done: bool = False


def _line(value: Any, ascii_only: bool, blanks: bool) -> str:
    separators = (", ", ": ") if blanks else (",", ":")
    return json.dumps(value, ensure_ascii=ascii_only, separators=separators)


def _logprobs(text: str) -> dict[str, Any]:
    entry = {"token": text, "logprob": -1.5, "bytes": list(text.encode("utf-8", "replace"))}
    other = {"token": "},", "logprob": -2.5, "bytes": [125, 44]}
    return {"content": [{**entry, "top_logprobs": [entry, other]}]}


@st.composite
def chat_streams(draw: st.DrawFn) -> Made:
    """A chat stream of one to three choices, told in one server's style."""
    made = Made()
    count = draw(st.integers(1, 3))
    ascii_only, blanks = draw(st.booleans()), draw(st.booleans())
    end = draw(st.sampled_from(("\n", "\r\n", "\r")))
    continuous, logprobs = draw(st.booleans()), draw(st.booleans())
    nulls = draw(st.booleans())
    key = draw(st.sampled_from(("content", "reasoning", "reasoning_content")))
    events: list[str] = []
    told = dict.fromkeys(range(count), 0)
    created = 1796066234

    def add(choice: int, delta: dict[str, Any], finish: str | None, text: str = "") -> None:
        entry: dict[str, Any] = {"index": choice, "delta": delta}
        if nulls or logprobs:
            entry["logprobs"] = _logprobs(text) if logprobs and text else None
        entry["finish_reason"] = finish
        chunk: dict[str, Any] = {"id": "chatcmpl-1", "created": created, "model": "demo", "choices": [entry]}
        if continuous:
            usage = {"prompt_tokens": 5, "total_tokens": 5 + told[choice], "completion_tokens": told[choice]}
            chunk["usage"] = usage
        events.append(_line(chunk, ascii_only, blanks))

    for choice in range(count):
        add(choice, {"role": "assistant", "content": ""}, None)
    for choice, text, tokens in draw(
        st.lists(st.tuples(st.integers(0, count - 1), texts, st.integers(1, 4)), max_size=14)
    ):
        if text:
            told[choice] += tokens
            made.chunks += 1
            if key == "content":
                made.text[choice] = made.text.get(choice, "") + text
        if draw(st.integers(0, 20)) == 0:
            created += 1
        add(choice, {key: text}, None, text)
    for choice in range(count):
        finish = draw(st.sampled_from(("stop", "length", "tool_calls", "content_filter", "repetition")))
        made.finishes[choice] = finish
        add(choice, {}, finish)
    if draw(st.booleans()):
        made.tokens = sum(told.values())
        usage = {"prompt_tokens": 5, "total_tokens": 5 + made.tokens, "completion_tokens": made.tokens}
        events.append(_line({"id": "chatcmpl-1", "choices": [], "usage": usage}, ascii_only, blanks))
    elif continuous:
        made.tokens = sum(told.values())
    made.done = draw(st.booleans())
    if made.done:
        events.append("[DONE]")
    parts = ["\ufeff" if draw(st.booleans()) else ""]
    for event in events:
        if draw(st.integers(0, 9)) == 0:
            parts.append(
                draw(st.sampled_from((": ping", "event: message", "id: 1", "data", "retry: 5"))) + end
            )
        # JSON allows a line end between two tokens, the standard joins the data lines with one.
        if draw(st.integers(0, 9)) == 0 and event.startswith("{"):
            event = "{" + f"{end}data: " + event[1:]
        parts.append(f"data: {event}{end}{end}")
    made.body = "".join(parts).encode("utf-8", "replace")
    return made


@st.composite
def cut(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """The body in pieces: single bytes, or cut at some places."""
    if not body or draw(st.integers(0, 4)) == 0:
        return [body[i : i + 1] for i in range(len(body))]
    places = sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))
    return [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
