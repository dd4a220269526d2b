"""The engine: replacing, keyed tokens, windows, overlaps, custom patterns, and failing closed."""

from __future__ import annotations

import random
import string
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import SettingsError
from sidecar.redaction import patterns as pattern_module
from sidecar.redaction.engine import OVERLAP, WINDOW, Reason, RedactionFailed, Redactor
from sidecar.redaction.patterns import EngineMissing, Pattern, PatternSet, load_patterns

REDACTOR = Redactor()
KEYED = Redactor(key=b"0123456789abcdef")


def test_with_a_key_the_same_value_has_the_same_token_and_without_one_there_is_none() -> None:
    text = "a@b.example A@B.example c@d.example"
    first, again, other = KEYED.text(text).split(" ")
    assert first == again != other
    assert first.startswith("[EMAIL:h=")
    assert REDACTOR.text(text) == "[EMAIL] [EMAIL] [EMAIL]"
    assert Redactor(key=b"another key of 16").text("a@b.example") != first


def test_one_card_has_one_token_however_it_is_written() -> None:
    text = "4111 1111 1111 1111;4111-1111-1111-1111;4111111111111111"
    assert len(set(KEYED.text(text).split(";"))) == 1


@pytest.mark.parametrize(
    "value", ["dana@example.com", "4111 1111 1111 1111", "+44 20 7946 0958", "AKIAABCDEFGHIJ234567"]
)
@pytest.mark.parametrize("shift", [-30, -12, -3, -1, 0, 1, 5])
def test_a_value_across_a_window_edge_is_found_whole(value: str, shift: int) -> None:
    lead = "word " * (WINDOW // 5 + 10)
    lead = lead[: WINDOW + shift - 1] + " "
    shown = REDACTOR.text(lead + value + " tail")
    assert value not in shown
    assert shown.startswith(lead.rstrip())
    assert shown.endswith("] tail")


@pytest.mark.parametrize("length", [OVERLAP - 200, OVERLAP + 500, 3 * WINDOW])
def test_a_key_longer_than_the_overlap_leaves_nothing_behind(length: int) -> None:
    draw = random.Random(4)
    body = "".join(draw.choice(string.ascii_letters + string.digits + "+/") for _ in range(length))
    lines = "\n".join(body[i : i + 64] for i in range(0, length, 64))
    text = f"{'x ' * 4000}-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\ndone"
    shown = REDACTOR.text(text)
    assert not [line for line in lines.split("\n") if line in shown]
    assert shown.endswith("done")


def test_a_long_token_leaves_no_tail() -> None:
    token = "hvs." + "Ab3" * WINDOW
    shown = REDACTOR.text(f"use {token} now")
    assert shown == "use [API_KEY] now"


def test_overlapping_hits_leave_no_piece_of_either() -> None:
    shown = REDACTOR.text("postgres://svc:hunter2pass@db.example/app")
    assert "svc" not in shown
    assert "hunter2" not in shown


def test_words_of_a_deny_list_and_custom_patterns() -> None:
    custom = [Pattern("ticket", "TICKET", r"\bTCK-\d{4}\b")]
    redactor = Redactor(deny=["Project Falcon", "", "Straße 7"], custom=custom)
    assert redactor.text("project falcon, TCK-1234, Straße 7, ｐｒｏｊｅｃｔ Falcon") == (
        "[DENIED], [TICKET], [DENIED], [DENIED]"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Redactor(custom=[Pattern("mine", "X", "(")]), "mine"),
        (lambda: Redactor(custom=[Pattern("mine", "X", "x", check="nope")]), "no check 'nope'"),
        (lambda: Redactor(regions=["XX"]), "XX"),
        (lambda: Redactor(key=b"short"), "16 bytes"),
    ],
)
def test_wrong_settings_are_named(make: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make()  # type: ignore[operator]


def test_a_pattern_file_with_a_mistake_names_it(tmp_path: object) -> None:
    path = tmp_path / "mine.yaml"  # type: ignore[operator]
    path.write_text("version: 1\npatterns:\n  - {id: a, kind: B, pattern: x}\n  - {id: a, wrong: 1}\n")
    with pytest.raises(SettingsError, match=r"mine\.yaml: pattern 2"):
        load_patterns(path)


def test_too_much_time_means_nothing_leaves() -> None:
    ticks = iter(range(0, 10**15, 10**9))
    slow = Redactor(cpu_ns=lambda: next(ticks))
    with pytest.raises(RedactionFailed) as failure:
        slow.text("a@b.example")
    assert failure.value.reason is Reason.BUDGET
    assert "example" not in str(failure.value)


def test_without_re2_there_is_no_slower_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_module, "re2", None)
    with pytest.raises(EngineMissing):
        Redactor()


def test_patterns_that_find_nothing_are_noticed_at_the_start() -> None:
    with pytest.raises(EngineMissing, match="EMAIL"):
        Redactor(patterns=("broken", (Pattern("email", "EMAIL", "never-there"),)))


def test_a_search_that_gave_up_is_no_clean_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made = PatternSet("1", (Pattern("a", "A", "a+"),))
    assert made.present(b"xa") == [0]
    assert made.present(b"") == []

    class GaveUp:
        def Match(self, data: bytes) -> None:
            return None

    monkeypatch.setattr(made, "_set", GaveUp())
    with pytest.raises(RuntimeError):
        made.present(b"xa")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80))
def test_an_address_among_anything_never_survives(before: str, after: str) -> None:
    shown = REDACTOR.text(f"{before} dana.scully@example.com {after}")
    assert "dana.scully@example.com" not in shown


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=string.printable + "é漢\u200b\ud800", max_size=300))
def test_any_text_is_answered_and_twice_is_once(text: str) -> None:
    once = REDACTOR.text(text)
    hits = REDACTOR.find(text)
    assert all(a.end <= b.start for a, b in pairwise(hits))
    if not hits:
        assert once == text


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_the_set_misses_no_pattern_that_is_there(data: bytes) -> None:
    data = b"sk-A1b2C3d4E5f6G7h8I9 " + data + b" a@b.example 10.1.2.3"
    found = set(REDACTOR._set.present(data))
    for index, pattern in enumerate(REDACTOR._set.compiled):
        assert (pattern.search(data) is not None) == (index in found)
