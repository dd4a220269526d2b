from __future__ import annotations

import csv
import io
from dataclasses import replace

from loadgen.report.csvio import to_csv
from tests.support import reports


def rows(report: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(report))))  # type: ignore[arg-type]


def test_each_level_is_a_row_with_its_figures() -> None:
    report = reports.sweep()
    got = rows(report)
    assert len(got) == len(report.levels)
    for row, level in zip(got, report.levels, strict=True):
        assert float(row["load"]) == level.load
        assert float(row["goodput_rps"]) == level.goodput_rps
        assert level.goodput_ci_rps is not None
        assert float(row["goodput_low_rps"]) == level.goodput_ci_rps[0]
        assert float(row["ttft_p99_s"]) == level.ttft.p99_s
        bad = sum(int(v) for k, v in row.items() if k.startswith("badput_"))
        assert int(row["good"]) + bad == int(row["eligible"])


def test_unknown_is_an_empty_cell_and_zero_is_zero() -> None:
    by_load = {float(r["load"]): r for r in rows(reports.awkward())}
    idle = by_load[64.0]
    assert idle["attainment"] == idle["ttft_p50_s"] == idle["goodput_low_rps"] == idle["in_flight_mean"] == ""
    assert idle["goodput_rps"] == "0.0"
    assert by_load[48.0]["errors_http"] == "280"
    assert by_load[1.0]["errors_http"] == "0"
    assert by_load[32.0]["valid"] == "false"


def test_a_text_cannot_become_a_formula() -> None:
    level = reports.level(1.0, flags=("=HYPERLINK(1)",))
    assert rows(replace(reports.sweep(), levels=(level,)))[0]["flags"] == "'=HYPERLINK(1)"


def test_a_sweep_without_levels_is_a_header() -> None:
    text = to_csv(replace(reports.sweep(), levels=()))
    assert text.startswith("load,kind,")
    assert text.count("\n") == 1
