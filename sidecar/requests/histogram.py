"""HDR histograms filled in bulk: a stream's gaps are gathered while it lives and recorded at its end.

``HdrHistogram.record_value`` of the hdrhistogram package costs more than the meter spends on a chunk. Here
each value's counter is worked out with a few integer operations, equal ones are counted together, and the
histogram is left exactly as if each value had been recorded by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hdrh.histogram import HdrHistogram


def record_all(histogram: HdrHistogram, values: Sequence[int]) -> int:
    """Record whole numbers in the histogram's unit; how many were recorded.

    Left out, as by ``record_value``, are negative ones and those above what the histogram can hold.
    """
    half = histogram.sub_bucket_half_count_magnitude
    unit = histogram.unit_magnitude
    mask = histogram.sub_bucket_mask
    # A value of b bits (at least those of the mask) lies in bucket b - bits, whose counters are
    # 2**(bucket + unit) apart; each bucket but the first has 2**half counters of its own.
    bits = half + 1 + unit
    indexes = [
        ((bucket := (value | mask).bit_length() - bits) << half) + (value >> (bucket + unit))
        if value >= 0
        else -1
        for value in values
    ]
    counts, limit = histogram.counts, histogram.counts_len
    recorded = 0
    for index, times in Counter(indexes).items():
        if 0 <= index < limit:
            counts[index] += times
            recorded += times
    if not recorded:
        return 0
    if recorded < len(values):
        values = [value for value, index in zip(values, indexes, strict=True) if 0 <= index < limit]
    histogram.total_count += recorded
    histogram.min_value = min(histogram.min_value, min(values))
    histogram.max_value = max(histogram.max_value, max(values))
    return recorded
