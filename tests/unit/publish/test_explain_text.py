"""``goodput-sidecar explain`` from a status to sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.derive.autoscale import Capacity
from sidecar.derive.live import Live
from sidecar.publish.status import status
from sidecar.requests.slo import SloClass, SloPolicy
from tests.support.finished import S, finished, page, snapshot


def live() -> Live:
    found = Live(SloPolicy(default=SloClass(ttft_s=0.5, tpot_s=0.05)), 0, capacity=Capacity(4))
    for at_s in (1, 6, 11):
        body = page(running=8, waiting=6, queue_s=(at_s * 4, at_s), prefill_s=(at_s, at_s))
        found.add_snapshot(snapshot(at_s, body), at_s * S, at_s)
        found.add_record(finished(end_s=at_s - 0.5, ttft_s=0.9), at_s * S, at_s)
        found.add_record(finished(end_s=at_s - 0.5), at_s * S, at_s)
    found.settle(15 * S, 15.0, all_of_them=True)
    return found


def test_says_what_hurts_how_sure_and_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "goodput.json"
    saved.write_text(json.dumps(status(live(), 16 * S, 16.0), allow_nan=False))
    assert main(["explain", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "14 requests are in flight, 350 % of the measured peak (4)." in said
    assert "50 % of 6 requests were good" in said
    assert "queue:" in said
    assert "Confidence: high." in said
    assert "at most 4 requests in flight" in said
    assert main(["explain", str(saved), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["bucket"] in ("queue", "prefill")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": 1}', "[" * 100_000])
def test_another_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    saved = tmp_path / "x.json"
    saved.write_text(text)
    assert main(["explain", str(saved)]) == 2
    assert capsys.readouterr().err.strip().endswith("is not a sidecar's /goodput.json")


def test_another_format_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "x.json"
    saved.write_text('{"format": 7}')
    assert main(["explain", str(saved)]) == 2
    assert "format 7" in capsys.readouterr().err


def test_nobody_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "http://127.0.0.1:9"]) == 2
    assert "no answer" in capsys.readouterr().err
    assert main(["explain", "none.json"]) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err
