"""A base-2 exponential histogram as OTLP defines it: no edges to choose, a bounded number of buckets.

At scale s the bucket i holds (base**i, base**(i + 1)] with base = 2 ** 2**-s. Where values spread over more
than ``most`` buckets the scale falls by one and neighbours are joined.
"""

from __future__ import annotations

import math

LARGEST_SCALE = 20
_SMALLEST_SCALE = -10


class ExponentialHistogram:
    """Counts of values of 0 or more, of any unit. ``counts`` from bucket ``offset`` on."""

    __slots__ = ("count", "counts", "max", "min", "most", "offset", "scale", "sum", "zeros")

    def __init__(self, most: int = 160) -> None:
        self.most = most
        self.scale = LARGEST_SCALE
        self.offset = 0
        self.counts: list[int] = []
        self.zeros = 0
        self.count = 0
        self.sum = 0.0
        self.min = math.inf
        self.max = -math.inf

    def add(self, value: float) -> None:
        """Count one value; one that is negative, infinite or NaN is passed over."""
        if not (0.0 <= value < math.inf):
            return
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        if value == 0.0:
            self.zeros += 1
            return
        index = bucket_of(value, self.scale)
        while not self._reaches(index):
            self._coarser()
            index = bucket_of(value, self.scale)
        if not self.counts:
            self.offset = index
        if index < self.offset:
            self.counts[:0] = [0] * (self.offset - index)
            self.offset = index
        if index >= self.offset + len(self.counts):
            self.counts.extend([0] * (index - self.offset - len(self.counts) + 1))
        self.counts[index - self.offset] += 1

    def _reaches(self, index: int) -> bool:
        if not self.counts or self.scale <= _SMALLEST_SCALE:
            return True
        first = min(index, self.offset)
        last = max(index, self.offset + len(self.counts) - 1)
        return last - first < self.most

    def _coarser(self) -> None:
        self.scale -= 1
        first = self.offset >> 1
        joined = [0] * (((self.offset + len(self.counts) - 1) >> 1) - first + 1)
        for place, count in enumerate(self.counts):
            joined[((self.offset + place) >> 1) - first] += count
        self.offset, self.counts = first, joined


def bucket_of(value: float, scale: int) -> int:
    """The bucket of a value above 0. Upper bounds belong to their bucket."""
    fraction, exponent = math.frexp(value)  # value = fraction * 2**exponent, fraction in [0.5, 1)
    if scale <= 0:
        # The power of two below the value, values that are one belong to the bucket under it.
        power = exponent - 1 - (1 if fraction == 0.5 else 0)
        return power >> -scale
    if fraction == 0.5:
        return ((exponent - 1) << scale) - 1
    return math.ceil((math.log2(fraction) + exponent) * (1 << scale)) - 1
