"""Settings from file, environment and flags: who wins, and what is said when one is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.config import KEYS, load_settings, split_address
from sidecar.errors import SettingsError

UP = "http://127.0.0.1:8000"


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text("upstream: http://file:1\nobjective: 0.9\ndrain_s: 5\n")
    environ = {
        "GOODPUT_UPSTREAM": "http://env:1",
        "GOODPUT_OBJECTIVE": "0.95",
        "OTHER": "x",
        "GOODPUT_X": "y",
    }
    found = load_settings({"upstream": "http://flag:1"}, file=file, environ=environ)
    assert (found.upstream, found.objective, found.drain_s) == ("http://flag:1", 0.95, 5.0)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text("# nothing yet\n")
    assert load_settings({"upstream": UP}, file=file, environ={}) == load_settings(
        {"upstream": UP}, environ={}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("upstrem: x", "upstrem: is no setting; did you mean upstream?"),
        ("zzz: x", "known: upstream"),
        ("- a", "must hold settings as key: value"),
        ("a: [", ":1: is not YAML"),
        ("upstream: 5", "upstream: must be text, not 5"),
        ("upstream: ftp://x", "must be a URL like"),
        ("upstream: http://x:99999999", "must be a URL like"),
        ("listen: 8080", "listen: must be HOST:PORT in quotes"),
        ("listen: 1.2.3.4:http", "listen: must be HOST:PORT"),
        ("objective: 1", "objective: must lie between 0 and 1"),
        ("objective: 99%", "objective: must be a number"),
        ("objective: true", "objective: must be a number"),
        ("drain_s: 0", "drain_s: must be more than 0 seconds"),
        ("drain_s: .nan", "drain_s: must be a number"),
        ("max_models: 2.5", "max_models: must be a whole number"),
        ("host_header: llm.example", "host_header: must be pass or upstream, not 'llm.example'"),
        ("forwarded: sometimes", "forwarded: must be true or false"),
        ("max_connections: 0", "max_connections: must be a whole number of at least 1"),
        ("idle_timeout_s: -1", "idle_timeout_s: must be more than 0 seconds"),
        ("slo: ttft=1\nslo_file: x.yaml", "give one of them"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_settings({} if text.startswith("upstream") else {"upstream": UP}, file=file, environ={})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_not_utf8_is_said(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_bytes(b"upstream: \xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_settings({}, file=file, environ={})


def test_without_an_upstream_all_three_ways_are_said() -> None:
    with pytest.raises(SettingsError, match=r"--upstream .*GOODPUT_UPSTREAM .*settings file"):
        load_settings({}, environ={})


@given(
    st.sampled_from(sorted(KEYS)),
    st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.lists(st.text())),
)
@settings(max_examples=200, deadline=None)
def test_any_value_is_taken_or_refused_in_one_line(key: str, value: Any) -> None:
    said = ""
    try:
        load_settings({"upstream": UP} | {key: value}, environ={})
    except SettingsError as error:
        said = str(error)
    first = said.partition(":")[0].lstrip("-").replace("-", "_")
    assert first in ("", key, "upstream", "slo and slo_file")


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), (":9090", ("0.0.0.0", 9090))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
