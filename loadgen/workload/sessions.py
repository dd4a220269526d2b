"""A conversation: each request carries what was said before, the server's own answers included."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadgen.workload.datasets import Dialogue

if TYPE_CHECKING:
    from loadgen.workload.spec import PreparedRequest, RequestMaker

# How a chat body's only message begins and ends in JSON; what lies between is the request's own.
_OPEN = '[{"role": "user", "content": '
_CLOSE = "}]"


class Session:
    """One user's conversation. The same maker, level and serial number give the same user turns."""

    def __init__(
        self,
        maker: RequestMaker,
        opening: str,
        rng: random.Random,
        *,
        turns: int,
        dialogue: Dialogue = (),
        context_tokens: int | None = None,
    ) -> None:
        self._maker = maker
        self._rng = rng
        self._turns = min(turns, len(dialogue)) if dialogue else turns
        self._dialogue = dialogue
        self._messages: list[dict[str, str]] = [{"role": "user", "content": opening}]
        self._context_tokens = context_tokens
        self._turn = 0

    def next(self, answer: str | None) -> PreparedRequest | None:
        """The next turn's request, after this answer (``None`` before the first); ``None`` when all is said
        or the conversation has outgrown the model's context (by count of words, so about).
        """
        if self._turn:
            if self._turn >= self._turns:
                return None
            self._messages.append({"role": "assistant", "content": answer or ""})
            self._messages.append({"role": "user", "content": self._says()})
        asked = self._maker.workload.output_tokens.draw(self._rng)
        if self._turn and self._context_tokens is not None:
            words = sum(len(message["content"].split()) for message in self._messages)
            if self._maker.tokens_of(words) + asked > self._context_tokens:
                return None
        self._turn += 1
        content = json.dumps(self._messages)[len(_OPEN) : -len(_CLOSE)]
        return self._maker.prepared(content.encode(), asked, turn=self._turn)

    def _says(self) -> str:
        if self._dialogue:
            return self._dialogue[self._turn]
        tokens = self._maker.workload.prompt_tokens.draw(self._rng)
        return self._maker.words(tokens, self._rng)

    def think_s(self) -> float:
        """How long the user thinks before the next turn: exponential about the workload's mean."""
        mean_s = self._maker.workload.think_s
        return self._rng.expovariate(1 / mean_s) if mean_s > 0 else 0.0


def picked(dialogues: Sequence[Dialogue], seed: int, level: int, serial: int) -> Dialogue:
    """The dialogue of a serial number: in order from a place that each level draws anew, starting over."""
    return dialogues[
        (random.Random(f"dialogues/{seed}/{level}").randrange(len(dialogues)) + serial) % len(dialogues)
    ]
