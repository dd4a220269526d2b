"""Bulk recording leaves an HDR histogram exactly as recording each value by itself."""

from __future__ import annotations

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.requests.histogram import record_all

values = st.lists(
    st.one_of(
        st.integers(-5, 5_000),
        st.integers(0, 1 << 45),
        # The edges of every bucket, and their neighbours.
        st.builds(lambda power, step: (1 << power) + step, st.integers(0, 50), st.integers(-2, 2)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(values, min_size=1, max_size=3),
    st.sampled_from([(1, 3_600_000_000, 3), (1000, 10_000_000_000, 2), (1, 2_000_000, 1), (7, 10**9, 4)]),
)
def test_bulk_recording_equals_recording_one_by_one(
    batches: list[list[int]], shape: tuple[int, int, int]
) -> None:
    one_by_one, bulk = HdrHistogram(*shape), HdrHistogram(*shape)
    for batch in batches:
        recorded = sum(one_by_one.record_value(value) for value in batch)
        assert record_all(bulk, batch) == recorded
    assert list(bulk.counts) == list(one_by_one.counts)
    assert bulk.total_count == one_by_one.total_count
    assert bulk.min_value == one_by_one.min_value
    assert bulk.max_value == one_by_one.max_value


@pytest.mark.parametrize("share", [50, 90, 99, 99.9, 100])
def test_percentiles_of_a_bulk_recorded_histogram(share: float) -> None:
    one_by_one, bulk = HdrHistogram(1, 3_600_000_000, 3), HdrHistogram(1, 3_600_000_000, 3)
    gaps = [i * i % 40_009 for i in range(3_000)]
    for gap in gaps:
        one_by_one.record_value(gap)
    record_all(bulk, gaps)
    assert bulk.get_value_at_percentile(share) == one_by_one.get_value_at_percentile(share)


def test_nothing_recorded_changes_nothing() -> None:
    histogram = HdrHistogram(1, 1_000_000, 3)
    before = histogram.min_value, histogram.max_value
    assert record_all(histogram, []) == 0
    assert record_all(histogram, [-1, 1 << 60]) == 0
    assert (histogram.min_value, histogram.max_value, histogram.total_count) == (*before, 0)
