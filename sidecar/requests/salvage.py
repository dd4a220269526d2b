"""What can still be read of a JSON object whose middle is missing: its first and its last members. Pure.

A long prompt makes a request body larger than what is kept of it. Clients put ``messages`` before or after
``model``, ``stream`` and ``n``; so what matters stands whole in the beginning or in the end.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TRIES = 16  # of places in the end where a member may begin; each costs one parse of the rest
_MEMBER = re.compile(
    rb'[,{][ \t\r\n]*(?="(?:model|stream|n|stream_options|echo|best_of|max_tokens|temperature)"[ \t\r\n]*:)'
)
_DECODER = json.JSONDecoder()


def cut_object(begin: bytes, end: bytes) -> dict[str, Any]:
    """Members of the object whose text begins with ``begin`` and ends with ``end``; those cut are left out.

    Of a name that comes twice the later one counts, as it does in JSON. Never raises ``ValueError``; deep
    nesting raises ``RecursionError``.
    """
    return _first_members(begin) | _last_members(end)


def _first_members(begin: bytes) -> dict[str, Any]:
    text = begin.decode("utf-8", "replace")
    found: dict[str, Any] = {}
    try:
        at = _skip(text, 0, "{")
        while True:
            name, at = _DECODER.raw_decode(text, _skip(text, at))
            value, at = _DECODER.raw_decode(text, _skip(text, at, ":"))
            at = _skip(text, at, ",")  # a number at the very end may be cut: it counts if more follows
            if isinstance(name, str):
                found[name] = value
    except ValueError:
        return found


def _skip(text: str, at: int, mark: str = "") -> int:
    """The place after blanks, ``mark`` and blanks. Raises ValueError where another character stands."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    if mark:
        if text[at : at + 1] != mark:
            raise ValueError(mark)
        return _skip(text, at + 1)
    return at


def _last_members(end: bytes) -> dict[str, Any]:
    """The longest row of whole members up to the object's end that begins with a known name.

    A quote inside a string is escaped, so what looks like a name is one; that it belongs to the outermost
    object shows in that the rest is exactly one object.
    """
    for number, place in enumerate(_MEMBER.finditer(end)):
        if number == _TRIES:
            break
        try:
            found = json.loads(b"{" + end[place.end() :])
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}
