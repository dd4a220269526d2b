from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.report.text import ABSENT, interval, number, percent, seconds, sentence, slo_bounds, stopped_text


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=1e-6, max_value=1e9))
def test_a_number_is_shown_within_its_digits(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=0.005)


@settings(max_examples=100, deadline=None)
@given(st.floats(min_value=1e-7, max_value=1e5))
def test_a_duration_is_shown_with_the_unit_it_has(value: float) -> None:
    shown, unit = seconds(value).split(" ")
    factor = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]
    assert float(shown.replace(",", "")) * factor == pytest.approx(value, rel=0.005)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1234567.0, "1,234,567"), (100.0, "100"), (0.5, "0.5"), (None, ABSENT), (math.nan, ABSENT)],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "100 %"),
        (0.9999, "> 99.9 %"),
        (0.9984, "99.8 %"),
        (0.0004, "< 0.1 %"),
        (0.0, "0 %"),
        (None, ABSENT),
        (math.nan, ABSENT),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(value: float | None, shown: str) -> None:
    assert percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.9996, "1 s"), (0.0, "0 ms"), (0.0005, "500 µs"), (None, ABSENT)]
)
def test_durations(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


def test_an_interval_that_is_not_known_is_a_dash() -> None:
    assert interval(None) == ABSENT
    assert interval((1.0, 2.5)) == "1 to 2.5"


def test_only_bounds_that_are_set_count() -> None:
    assert slo_bounds({"name": "x", "ttft_s": 1, "tpot_s": None, "e2e_s": True, "max_gap_s": 0.5}) == [
        ("TTFT", 1.0),
        ("longest gap", 0.5),
    ]


def test_a_reason_becomes_a_sentence() -> None:
    assert sentence(" goodput rises ") == "Goodput rises."
    assert sentence("It rises!") == "It rises!"
    assert sentence("") == ""


def test_why_a_sweep_ended_is_said_in_words() -> None:
    assert stopped_text("complete") == ""
    assert "budget was spent" in stopped_text("budget")
    assert stopped_text("the server died") == "The sweep ended early: the server died."
