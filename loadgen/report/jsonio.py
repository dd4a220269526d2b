"""report.json: a SweepReport to text and back, with errors that name the key.

The file is strict JSON: no NaN, no Infinity. An unknown value is ``null``; unknown *keys* are ignored, so a
report of a later version with the same ``format`` stays readable.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from loadgen.results import SweepReport
from sidecar.errors import UserError

FORMAT = 1
"""The only value of ``format`` that this version reads and writes."""

MAX_BYTES = 64 * 1024 * 1024
"""A report larger than this is refused: a sweep of 1000 levels stays under 2 MB."""


class ReportError(UserError):
    """A report file is missing, no JSON, or not a report; the message names file and key."""


def to_json(report: SweepReport) -> str:
    """The report as indented JSON with a final newline. Non-finite numbers become ``null``."""
    return json.dumps(_plain(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def from_json(text: str, source: str = "report") -> SweepReport:
    """Read what `to_json` wrote. Raises `ReportError` naming ``source`` and the key that is wrong."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as e:
        raise ReportError(
            f"{source}: line {e.lineno}: not JSON ({e.msg}); a report.json is expected"
        ) from None
    except (ValueError, RecursionError) as e:
        raise ReportError(f"{source}: not JSON ({e}); a report.json is expected") from None
    if not isinstance(data, dict) or "format" not in data or "levels" not in data:
        raise ReportError(f"{source}: not a sweep report (no 'format' and 'levels'); give a report.json")
    if data["format"] != FORMAT or isinstance(data["format"], bool):
        raise ReportError(f"{source}: format: this version reads {FORMAT}, the file has {data['format']!r}")
    report: SweepReport = _read(SweepReport, data, "", source)
    return report


def load(path: Path) -> SweepReport:
    """Read a report file. Raises `ReportError` when it cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ReportError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; not a sweep report")
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ReportError(f"{path}: cannot be read ({e.strerror}); give the report.json of a sweep") from None
    except UnicodeDecodeError:
        raise ReportError(f"{path}: not UTF-8 text; give the report.json of a sweep") from None
    return from_json(text, str(path))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        # A signal that has no finite value was not measured: leave it out rather than write a null series.
        return {str(k): _plain(v) for k, v in value.items() if not _non_finite(v)}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if _non_finite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def _non_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(kind: Any, value: Any, where: str, source: str) -> Any:
    """One JSON value as the annotated type; ``where`` is its path, for the error."""

    def wrong(expected: str) -> NoReturn:
        shown = json.dumps(value)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise ReportError(f"{source}: {where}: expected {expected}, found {shown}")

    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [a for a in args if a is not type(None)]
        return _read(inner, value, where, source)
    if origin is Literal:
        return value if value in args else wrong("one of " + ", ".join(map(str, args)))
    if origin is tuple:
        return _read_tuple(args, value, where, source, wrong)
    if origin is dict:
        if not isinstance(value, dict):
            wrong("an object")
        return {k: _read(args[1], v, f"{where}.{k}", source) for k, v in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_object(kind, value, where, source, wrong)
    return _read_scalar(kind, value, wrong)


def _read_tuple(args: tuple[Any, ...], value: Any, where: str, source: str, wrong: Any) -> Any:
    if not isinstance(value, list):
        wrong("a list")
    if args[-1] is Ellipsis:
        return tuple(_read(args[0], v, f"{where}[{i}]", source) for i, v in enumerate(value))
    if len(value) != len(args):
        wrong(f"a list of {len(args)}")
    return tuple(
        _read(a, v, f"{where}[{i}]", source) for i, (a, v) in enumerate(zip(args, value, strict=True))
    )


def _read_object(kind: type, value: Any, where: str, source: str, wrong: Any) -> Any:
    if not isinstance(value, dict):
        wrong("an object")
    hints, found = _hints(kind), {}
    for f in dataclasses.fields(kind):
        path = f"{where}.{f.name}" if where else f.name
        if f.name in value:
            found[f.name] = _read(hints[f.name], value[f.name], path, source)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ReportError(f"{source}: {path}: missing; was the file written by goodput-loadgen?")
    return kind(**found)


def _read_scalar(kind: Any, value: Any, wrong: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float:
        return float(value) if number else wrong("a number")
    if kind is int:
        return value if number and isinstance(value, int) else wrong("a whole number")
    if kind is bool:
        return value if isinstance(value, bool) else wrong("true or false")
    return value if isinstance(value, str) else wrong("a text")
