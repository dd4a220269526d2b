"""From a response's bytes and their times to its record: the one meter of the sidecar and the load generator.

Sans-I/O: whoever reads the socket says which bytes came when, on one monotonic clock. No method of the meter
raises; an answer that cannot be read ends as ``malformed`` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from sidecar.requests.answer import Answer
from sidecar.requests.encoding import Inflater, inflater_for, retry_after_s
from sidecar.requests.events import Facts, Unreadable, read_answer, read_event
from sidecar.requests.records import Api, End, RequestRecord
from sidecar.requests.shape import NO_MATCH, Shape, learn, whole_string
from sidecar.requests.sse import SseEvent, SseParser
from sidecar.requests.tracks import SPILL, Track

MAX_BODY_BYTES = 2 * 1024 * 1024  # of an answer that is not streamed, and of one event
_MAX_SHAPES = 16  # a stream's choices, each perhaps with reasoning, content and tool calls
_MAX_UNREAD_BYTES = 65_536
_BOM_AND_SPACE = b"\xef\xbb\xbf \t\r\n"


_DECODER = json.JSONDecoder(strict=False)
# (bytes before the string, bytes after it, how many those are, the choice's times)
_Plain = tuple[bytes, bytes, int, list[int]]
# (bytes before the string, where it begins, the match of all from there on, the choice, the shape)
_Counting = tuple[bytes, int, Callable[[bytes, int], re.Match[bytes] | None], Track, Shape]


class _Body(Enum):
    """How the body is read."""

    UNKNOWN = 0  # no byte of it yet
    EVENTS = 1
    JSON = 2
    SKIP = 3  # nothing more to learn from it


class StreamMeter:
    """Measures one response.

    ``start_ns``: when the request began (see ``RequestRecord``). ``choices``: how many the request asked for.
    ``model``: as requested; else the answer's. ``capture_chars``: characters of generated text to keep per
    choice, 0 for none. ``echo``: the chat request asked for its prompt back, which is not generated output.
    ``stream``: whether the request asked for a stream, which tells what it was if no answer comes.
    Memory held: one unfinished event or body up to 2 MiB, 16 bytes per output chunk, captured text to
    its limit.
    """

    __slots__ = (
        "_answer",
        "_any_event",
        "_api",
        "_asked_stream",
        "_body",
        "_buffer",
        "_counting",
        "_framed",
        "_framed_counting",
        "_framed_plain",
        "_inflater",
        "_last_ns",
        "_learned",
        "_plain",
        "_ready",
        "_shapes",
        "_sse",
        "_start_ns",
    )

    def __init__(
        self,
        api: Api,
        *,
        start_ns: int,
        choices: int = 1,
        model: str = "",
        capture_chars: int = 0,
        echo: bool = False,
        stream: bool | None = None,
    ) -> None:
        self._api = api
        self._start_ns = start_ns
        self._last_ns = start_ns
        self._asked_stream = stream
        skip = 1 if echo and api is Api.CHAT else 0
        self._answer = Answer(api, choices=choices, model=model, capture=capture_chars, skip=skip)
        self._body = _Body.UNKNOWN if api.generates else _Body.SKIP
        self._inflater: Inflater | None = None
        self._buffer = bytearray()
        self._sse = SseParser(MAX_BODY_BYTES)
        self._any_event = False
        self._learned = 0
        self._shapes: list[Shape] = []  # of events' data
        self._framed: list[Shape] = []  # of whole events as they come on the wire
        self._framed_plain: list[_Plain] = []  # those of them that feed decides itself
        self._framed_counting: list[_Counting] = []
        self._ready: Sequence[Shape] = ()  # _framed between events, none within one
        self._plain: Sequence[_Plain] = ()
        self._counting: Sequence[_Counting] = ()

    @property
    def first_ns(self) -> int | None:
        """When the first output chunk of any choice came, while the stream lives."""
        return self._answer.first_ns

    @property
    def output_chunks(self) -> int:
        """Output chunks so far."""
        return self._answer.output_chunks

    def on_headers(self, status: int, headers: Iterable[tuple[str, str]], at_ns: int) -> None:
        """The response's status and headers are in. Informational (1xx) ones may come before."""
        try:
            self._last_ns = max(self._last_ns, at_ns)
            if 100 <= status < 200:
                return
            self._answer.status = status
            found: dict[str, str] = {}
            for name, value in headers:
                found.setdefault(name.lower(), value)
            self._answer.retry_after_s = retry_after_s(found.get("retry-after"), found.get("date"))
            if not 200 <= status < 300 or not self._api.generates:
                self._body = _Body.SKIP
                return
            self._inflater, readable = inflater_for(found.get("content-encoding", ""))
            if not readable:
                self._answer.opaque = True
                self._body = _Body.SKIP
                self._answer.warn("encoding: the body is compressed in a way that cannot be read here")
            if found.get("content-type", "").lower().startswith("text/event-stream"):
                self._answer.streamed = True
        except Exception as error:
            self._broken(error)

    def feed(self, data: bytes, at_ns: int) -> None:
        """Body bytes (after any transfer coding), and when they arrived. Any split gives the same record."""
        # Most chunks end here; see the shape module. (34, 92, 10, 13: quote, backslash, line ends)
        for prefix, suffix, around, times_ns in self._plain:
            string = data.removeprefix(prefix).removesuffix(suffix)
            if len(data) - len(string) == around:
                plain = 92 not in string and 34 not in string and 10 not in string and 13 not in string
                if string and (plain or whole_string(string)) and len(times_ns) < SPILL:
                    times_ns.append(at_ns)
                    return
        for prefix, start, fullmatch, track, shape in self._counting:
            if data.startswith(prefix):
                told = fullmatch(data, start)
                if told is not None and len(track.recent_ns) < SPILL:
                    track.recent_ns.append(at_ns)
                    if shape.told:
                        track.recent_counts.append(int(told[1]))
                        shape.unread = data
                    return
        try:
            for shape in self._ready:
                tokens = shape.match(data)
                if tokens != NO_MATCH:
                    self._count(shape, tokens, data, at_ns)
                    return
            if at_ns > self._last_ns:
                self._last_ns = at_ns
            if self._body is not _Body.SKIP and data:
                self._feed(data, self._last_ns)
        except Exception as error:
            self._broken(error)

    def finish(self, end: End, at_ns: int) -> RequestRecord:
        """The response is over; the record of it. Call once, last."""
        try:
            if end is End.EOF:
                self._close()
            self._read_usage()
            if self._body is _Body.UNKNOWN and self._asked_stream:
                self._answer.streamed = True  # no byte came to tell, and no content type
        except Exception as error:
            self._broken(error)
        return self._answer.record(
            end, start_ns=self._start_ns, end_ns=max(at_ns, self._last_ns), asked_stream=self._asked_stream
        )

    # --- bytes ---------------------------------------------------------------------

    def _feed(self, data: bytes, at_ns: int) -> None:
        if self._inflater is None:
            self._take(data, at_ns)
            self._get_ready()
            return
        for part in self._inflater.feed(data):
            self._take(part, at_ns)
        if self._inflater.broken:
            self._fail(self._inflater.broken)

    def _get_ready(self) -> None:
        """Between events whole events may be known from their bytes, within one they are not."""
        if not self._framed or self._done or not self._sse.idle:
            self._plain = self._counting = self._ready = ()
        else:
            self._plain = self._framed_plain
            self._counting = self._framed_counting
            self._ready = self._framed

    def _take(self, data: bytes, at_ns: int) -> None:
        if self._body is _Body.UNKNOWN:
            # Blanks and a byte order mark before all else say nothing, in one piece or in several.
            data = data.lstrip(_BOM_AND_SPACE)
            self._decide(data)
        if self._body is _Body.EVENTS:
            if self._framed and b"\r" not in data and self._sse.idle:
                # Several events in one read: cut them apart, so that each may be decided from its bytes.
                start, end = 0, data.find(b"\n\n")
                while 0 <= end < len(data) - 2 and not self._done:
                    self._piece(data[start : end + 2], at_ns)
                    start = end + 2
                    end = data.find(b"\n\n", start)
                data = data[start:]
            self._piece(data, at_ns)
        elif self._body is _Body.JSON:
            self._buffer += data
            if len(self._buffer) > MAX_BODY_BYTES:
                self._buffer.clear()
                self._body = _Body.SKIP
                self._answer.opaque = True
                self._answer.warn("body: too large to read, its tokens and finish reasons are unknown")

    def _piece(self, data: bytes, at_ns: int) -> None:
        if self._done:
            return  # the end came earlier in these bytes
        between = self._sse.idle
        if between:
            for shape in self._framed:
                tokens = shape.match(data)
                if tokens != NO_MATCH:
                    self._count(shape, tokens, data, at_ns)
                    return
        known: Shape | None = None
        events = self._sse.feed(data)
        for event in events:
            if self._done:
                return
            known = self._on_event(event, at_ns)
        if known is not None and between and len(events) == 1 and self._sse.idle:
            # These bytes were one whole event: from now on its like is known from the bytes on the wire.
            head, _, tail = data.partition(events[0].data)
            framing = head.endswith((b"data: ", b"data:")) and not tail.strip(b"\r\n")
            if framing and len(self._framed) < _MAX_SHAPES:
                shape = known.framed(head, tail)
                self._framed.append(shape)
                self._add_fast(shape)

    def _add_fast(self, shape: Shape) -> None:
        """Let ``feed`` itself decide events of this framed shape, if that is all there is to do with them."""
        if (self._answer.capture and shape.text) or shape.middle:
            return
        track, start = self._answer.tracks[shape.choice], len(shape.prefix)
        if shape.pattern is None:
            around = start + len(shape.suffix)
            self._framed_plain.append((shape.prefix, shape.suffix, around, track.recent_ns))
        else:
            self._framed_counting.append((shape.prefix, start, shape.pattern.fullmatch, track, shape))

    def _decide(self, data: bytes) -> None:
        """JSON or events, by the first byte that tells; a content type alone is not to be trusted."""
        first = data[:1]
        if first == b"{" or first == b"[" or (first and not self._answer.streamed and first not in b":deir"):
            self._body = _Body.JSON
            self._answer.streamed = False
        elif first:
            self._body = _Body.EVENTS
            self._answer.streamed = True

    def _close(self) -> None:
        if self._body is _Body.EVENTS:
            for event in self._sse.close():
                # What stands here lacked its final line end. Cut short, it is no event.
                if event.data.strip() != b"[DONE]" and not _is_json(event.data):
                    continue
                self._on_event(event, self._last_ns)
            if not self._any_event and self._sse.junk:
                self._fail("no event among the bytes of the stream")
        elif self._body is _Body.JSON:
            self._on_answer(bytes(self._buffer))
        self._buffer.clear()

    # --- what the bytes say ----------------------------------------------------

    def _on_event(self, event: SseEvent, at_ns: int) -> Shape | None:
        """Take in an event; the shape it has, if it has a known one."""
        self._any_event = True
        if event.oversize:
            self._answer.warn("event: one was too large to read")
            return None
        data = event.data
        for shape in self._shapes:
            tokens = shape.match(data) if shape.name == event.name else NO_MATCH
            if tokens != NO_MATCH:
                self._count(shape, tokens, data, at_ns)
                return shape
        if len(data) < 64 and data.strip() == b"[DONE]":
            self._answer.end_seen = True
            self._body = _Body.SKIP
            return None
        if data.isspace():
            return None
        try:
            facts = self._read(event.name, data)
        except (ValueError, RecursionError):
            if event.name == b"error":
                self._answer.error_event = True  # whatever it says, and be it not JSON
                return None
            self._fail(f"the event after {self._answer.output_chunks} output chunks is not JSON")
            return None
        except Unreadable as reason:
            self._fail(f"the event after {self._answer.output_chunks} output chunks: {reason}")
            return None
        before = self._answer.output_chunks
        self._apply(facts, at_ns)
        # Only an event that counted shows what the next ones count as. Where none repeat, stop looking.
        if self._answer.output_chunks == before:
            return None
        if len(self._shapes) < _MAX_SHAPES and self._learned <= 16 + self.output_chunks // 16:
            self._learned += 1
            shape_found = learn(self._api, event.name, data, facts, self._read)
            if shape_found is not None:
                self._shapes.append(shape_found)
            return shape_found
        return None

    def _read(self, name: bytes, data: bytes) -> Facts:
        return read_event(self._api, name, _decode(data))

    def _count(self, shape: Shape, tokens: int, data: bytes, at_ns: int) -> None:
        """An output chunk that was decided from its bytes."""
        answer = self._answer
        track = answer.tracks[shape.choice]
        if tokens >= 0:
            # Its other figures are read only if no later event of this shape comes.
            shape.unread = data
            if len(data) > _MAX_UNREAD_BYTES:
                self._read_usage()
        if answer.capture and shape.text:
            track.keep_text(shape.string(data), answer.capture)
        answer.mark(track, at_ns, tokens)

    def _read_usage(self) -> None:
        """Take in the usage of events decided from their bytes: of each shape the last, the greatest."""
        for shape in (*self._shapes, *self._framed):
            data = shape.unread
            if data is not None:
                shape.unread = None
                self._answer.merge(self._read(shape.name, data[shape.head_len : len(data) - shape.tail_len]))

    def _on_answer(self, data: bytes) -> None:
        try:
            facts = read_answer(self._api, _decode(data.removeprefix(b"\xef\xbb\xbf")))
        except (ValueError, RecursionError):
            self._fail("the answer is not JSON")
            return
        except Unreadable as reason:
            self._fail(str(reason))
            return
        self._apply(facts, None)
        self._answer.end_seen = True

    def _apply(self, facts: Facts, at_ns: int | None) -> None:
        self._read_usage()
        if not self._answer.take(facts, at_ns):
            self._fail("a choice's index is out of range")
        if facts.end:
            self._body = _Body.SKIP

    @property
    def _done(self) -> bool:
        """Nothing more is to be learnt from the body."""
        return self._body is _Body.SKIP

    def _fail(self, reason: str) -> None:
        self._plain = self._counting = self._ready = ()
        if self._answer.malformed is None:
            self._answer.malformed = reason
        self._body = _Body.SKIP
        self._buffer.clear()

    def _broken(self, error: Exception) -> None:
        # A fault of ours must not take the request with it; the class alone says nothing private.
        self._fail(f"could not be read ({type(error).__name__})")


def _decode(data: bytes) -> object:
    # As the standard has it: bytes that are no UTF-8 become U+FFFD. Control characters may stand in strings.
    return _DECODER.decode(data.decode("utf-8", "replace"))


def _is_json(data: bytes) -> bool:
    try:
        _decode(data)
    except (ValueError, RecursionError):
        return False
    return True
