"""A mix of classes through real processes: each judged by its own bounds, here and in the sidecar."""

from __future__ import annotations

from pathlib import Path

from loadgen.report.jsonio import load
from tests.support.loadgen_runs import loadgen, simulator

MIX = """\
classes:
  - {name: quick, weight: 2, prompt_tokens: 30, output_tokens: 6, slo: {ttft: 30}}
  - {name: never, weight: 1, api: completions, prompt_tokens: 30, output_tokens: 6, slo: {ttft: 1us}}
"""


def test_each_class_is_judged_by_its_own_bounds(tmp_path: Path) -> None:
    mix, settings = tmp_path / "mix.yaml", tmp_path / "settings.yaml"
    mix.write_text(MIX)
    with simulator("--profile", "fast") as url:
        settings.write_text(f"url: {url}\nworkload: {mix}\nwarmup-s: 0.3\nwindow-s: 60\n")
        ran = loadgen(
            *("run", "--settings", str(settings), "--concurrency", "6", "--window-s", "1.5"),
            *("--out", str(tmp_path / "out")),
        )
    assert ran.status == 0, ran.out + ran.err
    report = load(tmp_path / "out" / "report.json")
    (level,) = report.levels
    assert level.window_s == 1.5
    quick, never = level.classes["quick"], level.classes["never"]
    assert quick.good == quick.eligible == quick.sent > 0
    assert never.good == 0
    assert never.eligible == never.sent > 0
    assert quick.sent + never.sent == level.sent
    assert level.good == quick.good
    assert set(report.slo["classes"]) == {"quick", "never"}
    assert "quick TTFT" in ran.out
    assert report.workload["recipe"] == "mix"


def test_a_model_that_only_one_class_asks_for_must_be_served(tmp_path: Path) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text("classes:\n  - {name: a}\n  - {name: b, model: adapter-9}\n")
    with simulator("--profile", "fast") as url:
        ran = loadgen("sweep", "--url", url, "--workload", str(mix), "--out", str(tmp_path / "out"))
    assert ran.status == 2
    assert "class b" in ran.err
    assert "adapter-9" in ran.err
