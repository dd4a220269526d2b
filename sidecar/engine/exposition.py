"""Parse one scrape of a metrics page: Prometheus text 0.0.4 / 1.0.0 and OpenMetrics 1.0.

Pure: bytes and headers in, a :class:`Page` out. A page that is cut, or that is no metrics page, raises
:class:`PageError` and yields nothing at all, because half a page would read as half the engines and a
number cut in the middle as a counter reset. A malformed line inside a whole page is skipped and named.

Speed comes from three observations. Most lines are ``series SPACE value`` with a series that the last
scrape already had, so a :class:`Parser` keeps a dictionary from the raw series text to its parsed form.
A line seen for the first time is nearly always in the plain form that one regular expression takes.
And comments hardly ever change, so they are compared and not parsed again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sidecar.engine.body import DEFAULT_MAX_BYTES, PageError, unpack

__all__ = ["Exemplar", "Page", "PageError", "Parser", "Series", "SkippedLine", "parse"]

_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created", "_info", "_gcount", "_gsum")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_BLANK = re.compile(r"[ \t]*")
_PLAIN = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*"(?:,(?=[a-zA-Z_])|,?(?=\})))*)\})?'
    r" ([0-9eE.+\-InfNa]+)"
)
_PLAIN_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"]*)"')
_ESCAPE = re.compile(r'\\[\\n"]')
_ESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan)", re.I
)
_WORDS = re.compile(r"[ \t]+")
_MAX_NAMED = 20


class Series:
    """A metric name and its labels. Treat as immutable; one object lives as long as its series is known."""

    __slots__ = ("_key", "labels", "name")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self.name = name
        self.labels = labels
        self._key: tuple[str, tuple[tuple[str, str], ...]] | None = None

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Name and sorted labels: the same for the same series, however its labels were ordered."""
        if self._key is None:
            self._key = (self.name, tuple(sorted(self.labels.items())))
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Series({self.name!r}, {dict(self.labels)!r})"


@dataclass(frozen=True, slots=True)
class Exemplar:
    """An OpenMetrics exemplar: a label set and the one observation it stands for. Never a sample."""

    labels: Mapping[str, str]
    value: float
    timestamp_s: float | None


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A malformed line of an otherwise whole page. ``number`` counts from 1."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the comment lines say: family name -> type, help, unit, exactly as on the page."""

    types: Mapping[str, str]
    helps: Mapping[str, str]
    units: Mapping[str, str]


class Page:
    """A whole, readable metrics page. ``series[i]`` has the value ``values[i]``.

    ``timestamps`` (seconds) and ``exemplars`` are sparse, by sample index. ``skipped_count`` counts all
    malformed lines, ``skipped`` names the first 20.
    """

    __slots__ = (
        "_by_name",
        "byte_count",
        "exemplars",
        "line_count",
        "metadata",
        "openmetrics",
        "series",
        "skipped",
        "skipped_count",
        "timestamps",
        "values",
    )

    def __init__(self, *, openmetrics: bool, byte_count: int, line_count: int) -> None:
        self.openmetrics = openmetrics
        self.byte_count = byte_count
        self.line_count = line_count
        self.series: list[Series] = []
        self.values: list[float] = []
        self.timestamps: dict[int, float] = {}
        self.exemplars: dict[int, Exemplar] = {}
        self.metadata = Metadata({}, {}, {})
        self.skipped: list[SkippedLine] = []
        self.skipped_count = 0
        self._by_name: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def samples(self) -> Iterator[tuple[Series, float]]:
        """Every sample in page order."""
        return zip(self.series, self.values, strict=True)

    @property
    def by_name(self) -> Mapping[str, list[int]]:
        """Sample name -> indices of its samples, in page order."""
        if self._by_name is None:
            index: dict[str, list[int]] = {}
            for i, one in enumerate(self.series):
                found = index.get(one.name)
                if found is None:
                    index[one.name] = [i]
                else:
                    found.append(i)
            self._by_name = index
        return self._by_name

    def family_of(self, sample_name: str) -> str:
        """The family a sample belongs to: the name its TYPE line uses, or the sample's own name."""
        types = self.metadata.types
        if sample_name in types:
            return sample_name
        for suffix in _SUFFIXES:
            if sample_name.endswith(suffix) and sample_name[: -len(suffix)] in types:
                return sample_name[: -len(suffix)]
        return sample_name

    def type_of(self, sample_name: str) -> str:
        """The declared type of the sample's family, ``"unknown"`` where the page declares none."""
        return self.metadata.types.get(self.family_of(sample_name), "unknown")


