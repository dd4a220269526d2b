from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.report.jsonio import ReportError, from_json, load, to_json
from loadgen.results import SweepReport
from tests.support import reports

ALL = (reports.sweep, reports.with_repeats, reports.not_bracketed, reports.no_peak, reports.awkward)


@pytest.mark.parametrize("make", ALL)
def test_what_is_written_reads_back_the_same(make: Any) -> None:
    report: SweepReport = make()
    assert from_json(to_json(report)) == report


finite = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | finite


@settings(max_examples=60, deadline=None)
@given(
    goodput=finite,
    attainment=maybe,
    ci=st.none() | st.tuples(finite, finite),
    badput=st.dictionaries(st.text(), st.integers(0, 10**9), max_size=4),
    engine=st.dictionaries(st.text(), finite, max_size=4),
    flags=st.lists(st.text(), max_size=3).map(tuple),
)
def test_any_level_reads_back_the_same(
    goodput: float,
    attainment: float | None,
    ci: tuple[float, float] | None,
    badput: dict[str, int],
    engine: dict[str, float],
    flags: tuple[str, ...],
) -> None:
    one = reports.level(
        4.0,
        goodput_rps=goodput,
        attainment=attainment,
        goodput_ci_rps=ci,
        badput=badput,
        engine=engine,
        flags=flags,
    )
    report = replace(reports.sweep(), levels=(one,))
    assert from_json(to_json(report)) == report


def test_no_number_that_is_not_json_is_written() -> None:
    one = reports.level(4.0, attainment=math.nan, engine={"running": math.inf, "waiting": 2.0})
    text = to_json(replace(reports.sweep(), levels=(one,)))
    assert "NaN" not in text
    assert "Infinity" not in text
    back = from_json(text).levels[0]
    assert back.attainment is None
    assert back.engine == {"waiting": 2.0}


def test_unknown_keys_are_ignored_and_later_fields_have_their_defaults() -> None:
    data = json.loads(to_json(reports.sweep()))
    data["added_later"] = {"x": 1}
    del data["flags"], data["levels"][0]["engine"]
    back = from_json(json.dumps(data))
    assert back.flags == ()
    assert back.levels[0].engine == {}


def change(path: list[Any], value: Any) -> str:
    data = json.loads(to_json(reports.sweep()))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["seed"], "0", "seed: expected a whole number"),
        (["seed"], 1.5, "seed: expected a whole number"),
        (["seed"], True, "seed: expected a whole number"),
        (["model"], None, "model: expected a text"),
        (["levels"], {}, "levels: expected a list"),
        (["levels", 2, "goodput_rps"], None, "levels[2].goodput_rps: expected a number, found null"),
        (["levels", 0, "kind"], "speed", "levels[0].kind: expected one of concurrency, rate"),
        (["levels", 0, "badput", "queue"], "x", "levels[0].badput.queue: expected a whole number"),
        (["levels", 0, "goodput_ci_rps"], [1.0], "levels[0].goodput_ci_rps: expected a list of 2"),
        (["levels", 0, "ttft"], 3, "levels[0].ttft: expected an object"),
        (["levels", 0, "valid"], 1, "levels[0].valid: expected true or false"),
        (["levels", 1, "good"], ..., "levels[1].good: missing"),
        (["peak", "capacity", 0, "share"], "a" * 99, 'peak.capacity[0].share: expected a number, found "aaa'),
        (["format"], 2, "format: this version reads 1, the file has 2"),
        (["format"], ..., "not a sweep report"),
    ],
)
def test_what_is_wrong_is_named(path: list[Any], value: Any, said: str) -> None:
    with pytest.raises(ReportError) as error:
        from_json(change(path, value), "a.json")
    assert str(error.value).startswith("a.json: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": NaN}', "[" * 100_000, "null", '{"a": 1}', "\x00"]
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ReportError, match=r"^x\.json: "):
        from_json(text, "x.json")


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    binary = tmp_path / "b.json"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.json", tmp_path, binary):
        with pytest.raises(ReportError) as error:
            load(path)
        assert str(path) in str(error.value)
