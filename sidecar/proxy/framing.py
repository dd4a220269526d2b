"""Where an HTTP/1.1 message body ends: pure, sans-I/O, one small class for each way to frame a body.

``feed(data)`` takes the next received bytes and returns how many of them belong to this body (all of them,
unless the body ends inside ``data``). Afterwards ``payload`` holds the content of those bytes with the
transfer coding taken off, and ``done`` says whether the body is complete. Nothing is changed in what is
forwarded: the caller sends on the bytes as they came, ``payload`` is only for whoever looks on. Framing
rules: RFC 9112, sections 6 and 7, read strictly (no bare CR or LF, no sign, prefix or blank in a size).
"""

from __future__ import annotations

import re
from typing import Protocol

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t\x20-\x7e\x80-\xff]*")
# Fields that would change how a message is framed or routed have no place behind the body (RFC 9110, 6.5.1).
_NOT_IN_TRAILERS = frozenset({b"content-length", b"transfer-encoding", b"host", b"connection", b"upgrade"})
MAX_SIZE_LINE = 1024
MAX_TRAILERS = 16 * 1024


class FramingError(Exception):
    """The body breaks the chunked coding; the message says how."""


class Body(Protocol):
    """What the four framings have in common."""

    done: bool
    payload: bytes

    def feed(self, data: bytes) -> int:
        """Take ``data``; return how many of its bytes are part of this body. Raises FramingError."""
        ...


class NoBody:
    """A message without a body (204, 304, answers to HEAD, requests without a length)."""

    __slots__ = ("done", "payload")

    def __init__(self) -> None:
        self.done = True
        self.payload = b""

    def feed(self, data: bytes) -> int:
        """Nothing belongs to it."""
        return 0


class LengthBody:
    """A body of ``Content-Length`` bytes."""

    __slots__ = ("_left", "done", "payload")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.payload = b""

    def feed(self, data: bytes) -> int:
        """Count down."""
        size = len(data)
        if size > self._left:
            size = self._left
            data = data[:size]
        self._left -= size
        self.payload = data
        self.done = self._left == 0
        return size


class UntilClose:
    """An answer that ends where the connection ends; ``done`` never turns true by itself."""

    __slots__ = ("done", "payload")

    def __init__(self) -> None:
        self.done = False
        self.payload = b""

    def feed(self, data: bytes) -> int:
        """All of it."""
        self.payload = data
        return len(data)


_SIZE, _DATA, _DATA_END, _TRAILER = range(4)
_WHOLE_MAX = 4 * 1024


class _WholeChunks(dict[int, bytes | tuple[()]]):
    """Length of a piece that is exactly one chunk -> the size line it must begin with.

    A streaming server sends a token as one piece, which is one plain chunk; its length alone tells the only
    size line it can have. So that case is decided by a look-up and two comparisons, without parsing. Where no
    chunk has that length, or only a large one, it is the empty tuple: nothing starts with one of no lines.
    """

    def __missing__(self, length: int) -> bytes | tuple[()]:
        line: bytes | tuple[()] = ()
        for digits in range(1, 5):
            size = length - digits - 4
            if size > 0 and len(b"%x" % size) == digits and length <= _WHOLE_MAX:
                line = b"%x\r\n" % size
        if length <= _WHOLE_MAX:
            self[length] = line
        return line


WHOLE_CHUNKS = _WholeChunks()


class ChunkedBody:
    """A body in the chunked transfer coding, with extensions and trailers."""

    __slots__ = ("_left", "_line", "_state", "_trailers", "done", "payload")

    def __init__(self) -> None:
        self._state = _SIZE
        self._line = b""  # an unfinished size line, chunk end or trailer line
        self._left = 0
        self._trailers = 0
        self.done = False
        self.payload = b""

    def feed(self, data: bytes) -> int:
        """Follow the coding. The common case, one whole chunk in one piece, takes no loop."""
        if self._state == _SIZE and not self._line:
            line = WHOLE_CHUNKS[len(data)]
            if data.startswith(line) and data.endswith(b"\r\n"):
                self.payload = data[len(line) : -2]
                return len(data)
        return self._walk(data)

    @property
    def between_chunks(self) -> bool:
        """True when the next byte begins a size line."""
        return self._state == _SIZE and not self._line

    def _walk(self, data: bytes) -> int:
        pieces: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self._state == _DATA:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _DATA_END
                continue
            line, at = self._take_line(data, at)
            if line is None:
                break
            if self._state == _SIZE:
                self._left = _size_of(line)
                self._state = _DATA if self._left else _TRAILER
            elif self._state == _DATA_END:
                if line:
                    raise FramingError("chunk data is longer than its size")
                self._state = _SIZE
            elif line:
                self._check_trailer(line)
            else:
                self.done = True
                break
        self.payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return at

    def _take_line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """The line that ends at or after ``at`` without its CRLF, or None if its end has not come yet."""
        limit = 2 if self._state == _DATA_END else MAX_TRAILERS if self._state == _TRAILER else MAX_SIZE_LINE
        newline = data.find(b"\n", at, at + limit + 2)
        if newline < 0:
            self._line += data[at : at + limit + 2]
            if len(self._line) >= limit:
                raise FramingError("a line of the chunked coding is too long")
            if b"\r" in self._line[:-1] or (self._state == _DATA_END and self._line != b"\r"):
                raise FramingError("chunk data is longer than its size, or a bare CR")
            return None, len(data)
        line = self._line + data[at : newline + 1]
        self._line = b""
        if not line.endswith(b"\r\n"):
            raise FramingError("bare LF in the chunked coding")
        return line[:-2], newline + 1

    def _check_trailer(self, line: bytes) -> None:
        self._trailers += len(line) + 2
        match = _TRAILER_LINE.fullmatch(line)
        if match is None or self._trailers > MAX_TRAILERS:
            raise FramingError("bad trailer")
        if match[1].lower() in _NOT_IN_TRAILERS:
            raise FramingError("a framing field among the trailers")


def _size_of(line: bytes) -> int:
    match = _SIZE_LINE.fullmatch(line)
    if match is None or len(line) > MAX_SIZE_LINE:
        raise FramingError("bad chunk size")
    return int(match[1], 16)
