"""Text that servers and clients chose, made safe to be written anywhere: names for labels, generated text."""

from __future__ import annotations

_MAX_NAME_CHARS = 256


def sound(text: str) -> str:
    """The text as it can be encoded: halves of a character that came apart are joined, lone ones replaced.

    JSON may escape a character outside the basic plane as two halves, and a stream may cut between them; it
    may also hold a half that has no other, which no encoder takes.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def name_of(value: object, limit: int = _MAX_NAME_CHARS) -> str:
    """A name (model, finish reason) cut to ``limit`` characters, for it is kept and becomes a label; empty
    for what is no text."""
    return sound(value[:limit]) if isinstance(value, str) else ""


def shown(value: object) -> str:
    """A wrong value as an error message shows it: on one line, and short."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and not -(10**40) < value < 10**40:
        return "a number of very many digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
