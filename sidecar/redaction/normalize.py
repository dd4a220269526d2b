"""Second sights of a text, for detection only, each with a map back to the text as it was.

A value written with look-alike letters, full-width forms, invisible characters, odd blanks or dashes,
or behind JSON, percent or HTML escapes is the same value to a reader, so it must be to a pattern.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

# Letters of other scripts that a reader takes for Latin ones.
_LOOK_ALIKES = dict(
    zip(
        "АВЕЅІЈКМНОРСТУХԁЬаеорсухіјѕһԛԝӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧονρυχαικꓐꓑꓒ",
        "ABESIJKMHOPCTYXdbaeopcyxijshqwlABEZHIKMNOPTYXovpuxaikBPD",
        strict=True,
    )
)
_DASHES = "‐‑‒–—―−﹘﹣－⁃"
_DOTS = "。．｡․"
# Characters without width: they separate nothing a reader sees.
_INVISIBLE = (
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0),
    *range(0x0300, 0x0370),  # marks over the letter before: struck-through digits are digits
    *range(0x180B, 0x1810),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0x20D0, 0x20F1),
    *range(0xFE00, 0xFE10),
    *range(0xE0000, 0xE0080),
)


_UNSEEN = re.compile(f"[{''.join(map(chr, _INVISIBLE))}]+")


@functools.cache
def _folding() -> tuple[dict[int, str], frozenset[str], frozenset[str]]:
    """Table code point -> one ASCII character, its keys, and the invisible characters. Built once (40 ms)."""
    table: dict[int, str] = {}
    for span in (range(0xA0, 0x3400), range(0xA000, 0xAC00), range(0xF900, 0xFFF0), range(0x1D400, 0x1D800)):
        for code in span:
            char = chr(code)
            if (digit := unicodedata.digit(char, None)) is not None:
                table[code] = str(digit)
            elif char.isspace():
                table[code] = " "
            else:
                flat = unicodedata.normalize("NFKC", char)
                if len(flat) == 1 and flat.isascii() and flat.isprintable():
                    table[code] = flat
    table.update({ord(c): v for c, v in _LOOK_ALIKES.items()})
    table.update({ord(c): "-" for c in _DASHES})
    table.update({ord(c): "." for c in _DOTS})
    for line_end in (0x85, 0x2028, 0x2029):
        table[line_end] = "\n"
    for code in _INVISIBLE:
        table.pop(code, None)
    return table, frozenset(map(chr, table)), frozenset(map(chr, _INVISIBLE))


@dataclass(frozen=True, slots=True)
class View:
    """A text to search, and where each of its characters stood in the original.

    ``cuts`` holds (position in the view, position in the original, width in the original) of each
    replaced place in order; ``None`` means both texts have the same positions.
    """

    text: str
    cuts: tuple[tuple[int, int, int], ...] | None = None
    edges: tuple[int, ...] = ()  # first elements of cuts, for bisect
    of: View | None = None  # the view this one was made of; its positions are that one's

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Original [start, end) of the view's [start, end); an escape is taken whole or not at all."""
        if self.cuts is not None:
            start, end = self._original(start, first=True), self._original(end - 1, first=False) + 1
        return (start, end) if self.of is None else self.of.span(start, end)

    def _original(self, position: int, *, first: bool) -> int:
        assert self.cuts is not None
        at = bisect_right(self.edges, position) - 1
        if at < 0:
            return position
        view_at, original_at, width = self.cuts[at]
        if position == view_at and width:
            # A removed character has no place in the view, so this is a replaced one: take all of it.
            return original_at if first else original_at + width - 1
        return original_at + width + (position - view_at - (1 if width else 0))


def _replaced(text: str, places: Iterable[tuple[int, int, str]]) -> View:
    """The view of ``text`` with each (start, end, one character or none) put in, and its map."""
    pieces: list[str] = []
    cuts: list[tuple[int, int, int]] = []
    last = 0
    length = 0
    for start, end, new in places:
        pieces.append(text[last:start])
        length += start - last
        if new:
            cuts.append((length, start, end - start))
        else:  # removed: the next character of the view stands right behind it
            cuts.append((length, end, 0))
        pieces.append(new)
        length += len(new)
        last = end
    pieces.append(text[last:])
    return View("".join(pieces), tuple(cuts), tuple(c[0] for c in cuts))


_ESCAPE = re.compile(
    r"(?<!\\)\\++(?:u([dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2})|"
    r"u\{?([0-9a-fA-F]{4}|[0-9a-fA-F]{2,4}(?=\}))\}?|x([0-9a-fA-F]{2})|([nrtbf\"'/@.]))|%(?:25)*([0-7][0-9a-fA-F])|"
    r"(%(?:25)*[c-fC-F][0-9a-fA-F](?:%(?:25)*[89abAB][0-9a-fA-F]){1,3})|"
    r"&(?:#x0*([0-9a-fA-F]{2,4});|#0*([0-9]{2,4});?|(commat|period|nbsp|amp|quot|lt|gt|colon|hyphen);)"
)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "b": " ", "f": "\n"}
_ENTITY = {
    "commat": "@",
    "period": ".",
    "nbsp": " ",
    "amp": "&",
    "quot": '"',
    "lt": "<",
    "gt": ">",
    "colon": ":",
    "hyphen": "-",
}


def _unescaped(match: re.Match[str]) -> str:
    pair, u4, x2, plain, percent, several, hex_entity, dec_entity, named = match.groups()
    if plain is not None:
        return _CONTROL.get(plain, plain)
    if named is not None:
        return _ENTITY[named]
    if pair is not None:
        high, low = int(pair[:4], 16), int(pair[-4:], 16)
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    if several is not None:
        read = bytes.fromhex(re.sub(r"%(?:25)*", "", several)).decode("utf-8", errors="replace")
        return read if len(read) == 1 else " "
    digits, base = (dec_entity, 10) if dec_entity else (u4 or x2 or percent or hex_entity, 16)
    char = chr(int(digits, base))
    return " " if char == "\x00" or "\ud800" <= char <= "\udfff" else char


def views(text: str) -> list[View]:
    """The sights of ``text`` to be searched: folded, and unescaped too where it holds escapes.

    The first always exists; for plain ASCII without escapes it is the text itself at no cost.
    """
    folded = fold(text)
    if not ("\\" in text or "%" in text or "&" in text):
        return [folded]
    places = [(m.start(), m.end(), _unescaped(m)) for m in _ESCAPE.finditer(text)]
    if not places:
        return [folded]
    plain = _replaced(text, places)
    twice = fold(plain.text)
    return [folded, View(twice.text, twice.cuts, twice.edges, plain)]


def fold(text: str) -> View:
    """Look-alikes, full-width forms, blanks, dashes and digits as ASCII; invisible characters gone."""
    if text.isascii():
        return View(text)
    table, foldable, invisible = _folding()
    present = set(text)
    if not present.isdisjoint(invisible):
        view = _replaced(text, ((m.start(), m.end(), "") for m in _UNSEEN.finditer(text)))
        return View(view.text.translate(table), view.cuts, view.edges)
    if not present.isdisjoint(foldable):
        return View(text.translate(table))
    return View(text)
