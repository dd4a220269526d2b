"""Request bodies of each API as the convention's messages: roles, parts, tools, and the parameters with text.

Only a change of form; nothing is hidden here. A part of a type not listed stops the conversion, since
nobody can say where its text is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sidecar.redaction.engine import Reason, RedactionFailed

Json = Any


@dataclass(slots=True)
class Part:
    """One part: ``kind`` text, reasoning, tool_call, tool_call_response or media; fields used by kind."""

    kind: str
    text: str = ""  # text, reasoning; for media its URL or base64
    name: str = ""  # tool_call
    id: str = ""  # tool_call, tool_call_response
    value: Json = None  # arguments (text of JSON or parsed) or response
    modality: str = ""
    mime_type: str = ""


@dataclass(slots=True)
class Message:
    """One message of the conversation."""

    role: str
    parts: list[Part]
    name: str = ""


@dataclass(slots=True)
class Conversation:
    """All text of a request."""

    system: list[Part] = field(default_factory=list)  # only what was given apart from the messages
    messages: list[Message] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    user: str = ""
    metadata: Json = None


def conversation(body: Json) -> Conversation:
    """The conversation of a chat, completions, responses, messages or embeddings request.

    Raises:
        RedactionFailed: a part of unknown type, or a body that is no JSON object.
    """
    if not isinstance(body, dict):
        raise RedactionFailed(Reason.UNDECODABLE)
    talk = Conversation()
    if "messages" in body:
        talk.messages = _messages(body["messages"])
        talk.system = _content(body["system"]) if body.get("system") else []
    elif "prompt" in body:
        talk.messages = [Message("user", _prompt(body["prompt"]))]
    elif "input" in body:
        talk.messages = _items(body["input"])
        talk.system = _content(body["instructions"]) if body.get("instructions") else []
    for name in ("suffix", "query", "text_1", "text_2", "documents"):
        if body.get(name):
            talk.messages.append(Message("user", _prompt(body[name])))
    stop = body.get("stop", body.get("stop_sequences"))
    if stop:
        talk.stop = [stop] if isinstance(stop, str) else [s for s in _list(stop) if isinstance(s, str)]
    tools = body.get("tools") or body.get("functions")
    talk.tools = list(_list(tools)) if tools else []
    talk.user = body["user"] if isinstance(body.get("user"), str) else ""
    talk.metadata = body.get("metadata")
    return talk


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise RedactionFailed(Reason.UNDECODABLE)
    return value


def _prompt(value: Json) -> list[Part]:
    if isinstance(value, str):
        return [Part("text", text=value)]
    parts = []
    for item in _list(value):
        if isinstance(item, str):
            parts.append(Part("text", text=item))
        elif isinstance(item, int) or (isinstance(item, list) and all(isinstance(i, int) for i in item)):
            parts.append(Part("tokens", value=len(item) if isinstance(item, list) else 1))
        elif isinstance(item, dict) and isinstance(item.get("text"), str):
            parts.append(Part("text", text=item["text"]))
        else:
            raise RedactionFailed(Reason.UNKNOWN_PART)
    return parts


def _messages(value: Json) -> list[Message]:
    result = []
    for message in _list(value):
        if not isinstance(message, dict):
            raise RedactionFailed(Reason.UNDECODABLE)
        role = message.get("role") if isinstance(message.get("role"), str) else ""
        parts: list[Part] = []
        for key in ("reasoning_content", "reasoning"):
            if isinstance(message.get(key), str):
                parts.append(Part("reasoning", text=message[key]))
        if role in ("tool", "function"):
            parts.append(
                Part(
                    "tool_call_response", id=_text(message.get("tool_call_id")), value=message.get("content")
                )
            )
        elif message.get("content") is not None:
            parts.extend(_content(message["content"]))
        if isinstance(message.get("refusal"), str):
            parts.append(Part("text", text=message["refusal"]))
        parts.extend(_tool_calls(message.get("tool_calls") or ()))
        if isinstance(message.get("function_call"), dict):
            parts.extend(_tool_calls([{"function": message["function_call"]}]))
        result.append(Message(role or "", parts, _text(message.get("name"))))
    return result


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _tool_calls(calls: Iterable[Json]) -> Iterable[Part]:
    for call in calls:
        if not isinstance(call, dict):
            raise RedactionFailed(Reason.UNKNOWN_PART)
        function = call.get("function") or call.get("custom") or {}
        if not isinstance(function, dict):
            raise RedactionFailed(Reason.UNKNOWN_PART)
        arguments = function.get("arguments", function.get("input"))
        yield Part("tool_call", name=_text(function.get("name")), id=_text(call.get("id")), value=arguments)


def _content(value: Json) -> list[Part]:
    if isinstance(value, str):
        return [Part("text", text=value)]
    return [_part(item) for item in _list(value)]


def _part(item: Json) -> Part:
    if isinstance(item, str):
        return Part("text", text=item)
    if not isinstance(item, dict):
        raise RedactionFailed(Reason.UNKNOWN_PART)
    kind = item.get("type")
    if kind in ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"):
        text = item.get("text", item.get("refusal"))
        if isinstance(text, str):
            return Part("reasoning" if kind == "reasoning_text" else "text", text=text)
    elif kind == "thinking" and isinstance(item.get("thinking"), str):
        return Part("reasoning", text=item["thinking"])
    elif kind == "tool_use":
        return Part(
            "tool_call", name=_text(item.get("name")), id=_text(item.get("id")), value=item.get("input")
        )
    elif kind == "tool_result":
        return Part("tool_call_response", id=_text(item.get("tool_use_id")), value=item.get("content"))
    elif isinstance(kind, str):
        media = _media(kind, item)
        if media is not None:
            return media
    raise RedactionFailed(Reason.UNKNOWN_PART)


_MODALITIES = {
    "image_url": "image", "input_image": "image", "image": "image", "input_audio": "audio",
    "audio_url": "audio", "audio": "audio", "video_url": "video", "video": "video", "file": "document",
    "input_file": "document", "document": "document",
}  # fmt: skip


def _media(kind: str, item: dict[str, Json]) -> Part | None:
    modality = _MODALITIES.get(kind)
    if modality is None:
        return None
    held = item.get(kind, item.get("source", item.get("image_url", item)))
    if isinstance(held, str):
        return Part("media", text=held, modality=modality)
    if not isinstance(held, dict):
        return None
    for key in ("url", "data", "file_data", "file_url", "image_url", "text", "file_id"):
        if isinstance(held.get(key), str):
            mime = _text(held.get("media_type"))
            if kind == "input_audio" and isinstance(held.get("format"), str):
                mime = f"audio/{held['format']}"
            return Part("media", text=held[key], modality=modality, mime_type=mime)
    return None


def _items(value: Json) -> list[Message]:
    """The ``input`` of the responses API: a text, or messages mixed with calls and their outputs."""
    if isinstance(value, str):
        return [Message("user", [Part("text", text=value)])]
    result = []
    for item in _list(value):
        if isinstance(item, str | int | list):
            result.append(Message("user", _prompt([item])))
            continue
        if not isinstance(item, dict):
            raise RedactionFailed(Reason.UNKNOWN_PART)
        kind = item.get("type", "message")
        if kind == "message":
            result.extend(_messages([item]))
        elif kind == "function_call":
            part = Part(
                "tool_call",
                name=_text(item.get("name")),
                id=_text(item.get("call_id")),
                value=item.get("arguments"),
            )
            result.append(Message("assistant", [part]))
        elif kind == "function_call_output":
            answer = Part("tool_call_response", id=_text(item.get("call_id")), value=item.get("output"))
            result.append(Message("tool", [answer]))
        elif kind == "reasoning":
            parts = [*_content(item.get("summary") or []), *_content(item.get("content") or [])]
            result.append(Message("assistant", [Part("reasoning", text=p.text) for p in parts]))
        else:
            raise RedactionFailed(Reason.UNKNOWN_PART)
    return result
