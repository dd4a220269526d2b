from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.report.curve import limit_of, mean_interval, points
from tests.support import reports


def test_repeats_of_a_load_become_one_point() -> None:
    found = points(reports.with_repeats())
    assert [p.load for p in found] == list(reports.LOADS)
    assert all(len(p.levels) == 3 for p in found)
    single = {p.load: p for p in points(reports.sweep())}
    for p in found:
        assert p.goodput_rps == pytest.approx(single[p.load].goodput_rps)


def test_a_repeat_that_does_not_count_is_left_out_of_the_mean() -> None:
    good, bad = reports.level(8.0), reports.level(8.0, goodput_rps=99.0, valid=False)
    (point,) = points(replace(reports.sweep(), levels=(bad, good)))
    assert point.valid
    assert point.goodput_rps == good.goodput_rps


def test_a_level_with_nothing_to_judge_is_no_measurement_of_zero() -> None:
    by_load = {p.load: p for p in points(reports.awkward())}
    assert not by_load[64.0].judged
    assert by_load[64.0].attainment is None
    assert by_load[48.0].judged  # all failed: that is a zero
    assert not by_load[32.0].judged


@pytest.mark.parametrize(
    ("repeats", "expected"),
    [
        ([], None),
        ([(5.0, None)], None),
        ([(5.0, (4.0, 6.5))], (4.0, 6.5)),
        ([(5.0, None), (6.0, None)], None),
        # half widths 3 and 4 in quadrature over 2: 2.5
        ([(10.0, (7.0, 13.0)), (12.0, (8.0, 16.0))], (8.5, 13.5)),
        # Student, 2 degrees: 4.303 x 1 / sqrt(3)
        ([(9.0, None), (10.0, None), (11.0, None)], (10 - 2.4843, 10 + 2.4843)),
    ],
)
def test_the_interval_of_a_mean(
    repeats: list[tuple[float, tuple[float, float] | None]], expected: tuple[float, float] | None
) -> None:
    got = mean_interval(repeats)
    assert got == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_the_limit_is_what_takes_most_at_the_first_load_beyond_the_peak() -> None:
    limit = limit_of(reports.sweep())
    assert limit.bucket == "decode"
    assert "At load 24" in limit.text
    assert "34.0 % of the requests are not good" in limit.text


def test_what_the_engine_says_is_added() -> None:
    levels = [reports.level(16.0), reports.level(48.0)]
    report = replace(reports.sweep(), levels=tuple(levels), peak=replace(reports.sweep().peak, load=16.0))
    text = limit_of(report).text
    assert "KV cache 99% full" in text
    assert "24 requests preempted" in text
    assert "16 waiting" in text


def test_without_a_limit_none_is_invented() -> None:
    limit = limit_of(reports.not_bracketed())
    assert limit.bucket is None
    assert "Nothing up to load 8" in limit.text


def test_an_slo_that_nothing_meets_names_the_bound_that_breaks() -> None:
    limit = limit_of(reports.no_peak())
    assert limit.bucket == "prefill"
    assert "Already at load 1" in limit.text


def test_nothing_measured_is_said() -> None:
    invalid = reports.level(8.0, valid=False)
    assert limit_of(replace(reports.sweep(), levels=(invalid,))).text == "No level gave a result that counts."
