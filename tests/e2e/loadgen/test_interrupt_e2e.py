"""Ctrl-C at any moment: what was measured is kept, nothing is left running."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from loadgen.report.jsonio import load
from tests.support.loadgen_runs import Interrupted, descendants, fake_llm, running

SWEEP = ("--levels", "1,2,3,4", "--warmup-s", "0.3", "--window-s", "1", "--output-tokens", "5")


@pytest.mark.parametrize(
    ("sign", "group", "when"),
    [
        (signal.SIGINT, True, "level 2:"),
        (signal.SIGTERM, False, "level 2:"),
        (signal.SIGINT, True, "fake"),
    ],
)
def test_a_sweep_keeps_what_it_has(tmp_path: Path, sign: signal.Signals, group: bool, when: str) -> None:
    with fake_llm("ok") as url, Interrupted("sweep", "--url", url, *SWEEP, "--out", str(tmp_path)) as command:
        command.wait_for(when)
        children = descendants(command.process.pid)
        ran = command.stop(sign, group=group)
    assert ran.status == 130, ran.out
    assert "Traceback" not in ran.out
    assert running(children) == set()
    report = load(tmp_path / "report.json")
    assert report.stopped == "interrupted"
    complete = [level for level in report.levels if level.valid]
    if when == "level 2:":
        assert [level.load for level in complete] == [1]
        assert report.peak.load == 1
    else:
        assert complete == []
        assert report.peak.load is None


def test_the_demo_leaves_no_process(tmp_path: Path) -> None:
    with Interrupted("demo", "--levels", "2,4", "--window-s", "3", "--out", str(tmp_path)) as command:
        command.wait_for("level 1:")
        children = descendants(command.process.pid)
        assert len(children) >= 2, "simulator and sidecar"
        ran = command.stop(signal.SIGINT)
    assert ran.status == 130, ran.out
    assert "Traceback" not in ran.out
    assert running(children) == set()
    assert load(tmp_path / "report.json").stopped == "interrupted"


def test_a_killed_sweep_takes_its_locust_processes_along(tmp_path: Path) -> None:
    with fake_llm("ok") as url, Interrupted("sweep", "--url", url, *SWEEP, "--out", str(tmp_path)) as command:
        command.wait_for("level 1:")
        children = descendants(command.process.pid)
        assert children
        command.stop(signal.SIGKILL, group=False)
        for _ in range(100):
            if not running(children):
                break
            signal.sigtimedwait([], 0.1)
    assert running(children) == set()
