"""Captured responses as files: a raw body, or JSON lines that know when each piece came."""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.errors import UserError
from sidecar.requests.records import Api, End
from sidecar.requests.text import shown

_MAX_BYTES = 256 * 1024 * 1024
_MAX_S = 1e9
# In generated text the quotes are escaped, so these are keys and values of the protocol itself.
_TELLING = (
    (Api.RESPONSES, re.compile(rb'"type": ?"response\.|"object": ?"response"')),
    (Api.CHAT, re.compile(rb'"object": ?"chat\.completion')),
    (Api.COMPLETIONS, re.compile(rb'"object": ?"text_completion')),
    (Api.MESSAGES, re.compile(rb'"type": ?"message(?:_start)?"')),
)
_KEYS = ("at_s", "data", "data_b64", "status", "headers", "end")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that came together, and when, in nanoseconds since the request."""

    at_ns: int
    data: bytes


@dataclass(slots=True)
class Capture:
    """One captured response. ``timed`` false: all times are 0 and mean nothing."""

    timed: bool
    pieces: list[Piece] = field(default_factory=list)
    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    end: End = End.EOF
    end_ns: int = 0


def read_capture(name: str) -> Capture:
    """Read a capture from a file (``-``: standard input). Raises UserError naming file and line."""
    where = "standard input" if name == "-" else name
    try:
        data = sys.stdin.buffer.read(_MAX_BYTES + 1) if name == "-" else _read(Path(name))
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise UserError(f"{where}: is larger than 256 MiB; no single response is")
    if not data.strip():
        raise UserError(
            f"{where}: is empty; it should hold a response's body or JSON lines with at_s and data"
        )
    return parse_capture(data, where)


def parse_capture(data: bytes, where: str) -> Capture:
    """A capture from its bytes; ``where`` names them in errors."""
    first = next(line for line in data.splitlines() if line.strip())
    head = _object(first)
    if head is None or not ("at_s" in head or "data_b64" in head):
        return Capture(False, [Piece(0, data)])
    capture = Capture(True)
    last_ns = 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        at = f"{where}:{number}"
        entry = _object(line)
        if entry is None:
            raise UserError(f'{at}: is no JSON object; each line should be {{"at_s": SECONDS, "data": TEXT}}')
        unknown = [key for key in entry if key not in _KEYS]
        if unknown:
            raise UserError(f"{at}: {shown(unknown[0])} is not known; known: {', '.join(_KEYS)}")
        at_ns = _at_ns(entry, at)
        if at_ns < last_ns:
            raise UserError(f"{at}: at_s is before that of the line above; times must not go back")
        last_ns = capture.end_ns = at_ns
        _take(capture, entry, at_ns, at)
    return capture


def guess_api(capture: Capture) -> Api:
    """Which API's answer this is, by the names that only it uses; chat when nothing tells."""
    body = b"".join(piece.data for piece in capture.pieces[:50])[:65_536]
    for api, told in _TELLING:
        if told.search(body):
            return api
    return Api.CHAT


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _at_ns(entry: dict[str, Any], at: str) -> int:
    value = entry.get("at_s")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MAX_S:
        raise UserError(
            f"{at}: at_s must be seconds since the request, from 0 to {_MAX_S:.0e}, not {shown(value)}"
        )
    return round(value * 1e9)


def _take(capture: Capture, entry: dict[str, Any], at_ns: int, at: str) -> None:
    if "status" in entry:
        status = entry["status"]
        if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
            raise UserError(f"{at}: status must be an HTTP status, not {shown(status)}")
        capture.status = status
    if "headers" in entry:
        headers = entry["headers"]
        if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
            raise UserError(f"{at}: headers must be an object of texts")
        capture.headers.extend(headers.items())
    if "end" in entry:
        try:
            capture.end = End(entry["end"])
        except ValueError:
            raise UserError(f"{at}: end must be one of {', '.join(End)}, not {shown(entry['end'])}") from None
    if "data" in entry and "data_b64" in entry:
        raise UserError(f"{at}: data and data_b64 both stand here; one is enough")
    if "data" in entry:
        if not isinstance(entry["data"], str):
            raise UserError(f"{at}: data must be a text")
        capture.pieces.append(Piece(at_ns, entry["data"].encode("utf-8", "surrogatepass")))
    elif "data_b64" in entry:
        try:
            capture.pieces.append(Piece(at_ns, base64.b64decode(entry["data_b64"], validate=True)))
        except (TypeError, ValueError, binascii.Error):
            raise UserError(f"{at}: data_b64 must be base64") from None
