"""SLO files and flags: what they mean, and what is said of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.requests.slo import DEFAULT_SLO, SloClass, SloPolicy, load_slo, parse_slo

SHIPPED = Path(__file__).parents[3] / "configs" / "slo.yaml"


def test_the_shipped_file_is_read() -> None:
    policy = load_slo(SHIPPED)
    assert policy.default.name == "interactive"
    assert [slo.name for slo in policy.all_classes()] == [
        "interactive",
        "autocomplete",
        "long-context",
        "batch",
    ]
    assert policy.class_for(model="llama", path="/v1/chat/completions") is policy.default
    assert policy.class_for(model="llama", path="/gw/v1/completions?x=1").name == "autocomplete"
    assert policy.class_for(model="qwen-1m", path="/v1/chat/completions").name == "long-context"
    assert policy.class_for(request_class="batch-night").name == "batch"
    assert policy.class_for(request_class="autocomplete").name == "autocomplete"
    assert policy.class_for(request_class="unheard of") is policy.default


def test_the_shipped_default_is_the_built_in_default() -> None:
    shipped = load_slo(SHIPPED).default
    assert (shipped.ttft_s, shipped.tpot_s, shipped.max_gap_s, shipped.stall_s) == (
        DEFAULT_SLO.ttft_s,
        DEFAULT_SLO.tpot_s,
        DEFAULT_SLO.max_gap_s,
        DEFAULT_SLO.stall_s,
    )
    assert DEFAULT_SLO.max_gap_s is not None


def test_the_short_form_is_one_class(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text("ttft: 500ms\ntpot_s: 0.05\nmax_gap: null\n")
    policy = load_slo(file)
    assert policy.class_for(request_class="anything") == SloClass(ttft_s=0.5, tpot_s=0.05)


def test_a_rule_comes_before_the_name_in_the_header(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(
        "classes:\n  a: {ttft_s: 1}\n  b: {ttft_s: 2}\n"
        "rules:\n  - {class: b, request_class: a, model: 'm?'}\n"
    )
    policy = load_slo(file)
    assert policy.class_for(model="m1", request_class="a").name == "b"
    assert policy.class_for(model="other", request_class="a").name == "a"
    assert policy.default.name == "a"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", None, "is empty"),
        ("- 1\n", 1, "must be a mapping"),
        ("ttft_s: [1]\n", 1, "default: ttft_s must be a number of seconds"),
        ("ttft_s: -1\n", 1, "must be seconds above 0"),
        ("ttft_s: 1\nttft_s: 2\n", 2, "ttft_s stands twice"),
        ("ttft: 1\nttft_s: 2\n", 2, "ttft_s stands twice"),
        ("tttf_s: 1\n", 1, "did you mean ttft_s?"),
        ("ttft_s: 1\ntpot_s: fast\n", 2, "not 'fast'"),
        ("ttft_s: .nan\n", 1, "must be seconds above 0"),
        ("ttft_per_prompt_token_s: 0.1\n", 1, "needs ttft_s beside it"),
        ("client_errors_eligible: 3\nttft_s: 1\n", 1, "must be true or false"),
        ("classes: {}\n", None, "at least one class"),
        ("classes:\n  a: 5\n", 2, "class a must be a mapping"),
        ("classes:\n  a: {ttft_s: 1}\ndefault: b\n", 3, "'b' is none of the classes (a)"),
        ("classes:\n  a: {ttft_s: 1}\nrule: []\n", 3, "did you mean rules?"),
        ("classes:\n  a: {ttft_s: 1}\nrules: {}\n", 3, "rules must be a list"),
        ("classes:\n  a: {ttft_s: 1}\nrules:\n  - model: x\n", 4, "rule 1 has no class"),
        ("classes:\n  a: {ttft_s: 1}\nrules:\n  - {class: a, modle: x}\n", 4, "did you mean model?"),
        ("classes:\n  a: {ttft_s: 1}\nrules:\n  - {class: a, model: [x]}\n", 4, "must be a text"),
        ("classes:\n  a: {ttft_s: 1\n", 3, "is not YAML"),
        ("? [a]\n: 1\n", 1, "a key that is not a text"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, says: str) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_slo(file)
    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: " if line else f"{file}: ")
    assert says in message
    assert "\n" not in message


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_slo(tmp_path / "nowhere.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        load_slo(tmp_path / "bytes.yaml")
    (tmp_path / "deep.yaml").write_text("[" * 20_000)
    with pytest.raises(SettingsError, match="nested too deeply"):
        load_slo(tmp_path / "deep.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * 5_000_000)
    with pytest.raises(SettingsError, match="larger than 4 MiB"):
        load_slo(tmp_path / "large.yaml")


def test_bounds_on_the_command_line() -> None:
    assert parse_slo("ttft=0.5,tpot=50ms, max_gap=2s,e2e_s=1m") == SloClass(
        ttft_s=0.5, tpot_s=0.05, max_gap_s=2.0, e2e_s=60.0
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no bound given"),
        ("ttft", "is not BOUND=SECONDS"),
        ("ttfd=1", "did you mean ttft?"),
        ("ttft=1,ttft=2", "ttft stands twice"),
        ("ttft=x", "must be seconds above 0"),
        ("ttft=0", "must be seconds above 0"),
        ("ttft=1h", "must be seconds above 0"),
        ("ttft=1e300", "at most 1e+09"),
        ("e2e=1e999", "at most 1e+09"),
        ("ttft_per_prompt_token=0.001,tpot=1", "needs ttft beside it"),
    ],
)
def test_mistakes_on_the_command_line(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_slo(text)
    assert says in str(caught.value)


def test_without_any_file_the_default_judges_all() -> None:
    assert SloPolicy().class_for(request_class="x", model="y", path="/z") is DEFAULT_SLO
