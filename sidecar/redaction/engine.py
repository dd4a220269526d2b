"""Find private values in a text and put a type in their place. Pure; the clock is passed in.

A text is searched window by window: short enough that no other thread waits long, overlapping far
enough that a value across an edge is seen whole in one of them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sidecar.errors import SettingsError
from sidecar.redaction.checks import CHECKS
from sidecar.redaction.normalize import View, fold, views
from sidecar.redaction.numbers import DEFAULT_REGIONS, known_region, warm_up
from sidecar.redaction.patterns import EngineMissing, Pattern, PatternSet, default_patterns

WINDOW = 8_192  # characters
OVERLAP = 2_048
LEFT = 64  # context to the left of a window: words that explain a number
BUDGET_NS_PER_CHAR = 2_000  # 200 ms of CPU for 100 kB: a list of nothing but telephone numbers
BUDGET_FLOOR_NS = 500_000_000  # a number of a new country loads its plan; a new alphabet grows the automaton

_SPECIFIC = (
    "PRIVATE_KEY",
    "DATA",
    "JWT",
    "API_KEY",
    "URL_CREDENTIALS",
    "IBAN",
    "CARD",
    "EMAIL",
    "NATIONAL_ID",
)
_DIGITS_64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]*")
_OPEN_ENDED = re.compile(r"[A-Za-z0-9+/=_.\\-]*")
_OPEN_KEY = re.compile(
    r"[A-Za-z0-9+/=:,. \t\r\n\\-]*?-----END [A-Z0-9 ]*PRIVATE KEY-----|[A-Za-z0-9+/=:,. \t\r\n\\-]*"
)
# Invented values, one for most checks.
_PROOF = (
    "é a＠b.example 4111 1111 1111 1111 DE89 3704 0044 0532 0130 00 x 12345678Z 10.1.2.3 fe80::1:2 "
    "00:1b:44:11:3a:b7 eyJhbGciOiJIUzI1NiJ9.eyJhIjoxfQ.c2ln password='hunter2hunter2' Bearer abcdef012345678 "
    "sk-A1b2C3d4E5f6G7h8I9j0 ghp_A1b2C3d4E5f6A1b2C3d4E5f6A1b2C3d4E5f6 AKIAABCDEFGHIJ234567 "
    "-----BEGIN PRIVATE KEY-----\\nMII"
)
_PROOF_KINDS = (
    "EMAIL",
    "CARD",
    "IBAN",
    "NATIONAL_ID",
    "IP",
    "MAC",
    "JWT",
    "SECRET",
    "API_KEY",
    "PRIVATE_KEY",
)


class Reason(StrEnum):
    """Why content was dropped instead of redacted. Exported as a label, so the set is closed."""

    ERROR = "error"
    BUDGET = "budget"
    UNDECODABLE = "undecodable"
    UNKNOWN_PART = "unknown_part"
    OVER_SIZE = "over_size"
    QUEUE_FULL = "queue_full"
    ENGINE_MISSING = "engine_missing"


class RedactionFailed(Exception):
    """Nothing of the text may leave. Carries a reason, never a piece of the text."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Hit:
    """[start, end) of the original text, what it is, and its value as folded (for the keyed hash)."""

    start: int
    end: int
    kind: str
    value: str = ""
    encoded: bool = False  # the run of base64 or hexadecimal digits in which the value was found


