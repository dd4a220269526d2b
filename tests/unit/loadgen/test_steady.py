"""The end of a warm-up: reached by what has settled, not by what grows, nor by too little to tell."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.steady import FEWEST, Reading, Steady, alike


def readings(rate_at: object, ttft_at: object, *, until_s: float, every_s: float = 0.5) -> list[Reading]:
    """A load whose requests of 10 tokens end at a rate and with a TTFT that depend on the time."""
    out, at_s, done, ttft = [], 0.0, 0.0, 0.0
    while at_s < until_s:
        at_s += every_s
        ended = rate_at(at_s) * every_s  # type: ignore[operator]
        done += ended
        ttft += ended * ttft_at(at_s)  # type: ignore[operator]
        out.append(Reading(at_s, int(done), 10 * int(done), ttft, int(done)))
    return out


def reached_after(shortest_s: float, rows: list[Reading]) -> float | None:
    steady = Steady(shortest_s)
    for row in rows:
        steady.add(row)
        if steady.reached:
            return row.at_s
    return None


def test_a_constant_load_is_steady_as_soon_as_it_can_be() -> None:
    assert reached_after(3, readings(lambda t: 50, lambda t: 0.1, until_s=20)) == 3.0


def test_throughput_that_ramps_is_waited_for() -> None:
    found = reached_after(3, readings(lambda t: 50 * min(1.0, t / 6), lambda t: 0.1, until_s=20))
    assert found is not None
    assert 5 <= found <= 14


def test_a_queue_that_grows_is_never_steady() -> None:
    assert reached_after(3, readings(lambda t: 50, lambda t: 0.3 * t, until_s=30)) is None


def test_ttft_that_falls_by_less_than_a_person_could_feel_does_not_hold_it_up() -> None:
    assert reached_after(3, readings(lambda t: 50, lambda t: 0.02 / t, until_s=9)) == 3.0


def test_too_few_requests_say_nothing() -> None:
    assert reached_after(3, readings(lambda t: 0.9, lambda t: 0.1, until_s=8)) is None


@settings(max_examples=50, deadline=None)
@given(rate=st.floats(8, 200), seed=st.integers(0, 10**6))
def test_chance_alone_does_not_keep_a_load_unsteady_for_long(rate: float, seed: int) -> None:
    rng = random.Random(seed)
    noisy = readings(lambda t: rate * rng.uniform(0.85, 1.15), lambda t: 0.1, until_s=15)
    found = reached_after(4, noisy)
    assert found is not None
    assert found <= 8


@pytest.mark.parametrize(("before", "after", "same"), [(100, 100, True), (100, 60, False), (2, 100, False)])
def test_the_test_itself(before: int, after: int, same: bool) -> None:
    first = Reading(0, 0, 0, 0, 0)
    middle = Reading(2, before, 10 * before, 0.0, 0)
    last = Reading(4, before + after, 10 * (before + after), 0.0, 0)
    assert alike(first, middle, last) is same
    assert FEWEST > 2
