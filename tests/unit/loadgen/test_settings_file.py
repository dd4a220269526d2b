"""A settings file's keys are flags; flags given by hand win; mistakes are named by file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.cli import build_parser
from loadgen.settings_file import with_settings
from sidecar.errors import UserError


def parsed(tmp_path: Path, text: str, *argv: str) -> object:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    parser = build_parser()
    return parser.parse_args(with_settings(parser, [argv[0], "--settings", str(path), *argv[1:]]))


def test_the_file_sets_and_the_flag_wins(tmp_path: Path) -> None:
    text = (
        "url: http://127.0.0.1:9\nwindow-s: 20\nwarmup_s: 2\nworkload: rag\nno-ignore-eos: true\n"
        "insecure: false\nbody: {temperature: 0}\nslo: {ttft: 1, tpot: 50ms}\nlevels: [1, 2, 4]\n"
    )
    args = vars(parsed(tmp_path, text, "sweep", "--window-s", "7"))
    assert args["url"] == "http://127.0.0.1:9"
    assert args["window_s"] == 7
    assert args["warmup_s"] == 2
    assert args["workload"] == "rag"
    assert args["no_ignore_eos"] is True
    assert args["insecure"] is False
    assert args["body"] == '{"temperature": 0}'
    assert args["slo"] == "ttft=1,tpot=50ms"
    assert args["levels"] == "1,2,4"


def test_of_flags_that_exclude_each_other_the_one_given_by_hand_stays(tmp_path: Path) -> None:
    args = vars(parsed(tmp_path, "url: http://x\nconcurrency: 4\n", "run", "--rate", "3"))
    assert (args["rate"], args["concurrency"]) == (3.0, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("url: x\nwindow: 3\n", ("settings.yaml:2", "window", "did you mean window")),
        ("window-s: soon\n", ("settings.yaml:1", "window-s", "soon")),
        ("api: soap\n", ("settings.yaml:1", "api", "chat")),
        ("insecure: perhaps\n", ("settings.yaml:1", "insecure", "true or false")),
        ("seed: 1\nseed: 2\n", ("settings.yaml:2", "seed", "twice")),
        ("- url\n", ("settings.yaml:1", "mapping")),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as found:
        parsed(tmp_path, text, "sweep")
    for word in words:
        assert word in str(found.value)


def test_without_a_file_nothing_changes() -> None:
    parser = build_parser()
    assert with_settings(parser, ["sweep", "--url", "x"]) == ["sweep", "--url", "x"]
    with pytest.raises(UserError, match="none"):
        with_settings(parser, ["sweep", "--settings=none.yaml"])
