"""HDR bucketing in bulk: a stream's gaps are gathered while it lives and counted at its end.

``HdrHistogram.record_value`` of the hdrhistogram package costs more than the meter spends on a chunk. Here
each value's counter is worked out with a few integer operations, equal ones are counted together, and the
histogram is left exactly as if each value had been recorded by itself. The load generator records so into
histograms of that package, the sidecar into its own sparse ones (``sidecar.derive.loghist``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram


def hdr_indexes(values: Iterable[int], half: int, unit: int = 0) -> list[int]:
    """The index of each value's counter: ``2**half`` equal steps within each power of two, the smallest
    ``2**unit``. ``values`` are 0 or more."""
    mask = ((2 << half) - 1) << unit
    # A value of b bits (at least those of the mask) lies in bucket b - bits, whose counters are
    # 2**(bucket + unit) apart; each bucket but the first has 2**half counters of its own.
    bits = half + 1 + unit
    return [
        ((bucket := (value | mask).bit_length() - bits) << half) + (value >> (bucket + unit))
        for value in values
    ]


def record_all(histogram: HdrHistogram, values: Sequence[int]) -> int:
    """Record whole numbers in the histogram's unit; how many were recorded.

    Left out, as by ``record_value``, are negative ones and those above what the histogram can hold.
    """
    if values and min(values) < 0:
        values = [value for value in values if value >= 0]
    indexes = hdr_indexes(values, histogram.sub_bucket_half_count_magnitude, histogram.unit_magnitude)
    counts, limit = histogram.counts, histogram.counts_len
    recorded = 0
    for index, times in Counter(indexes).items():
        if index < limit:
            counts[index] += times
            recorded += times
    if not recorded:
        return 0
    if recorded < len(values):
        values = [value for value, index in zip(values, indexes, strict=True) if index < limit]
    histogram.total_count += recorded
    histogram.min_value = min(histogram.min_value, min(values))
    histogram.max_value = max(histogram.max_value, max(values))
    return recorded
