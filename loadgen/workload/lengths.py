"""How long prompts and answers are: seeded draws of token counts. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from sidecar.errors import UserError

Shape = Literal["fixed", "uniform", "normal", "lognormal"]
_HELP = "write 128, uniform:LOW-HIGH, normal:MEAN,SD or lognormal:MEDIAN,SIGMA"
MAX_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts, each at least 1.

    ``a`` and ``b`` are: fixed (count, unused); uniform (low, high, both inclusive); normal (mean, standard
    deviation); lognormal (median, sigma of the logarithm). ``limit`` cuts every draw.
    """

    shape: Shape
    a: float
    b: float = 0.0
    limit: int = MAX_TOKENS

    def draw(self, rng: random.Random) -> int:
        """One token count between 1 and the limit."""
        if self.shape == "fixed":
            value = self.a
        elif self.shape == "uniform":
            value = rng.randint(int(self.a), int(self.b))
        elif self.shape == "normal":
            value = rng.gauss(self.a, self.b)
        else:
            value = self.a * math.exp(min(rng.gauss(0.0, self.b), 50.0))
        return max(1, min(self.limit, round(value)))

    @property
    def mean(self) -> float:
        """The mean before rounding and cutting."""
        if self.shape == "uniform":
            return (self.a + self.b) / 2
        if self.shape == "lognormal":
            return self.a * math.exp(self.b**2 / 2)
        return self.a

    def __str__(self) -> str:
        if self.shape == "fixed":
            return f"{self.a:g}"
        return f"{self.shape}:{self.a:g}{'-' if self.shape == 'uniform' else ','}{self.b:g}"


def parse_lengths(text: str, flag: str) -> Lengths:
    """Read one distribution as written on the command line. Raises `UserError` naming ``flag``."""
    shape, colon, tail = text.partition(":")
    if not colon:
        shape, tail = "fixed", text
    separator = "-" if shape == "uniform" else ","
    wanted = 1 if shape == "fixed" else 2
    try:
        numbers = [float(part) for part in tail.split(separator)]
    except ValueError:
        numbers = []
    if len(numbers) != wanted or any(not math.isfinite(n) or n < 0 or n > MAX_TOKENS for n in numbers):
        raise UserError(f"{flag} {text}: {_HELP}")
    first, second = numbers[0], numbers[-1] if wanted == 2 else 0.0
    if first < 1 or (shape == "uniform" and second < first):
        raise UserError(f"{flag} {text}: lengths must be at least 1 token and LOW at most HIGH; {_HELP}")
    if shape == "fixed":
        return Lengths("fixed", first)
    if shape == "uniform":
        return Lengths("uniform", first, second)
    if shape == "normal":
        return Lengths("normal", first, second)
    if shape == "lognormal":
        return Lengths("lognormal", first, second)
    raise UserError(f"{flag} {text}: {_HELP}")
