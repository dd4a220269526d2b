"""What one decoded stream event, or one whole JSON answer, says: output, finish, usage, error. Pure.

One reader per protocol. A reader never guesses: a value of the wrong type is ``Unreadable`` with a reason in
our own words (never the server's text), an unknown event type says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sidecar.requests.records import Api
from sidecar.requests.text import name_of


class Unreadable(Exception):
    """The event is not what its protocol allows. The message is short and holds nothing the server sent."""


class Usage(NamedTuple):
    """Token counts as sent; ``None`` where not sent."""

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    accepted: int | None = None


class Delta(NamedTuple):
    """What an event says of one choice."""

    choice: int = 0
    output: bool = False  # carries generated output
    answer: bool = False  # ... that is not reasoning
    text: str = ""  # the content text among it
    finish: str | None = None


class Facts(NamedTuple):
    """What an event says. ``end``: this is the stream's proper end."""

    deltas: tuple[Delta, ...] = ()
    usage: Usage | None = None
    error: bool = False
    end: bool = False
    model: str = ""
    id: str = ""  # of the answer


_NOTHING = Facts()
_REASONING_KEYS = ("reasoning", "reasoning_content")


def read_event(api: Api, name: bytes, payload: Any) -> Facts:
    """Facts of one stream event's decoded JSON ``payload``; ``name`` is the SSE event field."""
    body = _mapping(payload, "event")
    if name == b"error" or body.get("error") or body.get("object") == "error" or body.get("type") == "error":
        return Facts(error=True)
    if api is Api.CHAT:
        return _choices(body, _chat_delta)
    if api is Api.COMPLETIONS:
        return _choices(body, _completion_delta)
    if api is Api.MESSAGES:
        return _messages_event(body)
    if api is Api.RESPONSES:
        return _responses_event(body)
    return _NOTHING


def read_answer(api: Api, payload: Any) -> Facts:
    """Facts of a whole answer that was not streamed. ``output`` then only says that there is some."""
    body = _mapping(payload, "answer")
    if body.get("error") or body.get("object") == "error" or body.get("type") == "error":
        return Facts(error=True)
    if api is Api.CHAT:
        return _choices(body, _chat_message)
    if api is Api.COMPLETIONS:
        return _choices(body, _completion_delta)
    if api is Api.MESSAGES:
        text = "".join(_texts(body.get("content")))
        delta = Delta(output=bool(body.get("content")), text=text, finish=_finish(body.get("stop_reason")))
        return Facts((delta,), _usage(body.get("usage")), **_names(body))
    if api is Api.RESPONSES:
        return _responses_whole(body)
    return _NOTHING


# --- chat and completions --------------------------------------------------


def _choices(body: Mapping[str, Any], read: Any) -> Facts:
    choices = body.get("choices")
    if choices is None:
        choices = []
    if not isinstance(choices, list):
        raise Unreadable("choices is not a list")
    deltas = []
    for choice in choices:
        entry = _mapping(choice, "choice")
        index = entry.get("index", 0)
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise Unreadable("a choice's index is not a whole number")
        deltas.append(read(index, entry, _finish(entry.get("finish_reason"))))
    return Facts(tuple(deltas), _usage(body.get("usage")), **_names(body))


def _chat_delta(index: int, choice: Mapping[str, Any], finish: str | None) -> Delta:
    return _chat_parts(index, choice.get("delta"), finish)


def _chat_message(index: int, choice: Mapping[str, Any], finish: str | None) -> Delta:
    return _chat_parts(index, choice.get("message"), finish)


def _chat_parts(index: int, value: Any, finish: str | None) -> Delta:
    if value is None:
        return Delta(index, finish=finish)
    delta = _mapping(value, "delta")
    content = delta.get("content")
    text = content if isinstance(content, str) else "".join(_texts(content))
    answer = bool(
        text
        or _text(delta.get("refusal"))
        or any(_call_has_output(call) for call in _list(delta.get("tool_calls")))
        or _call_has_output(delta.get("function_call"))
        or _audio_has_output(delta.get("audio"))
    )
    thought = any(_text(delta.get(key)) for key in _REASONING_KEYS)
    return Delta(index, answer or thought, answer, text, finish)


def _completion_delta(index: int, choice: Mapping[str, Any], finish: str | None) -> Delta:
    text = _text(choice.get("text"))
    return Delta(index, bool(text), bool(text), text, finish)


def _call_has_output(call: Any) -> bool:
    """A tool or function call delta is output when it names or argues; its index and type alone are none."""
    if not isinstance(call, dict):
        return False
    if any(isinstance(call.get(key), str) and call[key] for key in ("name", "arguments", "input")):
        return True
    return any(_call_has_output(call.get(key)) for key in ("function", "custom"))


def _audio_has_output(audio: Any) -> bool:
    return isinstance(audio, dict) and bool(_text(audio.get("data")) or _text(audio.get("transcript")))


# --- messages (Anthropic form) ---------------------------------------------


