"""The simulator's tokens: how it counts them in what it is asked, and what it answers.

A token is a run of at most twelve characters without white space. So "word word word" is three tokens, and
a prompt of n short words has n tokens: load generators can make prompts of exact length. The chat template
adds ``TOKENS_PER_MESSAGE`` for each message and ``TOKENS_TO_ANSWER`` once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

TOKENS_PER_MESSAGE = 3
TOKENS_TO_ANSWER = 1
VOCABULARY = 32_000

_PIECE = re.compile(r"\S{1,12}")

# One token each, and plain ASCII without quotes or backslashes: they go into JSON strings as they are.
_WORDS: tuple[str, ...] = tuple(
    _PIECE.findall(
        """
    the of and to in is that for it was on are as with be at one have this from by not but what all were
    when we there can an your which their said if do will each about how up out them then she many some
    so these would other into has more her two like him see time could no make than first been its who
    now people my made over
        """
    )
)
_STRIDE = 31  # shares no factor with the number of words: all come up before one comes twice


def count_tokens(text: str) -> int:
    return len(_PIECE.findall(text))


def token_ids(text: str) -> list[int]:
    """Stable made-up ids, one for each token."""
    return [crc32(piece.encode()) % VOCABULARY for piece in _PIECE.findall(text)]


def chat_tokens(contents: Sequence[str]) -> int:
    """Tokens of a conversation, template included."""
    return sum(count_tokens(content) + TOKENS_PER_MESSAGE for content in contents) + TOKENS_TO_ANSWER


def answer_token(start: int, number: int) -> str:
    """The ``number``-th token (from 1) of the answer whose seed is ``start``."""
    return " " + _WORDS[(start + number * _STRIDE) % len(_WORDS)]


def cut_at_stop(start: int, limit: int, stops: Sequence[str]) -> tuple[int, str, str] | None:
    """Where a stop string ends an answer of up to ``limit`` tokens: (tokens, text before it, the string).

    ``None`` where none of ``stops`` appears. The earliest end counts, as the engine would meet it.
    """
    text = ""
    for number in range(1, limit + 1):
        text += answer_token(start, number)
        found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            return number, text[:at], stop
    return None
