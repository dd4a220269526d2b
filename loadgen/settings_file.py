"""Settings from a YAML file: its keys are the command's flags, and flags on the command line win."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from loadgen.yaml_file import Entry, read_yaml
from sidecar.errors import UserError

FLAG = "--settings"


def with_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """The command line with the file's settings put before the flags given by hand, which come later and
    therefore win.

    Without ``--settings FILE`` the command line as it is. Raises `UserError` naming file, line and key.
    """
    words = list(argv)
    name = _file_named(words)
    command = next((word for word in words if not word.startswith("-")), None)
    if name is None or command is None:
        return words
    sub = _command_parser(parser, command)
    if sub is None or FLAG not in sub._option_string_actions:
        return words
    at = words.index(command) + 1
    given = {word.partition("=")[0] for word in words[at:] if word.startswith("--")}
    return [*words[:at], *_flags(sub, Path(name), given), *words[at:]]


def _file_named(words: Sequence[str]) -> str | None:
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == FLAG:
            if not after:
                raise UserError(f"{FLAG}: name the file")
            return after
        if word.startswith(f"{FLAG}="):
            return word.partition("=")[2]
    return None


def _command_parser(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser | None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser | None = action.choices.get(command)
            return found
    return None


def _flags(sub: argparse.ArgumentParser, path: Path, given: set[str]) -> list[str]:
    actions = {
        option.removeprefix("--"): action
        for option, action in sub._option_string_actions.items()
        if option.startswith("--") and option not in (FLAG, "--help")
    }
    # Of flags that exclude each other, the one given by hand puts the file's aside.
    put_aside: set[str] = set()
    for group in sub._mutually_exclusive_groups:
        options = {option for action in group._group_actions for option in action.option_strings}
        if options & given:
            put_aside |= options
    words: list[str] = []
    keys = [*actions, *(key.replace("-", "_") for key in actions if "-" in key)]
    for key, entry in read_yaml(path).mapping(keys).items():
        flag = "--" + key.replace("_", "-")
        if flag not in put_aside:
            words += _words(flag, actions[flag.removeprefix("--")], entry)
    return words


def _words(flag: str, action: argparse.Action, entry: Entry) -> list[str]:
    if action.nargs == 0:
        return [flag] if entry.flag() else []
    value = entry.plain
    if value is None:
        return []
    if flag == "--body" and isinstance(value, dict):
        text = json.dumps(value)
    elif flag == "--slo" and isinstance(value, dict):
        text = ",".join(f"{bound}={limit}" for bound, limit in value.items() if limit is not None)
    elif flag == "--levels" and isinstance(value, list):
        text = ",".join(str(load) for load in value)
    else:
        text = entry.text()
    if action.choices is not None and text not in action.choices:
        entry.wrong(f"must be one of {', '.join(map(str, action.choices))}, not {text!r}")
    if callable(action.type):
        try:
            action.type(text)
        except (argparse.ArgumentTypeError, ValueError) as error:
            entry.wrong(str(error))
    return [f"{flag}={text}"]
