"""When a warm-up is over: a stated test on throughput and TTFT. Pure.

The last two spans of the warm-up are compared, each half as long as the shortest warm-up asked for, or a
third of what has passed where that is more (a queue that grows looks alike in short spans). The level is
steady when tokens per second and mean TTFT of the later span are within a fifth of the earlier one's.
Throughput may differ by what chance makes of so few requests (two standard errors of a count, at most 30 %),
TTFT by 20 ms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TOLERANCE = 0.2
TTFT_TOLERANCE_S = 0.02
# Fewer finished requests than this in a span say nothing.
FEWEST = 3
# A shorter warm-up is taken as it is: its halves hold too little to be compared.
SHORTEST_S = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What had been done by a moment of the level, all workers together."""

    at_s: float
    done: int
    tokens: int
    ttft_sum_s: float
    ttft_count: int


class Steady:
    """Takes readings during the warm-up; ``reached`` after any of them says whether the load has settled."""

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._readings = [Reading(0.0, 0, 0, 0.0, 0)]

    def add(self, reading: Reading) -> None:
        """Take one more reading, later than the last."""
        if reading.at_s > self._readings[-1].at_s:
            self._readings.append(reading)

    @property
    def reached(self) -> bool:
        """Whether the last two spans are alike."""
        last = self._readings[-1]
        span_s = max(self._shortest_s / 2, last.at_s / 3)
        middle = self._at(last.at_s - span_s, span_s / 10)
        first = self._at(last.at_s - 2 * span_s, span_s / 10)
        if middle is None or first is None:
            return False
        return alike(first, middle, last)

    def _at(self, at_s: float, slack_s: float) -> Reading | None:
        """The last reading no later than that moment, give or take the slack."""
        if at_s < -slack_s:
            return None
        fitting = [r for r in self._readings if r.at_s <= at_s + slack_s]
        return fitting[-1] if fitting else None


def alike(first: Reading, middle: Reading, last: Reading) -> bool:
    """The test itself, on the spans from ``first`` to ``middle`` and from there to ``last``."""
    before, after = middle.done - first.done, last.done - middle.done
    if min(before, after) < FEWEST:
        return False
    chance = 2 * math.sqrt(1 / before + 1 / after)
    rates = [
        (b.tokens - a.tokens) / (b.at_s - a.at_s) if b.at_s > a.at_s else 0.0
        for a, b in ((first, middle), (middle, last))
    ]
    if abs(rates[1] - rates[0]) > max(TOLERANCE, min(chance, 0.3)) * max(rates):
        return False
    counts = [middle.ttft_count - first.ttft_count, last.ttft_count - middle.ttft_count]
    if min(counts) < FEWEST:
        return True  # nothing streamed: throughput alone decides
    means = [
        (middle.ttft_sum_s - first.ttft_sum_s) / counts[0],
        (last.ttft_sum_s - middle.ttft_sum_s) / counts[1],
    ]
    return abs(means[1] - means[0]) <= max(TTFT_TOLERANCE_S, TOLERANCE * max(means))
