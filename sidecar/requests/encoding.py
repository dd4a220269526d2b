"""Compressed bodies, read as they come, and the Retry-After header. Pure."""

from __future__ import annotations

import email.utils
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime

_GZIP = zlib.MAX_WBITS | 16
_PIECE_BYTES = 65_536
_BLOCK_BYTES = 4_096
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MAX_INFLATED_BYTES = 64 * 1024 * 1024


class Inflater:
    """gzip (of one member or several) or deflate, piece by piece. ``broken`` says why it stopped."""

    __slots__ = ("_between", "_done", "_gzip", "_head", "_known", "_left", "_zlib", "broken")

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._zlib = zlib.decompressobj(_GZIP)
        self._known = gzip
        self._head = b""  # of a "deflate" body, until its form is known
        self._left = _MAX_INFLATED_BYTES
        self._done = False
        self._between = False  # a gzip member has ended, another may follow
        self.broken = ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes that these complete, in pieces of at most 64 KiB."""
        if not self._known:
            self._head += data
            if len(self._head) < 2:
                return
            data, self._head = self._head, b""
            # "deflate" is zlib's form by the standard, a bare stream by some servers.
            self._known = True
            zlib_form = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS if zlib_form else -zlib.MAX_WBITS)
        # In blocks, for what follows a member's end is copied each time.
        for start in range(0, len(data), _BLOCK_BYTES):
            yield from self._inflate(data[start : start + _BLOCK_BYTES])

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        while not self.broken and not self._done:
            if self._between:
                if not data:
                    return
                # Padding with zeros, and whatever else is no gzip, is none of the body.
                self._between, self._done = False, data[0] != 0x1F
                self._zlib = zlib.decompressobj(_GZIP)
                continue
            try:
                piece = self._zlib.decompress(data, _PIECE_BYTES)
            except zlib.error:
                self.broken = "the compressed body cannot be read"
                return
            self._left -= len(piece)
            if self._left < 0:
                self.broken = "the compressed body is too large"
                return
            if piece:
                yield piece
            if self._zlib.eof:
                data = self._zlib.unused_data
                self._between, self._done = self._gzip, not self._gzip
                continue
            data = self._zlib.unconsumed_tail
            # A full piece may leave output inside the decompressor though all input is taken.
            if not data and len(piece) < _PIECE_BYTES:
                return


def inflater_for(content_encoding: str) -> tuple[Inflater | None, bool]:
    """An inflater for the header's value (``None``: plain), and whether the body can be read here at all."""
    names = [name.strip().lower() for name in content_encoding.split(",")]
    names = [name for name in names if name and name != "identity"]
    if not names:
        return None, True
    if names in (["gzip"], ["x-gzip"]):
        return Inflater(gzip=True), True
    if names == ["deflate"]:
        return Inflater(gzip=False), True
    return None, False


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Retry-After in seconds: its number, or its date less the answer's own Date. Never negative.

    Of dates all three forms of HTTP are taken, of numbers also those with a fraction, as some servers send.
    """
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until, now = _date(value), _date(date or "")
    return None if until is None or now is None else max(0.0, (until - now).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        found = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    # The form of C's asctime names no zone; all of HTTP's dates are UTC.
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
