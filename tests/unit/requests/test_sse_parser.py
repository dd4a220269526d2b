"""Server-sent events by the standard."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.requests.sse import SseEvent, SseParser


def events(data: bytes, *, close: bool = False, limit: int = 1 << 20) -> list[tuple[bytes, bytes]]:
    parser = SseParser(limit)
    found = parser.feed(data) + (parser.close() if close else [])
    return [(event.name, event.data) for event in found]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\r\n\r\n", [(b"", b"a")]),
        (b"data: a\r\r", [(b"", b"a")]),
        (b"data: a\r\n\rdata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data:  a\n\n", [(b"", b" a")]),  # one blank only
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"data\ndata\n\n", [(b"", b"\n")]),
        (b"data:\n\n", []),
        (b"data\n\n", []),
        (b": comment\n\n", []),
        (b"event: ping\n\n", []),
        (b"event: x\ndata: a\n\ndata: b\n\n", [(b"x", b"a"), (b"", b"b")]),
        (b"event: x\n\ndata: b\n\n", [(b"", b"b")]),  # a name does not outlive its event
        (b"event: x\nevent\ndata: b\n\n", [(b"", b"b")]),
        (b"id: 1\nretry: 5\nother: 3\ndata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),  # only one is taken off
        (b"data: a\n", []),
        (b"data: \xe2\x80\xa8\xc2\x85\x0b\x0c\x1c\n\n", [(b"", b"\xe2\x80\xa8\xc2\x85\x0b\x0c\x1c")]),
        (b"\n\n\ndata: a\n\n\n\n", [(b"", b"a")]),
    ],
)
def test_events_of_bytes(data: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert events(data) == expected


def test_an_event_is_complete_with_the_first_byte_that_can_end_it() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n") == []
    assert parser.feed(b"\r") == [SseEvent(b"", b"a")]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: b\n\n") == [SseEvent(b"", b"b")]


@pytest.mark.parametrize("data", [b"data: a", b"data: a\n", b"event: x\ndata: a\r"])
def test_a_body_that_lacks_its_last_line_ends(data: bytes) -> None:
    assert [data for _, data in events(data, close=True)] == [b"a"]


def test_what_is_no_field_is_noted() -> None:
    parser = SseParser()
    parser.feed(b": a\nid\nretry: 1\nevent: x\ndata: y\n\n")
    assert not parser.junk
    parser.feed(b"HTTP/1.1 500\n")
    assert parser.junk


def test_an_event_above_the_limit_is_told_without_its_data() -> None:
    parser = SseParser(100)
    assert parser.feed(b"data: " + b"x" * 200) == []
    assert parser.feed(b"x\n\ndata: b\n\n") == [SseEvent(b"", b"", oversize=True), SseEvent(b"", b"b")]
    assert parser.feed(b"data: 1234567890\n" * 20 + b"\n") == [SseEvent(b"", b"", oversize=True)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            (b"data: x", b"data", b"event: e", b": c", b"\r", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf")
        )
    ),
    st.data(),
)
def test_no_cut_changes_the_events(parts: list[bytes], data: st.DataObject) -> None:
    body = b"".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    for cuts in (places, list(range(len(body)))):
        parser = SseParser(64)
        found = [
            event
            for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)
            for event in parser.feed(body[a:b])
        ]
        assert [(event.name, event.data) for event in [*found, *parser.close()]] == events(
            body, close=True, limit=64
        )


@pytest.mark.parametrize("limit", [60, 64, 70, 120])
@pytest.mark.parametrize(
    "first", [b"data: ", b"\xef\xbb\xbfdata: ", b"data:", b": ", b"event: ", b"data: a\ndata: "]
)
def test_no_cut_changes_what_is_too_large(first: bytes, limit: int) -> None:
    for size in range(80):
        body = first + b"x" * size + b"\ndata: y\n\n"
        whole = SseParser(limit).feed(body)
        bytewise = SseParser(limit)
        assert [event for at in range(len(body)) for event in bytewise.feed(body[at : at + 1])] == whole
