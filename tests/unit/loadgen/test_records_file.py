"""Raw records on disk: one line a request, readable again, whole after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.arrivals import Arrivals
from loadgen.plan import LevelPlan
from loadgen.records_file import RecordsFile
from sidecar.errors import UserError
from sidecar.requests.recordio import from_json
from sidecar.requests.records import Api, Outcome, RequestRecord
from sidecar.requests.slo import SloClass, SloPolicy

PLAN = LevelPlan(4.0, Arrivals(), 1.0, 2.0, 5.0, seed=0, number=3)
POLICY = SloPolicy(SloClass(e2e_s=1.0))


def record(start_s: float, e2e_s: float = 0.5) -> RequestRecord:
    return RequestRecord(
        api=Api.CHAT,
        model="m",
        streamed=True,
        start_ns=round(start_s * 1e9),
        end_ns=round((start_s + e2e_s) * 1e9),
        outcome=Outcome.COMPLETED,
        request_class="ä",
    )


def test_a_line_says_window_verdict_and_the_record_itself(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.jsonl"
    records = [record(0.5), record(1.0), record(2.9, 1.5), record(3.0)]
    RecordsFile(path, append=False).write(PLAN, records, POLICY)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["in_window"] for line in lines] == [False, True, True, False]
    assert [line["good"] for line in lines] == [True, True, False, True]
    assert lines[2]["bucket"] == "e2e"
    assert {(line["level"], line["load"]) for line in lines} == {(3, 4.0)}
    assert [from_json(line["record"])[0] for line in lines] == records


@pytest.mark.parametrize("half", ["", '{"level": 9, "re', "x" * 200_000])
def test_what_a_crash_left_of_a_line_is_dropped_and_the_rest_kept(tmp_path: Path, half: str) -> None:
    path = tmp_path / "r.jsonl"
    RecordsFile(path, append=False).write(PLAN, [record(1), record(2)], POLICY)
    whole = path.read_text()
    path.write_text(whole + half)
    RecordsFile(path, append=True).write(PLAN, [record(1)], POLICY)
    assert path.read_text().startswith(whole)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3
    RecordsFile(path, append=False)
    assert path.read_text() == ""


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--records"):
        RecordsFile(tmp_path / "file" / "r.jsonl", append=False)
