"""Prompts of a wanted token length, proven distinct, cheap enough to cut while the load runs.

A long river of words is drawn once. Each prompt starts with words that spell its own serial number, so that
no two prompts share their first tokens (a prefix cache works from the front and finds nothing), and goes on
with a slice of the river. How many tokens a word makes is measured on the server, not guessed: see
`Calibration`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

# Short, common English words: nearly all of them are one token in nearly every vocabulary.
WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government number
    night point home water room mother area money story fact month lot right study book eye job word
    business issue side kind head house service friend father power hour game line end member law
    car city name president team minute idea body information back parent face others level office
    door health person art war history party result change morning reason research girl guy moment
    air teacher force order
    """.split()  # noqa: SIM905 (a hundred quoted strings would be harder to read)
)
_RIVER_WORDS = 60_000
_SERIAL_WORDS = 5  # 100**5 distinct openings


@dataclass(frozen=True, slots=True)
class Calibration:
    """How words become tokens on this server: ``tokens = overhead + per_word * words``."""

    per_word: float = 1.0
    overhead: float = 0.0  # BOS and the chat template
    source: str = "assumed"  # "tokenize" (asked the server), or "assumed"
    ids: tuple[int, ...] = ()  # token ids that the server's vocabulary has, where they are needed

    def words_for(self, tokens: int) -> int:
        """How many words make a prompt of about so many tokens; at least one."""
        return max(1, round((tokens - self.overhead) / self.per_word))


def fit(samples: list[tuple[int, int]], source: str) -> Calibration:
    """Calibration through (words, tokens) pairs by least squares. Needs two different word counts."""
    n = len(samples)
    mean_w = sum(w for w, _ in samples) / n
    mean_t = sum(t for _, t in samples) / n
    spread = sum((w - mean_w) ** 2 for w, _ in samples)
    if spread <= 0:
        raise ValueError("a calibration needs prompts of different length")
    per_word = sum((w - mean_w) * (t - mean_t) for w, t in samples) / spread
    if per_word <= 0:
        return Calibration()
    return Calibration(per_word, mean_t - per_word * mean_w, source)


class PromptMaker:
    """Cuts prompts. The same seed, level and serial give the same text, on whichever worker."""

    def __init__(
        self, seed: int, calibration: Calibration, *, shared_tokens: int = 0, groups: int = 1
    ) -> None:
        rng = random.Random(f"prompts/{seed}")
        words = rng.choices(WORDS, k=_RIVER_WORDS)
        self._text = " " + " ".join(words) + " "
        starts = [0]
        for word in words:
            starts.append(starts[-1] + len(word) + 1)
        self._starts = starts
        self._calibration = calibration
        self._seed = seed
        self._first_serials: dict[int, int] = {}
        # Each shared prefix starts elsewhere in the river: no two of them begin alike but by a rare chance.
        shared_words = calibration.words_for(shared_tokens) if shared_tokens else 0
        starts_at = random.Random(f"groups/{seed}").sample(range(1, _RIVER_WORDS), groups - 1)
        self._shared = [self._slice(at, shared_words) for at in (0, *starts_at)] if shared_words else []
        self._shared_words = shared_words

    def _slice(self, first: int, count: int) -> str:
        """``count`` words of the river from word ``first`` on, going round at its end; starts with a
        space.
        """
        pieces = []
        while count > 0:
            taken = min(count, _RIVER_WORDS - first)
            pieces.append(self._text[self._starts[first] : self._starts[first + taken]])
            count -= taken
            first = 0
        return "".join(pieces)

    def prompt(self, tokens: int, level: int, serial: int, *, group: int | None = 0) -> str:
        """A prompt of about ``tokens`` tokens, unlike that of any other (level, serial) after the shared
        prefix of its group (where prefixes are shared; ``None``: it begins unlike all others).
        """
        shared = self._shared[group] if self._shared and group is not None else ""
        words = self._calibration.words_for(tokens) - (self._shared_words if shared else 0)
        opening = self._opening(level, serial)
        rest = max(0, words - len(opening))
        place = hash((self._seed, level, serial)) % _RIVER_WORDS
        return (shared + " " + " ".join(opening[: max(1, words)]) + self._slice(place, rest)).strip()

    def blocks(self, tokens: int, level: int, ids: Sequence[int], block_tokens: int) -> str:
        """A prompt of about ``tokens`` tokens made of blocks: equal ids are equal text within a level, and
        unlike any other.
        """
        each = max(1, round(block_tokens / self._calibration.per_word))
        left = self._calibration.words_for(tokens)
        pieces = []
        for block in ids:
            words = min(each, left)
            if words <= 0:
                break
            opening = self._opening(level, block)[:words]
            place = hash((self._seed, level, block, 2)) % _RIVER_WORDS
            pieces.append(" ".join(opening) + self._slice(place, words - len(opening)).rstrip())
            left -= words
        if left > 0:  # fewer blocks than the length asks for
            pieces.append(self._slice(hash((self._seed, level, tuple(ids))) % _RIVER_WORDS, left).strip())
        return " ".join(pieces)

    def _opening(self, level: int, serial: int) -> list[str]:
        # The seed is mixed in so that a second run against a warm server starts with other words too.
        first = self._first_serials.get(level)
        if first is None:
            rng = random.Random(f"{self._seed}/{level}")
            first = self._first_serials[level] = rng.randrange(len(WORDS) ** _SERIAL_WORDS)
        mixed = first + serial
        opening = []
        for _ in range(_SERIAL_WORDS):
            mixed, digit = divmod(mixed, len(WORDS))
            opening.append(WORDS[digit])
        return opening


class IdMaker:
    """Cuts prompts out of token ids of the server's own vocabulary: as long as asked for, to the token."""

    def __init__(self, seed: int, ids: Sequence[int], *, shared_tokens: int = 0, groups: int = 1) -> None:
        if len(ids) < 2:
            raise ValueError("prompts of token ids need at least two ids")
        rng = random.Random(f"ids/{seed}")
        self._ids = list(ids)
        self._river = rng.choices(self._ids, k=_RIVER_WORDS)
        self._shared = [rng.choices(self._ids, k=shared_tokens) for _ in range(groups)]
        self._seed = seed
        # As many ids as it takes to spell ten thousand million serial numbers.
        self._digits = math.ceil(10 / math.log10(len(self._ids)))

    def prompt(self, tokens: int, level: int, serial: int, *, group: int | None = None) -> bytes:
        """A JSON list of exactly ``tokens`` ids, unlike any other after the shared prefix of its group."""
        ids = list(self._shared[group]) if group is not None else []
        number = random.Random(f"{self._seed}/{level}").randrange(10**10) + serial
        for _ in range(self._digits):
            number, digit = divmod(number, len(self._ids))
            ids.append(self._ids[digit])
        place = hash((self._seed, level, serial)) % _RIVER_WORDS
        while len(ids) < tokens:
            ids += self._river[place : place + tokens - len(ids)]
            place = 0
        return b"[%b]" % ", ".join(map(str, ids[:tokens])).encode()
