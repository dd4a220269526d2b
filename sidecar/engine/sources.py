"""Where a page for the command line comes from: a URL, a file, or stdin."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from sidecar.engine.body import PageError
from sidecar.engine.exposition import Page, parse
from sidecar.engine.scrape import ScrapeSettings, fetch_page
from sidecar.errors import UserError

_MOST_S = 1e11  # Unix time in milliseconds by mistake is more


@dataclass(frozen=True, slots=True)
class Source:
    """``text`` as the user wrote it; ``at_s`` when the page was taken, on any clock, where told."""

    text: str
    where: str
    at_s: float | None

    @property
    def is_url(self) -> bool:
        """True for http and https."""
        return self.where.startswith(("http://", "https://"))


def parse_source(text: str) -> Source:
    """``URL``, ``FILE``, ``FILE@SECONDS`` or ``-``."""
    if text.startswith(("http://", "https://")):
        return Source(text, text, None)
    where, at, seconds = text.rpartition("@")
    if at and where and not Path(text).exists():
        try:
            at_s = float(seconds)
        except ValueError:
            at_s = math.nan
        if not abs(at_s) <= _MOST_S:
            raise UserError(f"{text}: {seconds!r} after @ is no number of seconds")
        return Source(text, where, at_s)
    return Source(text, text, None)


def read_source(source: Source, timeout_s: float) -> tuple[Page, str | None]:
    """The page and, for a URL, the engine's version. Raises UserError naming the source and what is wrong."""
    if source.is_url:
        if not 0 < timeout_s <= _MOST_S:
            raise UserError(f"--timeout-s {timeout_s:g}: must be a number of seconds above 0")
        settings = ScrapeSettings(source.where, interval_s=2 * timeout_s, timeout_s=timeout_s)
        settings.check()
        snapshot, page = fetch_page(settings)
        if page is None:
            raise UserError(f"{source.where}: {snapshot.reason}")
        return page, snapshot.version
    try:
        body = sys.stdin.buffer.read() if source.where == "-" else Path(source.where).read_bytes()
    except OSError as error:
        raise UserError(f"{source.where}: {error.strerror or error}") from None
    # A file has no headers: its own first and last bytes have to tell.
    encoding = "gzip" if body[:2] == b"\x1f\x8b" else ""
    is_openmetrics = body.rstrip(b"\r\n").endswith(b"# EOF")
    try:
        return parse(
            body,
            content_encoding=encoding,
            content_type="application/openmetrics-text" if is_openmetrics else "",
        ), None
    except PageError as error:
        raise UserError(f"{source.where}: {error.reason}") from None
