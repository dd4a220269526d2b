"""Quantiles and shares: the shared cases, and that the truth always lies inside the bounds given."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.quantiles import quantile, within, without_one_token
from sidecar.engine.view import Histogram
from tests.support.engine_cases import cases, close


def histogram_of(buckets) -> Histogram:
    return Histogram(tuple(float(le) for le, _ in buckets), tuple(float(n) for _, n in buckets), None)


@pytest.mark.parametrize("case", cases("quantile"))
def test_quantile_case(case):
    histogram = histogram_of(case["input"]["buckets"])
    for q in case["input"]["q"]:
        want = case["expect"]["quantiles"][q]
        got = quantile(histogram, float(q))
        if want is None:
            assert got is None
            continue
        assert close(got.value, want["value"])
        assert got.at_least is want["at_least"]
        assert [got.low, got.high] == want["bucket"]


@pytest.mark.parametrize("case", cases("within"))
def test_within_case(case):
    share = within(histogram_of(case["input"]["buckets"]), case["input"]["bound"])
    assert close(share.low, case["expect"]["low"])
    assert close(share.high, case["expect"]["high"])


def test_the_last_edge_is_said_to_be_passed_not_measured():
    got = quantile(histogram_of([("640", 1), ("2560", 1), ("+Inf", 9)]), 0.99)
    assert got.text() == "above 2560 s"
    assert (
        quantile(histogram_of([("0.1", 0), ("0.25", 10), ("+Inf", 10)]), 0.5).text()
        == "0.175 s (0.1 to 0.25)"
    )


def test_within_names_the_edges_around_a_bound_that_is_none():
    histogram = histogram_of([("0.25", 5), ("0.5", 8), ("+Inf", 10)])
    share = within(histogram, 0.3)
    assert (share.below, share.above, share.exact) == (0.25, 0.5, False)
    assert within(histogram, 0.5).exact
    above = within(histogram, 0.7)
    assert (above.low, above.high, above.below, above.above) == (0.8, 1.0, 0.5, None)
    assert within(histogram, 0.1).low == 0.0
    assert within(histogram_of([("1", 0), ("+Inf", 0)]), 1.0) is None


def test_an_infinite_bound_holds_everything():
    assert within(histogram_of([("1", 3), ("+Inf", 4)]), math.inf).low == 1.0


def test_one_token_answers_are_taken_out_of_the_lowest_tpot_bucket():
    tpot = histogram_of([("0.01", 60), ("0.05", 90), ("+Inf", 100)])
    lengths = histogram_of([("1.0", 50), ("10.0", 80), ("+Inf", 100)])
    assert without_one_token(tpot, lengths).cumulative == (10, 40, 50)
    assert quantile(tpot, 0.5).high == 0.01  # what the zeros pretend
    assert quantile(without_one_token(tpot, lengths), 0.5).high == 0.05
    assert without_one_token(tpot, histogram_of([("2.0", 50), ("+Inf", 100)])) is None
    assert without_one_token(histogram_of([("0.01", 5), ("+Inf", 5)]), lengths) is None


def test_a_quantile_outside_0_to_1_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile(histogram_of([("1", 1), ("+Inf", 1)]), 1.5)


_edges = st.lists(st.floats(0.001, 1000), min_size=1, max_size=8, unique=True).map(sorted)
_values = st.lists(st.floats(0.0, 2000), min_size=1, max_size=60)


def observed(edges, values) -> Histogram:
    all_edges = (*edges, math.inf)
    return Histogram(all_edges, tuple(float(sum(v <= e for v in values)) for e in all_edges), sum(values))


@settings(max_examples=80, deadline=None)
@given(_edges, _values, st.floats(0, 1))
def test_the_true_quantile_lies_in_the_bucket_named(edges, values, q):
    got = quantile(observed(edges, values), q)
    ordered = sorted(values)
    rank = max(1, math.ceil(round(q * len(values), 9)))
    true = ordered[rank - 1]
    assert got.low <= true
    assert got.high is None or true <= got.high
    assert got.at_least is (got.high is None)
    assert got.low <= got.value
    assert got.high is None or got.value <= got.high


@settings(max_examples=80, deadline=None)
@given(_edges, _values, st.floats(0, 2000))
def test_the_true_share_lies_within_the_bounds_and_they_are_sharp(edges, values, bound):
    share = within(observed(edges, values), bound)
    true = sum(v <= bound for v in values) / len(values)
    assert share.low - 1e-12 <= true <= share.high + 1e-12
    if bound in edges:
        assert share.low == share.high
