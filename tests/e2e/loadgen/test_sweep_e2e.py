"""Sweeps through real processes against the simulator and a scripted server."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.report.jsonio import load
from loadgen.simulator.model import find_profile, true_peak, true_point
from tests.support.loadgen_runs import fake_llm, loadgen, simulator

QUICK = ("--warmup-s", "0.5", "--window-s", "1.5", "--drain-s", "10")


def test_a_short_sweep_comes_near_the_simulators_true_peak(tmp_path: Path) -> None:
    profile = find_profile("demo")
    with simulator("--profile", "demo") as url:
        ran = loadgen(
            *("sweep", "--url", url, "--slo", "ttft=1,tpot=0.05", "--levels", "8..32"),
            *("--prompt-tokens", "uniform:64-704", "--output-tokens", "uniform:16-64"),
            *("--warmup-s", "1", "--window-s", "3", "--max-levels", "5", "--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.err
    report = load(tmp_path / "report.json")
    assert report.peak.load is not None, ran.out
    assert report.server.startswith("goodput simulator ")
    truth = true_peak(profile, profile.workload, profile.slo)
    there = true_point(profile, profile.workload, profile.slo, round(report.peak.load))
    assert there.goodput_rps >= 0.75 * truth.goodput_rps, ran.out
    for level in report.levels:
        assert level.good + sum(level.badput.values()) == level.eligible
        assert level.completed == level.sent, "nothing fails on the simulator"
        assert level.flags == (), level.flags
        assert level.ttft.count == level.completed
        assert level.output_tokens > 0
        assert not level.tokens_estimated
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.json", "report.csv"}
    assert "Goodput peak" in ran.out


def test_an_open_loop_offers_its_rate_and_sees_the_pauses(tmp_path: Path) -> None:
    """Every tenth answer pauses for 1.2 s: it shows in the longest gap and in badput; no arrival waits."""
    with fake_llm("stalls:1.2") as url:
        ran = loadgen(
            *("run", "--url", url, "--rate", "40", "--arrivals", "constant", "--output-tokens", "8"),
            *("--slo", "max_gap=1", "--no-ignore-eos", *QUICK, "--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.err
    (level,) = load(tmp_path / "report.json").levels
    assert level.kind == "rate"
    assert level.sent == pytest.approx(60, abs=2)
    assert level.completed == level.sent
    assert level.itl.max_s is not None
    assert level.itl.max_s >= 1.2
    assert level.badput == {"stall": pytest.approx(6, abs=1)}
    assert level.send_lag_p99_s is not None


def test_two_workers_share_a_level_on_a_server_that_closes_every_connection(tmp_path: Path) -> None:
    with fake_llm("closes") as url:
        ran = loadgen(
            *("run", "--url", url, "--concurrency", "5", "--workers", "2", "--output-tokens", "8", *QUICK),
            *("--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.err
    (level,) = load(tmp_path / "report.json").levels
    assert level.in_flight_mean is not None
    assert 3.0 < level.in_flight_mean <= 5.0 + 1e-9
    assert level.errors == {}
    assert level.completed == level.sent > 10
