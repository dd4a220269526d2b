"""Compressed bodies, read as they come, and the Retry-After header. Pure."""

from __future__ import annotations

import email.utils
import zlib
from collections.abc import Iterator

_PIECE_BYTES = 65_536
_MAX_INFLATED_BYTES = 64 * 1024 * 1024


class Inflater:
    """gzip or deflate, piece by piece. ``broken`` says why it stopped, if it did."""

    __slots__ = ("_done", "_head", "_left", "_zlib", "broken")

    def __init__(self, wbits: int | None) -> None:
        self._zlib = None if wbits is None else zlib.decompressobj(wbits)
        self._head = b""  # of a "deflate" body, until its form is known
        self._left = _MAX_INFLATED_BYTES
        self._done = False
        self.broken = ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes that these complete, in pieces of at most 64 KiB."""
        if self._zlib is None:
            self._head += data
            if len(self._head) < 2:
                return
            data = self._head
            # "deflate" is zlib's form by the standard, a bare stream by some servers.
            zlib_form = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS if zlib_form else -zlib.MAX_WBITS)
        while not self.broken and not self._done:
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
            self._done = self._zlib.eof
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
        return Inflater(zlib.MAX_WBITS | 16), True
    if names == ["deflate"]:
        return Inflater(None), True
    return None, False


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Retry-After in seconds: its number, or its date less the answer's own Date. Never negative."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    if date is None:
        return None
    try:
        wait = email.utils.parsedate_to_datetime(value) - email.utils.parsedate_to_datetime(date)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return max(0.0, wait.total_seconds())
