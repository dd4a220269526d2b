"""The ask/tell search: what it asks, when it stops, how near it comes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.results import LevelResult
from loadgen.search import Levels, PeakSearch, parse_levels
from sidecar.errors import UserError
from tests.support.levels import level


def drive(search: PeakSearch, measure: Callable[[float], LevelResult], limit: int = 60) -> list[float]:
    asked: list[float] = []
    while (load := search.ask()) is not None:
        asked.append(load)
        assert len(asked) <= limit, f"does not end: {asked}"
        search.tell(measure(load))
    return asked


def tent(peak_load: float, height: float) -> Callable[[float], float]:
    """Rises in proportion up to the peak, then falls in proportion, to zero at three times the peak."""
    return lambda load: (
        height
        * (load / peak_load if load <= peak_load else max(0.0, 1 - (load - peak_load) / (2 * peak_load)))
    )


def test_a_range_is_doubled_and_its_end_included() -> None:
    assert parse_levels("1..32", whole=True).grid == [1, 2, 4, 8, 16, 32]
    assert parse_levels("3..20", whole=True).grid == [3, 6, 12, 20]
    assert parse_levels("8,2,2", whole=True).grid == [2, 8]
    assert parse_levels("0.5..2", whole=False).grid == [0.5, 1, 2]


@pytest.mark.parametrize(
    "text", ["", "a..b", "0..4", "4..1", "1..2..3", "1.5", "-1,2", "1,,2", "nan", "inf..3"]
)
def test_bad_levels_are_named(text: str) -> None:
    with pytest.raises(UserError, match="--levels"):
        parse_levels(text, whole=True)


def test_a_fixed_list_is_measured_as_it_stands() -> None:
    search = PeakSearch(parse_levels("1,2,4", whole=True))
    assert drive(search, lambda load: level(load, load)) == [1, 2, 4]
    assert search.stopped == "complete"
    assert search.remaining() == (0, 0)


@settings(max_examples=80, deadline=None)
@given(peak_load=st.floats(1, 64), height=st.floats(0.5, 500))
def test_a_noiseless_tent_is_found_within_three_percent(peak_load: float, height: float) -> None:
    """Throughput in proportion to load up to the peak and flat from there, goodput falling from there."""
    truth = tent(peak_load, height)
    best = max(truth(load) for load in range(1, 65))
    search = PeakSearch(parse_levels("1..64", whole=True))

    def measure(load: float) -> LevelResult:
        done = height * min(1, load / peak_load)
        return level(load, truth(load), attainment=truth(load) / done, throughput_rps=done)

    drive(search, measure)
    peak = search.result()
    assert peak.load is not None
    assert truth(peak.load) >= 0.97 * best


@settings(max_examples=40, deadline=None)
@given(peak_load=st.floats(2, 40))
def test_a_server_whose_throughput_collapses_is_found_nearly(peak_load: float) -> None:
    truth = tent(peak_load, 10.0)
    search = PeakSearch(parse_levels("1..128", whole=True))
    drive(search, lambda load: level(load, truth(load)))
    peak = search.result()
    assert peak.load is not None
    assert truth(peak.load) >= 0.9 * max(truth(load) for load in range(1, 65))


@settings(max_examples=80, deadline=None)
@given(knee=st.floats(1, 64), rate=st.floats(0.1, 20), steepness=st.floats(0.5, 30))
def test_a_server_that_saturates_is_found_within_three_percent(
    knee: float, rate: float, steepness: float
) -> None:
    """Throughput rises and levels off; attainment holds and then falls, gently or off a cliff."""

    def throughput(load: float) -> float:
        return rate * load / (1 + load / 20)

    def share(load: float) -> float:
        return 1 / (1 + (load / knee) ** (2 * steepness))

    best = max(throughput(load) * share(load) for load in range(1, 65))
    search = PeakSearch(parse_levels("1..64", whole=True))

    def measure(load: float) -> LevelResult:
        good = throughput(load) * share(load)
        return level(load, good, attainment=share(load), throughput_rps=throughput(load))

    asked = drive(search, measure)
    peak = search.result()
    assert peak.load is not None
    assert throughput(peak.load) * share(peak.load) >= 0.97 * best
    assert len(set(asked)) <= 18


@settings(max_examples=40, deadline=None)
@given(peak_rate=st.floats(0.5, 100), seed=st.integers(0, 1000))
def test_a_noisy_rate_search_comes_near_and_ends(peak_rate: float, seed: int) -> None:
    rng = random.Random(seed)
    truth = tent(peak_rate, peak_rate)

    def measure(load: float) -> LevelResult:
        seen = max(0.0, truth(load) * rng.gauss(1, 0.01))
        return level(load, seen, kind="rate", ci=(seen * 0.98, seen * 1.02))

    search = PeakSearch(parse_levels("0.25..256", whole=False), whole=False)
    drive(search, measure)
    peak = search.result()
    assert peak.load is not None
    assert truth(peak.load) >= 0.9 * peak_rate


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_same_answers_lead_to_the_same_questions(seed: int) -> None:
    def asked() -> list[float]:
        rng = random.Random(seed)
        return drive(
            PeakSearch(parse_levels("1..64", whole=True)),
            lambda load: level(load, rng.uniform(0, 10), valid=rng.random() > 0.2),
        )

    assert asked() == asked()


def test_levels_far_beyond_the_fall_are_not_measured() -> None:
    asked = drive(PeakSearch(parse_levels("1..1024", whole=True)), lambda load: level(load, tent(8, 8)(load)))
    assert max(asked) <= 64


def test_an_slo_that_cannot_be_met_ends_the_search_early() -> None:
    search = PeakSearch(parse_levels("1..1024", whole=True))
    assert drive(search, lambda load: level(load, 0.0, attainment=0.0)) == [1, 2, 4]
    assert "SLO cannot be met" in search.stopped
    assert search.result().load is None


def test_an_invalid_level_is_tried_once_more_and_then_left_alone() -> None:
    search = PeakSearch(parse_levels("1..32", whole=True))
    asked = drive(search, lambda load: level(load, load, valid=load < 8))
    assert asked.count(8) == 2
    assert max(asked) == 8, "a generator that cannot hold 8 will not hold 16"
    peak = search.result()
    assert peak.load is not None
    assert peak.load < 8
    assert not peak.bracketed


def test_noise_is_answered_with_repeats_up_to_a_limit() -> None:
    search = PeakSearch(Levels(low=4, high=6))
    asked = drive(search, lambda load: level(load, 10.0, ci=(9.0, 11.0)))
    assert all(asked.count(load) <= 3 for load in asked)
    assert any(asked.count(load) > 1 for load in asked)


def test_the_number_of_levels_is_bounded() -> None:
    search = PeakSearch(parse_levels("1..1024", whole=True), max_levels=4)
    assert len(drive(search, lambda load: level(load, load))) == 4
    assert search.stopped == "the limit of 4 levels was reached"


def test_without_repeats_each_load_is_asked_for_once_and_the_search_is_satisfied() -> None:
    rng = random.Random(3)
    shape = tent(17, 8.0)
    search = PeakSearch(parse_levels("4..64", whole=True), max_repeats=1)
    noisy = lambda load: level(load, shape(load) * rng.uniform(0.95, 1.05), ci=(0.0, 20.0))  # noqa: E731
    asked = drive(search, noisy)
    assert len(asked) == len(set(asked))
    assert search.stopped == "complete"
