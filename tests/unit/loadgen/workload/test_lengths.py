"""Length distributions: what they draw, and what is refused."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.lengths import Lengths, parse_lengths
from sidecar.errors import UserError


@pytest.mark.parametrize("text", ["128", "uniform:50-200", "normal:128,20", "lognormal:128,0.5"])
def test_what_is_written_is_what_is_read(text: str) -> None:
    assert str(parse_lengths(text, "--prompt-tokens")) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "x",
        "uniform:9",
        "uniform:9-3",
        "uniform:0-3",
        "normal:5",
        "zipf:1,2",
        "1e9",
        "nan",
        "lognormal:5,inf",
    ],
)
def test_what_cannot_be_meant_is_refused_by_flag(text: str) -> None:
    with pytest.raises(UserError, match="--output-tokens"):
        parse_lengths(text, "--output-tokens")


@pytest.mark.parametrize("text", ["77", "uniform:50-200", "normal:128,20", "lognormal:128,0.5"])
def test_the_mean_is_the_stated_one(text: str) -> None:
    lengths = parse_lengths(text, "--x")
    rng = random.Random(1)
    assert statistics.fmean(lengths.draw(rng) for _ in range(6000)) == pytest.approx(lengths.mean, rel=0.03)


def test_the_median_of_a_lognormal_is_the_stated_one() -> None:
    rng = random.Random(1)
    drawn = [Lengths("lognormal", 100, 1.0).draw(rng) for _ in range(6000)]
    assert statistics.median(drawn) == pytest.approx(100, rel=0.06)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["fixed", "normal", "lognormal"]),
    a=st.floats(1, 1e6),
    b=st.floats(0, 1e6),
    seed=st.integers(0, 99),
)
def test_a_length_is_never_below_one_or_above_the_limit(shape: str, a: float, b: float, seed: int) -> None:
    rng = random.Random(seed)
    lengths = Lengths(shape, a, b, limit=500)  # type: ignore[arg-type]
    assert all(1 <= lengths.draw(rng) <= 500 for _ in range(20))
