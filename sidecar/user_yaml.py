"""YAML files of the user's: whatever is wrong with one is said in one line that names file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sidecar.errors import SettingsError

_MAX_BYTES = 4 * 1024 * 1024


def read_text(path: str | Path) -> str:
    """A settings file's text. Raises SettingsError where it cannot be read, is no UTF-8 or beyond 4 MiB."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not UTF-8 text") from None
    if len(data) > _MAX_BYTES:
        raise SettingsError(f"{path}: is larger than 4 MiB; no file of settings is")
    return text


def parse_node(text: str, where: str) -> yaml.Node | None:
    """The text as YAML nodes, which know their lines; ``None`` where there is nothing. ``where`` names it in
    errors. Raises SettingsError."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None
    except RecursionError:
        raise SettingsError(f"{where}: is nested too deeply to be read") from None
    return node


def parse_value(text: str, where: str) -> Any:
    """The text as YAML means it: mappings, lists, texts, numbers. Raises SettingsError."""
    node = parse_node(text, where)
    return None if node is None else value_of(node, where)


def value_of(node: yaml.Node, where: str) -> Any:
    """A node as YAML means it. Raises SettingsError."""
    try:
        return yaml.SafeLoader("").construct_document(node)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None
    except RecursionError:
        raise SettingsError(f"{where}: is nested too deeply to be read") from None
    except (ValueError, OverflowError) as error:
        # What looks like a date and is none, or has a tag that its text does not fit.
        why = " ".join(str(error).split())
        raise SettingsError(f"{where}: holds a value that is none of its kind: {why}") from None


def _not_yaml(error: yaml.YAMLError, where: str) -> SettingsError:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark is not None else ""
    what = str(getattr(error, "problem", None) or error)
    return SettingsError(f"{where}{line}: is not YAML: {' '.join(what.split())}")
