"""Files of the user's that are no good YAML: each gives one line, and each reader of such files says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.profile import find_profile
from loadgen.yaml_file import read_yaml
from sidecar.config import load_settings
from sidecar.errors import UserError
from sidecar.redaction.patterns import load_patterns
from sidecar.requests.slo import load_slo
from sidecar.user_yaml import parse_node, parse_value, read_text


def test_a_good_file_is_what_yaml_means(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: [1, 2.5, x, null, true]\nb: {c: ü}\n", encoding="utf-8")
    assert parse_value(read_text(file), "a.yaml") == {"a": [1, 2.5, "x", None, True], "b": {"c": "ü"}}
    assert parse_value("# nothing\n", "x") is None
    assert parse_node("", "x") is None


BAD = [
    (b"a: [", "1: is not YAML"),
    (b"a: 1\nb: [1\nc: 2\n", "is not YAML"),
    (b"a: \x01\n", "is not YAML"),
    (b"a: 1\n--- \nb: 2\n", "is not YAML"),
    (b"\xff\xfea", "is not UTF-8 text"),
    (b"[" * 20_000, "is nested too deeply"),
    (b"{a: " * 5_000, "is nested too deeply"),
    (b"#" * 5_000_000, "is larger than 4 MiB"),
]
ODD_VALUES = [
    (b"a: 2001-13-45\n", "none of its kind"),
    (b"a: !!int x\n", "none of its kind"),
    (b"a: !!python/name:os.system\n", "is not YAML"),
    (b"? {a: 1}\n: 2\n", "is not YAML"),
]


@pytest.mark.parametrize(("data", "says"), BAD + ODD_VALUES)
@pytest.mark.parametrize(
    "reader",
    [
        lambda path: load_settings({"upstream": "http://127.0.0.1:1"}, file=path, environ={}),
        load_patterns,
        lambda path: find_profile("demo", str(path)),
        lambda path: read_yaml(path).plain,
    ],
    ids=["settings", "patterns", "profiles", "load settings"],
)
def test_every_reader_says_it_in_one_line(
    tmp_path: Path, reader: Callable[[Path], Any], data: bytes, says: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(data)
    with pytest.raises(UserError) as caught:
        reader(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(("data", "says"), BAD)
def test_a_policy_file_is_read_the_same_way(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(data)
    with pytest.raises(UserError, match=says) as caught:
        load_slo(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: cannot be read: No such file"):
        read_text(tmp_path / "nowhere.yaml")
