"""Histograms in constant memory."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.derive.loghist import EdgeHistogram, LogHistogram, bucket_of, bucket_top_ns, with_edges

durations = st.integers(0, 40_000_000_000_000)


@given(durations)
@settings(max_examples=300, deadline=None)
def test_a_bucket_holds_its_value_to_within_two_percent(value: int) -> None:
    bucket = bucket_of(value)
    if value < 30_000_000_000_000:
        assert value - 1_000 < bucket_top_ns(bucket) <= value * (1 + 1 / 64) + 1_000
    assert bucket_of(bucket_top_ns(bucket)) == bucket


@given(st.lists(durations, min_size=2, max_size=50))
@settings(max_examples=100, deadline=None)
def test_buckets_keep_the_order(values: list[int]) -> None:
    assert [bucket_of(v) for v in sorted(values)] == sorted(bucket_of(v) for v in values)


@given(st.lists(st.integers(1_000, 10**12), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=150, deadline=None)
def test_quantiles_are_the_nearest_rank(values: list[int], share: float) -> None:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(1, math.ceil(share * len(values) - 1e-9)) - 1]
    (found,) = histogram.quantiles_s((share,))
    assert found is not None
    assert exact - 1_000 <= found * 1e9 + 1 <= exact * (1 + 1 / 64) + 1_001


@given(st.lists(durations, max_size=40), st.lists(durations, max_size=40))
@settings(max_examples=100, deadline=None)
def test_merging_is_the_same_as_counting_together(left: list[int], right: list[int]) -> None:
    a, b, both = LogHistogram(), LogHistogram(), LogHistogram()
    for values, histogram in ((left, a), (right, b), (left + right, both)):
        for value in values:
            histogram.add(value)
    a.merge(b)
    assert (a.counts, a.total, a.max_ns) == (both.counts, both.total, both.max_ns)


def test_nothing_recorded_has_no_quantile() -> None:
    assert LogHistogram().quantiles_s((0.5, 0.99)) == [None, None]


def test_a_value_on_an_edge_counts_below_it() -> None:
    histogram = EdgeHistogram((0.05, 0.1))
    for value_ns in (50_000_000, 50_000_001, 100_000_000, 100_000_001):
        histogram.add(value_ns)
    assert histogram.cumulative() == [1, 3, 4]
    assert math.isclose(histogram.sum_s, 0.300000002)


def test_slo_bounds_become_edges_once_and_in_order() -> None:
    assert with_edges((0.1, 0.5, 1.0), (0.5, 0.3, None, 0.0)) == (0.1, 0.3, 0.5, 1.0)


@given(st.lists(durations, max_size=60))
@settings(max_examples=100, deadline=None)
def test_counting_many_at_once_is_the_same(values: list[int]) -> None:
    one_by_one, at_once = LogHistogram(), LogHistogram()
    single, many = EdgeHistogram((0.001, 0.1, 5.0)), EdgeHistogram((0.001, 0.1, 5.0))
    for value in values:
        one_by_one.add(value)
        single.add(value)
    at_once.add_all(values)
    many.add_all(values)
    assert (at_once.counts, at_once.total, at_once.max_ns) == (
        one_by_one.counts,
        one_by_one.total,
        one_by_one.max_ns,
    )
    assert many.cumulative() == single.cumulative()
    assert math.isclose(many.sum_s, single.sum_s, abs_tol=1e-9)
