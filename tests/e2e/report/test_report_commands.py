"""report, target and compare as a user runs them: real processes and files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from loadgen.report import write_all
from loadgen.report.jsonio import load
from sidecar.derive.autoscale import load_capacity
from tests.support import reports
from tests.support.screenshot import chromium, shoot

ROOT = Path(__file__).parents[3]


def goodput_loadgen(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadgen.cli", *map(str, args)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "120", "LANG": "C.UTF-8"},
    )


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return write_all(reports.sweep(), tmp_path / "a")["json"]


def test_report_shows_a_sweep_and_writes_its_files_anew(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    ran = goodput_loadgen("report", report, "--out", out)
    assert ran.returncode == 0, ran.stderr
    assert "Goodput peak: 4.53 good requests/s at 20 requests in flight" in ran.stdout
    assert load(out / "report.json") == reports.sweep()
    assert (out / "report.html").read_text() == (report.parent / "report.html").read_text()
    assert (out / "report.csv").read_bytes() == (report.parent / "report.csv").read_bytes()


def test_target_prints_objects_that_are_yaml(report: Path) -> None:
    for kind, wanted in (
        ("hpa", "HorizontalPodAutoscaler"),
        ("keda", "ScaledObject"),
        ("configmap", "ConfigMap"),
    ):
        ran = goodput_loadgen("target", report, "--rate", 30, "--format", kind, "--max", 12)
        assert ran.returncode == 0, ran.stderr
        assert yaml.safe_load(ran.stdout)["kind"] == wanted
    assert "note: at the peak only 94.1 % of the requests are good" in ran.stderr


def test_target_writes_a_capacity_file_that_the_sidecar_reads(report: Path, tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    ran = goodput_loadgen("target", report, "--rate", 30, "--format", "capacity", "--out", path)
    assert ran.returncode == 0, ran.stderr
    assert load_capacity(path).peak_load == 20.0


def test_target_plans_for_a_percentile_of_a_series(report: Path, tmp_path: Path) -> None:
    series = tmp_path / "day.csv"
    series.write_text("time,rate\n" + "".join(f"{i},{i}\n" for i in range(1, 101)))
    ran = goodput_loadgen("target", report, "--rates", series, "--percentile", 90, "--format", "json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["rate_rps"] == 90.0


def test_rehearse_plays_a_day_on_every_signal_of_the_sweep(report: Path, tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.csv"
    traffic.write_text("second,rate\n0,5\n300,30\n1200,8\n1800,8\n")
    ran = goodput_loadgen("rehearse", report, "--traffic", traffic, "--cold-start-s", 60)
    assert ran.returncode == 0, ran.stderr
    for signal in ("saturation", "waiting requests", "running requests", "KV cache use"):
        assert re.search(rf"^{signal}.* \d", ran.stdout, re.M), ran.stdout


def test_compare_is_a_gate(report: Path, tmp_path: Path) -> None:
    worse = write_all(reports.no_peak(), tmp_path / "b")["json"]
    assert goodput_loadgen("compare", report, report, "--fail-if", "goodput:5%").returncode == 0
    ran = goodput_loadgen("compare", report, worse, "--fail-if", "goodput:5%", "--json")
    assert ran.returncode == 1, ran.stderr
    said = json.loads(ran.stdout)
    assert said["rules"][0]["result"] == "fail"
    slower = write_all(reports.sweep(0.9), tmp_path / "c")["json"]
    ran = goodput_loadgen("compare", report, slower, "--fail-if", "goodput:5%")
    assert ran.returncode == 3
    assert "UNDECIDED  goodput:5%" in ran.stdout
    assert goodput_loadgen("compare", report, slower).returncode == 0


def test_ci_gets_markdown_and_junit(report: Path, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    ran = goodput_loadgen(
        "compare", report, report, "--fail-if", "goodput:5%", "--markdown", "--junit", junit
    )
    assert ran.returncode == 0, ran.stderr
    assert "- **pass** goodput" in ran.stdout
    assert "| peak goodput/s | 4.53 | 4.53 | +0.0% |" in ran.stdout
    assert ET.parse(junit).getroot().attrib["failures"] == "0"
    ran = goodput_loadgen("report", report, "--markdown")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("## Goodput peak: 4.53")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("report", "missing.json"), "missing.json: cannot be read"),
        (("report", "LICENSE"), "LICENSE: "),
        (("target", "REPORT", "--rate", "-3"), "--rate -3: must be 0 or more"),
        (("target", "REPORT", "--rate", "nan"), "--rate nan: must be"),
        (("target", "REPORT", "--rate", "3", "--use-share", "1.5"), "--use-share 1.5: must be between"),
        (("target", "REPORT", "--rate", "3", "--name", "A_b"), "--name 'A_b'"),
        (("target", "REPORT", "--rates", "missing.csv"), "missing.csv: cannot be read"),
        (("rehearse", "REPORT", "--day", "-1"), "--day -1: must be more than 0"),
        (("rehearse", "REPORT", "--traffic", "missing.csv"), "missing.csv: cannot be read"),
        (("compare", "REPORT", "missing.json"), "missing.json: cannot be read"),
        (("compare", "REPORT", "REPORT", "--fail-if", "speed:5"), "--fail-if speed:5"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(report: Path, args: tuple[str, ...], said: str) -> None:
    ran = goodput_loadgen(*(report if a == "REPORT" else a for a in args))
    assert ran.returncode == 2
    assert said in ran.stderr
    assert ran.stderr.startswith("goodput-loadgen: error: ")
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""


@pytest.mark.skipif(chromium() is None, reason="no chromium on PATH")
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_a_browser_draws_the_page(report: Path, tmp_path: Path, width: int, dark: bool) -> None:
    picture = tmp_path / "page.png"
    shoot(report.parent / "report.html", picture, width=width, height=900, dark=dark)
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[20:24], "big") == 900
    assert len(data) > 20_000  # a blank page of this size has a tenth of it
