"""Second sights of a text: what they show, and that every place leads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.redaction.normalize import View, fold, views

ODD = st.text(
    alphabet=st.sampled_from(
        [*"ab1@.-\\%&;u04nxX#", "\u200b", "а", "＠", "\u00a0", "–", "１", "漢", "🙂", "\u00ad"]
    ),
    max_size=40,
)


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("аlice", "alice"),
        ("bob＠example．org", "bob@example.org"),
        ("4111\u00a01111–1111\u20091111", "4111 1111-1111 1111"),
        ("jo\u200bhn", "john"),
        ("١٢٣ １２３", "123 123"),
        ("𝐣𝐨𝐡𝐧", "john"),
        ("plain ascii", "plain ascii"),
    ],
)
def test_folding(written: str, seen: str) -> None:
    assert fold(written).text == seen


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (r"a\u0040b.example", "a@b.example"),
        (r"line\nphone", "line\nphone"),
        (r"a\\u0040b", "a@b"),
        ("a%40b", "a@b"),
        ("a%2540b", "a@b"),
        ("a&#64;b&commat;c", "a@b@c"),
        (r"jo\u200bhn", "john"),
    ],
)
def test_escapes_are_undone_in_a_second_view(written: str, seen: str) -> None:
    assert seen in [v.text for v in views(written)]


def test_a_text_without_tricks_costs_no_copy() -> None:
    text = "nothing odd in here"
    (view,) = views(text)
    assert view.text is text
    assert view.cuts is None


@settings(max_examples=300, deadline=None)
@given(ODD)
def test_every_span_of_a_view_lies_in_the_text_and_in_order(text: str) -> None:
    for view in views(text):
        last = 0
        for at in range(len(view.text)):
            start, end = view.span(at, at + 1)
            assert 0 <= last <= start < end <= len(text)
            last = end
        if view.text:
            start, end = view.span(0, len(view.text))
            assert 0 <= start < end <= len(text)


@settings(max_examples=200, deadline=None)
@given(ODD, ODD)
def test_a_marker_is_found_where_it_was_put(before: str, after: str) -> None:
    marker = "QZQZ"
    text = before + " " + marker + " " + after
    for view in views(text):
        at = view.text.find(marker)
        if at < 0:
            continue
        start, end = view.span(at, at + len(marker))
        assert text[start:end] == marker


def test_an_escape_is_taken_whole() -> None:
    text = r"x\u0040y"
    view = next(v for v in views(text) if v.text == "x@y")
    assert view.span(1, 2) == (1, 7)
    assert isinstance(view, View)
