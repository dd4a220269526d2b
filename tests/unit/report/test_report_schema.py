from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from loadgen.report.jsonio import to_json
from loadgen.report.schema import report_schema, to_text
from tests.support import reports


def test_the_published_schema_is_that_of_the_data_classes() -> None:
    published = resources.files("loadgen.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    assert published == to_text(), "run: python -m loadgen.report.schema > loadgen/report/report.schema.json"


def test_unknown_is_allowed_exactly_where_the_classes_allow_it() -> None:
    level = report_schema()["$defs"]["LevelResult"]
    assert {"type": "null"} in level["properties"]["attainment"]["anyOf"]
    assert level["properties"]["goodput_rps"] == {"type": "number"}
    assert "engine" not in level["required"]
    assert "goodput_rps" in level["required"]


@pytest.mark.parametrize(
    "make", [reports.sweep, reports.with_repeats, reports.not_bracketed, reports.no_peak, reports.awkward]
)
def test_reports_satisfy_the_schema_and_broken_ones_do_not(make: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    check = jsonschema.Draft202012Validator(report_schema())
    data = json.loads(to_json(make()))
    assert list(check.iter_errors(data)) == []
    data["levels"][0]["goodput_rps"] = None
    data["format"] = 2
    assert len(list(check.iter_errors(data))) == 2
