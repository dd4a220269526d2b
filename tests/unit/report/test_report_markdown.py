from __future__ import annotations

import re
from typing import Any

import pytest

from loadgen.report.markdown import cell, table, to_markdown
from tests.support import reports


def test_the_answer_comes_first() -> None:
    text = to_markdown(reports.sweep())
    assert text.startswith("## Goodput peak: 4.53 good requests/s at 20 requests in flight\n")
    assert "| 20 (peak) | 4.53 |" in text
    assert "| highest load that keeps | 99%: 16, 95%: 16, 90%: 20 |" in text


def test_no_peak_and_doubts_are_said() -> None:
    assert to_markdown(reports.no_peak()).startswith("## No goodput peak was found\n")
    text = to_markdown(reports.awkward())
    assert "> token counts are estimated" in text
    assert "> The sweep was interrupted" in text
    assert "| 32 × |" in text


def test_a_text_cannot_leave_its_cell_or_become_markup() -> None:
    assert cell("a|b\n<c> [d](e) *f*") == r"a\|b \<c> \[d](e) \*f\*"
    assert r"\</title>\<script>" in to_markdown(reports.awkward())


@pytest.mark.parametrize("make", [reports.sweep, reports.no_peak, reports.awkward])
def test_every_row_of_a_table_has_as_many_cells_as_its_head(make: Any) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", to_markdown(make()), re.M)
    assert len(blocks) == 2
    for block in blocks:
        counts = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(counts) == 1


def test_a_table_without_rows_is_a_head() -> None:
    assert table(["a", "b"], []) == "| a | b |\n| --- | ---: |\n"
