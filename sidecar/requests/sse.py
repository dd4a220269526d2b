"""Server-sent events, by the WHATWG standard, from bytes cut anywhere. No I/O and no clock.

A line ends at CR, LF or CRLF; a lone CR ends its line at once, a LF right after it belongs to it. So an event
is complete with the first byte that can end its blank line, and never later.
"""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_LINE_COST = 48  # of memory for each data line beside its bytes: short lines without end are bounded too
_LINE_HEAD = 256  # bytes kept of a line too long to keep, enough for its field and an event's name
DEFAULT_MAX_EVENT_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One dispatched event. ``data`` joins its data lines with LF; ``oversize``: too large, data not kept."""

    name: bytes
    data: bytes
    oversize: bool = False


class SseParser:
    """Bytes in, events out. Keeps at most ``max_event_bytes`` (plus one read) of an unfinished event.

    Cost is linear in the bytes fed, whatever the sizes of the pieces.
    """

    __slots__ = ("_data", "_first", "_held", "_line", "_max", "_name", "_oversize", "_skip_lf", "junk")

    def __init__(self, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()  # the unfinished line
        self._data: list[bytes] = []
        self._held = 0  # bytes that _data takes
        self._name = b""
        self._oversize = False
        self._skip_lf = False
        self._first = True
        self.junk = False  # a line came that is no field of an event stream

    @property
    def idle(self) -> bool:
        """True between events: nothing unfinished is held, and whatever comes next begins a line."""
        return not (self._line or self._data or self._name or self._oversize or self._skip_lf)

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that these bytes complete, in order."""
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == 10:
                data = data[1:]
        if not data:
            return []
        lines = data.splitlines() if b"\r" in data else data.split(b"\n")
        if b"\r" in data:
            last = data[-1]
            self._skip_lf = last == 13
            if last == 13 or last == 10:
                lines.append(b"")  # splitlines drops the empty rest after a final line end
        rest = lines.pop()
        events: list[SseEvent] = []
        if lines and self._line:
            self._hold(lines[0])
            lines[0] = bytes(self._line)
            self._line.clear()
        for line in lines:
            self._take(line, events)
        if rest:
            self._hold(rest)
        return events

    def close(self) -> list[SseEvent]:
        """At the body's proper end: the event that lacks only its final line ends, if there is one."""
        events: list[SseEvent] = []
        if self._line:
            line = bytes(self._line)
            self._line.clear()
            self._take(line, events)
        if self._data or self._oversize:
            self._dispatch(events)
        return events

    def _hold(self, part: bytes) -> None:
        line = self._line
        # Too large only if the whole line will be found so too, for no cut may change that: all but 9 bytes
        # (a byte order mark and the field) are certainly data.
        if self._held + len(line) + len(part) - 9 + _LINE_COST > self._max:
            begin = line[:8] + part[:8]
            if (begin.removeprefix(_BOM) if self._first else begin).startswith(b"data:"):
                self._oversize = True
            # The line's beginning alone tells its field; the rest of it is not wanted.
            part = part[: max(0, _LINE_HEAD - len(line))]
        self._line += part

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data or self._oversize:
                self._dispatch(events)
            self._name = b""
            return
        if line.startswith(b"data:") or line == b"data":
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._held += len(value) + _LINE_COST
            if self._oversize or self._held > self._max:
                self._oversize = True
                self._data.clear()
                self._held = 0
            else:
                self._data.append(value)
        elif line.startswith(b"event:"):
            self._name = (line[7:] if line[6:7] == b" " else line[6:])[:128]
        elif line == b"event":
            self._name = b""
        elif not line.startswith((b":", b"id", b"retry")):
            self.junk = True  # to be passed over, by the standard

    def _dispatch(self, events: list[SseEvent]) -> None:
        data = b"\n".join(self._data) if len(self._data) != 1 else self._data[0]
        if data or self._oversize:
            events.append(SseEvent(self._name, b"" if self._oversize else data, self._oversize))
        self._data.clear()
        self._held = 0
        self._name = b""
        self._oversize = False
