"""A sweep that was stopped is taken up; raw records say the same as the report."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from loadgen.report.jsonio import load
from sidecar.cli import main as sidecar
from tests.support.loadgen_runs import Interrupted, fake_llm, loadgen

SWEEP = ("--levels", "1,2,3", "--warmup-s", "0.3", "--window-s", "1", "--output-tokens", "5")


def test_a_stopped_sweep_is_taken_up_where_it_was(tmp_path: Path, capsys: object) -> None:
    out, records = tmp_path / "out", tmp_path / "records.jsonl"
    again = ("--out", str(out), "--records", str(records), "--resume")
    with fake_llm("ok") as url:
        with Interrupted("sweep", "--url", url, *SWEEP, *again) as command:
            command.wait_for("level 2:")
            command.stop(signal.SIGINT, group=True)
        before = load(out / "report.json")
        assert before.stopped == "interrupted"
        with records.open("a") as file:
            file.write('{"level": 1, "half')  # as a crash in mid-write would
        ran = loadgen("sweep", "--url", url, *SWEEP, *again)
        assert ran.status == 0, ran.out + ran.err
        other = loadgen("sweep", "--url", url, *SWEEP, *again, "--output-tokens", "6")
    assert "level 1:" not in ran.out
    report = load(out / "report.json")
    assert [level.load for level in report.levels] == [1, 2, 3]
    assert report.levels[0] == before.levels[0]
    assert report.stopped == "complete"
    assert report.provenance["resumed"].startswith("1 levels")
    assert other.status == 2
    assert "--resume: workload" in other.err
    assert "output_tokens 5 then, 6 now" in other.err

    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for level in report.levels:
        inside = [line for line in lines if line["load"] == level.load and line["in_window"]]
        if level.load != 2:  # of which the interrupted try's records are there too
            assert len(inside) == level.sent
            assert sum(line["good"] for line in inside) == level.good
    judged = tmp_path / "judged.jsonl"
    judged.write_text("\n".join(json.dumps(li) for li in lines if li["load"] == 3 and li["in_window"]))
    assert sidecar(["judge", str(judged), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])  # type: ignore[attr-defined]
    assert told["good"] == report.levels[2].good
