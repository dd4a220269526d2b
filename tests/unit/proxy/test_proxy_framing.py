from __future__ import annotations

import itertools

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.proxy.framing import (
    MAX_SIZE_LINE,
    MAX_TRAILERS,
    WHOLE_CHUNKS,
    ChunkedBody,
    FramingError,
    LengthBody,
    NoBody,
    UntilClose,
)


def feed_all(body: ChunkedBody | LengthBody, pieces: list[bytes]) -> tuple[bytes, int]:
    """Payload and number of bytes taken."""
    payload, taken = b"", 0
    for piece in pieces:
        if body.done:
            break
        used = body.feed(piece)
        taken += used
        payload += body.payload
        if used < len(piece):
            break
    return payload, taken


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


CHUNKS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)
EXTENSION = st.sampled_from([b"", b";a", b';n="v;w"', b";\tx=1"])
PLACES = st.lists(st.integers(0, 5000), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    CHUNKS,
    EXTENSION,
    st.sampled_from([b"", b"X-T: 1\r\n", b"A: b\r\nC:\r\n"]),
    PLACES,
    st.binary(max_size=40),
)
def test_chunked_body_cut_anywhere(
    chunks: list[bytes], extension: bytes, trailers: bytes, places: list[int], after: bytes
) -> None:
    coded = (
        b"".join(b"%x%s\r\n%s\r\n" % (len(c), extension, c) for c in chunks) + b"0\r\n" + trailers + b"\r\n"
    )
    body = ChunkedBody()
    payload, taken = feed_all(body, cut(coded + after, places))
    assert payload == b"".join(chunks)
    assert body.done
    assert taken == len(coded)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), PLACES)
def test_never_takes_what_llhttp_refuses(noise: bytes, places: list[int]) -> None:
    """What is complete to us is complete to llhttp, with the same content."""
    body = ChunkedBody()
    data = noise + b"3\r\nabc\r\n0\r\n\r\n"
    try:
        payload, taken = feed_all(body, cut(data, places))
    except FramingError:
        return
    if not body.done:
        return
    got: list[bytes] = []

    class Sink:
        def on_body(self, piece: bytes) -> None:
            got.append(piece)

    parser = httptools.HttpRequestParser(Sink())
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + data[:taken])
    assert b"".join(got) == payload


def test_same_chunk_again_takes_the_short_way_with_the_same_result() -> None:
    body = ChunkedBody()
    for _ in range(3):
        assert body.feed(b"4\r\nwiki\r\n") == 9
        assert body.payload == b"wiki"
        assert not body.done
    assert body.feed(b"0\r\n\r\nGET") == 5
    assert body.done
    assert body.payload == b""


def test_the_length_of_a_whole_chunk_tells_its_size_line() -> None:
    for size in [*range(1, 300), 4080, 4081, 4090, 5000, 70_000]:
        coded = b"%x\r\n%s\r\n" % (size, b"x" * size)
        known = WHOLE_CHUNKS[len(coded)]
        assert coded.startswith(known) == (len(coded) <= 4096)
        body = ChunkedBody()
        assert (body.feed(coded), body.payload) == (len(coded), b"x" * size)
        assert body.between_chunks
    for length in range(7):  # shorter than any chunk with content, or the last chunk
        assert WHOLE_CHUNKS[length] == (b"1\r\n" if length == 6 else ())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3), st.integers(0, 300) | st.integers(4000, 4200))
def test_the_short_way_takes_nothing_that_the_long_way_refuses(begin: bytes, fill: int) -> None:
    data = begin + b"x" * fill + b"\r\n"
    short, long = ChunkedBody(), ChunkedBody()
    try:
        taken = short.feed(data), short.payload
    except FramingError:
        taken = None
    try:  # cut, so that it is no whole chunk in one piece
        first = long.feed(data[:1]) and long.payload
        rest = long.feed(data[1:]), first + long.payload
    except FramingError:
        assert taken is None
    else:
        assert taken == (rest[0] + 1, rest[1])


@pytest.mark.parametrize(
    "bad",
    [
        b"\n\r\n",
        b"\n" + b"x" * 18 + b"\r\n",  # no chunk is 21 bytes long
        b"\n" + b"x" * 5000 + b"\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5_0\r\nhello\r\n",
        b"\r\nhello\r\n",
        b"g\r\n",
        b"5\nhello\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhello\n",
        b"5\r\nhello\rx",
        b"5;a\rb\r\nhello\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"5;\x00\r\nhello\r\n",
        b"1" + b"0" * 16 + b"\r\n",
        b"5;" + b"a" * (MAX_SIZE_LINE + 1),
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n x: folded\r\n\r\n",
        b"0\r\nx : 1\r\n\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\ntransfer-encoding: chunked\r\n\r\n",
        b"0\r\nhost: other\r\n\r\n",
        b"0\r\nx: a\rb\r\n\r\n",
        b"0\r\n" + b"x: y\r\n" * (MAX_TRAILERS // 6 + 1) + b"\r\n",
    ],
)
def test_bad_chunked_bodies(bad: bytes) -> None:
    with pytest.raises(FramingError):
        feed_all(ChunkedBody(), [bad])
    with pytest.raises(FramingError):
        feed_all(ChunkedBody(), [bad[i : i + 1] for i in range(len(bad))])


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=500), PLACES, st.binary(max_size=20))
def test_length_body(content: bytes, places: list[int], after: bytes) -> None:
    body = LengthBody(len(content))
    payload, taken = feed_all(body, cut(content + after, places))
    assert (payload, taken, body.done) == (content, len(content), True)


def test_the_other_framings() -> None:
    assert NoBody().done
    assert NoBody().feed(b"x") == 0
    body = UntilClose()
    assert body.feed(b"abc") == 3
    assert body.payload == b"abc"
    assert not body.done
