"""Profiles: what is built in is sound, what is wrong is named."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
import yaml

from loadgen.simulator.profile import Span, find_profile, parse_profiles, profiles
from sidecar.errors import UserError

TEXT = resources.files("loadgen.simulator").joinpath("profiles.yaml").read_text(encoding="utf-8")


def test_built_in_profiles_can_be_found_by_name() -> None:
    assert set(profiles()) == {"demo", "h100-8b", "small-kv", "fast"}
    for name, profile in profiles().items():
        assert find_profile(name) is profile
        assert profile.name == name


def test_a_file_gives_the_same_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    assert find_profile("demo", str(path)) == find_profile("demo")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"peak_flops": None}, "mine.yaml: demo.peak_flops: expected float, got None"),
        ({"layers": "many"}, "mine.yaml: demo.layers: expected int, got 'many'"),
        ({"layers": True}, "mine.yaml: demo.layers: expected int, got True"),
        ({"max_batch": 0}, "max_batch must be greater than 0"),
        ({"step_overhead_s": -1.0}, "step_overhead_s must not be negative"),
        ({"kv_blocks": 10}, "must hold max_model_len"),
        ({"speed": 3}, "mine.yaml: demo: unknown key 'speed'"),
        ({"workload": {"prompt_tokens": 5}}, "mine.yaml: demo.workload: missing key 'output_tokens'"),
        ({"workload": {"prompt_tokens": [9, 5], "output_tokens": 3}}, "1 <= low <= high, got [9, 5]"),
        ({"workload": {"prompt_tokens": 9000, "output_tokens": 3}}, "workload is longer than max_model_len"),
        ({"workload": 5}, "mine.yaml: demo.workload: expected a mapping"),
        ({"slo": {"ttft": 1}}, "mine.yaml: demo.slo: unknown key 'ttft'"),
        ({"slo": {"ttft_s": "soon"}}, "mine.yaml: demo.slo.ttft_s: expected seconds, got 'soon'"),
        ({"answer_tokens": 2.5}, "expected a whole number or [low, high]"),
    ],
)
def test_a_wrong_key_is_named(change: dict[str, object], says: str) -> None:
    raw = {"demo": yaml.safe_load(TEXT)["demo"] | change}
    with pytest.raises(UserError, match=r".") as caught:
        parse_profiles(yaml.safe_dump(raw), where="mine.yaml")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "just words", "demo: 3", ""])
def test_what_is_no_profile_file_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml"):
        parse_profiles(text, where="mine.yaml")


def test_a_missing_file_and_an_unknown_name_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: cannot be read: No such file"):
        find_profile("demo", str(tmp_path / "nowhere.yaml"))
    with pytest.raises(UserError, match="unknown profile 'nope'; built in: demo, fast, h100-8b, small-kv"):
        find_profile("nope")


def test_span_statistics() -> None:
    values = range(3, 9)
    mean = sum(values) / 6
    assert Span(3, 8).mean == mean
    assert Span(3, 8).variance == pytest.approx(sum((v - mean) ** 2 for v in values) / 6)
