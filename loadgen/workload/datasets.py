"""Prompts from files: JSON lines (``prompt`` or ``messages``) and ShareGPT's conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sidecar.errors import UserError

Dialogue = tuple[str, ...]  # what the user says, turn by turn
_USER = ("user", "human")


def read_prompts(name: str) -> tuple[Dialogue, ...]:
    """The dialogues of a file, one a line or one list of all; entries in which no user speaks are left out.

    Raises `UserError` naming file and line.
    """
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"prompts {name}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"prompts {name}: is not UTF-8 text") from None
    found = tuple(dialogue for where, value in _values(text, name) if (dialogue := _dialogue(value, where)))
    if not found:
        raise UserError(
            f"prompts {name}: holds no prompt; write one JSON object a line with prompt, messages or "
            "conversations"
        )
    return found


def _values(text: str, name: str) -> list[tuple[str, Any]]:
    try:
        if text.lstrip().startswith("["):
            return [(f"{name}: entry {number}", value) for number, value in enumerate(json.loads(text), 1)]
    except (ValueError, RecursionError) as error:
        raise UserError(f"prompts {name}: is not JSON ({error})") from None
    values = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                values.append((f"{name}:{number}", json.loads(line)))
            except (ValueError, RecursionError):
                raise UserError(f"prompts {name}:{number}: is not JSON") from None
    return values


def _dialogue(value: Any, where: str) -> Dialogue:
    if isinstance(value, str):
        return (value,) if value.strip() else ()
    if isinstance(value, dict):
        if isinstance(value.get("prompt"), str):
            return (value["prompt"],) if value["prompt"].strip() else ()
        for turns, who, what in (("messages", "role", "content"), ("conversations", "from", "value")):
            if isinstance(value.get(turns), list):
                return tuple(
                    turn[what]
                    for turn in value[turns]
                    if isinstance(turn, dict)
                    and turn.get(who) in _USER
                    and isinstance(turn.get(what), str)
                    and turn[what].strip()
                )
    raise UserError(f"prompts {where}: has neither prompt nor messages nor conversations")
