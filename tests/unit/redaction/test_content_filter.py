"""Levels, structure and failing closed of what a request's content becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.redaction.engine import Reason, Redactor
from sidecar.redaction.filter import Content, ContentFilter, Level, cut, fit
from sidecar.redaction.structure import Structure, bare_url

REDACTOR = Redactor(key=b"k" * 16)


def at(level: Level, **more: Any) -> ContentFilter:
    return ContentFilter(level, lambda: REDACTOR, **more)


def request(level: Level, body: Any, **more: Any) -> Content:
    return at(level, **more).request(json.dumps(body).encode())


CHAT = {
    "messages": [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "hello dana@example.com"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "think",
            "tool_calls": [
                {"id": "c1", "function": {"name": "send", "arguments": '{"a@b.example": 1, "n": 2.50}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"password": "x", "ok": true}'},
    ],
    "tools": [{"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}],
    "stop": "END",
    "user": "u1",
}


def test_drop_lets_nothing_out() -> None:
    assert request(Level.DROP, CHAT) == Content()


def test_shape_has_roles_types_names_and_lengths_only() -> None:
    content = request(Level.SHAPE, CHAT)
    assert content.messages == [
        {"role": "system", "parts": [{"type": "text", "length": 3}]},
        {"role": "user", "parts": [{"type": "text", "length": 22}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "length": 5},
                {"type": "tool_call", "name": "send", "length": 29},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "length": 29}]},
    ]
    assert content.tools == [
        {"type": "function", "name": "send", "length": len(json.dumps(CHAT["tools"][0]))}
    ]  # type: ignore[index]
    assert content.stop is None
    assert content.user is None


def test_redact_keeps_structure_numbers_and_the_harmless_rest() -> None:
    content = request(Level.REDACT, CHAT)
    assert content.messages is not None
    assert content.messages[1]["parts"][0]["content"].startswith("hello [EMAIL:h=")
    call = content.messages[2]["parts"][1]
    assert call["name"] == "send"
    (key, number) = call["arguments"]
    assert key.startswith("[EMAIL")
    assert call["arguments"][number] == 2.5
    response = content.messages[3]["parts"][0]["response"]
    assert response["ok"] is True
    assert response["password"].startswith("[SECRET")
    assert content.stop == ["END"]


def test_full_is_the_text_but_never_media() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    content = request(Level.FULL, {"messages": [{"role": "user", "content": parts}]})
    assert content.messages is not None
    (part,) = content.messages[0]["parts"]
    assert part == {
        "type": "blob",
        "modality": "image",
        "mime_type": "image/png",
        "size": 8,
        "digest": part["digest"],
    }


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"prompt": ["one", "two"]}, ["one", "two"]),
        ({"prompt": [1, 2, 3]}, []),
        ({"input": "hi", "instructions": "be brief"}, ["hi"]),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}, ["hi"]),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "out"}]}, []),
        (
            {"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "hi"}]},
            ["hi"],
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "r"}]}]}, []),
        ({"query": "q", "documents": ["d1", {"text": "d2"}]}, ["q", "d1", "d2"]),
    ],
)
def test_every_api_is_read(body: Any, texts: list[str]) -> None:
    content = request(Level.REDACT, body)
    assert content.failed is None
    parts = [p for m in content.messages or [] for p in m["parts"]]
    assert [p["content"] for p in parts if p["type"] == "text"] == texts


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not json", Reason.UNDECODABLE),
        (b"\xff\xfe", Reason.UNDECODABLE),
        (b"[" * 5000, Reason.UNDECODABLE),
        (b"[1]", Reason.UNDECODABLE),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "hologram", "x": "secret"}]}]}',
            Reason.UNKNOWN_PART,
        ),
        (b'{"messages": [{"role": "user", "content": 7}]}', Reason.UNDECODABLE),
        (b'{"messages": [7]}', Reason.UNDECODABLE),
        (b'{"messages": "' + b"x" * 300 + b'"}', Reason.OVER_SIZE),
    ],
)
def test_what_cannot_be_understood_is_dropped_and_counted(body: bytes, reason: Reason) -> None:
    for level in (Level.SHAPE, Level.REDACT):
        made = at(level, size_limit=10_000 if reason is not Reason.OVER_SIZE else 200)
        content = made.request(body)
        assert content == Content(failed=reason)
        assert made.counts.failures == {reason.value: 1}


def test_numbers_under_a_telling_key_go_too() -> None:
    structure = Structure(REDACTOR)
    shown = structure.value({"phone": 2025550147, "token": 12345678, "count": 2025550147, "ssn": "078051120"})
    assert str(shown["phone"]).startswith("[PHONE")
    assert str(shown["token"]).startswith("[SECRET")
    assert shown["count"] == 2025550147


def test_two_keys_that_become_one_stay_two() -> None:
    shown = Structure(Redactor()).value({"a@b.example": 1, "c@d.example": 2})
    assert sorted(shown.values()) == [1, 2]


def test_the_same_picture_has_the_same_digest_and_none_without_a_key() -> None:
    data = "data:image/png;base64,iVBORw0KGgo="
    assert Structure(REDACTOR).media("image", data) == Structure(REDACTOR).media("image", data)
    assert "digest" not in Structure(Redactor()).media("image", data)


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("https://u:p@h.example:8/a/b?k=v#f", "https://h.example:8/a/b"),
        ("/v1/chat?key=1", "/v1/chat"),
        ("https://[2001:db8::1]/x", "https://[2001:db8::1]/x"),
        ("http://[bad/x?y=1", "http://[bad/x"),
    ],
)
def test_urls_lose_user_query_and_fragment(url: str, bare: str) -> None:
    assert bare_url(url) == bare


def test_an_image_address_loses_its_secrets() -> None:
    part = Structure(REDACTOR).media("image", "https://u:p@h.example/cat.png?sig=abcdef")
    assert part == {"type": "uri", "modality": "image", "uri": "https://h.example/cat.png"}


def test_output_is_one_message_a_choice() -> None:
    made = at(Level.REDACT)
    content = made.with_output(made.request(b'{"messages": []}'), [("to a@b.example", "stop"), ("", None)])
    assert content.output is not None
    assert [m["finish_reason"] for m in content.output] == ["stop", "error"]
    assert content.output[0]["parts"][0]["content"].startswith("to [EMAIL")


def test_what_was_dropped_stays_dropped_with_its_output() -> None:
    made = at(Level.REDACT)
    failed = made.request(b"nope")
    assert made.with_output(failed, [("text", "stop")]) == failed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_any_body_is_answered(body: Any) -> None:
    for level in Level:
        content = request(level, {"messages": body, "tools": body, "stop": body})
        assert content.failed is None or content.messages is None
        assert request(level, body).failed in (None, *Reason)


@settings(max_examples=200, deadline=None)
@given(st.lists(JSON, min_size=1, max_size=6), st.integers(40, 400))
def test_what_fits_is_whole_json_within_the_limit(values: list[Any], limit: int) -> None:
    text = fit(values, limit)
    if text is not None:
        assert len(text.encode()) <= limit
        json.loads(text)


def test_the_oldest_messages_go_first() -> None:
    values = [
        {"role": "user", "parts": [{"type": "text", "content": f"{i} " + "x" * 300}]} for i in range(20)
    ]
    text = fit(values, 600)
    assert text is not None
    shown = json.loads(text)
    assert shown[0]["parts"][0]["type"] == "omitted"
    assert shown[-1]["parts"][0]["content"].startswith("19 ")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.integers(20, 100))
def test_a_cut_text_says_how_much_is_gone(text: str, limit: int) -> None:
    shown = cut(text, limit)
    assert len(shown) <= limit
    assert (shown == text) == (len(text) <= limit)
