"""A trace replayed through real processes: its lengths, its bursts, at the speed asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.report.jsonio import load
from loadgen.workload.traces import read_trace
from tests.support.loadgen_runs import loadgen, simulator


def test_a_replay_sends_the_traces_requests_at_its_times(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = [f"{at:.2f},m,{20 + number},{3 + number % 4},0,x" for number, at in enumerate((0, 0.1, 0.1, 1.9))]
    trace.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows)
    )
    lap_s = read_trace(str(trace)).span_s
    with simulator("--profile", "fast") as url:
        ran = loadgen(
            *("run", "--url", url, "--trace", str(trace), "--speed", "4", "--workers", "2"),
            *("--warmup-s", "0", "--window-s", f"{3 * lap_s / 4 - 0.02:.3f}", "--out", str(tmp_path / "out")),
        )
    assert ran.status == 0, ran.out + ran.err
    report = load(tmp_path / "out" / "report.json")
    (level,) = report.levels
    assert level.kind == "rate"
    assert level.load == pytest.approx(4 * 4 / lap_s, rel=1e-3)
    assert level.sent == level.completed == 12, "three laps of four"
    assert level.output_tokens == 3 * (3 + 4 + 5 + 6)
    assert not any(flag.startswith(("output_length", "prefix_cache")) for flag in level.flags)
    assert report.workload["trace"]["requests"] == 4
    assert report.workload["arrivals"]["process"] == "replay"


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--trace", "azure", "--concurrency", "2"), "--speed"),
        (("--speed", "2"), "--trace"),
        (("--trace", "azure", "--rate", "2", "--arrivals", "poisson"), "--arrivals"),
        (("--trace", "/nonexistent.csv", "--rate", "2"), "--trace"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, flags: tuple[str, ...], word: str) -> None:
    ran = loadgen("run", "--url", "http://127.0.0.1:9", *flags, "--out", str(tmp_path))
    assert ran.status == 2
    assert word in ran.err
    assert ran.err.count("\n") == 1
