from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.report.svg import Scale, el, esc, log_ticks, nice_ticks


def test_an_element_is_escaped_and_drops_what_is_none() -> None:
    made = el("a", esc("<&>"), class_="x\"'", stroke_width=1.25, id=None)
    assert made == '<a class="x&quot;&#x27;" stroke-width="1.2">&lt;&amp;&gt;</a>'
    assert el("line", x1=3.0) == '<line x1="3"/>'


@settings(max_examples=150, deadline=None)
@given(st.floats(min_value=1e-9, max_value=1e12))
def test_ticks_cover_the_values_with_a_handful_of_round_steps(high: float) -> None:
    ticks = nice_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] >= high * (1 - 1e-6)
    assert 2 <= len(ticks) <= 7


def test_ticks_without_a_value_still_span_something() -> None:
    assert nice_ticks(0.0) == [0.0, 1.0]
    assert nice_ticks(float("nan")) == [0.0, 1.0]


@settings(max_examples=150, deadline=None)
@given(st.floats(min_value=1e-7, max_value=1e5), st.floats(min_value=1.0, max_value=1e4))
def test_log_ticks_cover_the_values(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert len(ticks) >= 2
    assert ticks[0] <= low * (1 + 1e-6)
    assert ticks[-1] >= low * factor * (1 - 1e-6)
    assert ticks == sorted(ticks)


def test_scales_map_their_ends_and_clamp() -> None:
    linear, log = Scale(0, 10, 100, 200), Scale(1, 100, 0, 50, log=True)
    assert [linear(v) for v in (0, 5, 10, -3, 99)] == [100, 150, 200, 100, 200]
    assert [log(v) for v in (1, 10, 100)] == pytest.approx([0, 25, 50])
