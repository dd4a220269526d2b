"""How long prompts and answers are: seeded draws of token counts. Pure but for `parse_lengths` of a file."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sidecar.errors import UserError

Shape = Literal["fixed", "uniform", "normal", "lognormal", "file"]
_HELP = "write 128, uniform:LOW-HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or file:PATH"
MAX_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts, each at least 1.

    ``a`` and ``b`` are: fixed (count, unused); uniform (low, high, both inclusive); normal (mean, standard
    deviation); lognormal (median, sigma of the logarithm); file (mean, unused): one of ``values``, which came
    from ``source``, is drawn, each as likely as the others. ``limit`` cuts every draw.
    """

    shape: Shape
    a: float
    b: float = 0.0
    limit: int = MAX_TOKENS
    values: tuple[int, ...] = ()
    source: str = ""

    def draw(self, rng: random.Random) -> int:
        """One token count between 1 and the limit."""
        if self.shape == "fixed":
            value = self.a
        elif self.shape == "uniform":
            value = rng.randint(int(self.a), int(self.b))
        elif self.shape == "normal":
            value = rng.gauss(self.a, self.b)
        elif self.shape == "file":
            value = rng.choice(self.values)
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
        if self.shape == "file":
            return f"file:{self.source}"
        return f"{self.shape}:{self.a:g}{'-' if self.shape == 'uniform' else ','}{self.b:g}"


def parse_lengths(text: str, flag: str) -> Lengths:
    """Read one distribution as written on the command line. Raises `UserError` naming ``flag``."""
    shape, colon, tail = text.partition(":")
    if not colon:
        shape, tail = "fixed", text
    if shape == "file":
        return _from_file(tail, flag)
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


def _from_file(name: str, flag: str) -> Lengths:
    """Token counts out of a text file, one a line."""
    values: list[int] = []
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{flag} file:{name}: cannot be read ({getattr(error, 'strerror', 'no text')})"
        ) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not line.strip().isdecimal() or not 1 <= int(line) <= MAX_TOKENS:
            raise UserError(f"{flag} {name}:{number}: must be a whole number from 1 to {MAX_TOKENS}")
        values.append(int(line))
    if not values:
        raise UserError(f"{flag} file:{name}: holds no length; write one whole number a line")
    return Lengths("file", sum(values) / len(values), values=tuple(values), source=name)
