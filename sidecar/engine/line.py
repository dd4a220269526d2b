"""The careful reader: every legal spelling of a sample line or comment, and what is wrong with the others."""

from __future__ import annotations

import re

from sidecar.engine.page import Exemplar, Metadata, Series

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_BLANK = re.compile(r"[ \t]*")
_ESCAPE = re.compile(r'\\[\\n"]')
_ESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan)", re.I
)


def read_comments(comments: list[str]) -> Metadata:
    """TYPE, HELP and UNIT lines; any other comment says nothing."""
    types: dict[str, str] = {}
    helps: dict[str, str] = {}
    units: dict[str, str] = {}
    for line in comments:
        words = line.split(None, 3)
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


def read_line(line: str, openmetrics: bool) -> tuple[int, Series, float, float | None, Exemplar | None]:
    """One sample line: where its series text ends, the series, value, timestamp in seconds, exemplar.

    Raises ``ValueError`` with what is wrong, in words that hold no more than 40 characters of the line.
    """
    if not line.isprintable() and any("\ud800" <= c <= "\udfff" for c in line):
        raise ValueError("bytes that are not UTF-8")
    at = _blank(line, 0)
    found = NAME.match(line, at)
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
        found = LABEL.match(line, at)
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
