"""Warm-ups that end when the load is steady, and ones that meet their cap."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.report.jsonio import load
from tests.support.loadgen_runs import fake_llm, loadgen


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_steady_load_is_measured_before_the_cap(tmp_path: Path, workers: str) -> None:
    with fake_llm("ok", "--ttft-s", "0.05", "--itl-s", "0.01") as url:
        ran = loadgen(
            *("run", "--url", url, "--concurrency", "6", "--output-tokens", "8", "--workers", workers),
            *("--warmup-s", "2", "--warmup-max-s", "20", "--window-s", "1.5", "--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.out + ran.err
    (level,) = load(tmp_path / "report.json").levels
    assert 2.0 <= level.warmup_s < 20
    assert not any(flag.startswith("not_steady") for flag in level.flags)
    assert level.window_s == 1.5
    assert level.completed == level.sent > 10


def test_a_load_too_slow_to_tell_meets_the_cap_and_says_so(tmp_path: Path) -> None:
    with fake_llm("ok", "--ttft-s", "0.1", "--itl-s", "0.3") as url:
        ran = loadgen(
            *("run", "--url", url, "--concurrency", "1", "--output-tokens", "6"),
            *("--warmup-s", "2", "--warmup-max-s", "2.5", "--window-s", "2", "--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.out + ran.err
    (level,) = load(tmp_path / "report.json").levels
    assert level.warmup_s == 2.5
    assert any(flag.startswith("not_steady") for flag in level.flags)
    assert level.valid
