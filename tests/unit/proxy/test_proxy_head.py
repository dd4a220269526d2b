from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.proxy.framing import Body, ChunkedBody, LengthBody, NoBody, UntilClose
from sidecar.proxy.head import Refused, parse_request, parse_response, request_body, response_body
from tests.support.smuggling import BAD_HEADS


def test_reads_a_head() -> None:
    raw = (
        b"POST /v1/x?y=%20 HTTP/1.1\r\nHost: a\r\nX-Two: 1\r\nx-two:\t2 \r\nEmpty:\r\n"
        b"Content-Length: 12\r\n\r\n"
    )
    head = parse_request(raw)
    assert (head.method, head.target, head.minor) == (b"POST", b"/v1/x?y=%20", 1)
    assert head.values(b"x-two") == [b"1", b"2"]
    assert head.first(b"empty") == b""
    assert head.lines[3] == b"x-two:\t2 "
    assert head.keep_alive
    body = request_body(head)
    assert isinstance(body, LengthBody)


@pytest.mark.parametrize(("name", "raw", "status"), BAD_HEADS, ids=[name for name, _, _ in BAD_HEADS])
def test_refuses_what_can_be_read_in_two_ways(name: str, raw: bytes, status: int) -> None:
    with pytest.raises(Refused) as refusal:
        parse_request(raw)
    assert refusal.value.status == status


@pytest.mark.parametrize(
    ("version", "connection", "keep"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: x, Close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
    ],
)
def test_keep_alive(version: bytes, connection: bytes, keep: bool) -> None:
    assert (
        parse_request(b"GET / HTTP/" + version + b"\r\nHost: a\r\n" + connection + b"\r\n").keep_alive is keep
    )


@pytest.mark.parametrize(
    ("head", "method", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"GET", LengthBody),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"HEAD", NoBody),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n", b"GET", ChunkedBody),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"GET", NoBody),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"GET", NoBody),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"GET", UntilClose),
    ],
)
def test_how_an_answer_is_framed(head: bytes, method: bytes, kind: type[Body]) -> None:
    assert isinstance(response_body(parse_response(head), method), kind)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
    ],
)
def test_bad_answers(raw: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        parse_response(raw)
    assert refusal.value.status == 502


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120))
def test_noise_is_refused_or_read_never_anything_else(noise: bytes) -> None:
    raw = b"GET / HTTP/1.1\r\nHost: a\r\n" + noise + b"\r\n\r\n"
    try:
        head = parse_request(raw[: raw.index(b"\r\n\r\n") + 4])
    except Refused:
        return
    assert b"\r\n".join(head.lines) + b"\r\n\r\n" == raw[: raw.index(b"\r\n\r\n") + 4]
