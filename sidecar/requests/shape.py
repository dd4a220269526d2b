"""Deciding an event from its bytes, without decoding it: the shape that a stream's events repeat.

Nearly all events of a stream are one JSON text in which only the generated string differs. From an event
that was decoded in full a ``Shape`` is made: the bytes before that string, the bytes after it, and what such an
event means. A later event with the same bytes around a JSON string means the same, whatever stands in the
string: JSON in text has its quotes escaped, so nothing in the string can end it. Everything else is decoded.

Two things besides the string may differ and are still decided from bytes: the running counters of usage and
sequence numbers, and the log probabilities of the tokens, passed over where no key that matters stands in them. Every event meets the same shapes, however its bytes were cut, so the cut never changes the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
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
_INSIDE = rb'[^"\\\r\n]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\r\n]*)*'
_STRING = re.compile(_INSIDE)
# Counters, and names that say nothing of what an event means: these may differ from event to event. Names are let
# differ so that the patterns of one server's streams are the same and compiled once.
_COUNTER = rb'"(?:total_tokens|prompt_tokens|reasoning_tokens|sequence_number|created)": ?'
_TOKENS = rb'"(?:completion_tokens|output_tokens)": ?'
_NAME = rb'"(?:id|item_id|obfuscation|system_fingerprint)": ?"'
_FREE = re.compile(
    rb"(?P<counter>" + _COUNTER + rb")(?:0|[1-9][0-9]*)(?=[,}])"
    rb"|(?P<tokens>" + _TOKENS + rb")(?:0|[1-9][0-9]*)(?=[,}])"
    rb"|(?P<name>" + _NAME + rb")" + _INSIDE + rb'(?=")'
)
_NUMBER = rb"(?:0|[1-9][0-9]{0,14})"
_LOGPROBS = re.compile(rb'"logprobs": ?(?=\{)')
_FINISH = re.compile(rb', ?"finish_reason": ?null')
# With one of these among the log probabilities (a token may be called so) the event is decoded. A new key of
# a choice or of the event needs one of them, or a second finish reason, which is looked for from behind.
_KEYS_THAT_MATTER = (
    b'"finish_reason"',
    b'"index"',
    b'"delta"',
    b'"text"',
    b'"choices"',
    b'"usage"',
    b'"error"',
)

NO_MATCH = -2
NOT_TOLD = -1


@dataclass(frozen=True, slots=True)
class Shape:
    """``prefix``, a string, perhaps log probabilities, then ``suffix`` or what ``pattern`` matches.

    Either ``suffix`` is set, where only the string may differ, or ``pattern``, whose only group is the tokens
    told so far.
    """

    name: bytes  # the SSE event field
    choice: int
    text: bool  # the string is content (and not reasoning, arguments, ...)
    prefix: bytes
    suffix: bytes
    pattern: re.Pattern[bytes] | None
    middle: bytes  # from the string's end to the log probabilities; empty where there are none
    finish: bytes  # the bytes with which the part after the log probabilities begins
    tail: bytes  # what pattern was made of
    head_len: int = 0  # bytes of framing before and after the data, in a framed shape
    tail_len: int = 0

    @property
    def plain(self) -> bool:
        """Only the string differs."""
        return self.pattern is None

    def framed(self, head: bytes, tail: bytes) -> Shape:
        """The shape of whole events on the wire, from that of their data."""
        framed = replace(self, prefix=head + self.prefix, head_len=len(head), tail_len=len(tail))
        if self.pattern is None:
            return replace(framed, suffix=self.suffix + tail)
        whole = self.tail + tail
        return replace(framed, tail=whole, pattern=_pattern(_skeleton(whole), bool(self.middle)))

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
            if 34 in string or 92 in string or 10 in string or 13 in string:
                return NOT_TOLD if string and _STRING.fullmatch(string) else NO_MATCH
            return NOT_TOLD if string else NO_MATCH
        if self.middle:
            found = _STRING.match(data, start)
            if found is None or found.end() == start or not data.startswith(self.middle, found.end()):
                return NO_MATCH
            begin = found.end() + len(self.middle)
            start = data.rfind(self.finish)
            if start <= begin or data[start - 1] != 125:  # "}"
                return NO_MATCH
            passed = data[begin:start]
            if 10 in passed or 13 in passed:
                return NO_MATCH
            for key in _KEYS_THAT_MATTER:
                if passed.find(key) >= 0:
                    return NO_MATCH
        elif data[start] == 34:
            return NO_MATCH
        told = self.pattern.fullmatch(data, start)
        if told is None:
            return NO_MATCH
        return int(told[1]) if told.lastindex else NOT_TOLD

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
    if len(facts.deltas) != 1 or facts.error or facts.end:
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
    silent = replace(facts, deltas=(Delta(before.choice),))
    if read(name, prefix + suffix) != silent:
        return None  # something else in the event is output too
    full = read(name, prefix + b"x" + suffix)
    text = len(full.deltas) == 1 and full.deltas[0].text == "x"
    if full != replace(facts, deltas=(replace(before, text="x" if text else ""),)):
        return None
    middle = finish = b""
    tail = suffix
    begin = _LOGPROBS.search(suffix)
    ends = list(_FINISH.finditer(suffix))
    if begin is not None and ends and ends[-1].start() > begin.end():
        last = ends[-1]
        if read(name, prefix + suffix[: begin.end()] + b"null" + suffix[last.start() :]) == silent:
            middle, finish, tail = suffix[: begin.end()], last[0], suffix[last.start() :]
    free = list(_FREE.finditer(tail))
    counts = sum(match.lastgroup == "tokens" for match in free)
    if facts.usage is not None and counts != 1:
        return None
    varies = bool(middle or facts.usage is not None or b"sequence_number" in tail or b"obfuscation" in tail)
    pattern = _pattern(_skeleton(tail), bool(middle)) if varies else None
    return Shape(name, before.choice, text, prefix, suffix, pattern, middle, finish, tail)


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
    return re.compile(skeleton if after_logprobs else _INSIDE + skeleton)