class Parser:
    """Parses the pages of one target, remembering its series from scrape to scrape. Not thread-safe."""

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: dict[str, Series] = {}
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
        comments = self._read(lines, page, broken_utf8)
        if page.skipped_count and not page.values:
            raise PageError(
                f"no metrics page: line {page.skipped[0].number}: {page.skipped[0].reason}", "not_metrics"
            )
        if comments != self._comments:
            self._metadata = _read_comments(comments)
            self._comments = comments
        page.metadata = self._metadata
        if len(self._known) > 2 * len(page.series) + 1000:
            # Series come and go (adapters, handlers): forget those that this page no longer has.
            alive = set(map(id, page.series))
            self._known = {k: s for k, s in self._known.items() if id(s) in alive}
        return page

    def _read(self, lines: list[str], page: Page, broken_utf8: bool) -> list[str]:
        known = self._known
        series, values = page.series, page.values
        add_series, add_value = series.append, values.append
        label_sets: dict[str, dict[str, str]] = {}
        comments: list[str] = []
        plain = _PLAIN.fullmatch
        for number, line in enumerate(lines, 1):
            if line[:1] == "#":
                comments.append(line)
                continue
            raw, _, number_text = line.rpartition(" ")
            one = known.get(raw)
            if one is not None and "_" not in number_text:
                try:
                    value = float(number_text)
                except ValueError:
                    pass  # the careful reader below says what is wrong with it
                else:
                    add_series(one)
                    add_value(value)
                    continue
            elif (match := plain(line)) is not None and not broken_utf8:
                name, label_text, number_text = match.groups()
                labels = label_sets.get(label_text or "")
                if labels is None:
                    labels = dict(_PLAIN_LABEL.findall(label_text)) if label_text else {}
                    if label_text and len(labels) != label_text.count('="'):
                        labels = None  # a label twice, or '="' inside a value: let the careful reader see
                    else:
                        label_sets[label_text or ""] = labels
                if labels is not None:
                    try:
                        value = float(number_text)
                    except ValueError:
                        pass
                    else:
                        one = known[raw] = Series(name, labels)
                        add_series(one)
                        add_value(value)
                        continue
            if not line or line.isspace():
                continue
            self._read_carefully(line, number, page)
        return comments

    def _read_carefully(self, line: str, number: int, page: Page) -> None:
        stripped = line.lstrip(" \t")
        if stripped.startswith("#"):
            return
        try:
            series_end, one, value, timestamp, exemplar = _read_line(line, page.openmetrics)
        except ValueError as error:
            page.skipped_count += 1
            if len(page.skipped) < _MAX_NAMED:
                page.skipped.append(SkippedLine(number, str(error)))
            return
        index = len(page.values)
        raw, _, rest = line.rpartition(" ")
        if series_end == len(raw) and rest:
            one = self._known.setdefault(raw, one)
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


