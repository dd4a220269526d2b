"""The pattern file: loaded, compiled with RE2, and asked in one pass which patterns occur at all."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.errors import SettingsError
from sidecar.user_yaml import parse_value, read_text

try:
    import re2
except ImportError:  # the wheel is missing on this platform: nothing may be let through unseen
    re2 = None

PATTERN_FILE = Path(__file__).with_name("patterns.yaml")
_SET_MEMORY = 256 << 20  # bytes of automaton cache: a set that runs out would report no hit
_PATTERN_MEMORY = 32 << 20
# RE2 tells "out of memory" and "no hit" apart only in its log. A mark put behind every text must be
# found, else the search did not run to its end.
_MARK = b"\x00\x02\x00"


class EngineMissing(RuntimeError):
    """google-re2 cannot be imported. There is no slower stand-in: redaction must then drop the text."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One thing to look for. ``group`` is replaced; ``check`` names the confirmation ('' for none)."""

    id: str
    kind: str
    pattern: str
    check: str = ""
    group: int = 0


class PatternSet:
    """Compiled patterns. ``present(data)`` tells which occur, in linear time, without the GIL."""

    def __init__(self, version: str, patterns: tuple[Pattern, ...]) -> None:
        if re2 is None:
            raise EngineMissing("google-re2 is not installed")
        self.version = version
        self.patterns = patterns
        self._set = re2.Set.SearchSet(_options(_SET_MEMORY))
        self.compiled: list[Any] = []
        for entry in patterns:
            try:
                self.compiled.append(re2.compile(entry.pattern, _options(_PATTERN_MEMORY)))
                self._set.Add(entry.pattern)
            except re2.error as error:
                reason = error.args[0] if error.args else error
                reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
                raise SettingsError(f"redaction pattern {entry.id!r}: {reason}") from None
        self._mark = self._set.Add(r"\x00\x02\x00")
        self._set.Compile()

    def present(self, data: bytes) -> list[int]:
        """Indexes of the patterns that occur in ``data`` at least once.

        Raises:
            RuntimeError: the search gave up (memory), so nothing can be said about ``data``.
        """
        found: list[int] = self._set.Match(data + _MARK) or []
        if self._mark not in found:
            raise RuntimeError("the pattern search gave up")
        return [index for index in found if index != self._mark]


def _options(memory: int) -> Any:
    options = re2.Options()
    options.max_mem = memory
    options.log_errors = False
    return options


def load_patterns(path: Path = PATTERN_FILE) -> tuple[str, tuple[Pattern, ...]]:
    """(version, patterns) of a pattern file.

    Raises:
        SettingsError: the file is not readable or an entry is wrong; names file and entry.
    """
    raw = parse_value(read_text(path), str(path))
    if not isinstance(raw, dict) or not isinstance(raw.get("patterns"), list):
        raise SettingsError(f"{path}: wants a mapping with 'version' and a list 'patterns'")
    found: list[Pattern] = []
    for number, entry in enumerate(raw["patterns"], 1):
        try:
            found.append(Pattern(**entry))
        except TypeError:
            raise SettingsError(
                f"{path}: pattern {number}: wants the keys id, kind, pattern and perhaps check, group"
            ) from None
    return str(raw.get("version", "")), tuple(found)


@functools.cache
def default_patterns() -> tuple[str, tuple[Pattern, ...]]:
    """The product's own pattern file, read once."""
    return load_patterns()
