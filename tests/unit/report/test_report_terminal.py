from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from loadgen.report.terminal import render
from loadgen.results import SweepReport
from tests.support import reports


def shown(report: SweepReport, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render(report))
    return out.getvalue()


def test_the_peak_stands_in_the_table_and_below_it() -> None:
    text = shown(reports.sweep())
    assert "20 *" in text
    assert "Goodput peak: 4.53 good requests/s at 20 requests in flight (95 %: 3.94 to 5.13)" in text
    assert "99% up to load 16" in text
    assert "What breaks first: decode." in text


def test_no_peak_invents_none() -> None:
    text = shown(reports.no_peak())
    assert "No goodput peak: No request met the SLO" in text
    assert " * " not in text
    assert "99% at no load" in text


def test_what_to_know_is_said() -> None:
    text = shown(reports.awkward(), 200)
    assert "does not count: client-limited" in text
    assert "The sweep was interrupted" in text
    assert "Note: token counts are estimated" in text
    assert "(no interval)" in text


@pytest.mark.parametrize(
    "make", [reports.sweep, reports.with_repeats, reports.not_bracketed, reports.no_peak, reports.awkward]
)
def test_lines_fit_the_terminal(make: Any) -> None:
    assert "…" not in shown(make())
    assert max(len(line) for line in shown(make()).splitlines()) <= 80