class Redactor:
    """Replaces what the patterns find.

    ``key``: secret bytes of at least 16; with it the replacement carries the first 8 hex digits of an
    HMAC-SHA-256 of the value, so that the same value gives the same token. Without it no hash is made.
    ``custom``: further patterns. ``deny``: words that must never leave, matched without regard to case.
    ``on_hit`` is told the kind of each value replaced.
    """

    def __init__(
        self,
        *,
        key: bytes | None = None,
        regions: Sequence[str] = DEFAULT_REGIONS,
        custom: Iterable[Pattern] = (),
        deny: Iterable[str] = (),
        patterns: tuple[str, tuple[Pattern, ...]] | None = None,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        if key is not None and len(key) < 16:
            raise SettingsError("redaction key: wants at least 16 bytes")
        for region in regions:
            if not known_region(region):
                raise SettingsError(
                    f"redaction regions: {region!r} is no region; wants codes such as US, GB, DE"
                )
        version, own = patterns or default_patterns()
        denied = tuple(
            Pattern(f"deny{i}", "DENIED", "(?i)" + re.escape(fold(word).text).replace("\\ ", " "))
            for i, word in enumerate(deny)
            if word.strip()
        )
        extra = (*own, *custom, *denied)
        for entry in extra:
            if entry.check and entry.check not in CHECKS:
                known = ", ".join(sorted(CHECKS))
                raise SettingsError(
                    f"redaction pattern {entry.id!r}: no check {entry.check!r}; there are {known}"
                )
        self._set = PatternSet(version, extra)
        self._regions = tuple(regions)
        self._key = key
        self._cpu_ns = cpu_ns
        self.on_hit: Callable[[str], object] | None = None
        self._prove()

    def _prove(self) -> None:
        """Load what the checks need, so that no request pays for it, and see that values are found at all.

        Raises:
            EngineMissing: the product's own patterns do not find what they must.
        """
        warm_up(self._regions)
        for pattern in self._set.compiled:
            pattern.search(_PROOF.encode())
        found: set[str] = set()
        for view in views(_PROOF):
            found.update(hit.kind for hit in self._view(view, ""))
        own = {entry.kind for entry in self._set.patterns}
        if missing := {kind for kind in _PROOF_KINDS if kind in own} - found:
            raise EngineMissing(f"the pattern engine does not find {', '.join(sorted(missing))}")

    @property
    def version(self) -> str:
        """Version of the pattern file."""
        return self._set.version

    def find(self, text: str, hint: str = "") -> list[Hit]:
        """What is private in ``text``, in order, without overlaps. ``hint``: the key it was stored under.

        Raises:
            RedactionFailed: too much CPU time was used (``budget``).
        """
        limit = BUDGET_FLOOR_NS + BUDGET_NS_PER_CHAR * len(text)
        began = self._cpu_ns()
        hits: list[Hit] = []
        for base in range(0, max(1, len(text)), WINDOW):
            left = max(0, base - LEFT)
            stop = min(len(text), base + WINDOW + OVERLAP)
            for hit in self._window(text[left:stop], hint):
                if left + hit.start < base and base:
                    if not hit.encoded or left + hit.end <= base:
                        continue  # seen, and seen whole, by the window before
                    hit = replace(hit, start=base - left)  # a run without end, of which only pieces are read
                end = left + hit.end
                if end == stop < len(text):
                    rest = (_OPEN_KEY if hit.kind == "PRIVATE_KEY" else _OPEN_ENDED).match(text, end)
                    end = rest.end() if rest else end
                hits.append(replace(hit, start=left + hit.start, end=end))
            if self._cpu_ns() - began > limit:
                raise RedactionFailed(Reason.BUDGET)
            if stop < len(text):
                time.sleep(0)  # gives up the GIL: no other thread waits longer than for one window
        return _merged(hits)

    def _window(self, text: str, hint: str) -> Iterable[Hit]:
        for view in views(text):
            yield from self._view(view, hint)

    def _view(self, view: View, hint: str) -> Iterable[Hit]:
        seen = view.text
        data = seen.encode("utf-8", errors="replace")
        plain = len(data) == len(seen)
        for index in self._set.present(data):
            entry = self._set.patterns[index]
            check = CHECKS.get(entry.check)
            byte_at = char_at = done = 0
            for match in self._set.compiled[index].finditer(data):
                start, end = match.span(entry.group)
                if start < 0 or start == end:
                    continue
                if not plain:
                    char_at += len(data[byte_at:start].decode("utf-8", errors="replace"))
                    byte_at = start
                    start, end = char_at, char_at + len(data[start:end].decode("utf-8", errors="replace"))
                if start < done:
                    continue  # inside what this pattern has found already, as are many markers in one key
                if entry.check == "encoded":
                    if inner := self._inside(seen[start:end]):
                        start, done = _run(seen, start, end)
                        yield Hit(*view.span(start, done), inner.kind, inner.value, encoded=True)
                    continue
                spans = check(seen, start, end, hint, self._regions) if check else ((start, end, ""),)
                for a, b, kind in spans:
                    done = b
                    yield Hit(*view.span(a, b), kind or entry.kind, seen[a:b])

    def _inside(self, written: str) -> Hit | None:
        """The first private value in what base64 or hexadecimal digits say, if that is text."""
        try:
            if written[:20].strip("0123456789abcdefABCDEF"):
                digits = written.replace("-", "+").replace("_", "/")
                data = base64.b64decode(digits[: len(digits) - (len(digits) % 4 == 1)] + "==")
            else:
                data = bytes.fromhex(written[: len(written) - len(written) % 2])
        except (ValueError, binascii.Error):
            return None
        return next(iter(self._window(data.decode("ascii", errors="replace"), "")), None)

    def text(self, text: str, hint: str = "") -> str:
        """``text`` with each private value replaced. Raises RedactionFailed."""
        return self.replaced(text, self.find(text, hint))

    def replaced(self, text: str, hits: Sequence[Hit]) -> str:
        """``text`` with ``hits`` (in order, apart) replaced by their tokens."""
        if not hits:
            return text
        pieces: list[str] = []
        at = 0
        for hit in hits:
            pieces.append(text[at : hit.start])
            pieces.append(self.token(hit.kind, hit.value))
            at = hit.end
        pieces.append(text[at:])
        return "".join(pieces)

    def token(self, kind: str, value: str) -> str:
        """``[KIND]``, or ``[KIND:h=........]`` where there is a key."""
        if self.on_hit is not None:
            self.on_hit(kind)
        if self._key is None:
            return f"[{kind}]"
        return f"[{kind}:h={self.digest(kind, canonical(kind, value))}]"

    def digest(self, kind: str, value: str | bytes) -> str:
        """The first 8 hex digits of HMAC-SHA-256 over kind and value; '' without a key."""
        if self._key is None:
            return ""
        raw = value.encode("utf-8", errors="replace") if isinstance(value, str) else value
        return hmac.new(self._key, kind.encode() + b"\0" + raw, hashlib.sha256).hexdigest()[:8]


def canonical(kind: str, value: str) -> str:
    """One spelling for each value, so that one value has one token."""
    if kind in ("CARD", "PHONE"):
        return "".join(c for c in value if c.isdigit())
    if kind in ("IBAN", "NATIONAL_ID", "MAC"):
        return "".join(c for c in value if c.isalnum()).upper()
    return value.lower() if kind == "EMAIL" else value


def _run(text: str, start: int, end: int) -> tuple[int, int]:
    """The whole run of such digits around what was read of it."""
    start -= len(text[:start]) - len(text[:start].rstrip(_DIGITS_64))
    rest = _ENCODED.match(text, end)
    return start, rest.end() if rest else end


def _merged(hits: list[Hit]) -> list[Hit]:
    """Overlapping hits become one over all of both, so that no piece of either stays."""
    hits.sort(key=lambda h: (h.start, -h.end))
    result: list[Hit] = []
    for hit in hits:
        if not result or hit.start >= result[-1].end:
            result.append(hit)
            continue
        last = result[-1]
        wider = last if _rank(last) <= _rank(hit) else hit
        result[-1] = Hit(last.start, max(last.end, hit.end), wider.kind, wider.value)
    return result


def _rank(hit: Hit) -> tuple[int, int]:
    place = _SPECIFIC.index(hit.kind) if hit.kind in _SPECIFIC else len(_SPECIFIC)
    return place, hit.start - hit.end
