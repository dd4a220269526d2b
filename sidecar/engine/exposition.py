"""Parse one scrape of a metrics page: Prometheus text 0.0.4 / 1.0.0 and OpenMetrics 1.0.

Pure: bytes and headers in, a :class:`Page` out. A page that is cut, or that is no metrics page, raises
:class:`PageError` and yields nothing at all, because half a page would read as half the engines and a
number cut in the middle as a counter reset. A malformed line inside a whole page is skipped and named.

Speed comes from three observations, each a way tried before the next. A page mostly has the very lines of
the last one with other numbers, so the texts before the numbers are compared as a whole. Else a line mostly
has a series that is known, so a dictionary leads from its text to its parsed form; and a new line mostly
differs from others only inside its quotes, so what stands outside them, its *shape*, is checked once. A page
with any other line is read line by line, by a reader that knows every legal spelling.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import cast

from sidecar.engine.body import DEFAULT_MAX_BYTES, PageError, unpack
from sidecar.engine.line import LABEL, NAME, read_comments, read_line
from sidecar.engine.page import Exemplar, Metadata, Page, Series, SkippedLine

__all__ = ["Exemplar", "Page", "PageError", "Parser", "Series", "SkippedLine", "parse"]

_MAX_NAMED = 20


class _Layout:
    """The lines of a page whose samples are all plain, without their numbers."""

    __slots__ = ("comment_mask", "comments", "sample_mask", "series", "texts")

    def __init__(
        self,
        comment_mask: list[bool],
        sample_mask: list[bool],
        comments: list[str],
        series: list[Series],
        texts: Sequence[str],
    ) -> None:
        self.comment_mask = comment_mask
        self.sample_mask = sample_mask
        self.comments = comments
        self.series = series
        self.texts = texts


class Parser:
    """Parses the pages of one target, remembering its series from scrape to scrape. Not thread-safe."""

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: dict[str, Series] = {}
        self._names: set[str] = set()  # metric names seen to be right
        # Label texts without their values, likewise, with the label names that stand there.
        self._shapes: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._layout: _Layout | None = None
        self._comments: list[str] = []
        self._metadata = Metadata({}, {}, {})

    def parse(
        self,
        body: bytes,
        *,
        content_type: str = "",
        content_encoding: str = "",
        content_length: int | None = None,
    ) -> Page:
        """Read one page. See :func:`parse` for arguments and errors."""
        data = unpack(body, content_encoding, content_length, self._max_bytes)
        openmetrics = _is_openmetrics(content_type)
        text, broken_utf8 = _decode(data)
        _refuse_other_pages(text)
        lines = text.split("\n")
        _refuse_cut(lines, openmetrics)
        if lines and not lines[-1]:
            lines.pop()
        page = Page(openmetrics=openmetrics, byte_count=len(data), line_count=len(lines))
        with _gc_paused():
            if not self._read_same_layout(lines, page) and not (
                not broken_utf8 and self._read_plain_lines(lines, page)
            ):
                self._read_any_lines(lines, page)
        page.metadata = self._metadata
        return page

    def _read_same_layout(self, lines: list[str], page: Page) -> bool:
        layout = self._layout
        if layout is None or len(lines) != len(layout.sample_mask):
            return False
        if list(compress(lines, layout.comment_mask)) != layout.comments:
            return False
        texts, numbers = _split(compress(lines, layout.sample_mask))
        if texts != layout.texts:
            return False
        values = _floats(numbers)
        if values is None:
            return False
        page.series, page.values = layout.series, values
        return True

    def _read_plain_lines(self, lines: list[str], page: Page) -> bool:
        comment_mask = [line[:1] == "#" for line in lines]
        sample_mask = [not is_comment for is_comment in comment_mask]
        texts, numbers = _split(compress(lines, sample_mask))
        values = _floats(numbers)
        if values is None:
            return False
        series = list(map(self._known.get, texts))
        if None in series and not self._make(texts, series):
            return False
        page.series, page.values = cast("list[Series]", series), values
        comments = list(compress(lines, comment_mask))
        self._take_comments(comments)
        self._layout = _Layout(comment_mask, sample_mask, comments, page.series, texts)
        self._forget(page)
        return True

    def _make(self, texts: Sequence[str], series: list[Series | None]) -> bool:
        """Fill in the series that are not known yet; false when one is not in the plain form."""
        known, names = self._known, self._names
        last_shape: list[str] = []
        label_names: tuple[str, ...] | None = ()
        for at, one in enumerate(series):
            if one is not None:
                continue
            text = texts[at]
            name, brace, tail = text.partition("{")
            if name not in names and not self._right_name(name):
                return False
            if not brace:
                series[at] = known[text] = Series(name, {})
                continue
            parts = tail.split('"')
            if not len(parts) % 2:
                return False  # a quote that nothing closes
            shape = parts[::2]
            if shape != last_shape:
                label_names = self._names_in(tuple(shape))
                last_shape = shape
            if label_names is None or "\\" in tail:
                return False
            series[at] = known[text] = Series(name, None, label_names, tail)
        return True

    def _read_any_lines(self, lines: list[str], page: Page) -> None:
        comments: list[str] = []
        for number, line in enumerate(lines, 1):
            if line[:1] == "#":
                comments.append(line)
            elif line and not line.isspace():
                text, _, number_text = line.rpartition(" ")
                one = self._known.get(text)
                values = _floats((number_text,)) if one is not None else None
                if one is not None and values is not None:
                    page.series.append(one)
                    page.values.append(values[0])
                else:
                    self._read_carefully(line, number, page)
        if page.skipped_count and not page.values:
            first = page.skipped[0]
            raise PageError(f"no metrics page: line {first.number}: {first.reason}", "not_metrics")
        self._take_comments(comments)
        self._layout = None
        self._forget(page)

    def _take_comments(self, comments: list[str]) -> None:
        if comments != self._comments:
            self._metadata = read_comments(comments)
            self._comments = comments

    def _forget(self, page: Page) -> None:
        """Series and shapes come and go (adapters, handlers): keep those of this page."""
        if len(self._known) > 2 * len(page.series) + 1000:
            alive = set(map(id, page.series))
            self._known = {text: one for text, one in self._known.items() if id(one) in alive}
        if len(self._shapes) + len(self._names) > 20_000:
            self._shapes.clear()
            self._names.clear()

    def _names_in(self, shape: tuple[str, ...]) -> tuple[str, ...] | None:
        """The names in a label text, split at its quotes, values left out; ``None`` when it is not plain or
        has a name twice."""
        known = self._shapes.get(shape)
        if known is not None:
            return known
        names = tuple(part.removesuffix("=").removeprefix(",") for part in shape[:-1])
        right = (
            bool(names)
            and shape[-1] in ("}", ",}")
            and len(set(names)) == len(names)
            and all(map(LABEL.fullmatch, names))
            and ",".join(f"{name}=" for name in names) == "".join(shape[:-1])
        )
        if not right:
            return None
        self._shapes[shape] = names
        return names

    def _right_name(self, name: str) -> bool:
        if NAME.fullmatch(name) is None:
            return False
        self._names.add(name)
        return True

    def _read_carefully(self, line: str, number: int, page: Page) -> None:
        stripped = line.lstrip(" \t")
        if stripped.startswith("#"):
            return
        try:
            series_end, one, value, timestamp, exemplar = read_line(line, page.openmetrics)
        except ValueError as error:
            page.skipped_count += 1
            if len(page.skipped) < _MAX_NAMED:
                page.skipped.append(SkippedLine(number, str(error)))
            return
        index = len(page.values)
        text, _, number_text = line.rpartition(" ")
        if series_end == len(text) and number_text:
            one = self._known.setdefault(text, one)
        page.series.append(one)
        page.values.append(value)
        if timestamp is not None:
            page.timestamps[index] = timestamp
        if exemplar is not None:
            page.exemplars[index] = exemplar


def parse(
    body: bytes,
    *,
    content_type: str = "",
    content_encoding: str = "",
    content_length: int | None = None,
) -> Page:
    """Read one page.

    ``body`` is the response body as it came over the wire (still compressed where ``content_encoding``
    says so), ``content_length`` the header's number. Raises :class:`PageError` for a cut page, a page
    that is no metrics page, and an encoding that cannot be read.
    """
    return Parser().parse(
        body, content_type=content_type, content_encoding=content_encoding, content_length=content_length
    )


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Thousands of small objects and not one cycle: the collector would walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _split(lines: Iterable[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Sample lines at their last blank: the texts before it and the numbers after it."""
    split = [line.rpartition(" ") for line in lines]
    if not split:
        return (), ()
    texts, _, numbers = zip(*split, strict=True)
    return texts, numbers