def _read_comments(comments: list[str]) -> Metadata:
    types: dict[str, str] = {}
    helps: dict[str, str] = {}
    units: dict[str, str] = {}
    for line in comments:
        words = _WORDS.split(line.rstrip("\r"), 3)
        if len(words) < 3 or words[0] != "#":
            continue
        keyword, name = words[1], words[2]
        text = words[3] if len(words) > 3 else ""
        if keyword not in ("TYPE", "HELP", "UNIT"):
            continue
        if name.startswith('"'):
            quoted = _QUOTED.search(line)
            if quoted is None:
                continue
            name, text = _unescape(quoted.group(1)), line[quoted.end() :].strip(" \t\r")
        if keyword == "TYPE":
            types[name] = text.strip().lower() or "unknown"
        elif keyword == "UNIT":
            units[name] = text.strip()
        else:
            helps[name] = _unescape(text)
    return Metadata(types, helps, units)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPED[found.group(0)], text)


def _read_line(line: str, openmetrics: bool) -> tuple[int, Series, float, float | None, Exemplar | None]:
    """The careful reader: every legal spelling of a sample. Returns also where the series text ends."""
    if not line.isprintable() and any("\ud800" <= c <= "\udfff" for c in line):
        raise ValueError("bytes that are not UTF-8")
    at = _blank(line, 0)
    found = _NAME.match(line, at)
    name = ""
    if found is not None:
        name, at = found.group(), found.end()
    elif line[at : at + 1] != "{":
        raise ValueError("no metric name")
    labels: dict[str, str] = {}
    brace = _blank(line, at)
    if line[brace : brace + 1] == "{":
        quoted_name, labels, at = _read_labels(line, brace + 1, may_name=not name)
        name = name or quoted_name
    elif line[at : at + 1] not in (" ", "\t"):
        raise ValueError(f"unexpected {line[at : at + 1]!r} after the name" if at < len(line) else "no value")
    if not name:
        raise ValueError("no metric name")
    series_end = at
    sample_text, hash_mark, exemplar_text = line[at:].partition("#")
    words = sample_text.split()
    if not words:
        raise ValueError("no value")
    if len(words) > 2:
        raise ValueError("more than a value and a timestamp")
    value = _number(words[0])
    timestamp = None
    if len(words) == 2:
        # 0.0.4 gives milliseconds, OpenMetrics seconds.
        timestamp = _number(words[1]) / (1.0 if openmetrics else 1000.0)
    exemplar = _read_exemplar(exemplar_text) if hash_mark else None
    return series_end, Series(name, labels), value, timestamp, exemplar


def _read_labels(line: str, at: int, *, may_name: bool) -> tuple[str, dict[str, str], int]:
    name = ""
    labels: dict[str, str] = {}
    while True:
        at = _blank(line, at)
        if line[at : at + 1] == "}":
            return name, labels, at + 1
        found = _LABEL.match(line, at)
        quoted = None
        if found is not None:
            label, at = found.group(), found.end()
        else:
            quoted = _QUOTED.match(line, at)
            if quoted is None:
                raise ValueError("no label name where one should be")
            label, at = _unescape(quoted.group(1)), quoted.end()
        at = _blank(line, at)
        if line[at : at + 1] == "=":
            value = _QUOTED.match(line, _blank(line, at + 1))
            if value is None:
                raise ValueError(f"label {label[:40]!r} has no quoted value")
            if label in labels:
                raise ValueError(f"label {label[:40]!r} stands twice")
            labels[label] = _unescape(value.group(1))
            at = _blank(line, value.end())
        elif quoted is not None and may_name and not name and not labels:
            name = label
        else:
            raise ValueError(f"label {label[:40]!r} has no value")
        if line[at : at + 1] == ",":
            at += 1
        elif line[at : at + 1] != "}":
            raise ValueError("no comma or brace after a label")


def _read_exemplar(text: str) -> Exemplar:
    at = _blank(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("an exemplar without its label set")
    _, labels, at = _read_labels(text, at + 1, may_name=False)
    words = text[at:].split()
    if len(words) not in (1, 2):
        raise ValueError("an exemplar without its value")
    return Exemplar(labels, _number(words[0]), _number(words[1]) if len(words) == 2 else None)


def _blank(line: str, at: int) -> int:
    found = _BLANK.match(line, at)
    return found.end() if found is not None else at


def _number(text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is no number")
    return float(text)
