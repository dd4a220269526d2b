"""What of a request's text may leave, by level; drops it all where anything goes wrong, and counts why."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sidecar.redaction.engine import Reason, RedactionFailed, Redactor
from sidecar.redaction.messages import Conversation, Message, Part, conversation
from sidecar.redaction.patterns import EngineMissing
from sidecar.redaction.structure import Structure

Json = Any

SIZE_LIMIT = 4 << 20  # bytes of a body that are looked at; more is dropped whole
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_SHORTEST_CUT = 16
_LONGEST_VALUE = 512  # characters that a value known by its end may have: an address, a URL with a password


class Level(StrEnum):
    """How much of the content may leave, from nothing to all."""

    DROP = "drop"
    SHAPE = "shape"  # roles, part types, tool names, lengths, counts
    REDACT = "redact"  # texts with private values replaced
    FULL = "full"  # texts as they are

    @property
    def has_text(self) -> bool:
        """True where pieces of the user's text may leave."""
        return self in (Level.REDACT, Level.FULL)


@dataclass(frozen=True, slots=True)
class Content:
    """What may leave of one request. JSON values in the convention's form; ``None``: nothing."""

    system: list[Json] | None = None
    messages: list[Json] | None = None
    output: list[Json] | None = None
    tools: list[Json] | None = None
    stop: list[str] | None = None
    user: str | None = None
    failed: Reason | None = None


@dataclass(slots=True)
class Counts:
    """What was done, safe to publish: no value, only kinds and reasons. Thread-safe through ``lock``."""

    failures: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hit(self, kind: str) -> None:
        """One value replaced."""
        with self.lock:
            self.replaced[kind] += 1

    def failed(self, reason: Reason) -> None:
        """One content dropped for ``reason``."""
        with self.lock:
            self.failures[reason.value] += 1


class ContentFilter:
    """Applies a level. Every method returns instead of raising: on any trouble, nothing leaves.

    ``make_redactor`` is called once, here; where it fails (no RE2), levels with text drop the text.
    """

    def __init__(
        self,
        level: Level,
        make_redactor: Callable[[], Redactor],
        *,
        size_limit: int = SIZE_LIMIT,
        counts: Counts | None = None,
    ) -> None:
        self.level = level
        self.counts = counts or Counts()
        self._size_limit = size_limit
        self._redactor: Redactor | None = None
        try:
            self._redactor = make_redactor()
            self._redactor.on_hit = self.counts.hit
        except EngineMissing:
            self.counts.failed(Reason.ENGINE_MISSING)

    @property
    def pattern_version(self) -> str:
        """Version of the patterns in use; '' without an engine."""
        return self._redactor.version if self._redactor else ""

    def request(self, body: bytes) -> Content:
        """The content of a request body that is JSON."""
        return self._guarded(lambda: self._request(body))

    def with_output(
        self, content: Content, output: Sequence[tuple[str, str | None]], *, cut_at: int | None = None
    ) -> Content:
        """``content`` and the answer: one (text, finish reason) for each choice, in order.

        ``cut_at``: a text so long was cut there before anyone had looked at it. Its end may be half of a
        value, which no pattern knows, so it goes as well.
        """
        if cut_at is not None:
            output = [(_without_end(text) if len(text) >= cut_at else text, why) for text, why in output]
        if self.level is Level.DROP or content.failed is not None:
            return content
        messages = [
            (Message("assistant", [Part("text", text=text)] if text else []), reason or "error")
            for text, reason in output
        ]

        def build() -> Content:
            if sum(len(text) for text, _ in output) > self._size_limit:
                raise RedactionFailed(Reason.OVER_SIZE)
            return Content(output=[{**self._message(m), "finish_reason": r} for m, r in messages])

        built = self._guarded(build)
        return built if built.failed else replace(content, output=built.output)

    def text(self, text: str, hint: str = "") -> str | None:
        """A text that is needed whatever the level (error, URL, name): redacted, or ``None``."""
        if not text:
            return text
        result = self._try(lambda: self._structure().text(text, hint))
        return result if isinstance(result, str) else None

    def url(self, url: str) -> str | None:
        """``url`` without user, query and fragment, its path redacted; or ``None``."""
        result = self._try(lambda: self._structure().url(url))
        return result if isinstance(result, str) else None

    def _try(self, work: Callable[[], Json]) -> Json | Reason:
        try:
            return work()
        except RedactionFailed as failure:
            reason = failure.reason
        except Exception:  # whatever it was: its message could hold the text, so it is not looked at
            reason = Reason.ERROR
        self.counts.failed(reason)
        return reason

    def _guarded(self, work: Callable[[], Content]) -> Content:
        if self.level is Level.DROP:
            return Content()
        result = self._try(work)
        return Content(failed=result) if isinstance(result, Reason) else result

    def _structure(self) -> Structure:
        if self._redactor is None:
            raise RedactionFailed(Reason.ENGINE_MISSING)
        return Structure(self._redactor)

    def _request(self, body: bytes) -> Content:
        if len(body) > self._size_limit:
            raise RedactionFailed(Reason.OVER_SIZE)
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            raise RedactionFailed(Reason.UNDECODABLE) from None
        return self._conversation(conversation(parsed))

    def _conversation(self, talk: Conversation) -> Content:
        texts = self.level.has_text
        return Content(
            system=[self._part(p) for p in talk.system] or None,
            messages=[self._message(m) for m in talk.messages] or None,
            tools=[self._tool(t) for t in talk.tools] or None,
            stop=[self._leaf(s, "") for s in talk.stop] or None if texts else None,
            user=(self._leaf(talk.user, "user") or None) if texts else None,
        )

    def _leaf(self, text: str, key: str) -> str:
        return text if self.level is Level.FULL else self._structure().text(text, key)

    def _value(self, value: Json, key: str = "") -> Json:
        """Tool arguments or a response: JSON or its text, by level."""
        if isinstance(value, str):
            try:
                parsed = json.loads(value)
            except (ValueError, RecursionError):
                return self._leaf(value, key)
            if not isinstance(parsed, dict | list):
                return self._leaf(value, key)
            value = parsed
        return value if self.level is Level.FULL else self._structure().value(value, key)

    def _message(self, message: Message) -> dict[str, Json]:
        role = message.role if message.role in _ROLES else "other"
        shown: dict[str, Json] = {"role": role, "parts": [self._part(p) for p in message.parts]}
        if message.name and self.level.has_text:
            shown["name"] = self._leaf(message.name, "name")
        return shown

    def _part(self, part: Part) -> dict[str, Json]:
        if part.kind == "tokens":
            return {"type": "tokens", "count": part.value}
        if part.kind == "media":
            return self._media(part)
        if part.kind in ("text", "reasoning"):
            if not self.level.has_text:
                return {"type": part.kind, "length": len(part.text)}
            return {"type": part.kind, "content": self._leaf(part.text, "")}
        called = part.kind == "tool_call"
        shown: dict[str, Json] = {"type": part.kind}
        if not self.level.has_text:
            if called:
                shown["name"] = self._name(part.name)
            return shown | {"length": _length(part.value)}
        if part.id:
            shown["id"] = self._leaf(part.id, "")
        if called:
            return shown | {"name": self._name(part.name), "arguments": self._value(part.value)}
        return shown | {"response": self._response(part.value)}

    def _response(self, value: Json) -> Json:
        """A tool's answer: a text, or parts of which media must not pass."""
        if isinstance(value, list) and value and all(isinstance(v, dict) and "type" in v for v in value):
            talk = conversation({"messages": [{"role": "user", "content": value}]})
            return [self._part(p) for p in talk.messages[0].parts]
        return self._value(value)

    def _media(self, part: Part) -> dict[str, Json]:
        shown = self._structure().media(part.modality, part.text, part.mime_type)
        if not self.level.has_text:
            shown.pop("uri", None)
            shown.pop("digest", None)
        return shown

    def _name(self, name: str) -> str:
        """A tool's name: an identifier, redacted like any text, since a caller can write anything there."""
        short = name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else ""
        if not short or len(short) > 64:
            return f"[NAME:{len(name)}]"
        return short if self.level is Level.FULL else self._structure().text(short)

    def _tool(self, tool: Json) -> Json:
        if not isinstance(tool, dict):
            raise RedactionFailed(Reason.UNKNOWN_PART)
        inner = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        assert isinstance(inner, dict)
        name = self._name(inner["name"]) if isinstance(inner.get("name"), str) else ""
        if not self.level.has_text:
            return {"type": "function", "name": name, "length": _length(tool)}
        shown: dict[str, Json] = {"type": "function", "name": name}
        for key in ("description", "parameters", "input_schema"):
            if key in inner:
                shown["parameters" if key == "input_schema" else key] = self._value(inner[key])
        return shown


