"""From a response body as it came over the wire to the bytes of the page, or the reason why not."""

from __future__ import annotations

import zlib

DEFAULT_MAX_BYTES = 64 * 1024 * 1024


class PageError(Exception):
    """A scrape whose page cannot be used at all. ``code`` is a short, bounded word for metrics labels:
    ``cut``, ``not_metrics``, ``encoding`` or ``too_large``."""

    def __init__(self, reason: str, code: str = "not_metrics") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def unpack(body: bytes, content_encoding: str, content_length: int | None, max_bytes: int) -> bytes:
    """Undo the content encoding. Raises :class:`PageError` for a cut, foreign or oversized body."""
    if content_length is not None and len(body) < content_length:
        raise PageError(f"cut page: {len(body)} of {content_length} bytes", "cut")
    for encoding in reversed([e.strip().lower() for e in content_encoding.split(",") if e.strip()]):
        if encoding == "identity":
            continue
        if encoding in ("gzip", "x-gzip"):
            body = _inflate(body, 31, max_bytes)
        elif encoding == "deflate":
            body = _inflate(body, 15, max_bytes)
        else:
            raise PageError(f"Content-Encoding {encoding[:40]!r} is not supported", "encoding")
    if len(body) > max_bytes:
        raise PageError(f"page larger than {max_bytes} bytes", "too_large")
    return body


def _inflate(body: bytes, window_bits: int, max_bytes: int) -> bytes:
    out: list[bytes] = []
    room = max_bytes
    while True:
        inflater = zlib.decompressobj(window_bits)
        try:
            out.append(inflater.decompress(body, room + 1))
        except zlib.error as error:
            raise PageError("the compressed body cannot be unpacked", "encoding") from error
        room -= len(out[-1])
        if room < 0:
            raise PageError(f"page larger than {max_bytes} bytes once unpacked", "too_large")
        if not inflater.eof:
            raise PageError("cut page: the compressed body ends too early", "cut")
        body = inflater.unused_data
        if not body:  # gzip allows several members, one after the other
            return b"".join(out)