def _floats(numbers: Sequence[str]) -> list[float] | None:
    """``None`` when one is no number. Python reads ``1_000``, the format does not."""
    if "_" in "".join(numbers):
        return None
    try:
        return list(map(float, numbers))
    except ValueError:
        return None


def _is_openmetrics(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    if media == "application/openmetrics-text":
        return True
    if media in ("text/html", "application/xhtml+xml", "application/json", "application/problem+json"):
        raise PageError(f"no metrics page: Content-Type is {media}", "not_metrics")
    if media.startswith("application/vnd.google.protobuf"):
        raise PageError("the protobuf exposition format is not supported; ask for text/plain", "not_metrics")
    return False


def _decode(data: bytes) -> tuple[str, bool]:
    """Text and whether it holds bytes that are not UTF-8; those lines are malformed, the page is not."""
    try:
        return data.decode("utf-8"), False
    except UnicodeDecodeError:
        return data.decode("utf-8", errors="surrogateescape"), True


def _refuse_other_pages(text: str) -> None:
    start = text[:200].lstrip("﻿ \t\r\n")
    if start.startswith("<"):
        raise PageError("no metrics page: it looks like HTML or XML", "not_metrics")
    if start.startswith(("{", "[")):
        # OpenMetrics quotes UTF-8 names inside braces, so a brace alone proves nothing.
        try:
            json.loads(text)
        except RecursionError:
            pass  # brackets without end are no metrics either
        except ValueError:
            return
        raise PageError("no metrics page: it is JSON", "not_metrics")


def _refuse_cut(lines: list[str], openmetrics: bool) -> None:
    if openmetrics:
        end = len(lines) - 1
        while end >= 0 and not lines[end]:
            end -= 1
        last = lines[end] if end >= 0 else ""
        if last.rstrip("\r") != "# EOF":
            raise PageError("cut page: OpenMetrics without # EOF at its end", "cut")
    elif lines[-1]:
        raise PageError("cut page: the last line does not end with a newline", "cut")