def _messages_event(body: Mapping[str, Any]) -> Facts:
    kind = body.get("type")
    if kind == "content_block_delta":
        delta = _mapping(body.get("delta"), "delta")
        text = _text(delta.get("text"))
        argued = _text(delta.get("partial_json"))
        thought = _text(delta.get("thinking"))
        return Facts((Delta(output=bool(text or argued or thought), answer=bool(text or argued), text=text),))
    if kind == "content_block_start":
        block = _mapping(body.get("content_block"), "content_block")
        text = _text(block.get("text"))
        named = block.get("type") == "tool_use" and _text(block.get("name"))
        thought = _text(block.get("thinking"))
        return Facts((Delta(output=bool(text or named or thought), answer=bool(text or named), text=text),))
    if kind == "message_start":
        message = _mapping(body.get("message"), "message")
        usage = _usage(message.get("usage"))
        # The output tokens told here are those of the start, not a count of the answer.
        begun = None if usage is None else Usage(prompt=usage.prompt, cached=usage.cached)
        return Facts((Delta(),), begun, **_names(message))
    if kind == "message_delta":
        finish = _finish(_mapping(body.get("delta"), "delta").get("stop_reason"))
        return Facts((Delta(finish=finish),), _usage(body.get("usage")))
    return Facts(end=kind == "message_stop")


# --- responses -------------------------------------------------------------


def _responses_event(body: Mapping[str, Any]) -> Facts:
    kind = _text(body.get("type"))
    if not kind.startswith("response."):
        return _NOTHING
    if kind.endswith(".delta"):
        value = body.get("delta")
        output = bool(value) and isinstance(value, (str, dict))
        text = value if isinstance(value, str) and kind == "response.output_text.delta" else ""
        return Facts((Delta(output=output, answer=output and "reasoning" not in kind, text=text),))
    if kind in ("response.completed", "response.incomplete", "response.done"):
        whole = _responses_whole(_mapping(body.get("response"), "response"))
        finishes = tuple(Delta(finish=delta.finish) for delta in whole.deltas)
        return Facts(finishes, whole.usage, whole.error, end=True, model=whole.model, id=whole.id)
    if kind in ("response.failed", "response.cancelled"):
        return Facts(error=True, end=True)
    if kind == "response.created":
        response = body.get("response")
        return Facts((Delta(),), **_names(response if isinstance(response, dict) else {}))
    return _NOTHING


def _responses_whole(response: Mapping[str, Any]) -> Facts:
    """A finished response object: its status, or why it is incomplete, is its finish reason."""
    status = _text(response.get("status"))
    details = response.get("incomplete_details")
    reason = _text(details.get("reason")) if isinstance(details, dict) else ""
    # Queued or in progress is no end.
    finish = reason or (status if status in ("completed", "incomplete") else None)
    texts = [
        t
        for item in _list(response.get("output"))
        if isinstance(item, dict)
        for t in _texts(item.get("content"))
    ]
    delta = Delta(output=bool(response.get("output")), text="".join(texts), finish=finish)
    failed = status in ("failed", "cancelled") or bool(response.get("error"))
    return Facts((delta,), _usage(response.get("usage")), failed, **_names(response))


# --- small readers ---------------------------------------------------------


def _names(body: Mapping[str, Any]) -> dict[str, Any]:
    """Who answered, and the answer's id."""
    return {"model": name_of(body.get("model")), "id": name_of(body.get("id"))}


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt = _count(value.get("prompt_tokens"))
    cached = _detail(value, "prompt_tokens_details", "cached_tokens")
    if prompt is None:
        prompt = _count(value.get("input_tokens"))
        cached = _detail(value, "input_tokens_details", "cached_tokens") if cached is None else cached
        read = _count(value.get("cache_read_input_tokens"))
        if prompt is not None and (read is not None or "cache_creation_input_tokens" in value):
            # The Messages form counts only the uncached part as input_tokens.
            prompt += (read or 0) + (_count(value.get("cache_creation_input_tokens")) or 0)
            cached = read
    output = _count(value.get("completion_tokens"))
    reasoning = _detail(value, "completion_tokens_details", "reasoning_tokens")
    if output is None:
        output = _count(value.get("output_tokens"))
        reasoning = (
            _detail(value, "output_tokens_details", "reasoning_tokens") if reasoning is None else reasoning
        )
    accepted = _detail(value, "completion_tokens_details", "accepted_prediction_tokens")
    return Usage(prompt, output, cached, reasoning, accepted)


def _detail(value: Mapping[str, Any], key: str, name: str) -> int | None:
    details = value.get(key)
    return _count(details.get(name)) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    # Above 2**53 no JSON number is a count that anyone made.
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    return None


def _finish(value: Any) -> str | None:
    return name_of(value, 64) or None


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is not an object")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(content: Any) -> list[str]:
    """The texts of a list of content parts."""
    return [_text(part.get("text")) for part in _list(content) if isinstance(part, dict)]
