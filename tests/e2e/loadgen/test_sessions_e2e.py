"""Conversations and token ids through real processes against the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.report.jsonio import load
from tests.support.loadgen_runs import loadgen, simulator

QUICK = ("--warmup-s", "0.3", "--window-s", "1.5", "--drain-s", "10")


def test_conversations_grow_and_their_users_think(tmp_path: Path) -> None:
    with simulator("--profile", "fast") as url:
        ran = loadgen(
            *("run", "--url", url, "--concurrency", "4", "--turns", "3", "--think-s", "0.2", *QUICK),
            *("--prompt-tokens", "40", "--output-tokens", "10", "--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.out + ran.err
    report = load(tmp_path / "report.json")
    (level,) = report.levels
    assert level.completed == level.sent > 8
    assert level.in_flight_mean is not None
    assert level.in_flight_mean < 3.6, "they think"
    assert not any(flag.startswith("client_limited") for flag in level.flags)
    assert level.prompt_tokens is not None
    # First turns have 40 tokens, third ones 40 + 2 * (10 + 40) and templates: between them on average.
    assert 60 < level.prompt_tokens / level.completed < 160
    assert report.workload["turns"] == "3"


def test_prompts_of_token_ids_are_exactly_as_long_as_asked(tmp_path: Path) -> None:
    with simulator("--profile", "fast") as url:
        ran = loadgen(
            *("run", "--url", url, "--concurrency", "3", "--api", "completions", "--token-ids", *QUICK),
            *("--prompt-tokens", "77", "--output-tokens", "5", "--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.out + ran.err
    (level,) = load(tmp_path / "report.json").levels
    assert level.completed > 5
    assert level.prompt_tokens == 77 * level.completed


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--token-ids",), "--api completions"),
        (("--turns", "2", "--api", "completions"), "--api chat"),
        (("--turns", "2", "--arrivals", "poisson"), "closed loop"),
        (("--prompts", "/nonexistent.jsonl"), "/nonexistent.jsonl"),
    ],
)
def test_what_cannot_be_sent_is_refused(tmp_path: Path, flags: tuple[str, ...], word: str) -> None:
    ran = loadgen("sweep", "--url", "http://127.0.0.1:9", *flags, "--out", str(tmp_path))
    assert ran.status == 2
    assert word in ran.err
    assert ran.err.count("\n") == 1
