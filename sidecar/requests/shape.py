"""Deciding an event from its bytes, without decoding it: the shape that a stream's events repeat.

Nearly all events of a stream are one JSON text in which only the generated string differs. From an event
that was decoded in full a ``Shape`` is made: the bytes before that string, the bytes after it, and what such
an event means. A later event with the same bytes around a JSON string means the same, whatever stands in the
string: JSON in text has its quotes escaped, so nothing in the string can end it. All else is decoded.

Two things besides the string may differ and are still decided from bytes: the running counters of usage and
sequence numbers, and the log probabilities of the tokens, passed over where no key that matters stands in
them. Every event meets the same shapes, however its bytes were cut, so the cut never changes the record.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from sidecar.requests.events import Delta, Facts, Unreadable
from sidecar.requests.records import Api

# The keys whose string is generated output, by API.
_KEYS: dict[Api, tuple[bytes, ...]] = {
    Api.CHAT: (b"content", b"reasoning", b"reasoning_content", b"arguments", b"refusal"),
    Api.COMPLETIONS: (b"text",),
    Api.MESSAGES: (b"text", b"thinking", b"partial_json"),
    Api.RESPONSES: (b"delta",),
}
# The inside of a JSON string: no quote, no bare line end, whole escapes only.
_INSIDE = rb'[^"\\\r\n]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\r\n]*+)*+'
_STRING = re.compile(_INSIDE)
whole_string = _STRING.fullmatch
# Counters, and names that say nothing of what an event means: these may differ from event to event. Names may
# so that the patterns of one server's streams are the same and compiled once.
_COUNTER = rb'"(?:total_tokens|prompt_tokens|reasoning_tokens|sequence_number|created)": ?'
_TOKENS = rb'"(?:completion_tokens|output_tokens)": ?'
_NAME = rb'"(?:id|item_id|obfuscation|system_fingerprint)": ?"'
_FREE = re.compile(
    rb"(?P<counter>" + _COUNTER + rb")(?:0|[1-9][0-9]*)(?=[,}])"
    rb"|(?P<tokens>" + _TOKENS + rb")(?:0|[1-9][0-9]*)(?=[,}])"
    rb"|(?P<name>" + _NAME + rb")" + _INSIDE + rb'(?=")'
)
_NUMBER = rb"(?:0|[1-9][0-9]{0,14})"
# Only without blanks, for _LEAVES counts on that.
_LOGPROBS = re.compile(rb'"logprobs":(?=\{")')
_FINISH = re.compile(rb',"finish_reason":null')
# Log probabilities are objects in lists: none is followed by a key or by the end of another object, unless
# what follows is no longer theirs (or a token looks so). Then the event is decoded.
_LEAVES = re.compile(rb'\}(?:,"|\})')

# A shape is kept for the stream's life and its pattern for the process's: none is made of a large event.
_MAX_LEARNT_BYTES = 16_384
_MAX_PATTERN_BYTES = 4_096

NO_MATCH = -2
NOT_TOLD = -1


@dataclass(slots=True, eq=False)
class Shape:
    """``prefix``, a string, perhaps log probabilities, then ``suffix`` or what ``pattern`` matches.

    Either ``suffix`` is set, where only the string may differ, or ``pattern``, whose only group is the tokens
    told so far.
    """

    name: bytes  # the SSE event field
    choice: int
    text: bool  # the string is content (and not reasoning, arguments, ...)
    told: bool  # the event tells usage
    prefix: bytes
    suffix: bytes
    pattern: re.Pattern[bytes] | None
    middle: bytes  # from the string's end to the log probabilities; empty where there are none
    finish: bytes  # the bytes with which the part after the log probabilities begins
    tail: bytes  # what pattern was made of
    head_len: int = 0  # bytes of framing before and after the data, in a framed shape
    tail_len: int = 0
    unread: bytes | None = (
        None  # the last event of this shape that told usage, where only its tokens were read
    )

    @property
    def plain(self) -> bool:
        """Only the string differs."""
        return self.pattern is None

    def framed(self, head: bytes, tail: bytes) -> Shape:
        """The shape of whole events on the wire, from that of their data."""
        whole = self.tail + tail
        pattern = None if self.plain else _pattern(_skeleton(whole), bool(self.middle))
        shape = copy.copy(self)
        shape.prefix, shape.suffix, shape.pattern = head + self.prefix, self.suffix + tail, pattern
        shape.tail, shape.head_len, shape.tail_len = whole, len(head), len(tail)
        shape.unread = None
        return shape

    def match(self, data: bytes) -> int:
        """The tokens told so far by an event of this shape, ``NOT_TOLD``, or ``NO_MATCH``.

        An event whose string is empty does not match.
        """
        if not data.startswith(self.prefix):
            return NO_MATCH
        start = len(self.prefix)
        if self.pattern is None:
            if not data.endswith(self.suffix):
                return NO_MATCH
            string = data[start : -len(self.suffix)]
            return NOT_TOLD if string and whole_string(string) else NO_MATCH
        if self.middle:
            found = _STRING.match(data, start)
            if found is None or found.end() == start or not data.startswith(self.middle, found.end()):
                return NO_MATCH
            begin = found.end() + len(self.middle)
            start = data.rfind(self.finish)
            if start <= begin or data[start - 1] != 125:  # "}"
                return NO_MATCH
            if data.find(10, begin, start) >= 0 or data.find(13, begin, start) >= 0:
                return NO_MATCH
            if _LEAVES.search(data, begin, start) is not None:
                return NO_MATCH
        told = self.pattern.fullmatch(data, start)
        if told is None:
            return NO_MATCH
        return int(told[1]) if self.told else NOT_TOLD

    def string(self, data: bytes) -> str:
        """The decoded string of a matching event."""
        found = _STRING.match(data, len(self.prefix))
        raw = found[0].decode("utf-8", "replace") if found else ""
        if "\\" not in raw:
            return raw
        decoded: str = json.loads(f'"{raw}"', strict=False)
        return decoded


def learn(
    api: Api, name: bytes, data: bytes, facts: Facts, read: Callable[[bytes, bytes], Facts]
) -> Shape | None:
    """The shape of an event's data, or ``None`` where its bytes are not to be trusted with the decision.

    ``read(name, data)`` decodes an event. Each part of the shape is proved with it: the event without the
    string is no output and with another string it is what it was.
    """
    if len(facts.deltas) != 1 or facts.error or facts.end or len(data) > _MAX_LEARNT_BYTES:
        return None
    delta = facts.deltas[0]
    if not delta.output or delta.finish is not None:
        return None
    for key in _KEYS[api]:
        for form in (b'"%s":"' % key, b'"%s": "' % key):
            at = data.find(form)
            if at < 0:
                continue
            start = at + len(form)
            found = _STRING.match(data, start)
            if found is None or found.end() == start or data[found.end() : found.end() + 1] != b'"':
                continue
            try:
                shape = _shape(name, data[:start], data[found.end() :], facts, read)
            except (ValueError, RecursionError, Unreadable):
                continue
            if shape is not None and shape.match(data) != NO_MATCH:
                return shape
    return None


def _shape(
    name: bytes, prefix: bytes, suffix: bytes, facts: Facts, read: Callable[[bytes, bytes], Facts]
) -> Shape | None:
    before = facts.deltas[0]
    silent = facts._replace(deltas=(Delta(before.choice),))
    if read(name, prefix + suffix) != silent:
        return None  # something else in the event is output too
    middle = finish = b""
    tail = suffix
    begin = _LOGPROBS.search(suffix)
    if begin is not None:
        ends = list(_FINISH.finditer(suffix, begin.end()))
        if (
            ends
            and read(name, prefix + suffix[: begin.end()] + b"null" + suffix[ends[-1].start() :]) == silent
        ):
            middle, finish, tail = suffix[: begin.end()], ends[-1][0], suffix[ends[-1].start() :]
    told = facts.usage is not None
    if told and sum(found.lastgroup == "tokens" for found in _FREE.finditer(tail)) != 1:
        return None
    varies = told or bool(middle) or b"sequence_number" in tail or b"obfuscation" in tail
    if varies and len(tail) > _MAX_PATTERN_BYTES:
        return None
    pattern = _pattern(_skeleton(tail), bool(middle)) if varies else None
    return Shape(name, before.choice, bool(before.text), told, prefix, suffix, pattern, middle, finish, tail)


def _skeleton(tail: bytes) -> bytes:
    """The pattern of what may stand where ``tail`` stood."""
    parts = []
    pos = 0
    for found in _FREE.finditer(tail):
        kind = found.lastgroup or ""
        parts.append(re.escape(tail[pos : found.start()] + found[kind]))
        parts.append({"counter": _NUMBER, "tokens": b"(" + _NUMBER + b")", "name": _INSIDE}[kind])
        pos = found.end()
    parts.append(re.escape(tail[pos:]))
    return b"".join(parts)


@lru_cache(maxsize=256)
def _pattern(skeleton: bytes, after_logprobs: bool) -> re.Pattern[bytes]:
    # An empty string is no output.
    return re.compile(skeleton if after_logprobs else b'(?!")' + _INSIDE + skeleton)
