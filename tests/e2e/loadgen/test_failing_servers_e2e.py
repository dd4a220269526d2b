"""Servers that cannot be measured: one clear line, a non-zero status, never a great latency."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from loadgen.report.jsonio import load
from tests.support.loadgen_runs import Ran, fake_llm, loadgen, simulator


def refused(ran: Ran, *words: str) -> None:
    """The command failed with one line on stderr that holds these words, and measured nothing."""
    assert ran.status == 2, ran.out + ran.err
    assert ran.err.startswith("goodput-loadgen: error: ")
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.out + ran.err
    for word in words:
        assert word in ran.err


def sweep(url: str, out: Path, *more: str) -> Ran:
    quick = ("--levels", "1,2", "--warmup-s", "0.3", "--window-s", "1", "--drain-s", "5")
    return loadgen("sweep", "--url", url, *quick, "--output-tokens", "5", "--out", str(out), *more)


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: nobody else can take the port
        refused(sweep(f"http://127.0.0.1:{held.getsockname()[1]}", tmp_path), "cannot be reached")
    assert not (tmp_path / "report.json").exists()


def test_a_web_page_is_no_model_server(tmp_path: Path) -> None:
    with fake_llm("html") as url:
        refused(sweep(url, tmp_path), "no OpenAI-compatible server")


def test_a_server_that_answers_500_to_everything(tmp_path: Path) -> None:
    with fake_llm("fails") as url:
        refused(sweep(url, tmp_path), "500", "nothing was measured")


def test_a_server_that_answers_500_to_completions_only(tmp_path: Path) -> None:
    with simulator("--fault", "error=1") as url:
        refused(sweep(url, tmp_path), "500", "nothing was measured")


def test_a_server_that_breaks_off_each_answer_with_an_error_event(tmp_path: Path) -> None:
    with simulator("--fault", "error_event=1") as url:
        refused(sweep(url, tmp_path), "error", "nothing was measured")


def test_a_model_that_is_not_served(tmp_path: Path) -> None:
    with fake_llm("ok") as url:
        refused(sweep(url, tmp_path, "--model", "other"), "--model other", "fake")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--slo", "tft=1"), ("tft",)),
        (("--levels", "x"), ("--levels",)),
        (("--prompt-tokens", "many"), ("--prompt-tokens",)),
        (("--arrivals", "bursty"), ("--arrivals",)),
        (("--body", "{"), ("--body",)),
        (("--api-key-env", "NOT_SET_ANYWHERE"), ("--api-key-env",)),
        (("--ca-file", "/nonexistent/ca.pem"), ("--ca-file",)),
        (("--url", "ftp://x"), ("--url",)),
    ],
)
def test_a_wrong_flag_is_named(tmp_path: Path, flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(sweep("http://127.0.0.1:9", tmp_path, *flags), *words)


def test_an_out_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with fake_llm("ok") as url:
        refused(sweep(url, tmp_path / "file" / "out"), "--out")


@pytest.mark.parametrize(("mode", "kind"), [("dies:4", "http"), ("refuses:4", None)])
def test_a_server_that_fails_after_the_start_has_no_latency_and_no_peak(
    tmp_path: Path, mode: str, kind: str | None
) -> None:
    with fake_llm(mode) as url:
        ran = sweep(url, tmp_path, "--levels", "2", "--warmup-s", "0.6")
    assert ran.status == 1, ran.out + ran.err
    assert "Traceback" not in ran.out + ran.err
    report = load(tmp_path / "report.json")
    assert report.peak.load is None
    assert report.peak.goodput_rps is None
    for level in report.levels:
        assert level.completed == level.good == 0
        assert level.goodput_rps == 0
        assert level.attainment == 0
        assert (level.ttft.count, level.e2e.count, level.ttft.p50_s, level.e2e.p50_s) == (0, 0, None, None)
        assert level.badput == {"error" if kind else "rejected": level.eligible}
        assert any("all_failed" in flag for flag in level.flags)


def test_a_server_that_fails_a_third_of_the_time_is_measured_without_it(tmp_path: Path) -> None:
    with simulator("--fault", "drop=0.3,drop_after=2") as url:
        ran = loadgen(
            *("run", "--url", url, "--concurrency", "6", "--output-tokens", "10", "--prompt-tokens", "20"),
            *("--warmup-s", "0.5", "--window-s", "2.5", "--out", str(tmp_path)),
        )
    if ran.status == 2:  # the fault struck the very first request
        assert "error" in ran.err
        return
    (level,) = load(tmp_path / "report.json").levels
    assert level.sent == level.completed + sum(level.errors.values())
    assert level.ttft.count == level.completed
    assert 0.05 < sum(level.errors.values()) / level.sent < 0.7
    assert level.badput.get("error", 0) == sum(level.errors.values())