def _without_end(text: str) -> str:
    return text[: max(0, len(text) - _LONGEST_VALUE)]


def _length(value: Json) -> int:
    return len(value) if isinstance(value, str) else len(json.dumps(value))


def cut(text: str, limit: int) -> str:
    """``text`` in at most about ``limit`` characters: its two ends and how much is missing between."""
    if len(text) <= limit:
        return text
    note = f"…[{len(text) - limit} more]"
    keep = max(0, limit - len(note))
    head = keep - keep // 3
    return text[:head] + note + (text[-(keep // 3) :] if keep // 3 else "")


def fit(values: Sequence[Json], limit: int) -> str | None:
    """JSON text of the list in at most ``limit`` bytes, always whole.

    First the long strings are cut, shorter and shorter; then the oldest entries go, with a note of
    how many; ``None`` where not even the last entry fits. Only for texts that were redacted before.
    """
    longest = limit
    while True:
        shown = [_cut_leaves(v, longest) for v in values]
        text = json.dumps(shown, ensure_ascii=False)
        if len(text.encode("utf-8", errors="replace")) <= limit:
            return text.encode("utf-8", errors="replace").decode("utf-8")
        if longest <= _SHORTEST_CUT * 4:
            break
        longest //= 2
    for gone in range(1, len(values)):
        kept: list[Json] = [{"role": "other", "parts": [{"type": "omitted", "count": gone}]}, *shown[gone:]]
        text = json.dumps(kept, ensure_ascii=False)
        if len(text.encode("utf-8", errors="replace")) <= limit:
            return text.encode("utf-8", errors="replace").decode("utf-8")
    return None


def _cut_leaves(value: Json, longest: int) -> Json:
    if isinstance(value, str):
        return cut(value, longest)
    if isinstance(value, Mapping):
        return {cut(k, longest): _cut_leaves(v, longest) for k, v in value.items()}
    if isinstance(value, list):
        return [_cut_leaves(v, longest) for v in value]
    return value
