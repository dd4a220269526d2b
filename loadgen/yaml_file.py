"""YAML files of the user's, read so that every mistake is named by file, line and key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from sidecar.errors import SettingsError
from sidecar.user_yaml import parse_node, read_text, value_of


class Entry:
    """One value of a file, which knows where it stands. Its readers raise `SettingsError`."""

    def __init__(self, node: yaml.Node, file: str, key: str) -> None:
        self._node = node
        self._file = file
        self.key = key

    def wrong(self, what: str) -> NoReturn:
        """Raise the error that this value deserves."""
        raise SettingsError(
            f"{self._file}:{self._node.start_mark.line + 1}: {self.key or 'the file'}: {what}"
        )

    def mapping(self, known: Iterable[str]) -> dict[str, Entry]:
        """The entries by key; only known keys, each once."""
        if not isinstance(self._node, yaml.MappingNode):
            self.wrong("must be a mapping of keys to values")
        keys = list(known)
        found: dict[str, Entry] = {}
        for key_node, value_node in self._node.value:
            name = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "(a key that is no text)"
            if name not in keys:
                close = difflib.get_close_matches(name, keys, n=1)
                hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(keys)}"
                Entry(key_node, self._file, self._path(name)).wrong(f"is not known{hint}")
            if name in found:
                Entry(key_node, self._file, self._path(name)).wrong("stands twice")
            found[name] = Entry(value_node, self._file, self._path(name))
        return found

    def _path(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def items(self) -> list[Entry]:
        """The entries of a list."""
        if not isinstance(self._node, yaml.SequenceNode):
            self.wrong("must be a list")
        return [
            Entry(node, self._file, f"{self.key}[{number}]")
            for number, node in enumerate(self._node.value, 1)
        ]

    @property
    def plain(self) -> Any:
        """The value as YAML means it."""
        return value_of(self._node, f"{self._file}:{self._node.start_mark.line + 1}: {self.key}")

    def text(self) -> str:
        """A single value as it is written."""
        if not isinstance(self._node, yaml.ScalarNode) or not self._node.value:
            self.wrong("must be a single value")
        return str(self._node.value)

    def flag(self) -> bool:
        """True or false."""
        value = self.plain
        if not isinstance(value, bool):
            self.wrong(f"must be true or false, not {value!r}")
        return value

    def number(self, low: float, high: float, *, whole: bool = False) -> float:
        """A number between two limits."""
        value = self.plain
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or not low <= value <= high or (whole and value % 1):
            self.wrong(f"must be a {'whole ' * whole}number from {low:g} to {high:g}, not {value!r}")
        return float(value)


def read_yaml(path: Path) -> Entry:
    """The whole file as one entry. Raises `SettingsError` when it is missing, empty or no YAML."""
    root = parse_node(read_text(path), str(path))
    if root is None:
        raise SettingsError(f"{path}: is empty")
    return Entry(root, str(path), "")
