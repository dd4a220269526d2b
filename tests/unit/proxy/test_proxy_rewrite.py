from __future__ import annotations

import pytest

from sidecar.proxy.head import parse_request, parse_response
from sidecar.proxy.rewrite import forward_request, forward_response, websocket


def through(
    *lines: bytes, replace: dict[bytes, bytes] | None = None, add: list[tuple[bytes, bytes]] | None = None
) -> list[bytes]:
    raw = b"\r\n".join([b"GET / HTTP/1.1", b"Host: a", *lines]) + b"\r\n\r\n"
    out = forward_request(parse_request(raw), replace=replace or {}, add=add or [])
    assert out.startswith(b"GET / HTTP/1.1\r\nHost: a\r\n")
    assert out.endswith(b"\r\n\r\n")
    return out[:-4].split(b"\r\n")[2:]


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ([b"X:  odd  ", b"x:Y"], [b"X:  odd  ", b"x:Y"]),
        ([b"Connection:  Keep-Alive"], [b"Connection:  Keep-Alive"]),
        ([b"Connection: close"], [b"Connection: close"]),
        ([b"Connection: keep-alive, x-hop", b"X-Hop: 1", b"Y: 2"], [b"Connection: keep-alive", b"Y: 2"]),
        ([b"X-Hop: 1", b"connection: X-HOP"], []),
        ([b"Keep-Alive: timeout=5", b"Proxy-Authorization: x", b"TE: gzip"], []),
        ([b"Connection: TE", b"TE: gzip, trailers"], [b"Connection: TE", b"TE: trailers"]),
        ([b"Connection: authorization, content-length", b"Content-Length: 0"], [b"Content-Length: 0"]),
        ([b"Connection: host"], []),
        ([b"Connection: Upgrade", b"Upgrade: websocket"], [b"Connection: Upgrade", b"Upgrade: websocket"]),
        ([b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: x"], []),
        ([b"Connection: x", b"Connection: close", b"X: 1"], [b"Connection: close"]),
        ([b"Transfer-Encoding: chunked", b"Trailer: X"], [b"Transfer-Encoding: chunked", b"Trailer: X"]),
    ],
)
def test_request_lines(lines: list[bytes], want: list[bytes]) -> None:
    assert through(*lines) == want


def test_replaces_and_adds() -> None:
    got = through(b"Traceparent: old", b"Z: 1", replace={b"traceparent": b"new"}, add=[(b"X-New", b"1")])
    assert got == [b"Traceparent: new", b"Z: 1", b"X-New: 1"]


def test_a_head_with_nothing_to_change_is_the_same_bytes() -> None:
    raw = (
        b"HTTP/1.1 200 Fine\r\nset-cookie: a\r\nSet-Cookie:b\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    assert forward_response(parse_response(raw)) == raw


def test_response_lines() -> None:
    raw = b"HTTP/1.1 200 OK\r\nConnection: close, x-up\r\nX-Up: 9\r\nKeep-Alive: timeout=5\r\nA: 1\r\n\r\n"
    assert forward_response(parse_response(raw)) == b"HTTP/1.1 200 OK\r\nConnection: close\r\nA: 1\r\n\r\n"
    raw = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nA: 1\r\n\r\n"
    want = b"HTTP/1.1 200 OK\r\nA: 1\r\nConnection: close\r\n\r\n"
    assert forward_response(parse_response(raw), close=True) == want
    raw = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    assert forward_response(parse_response(raw)) == raw


def test_only_websocket_is_an_upgrade() -> None:
    def asks(*lines: bytes) -> bool:
        return websocket(parse_request(b"\r\n".join([b"GET / HTTP/1.1", b"Host: a", *lines]) + b"\r\n\r\n"))

    assert asks(b"Connection: keep-alive, Upgrade", b"Upgrade: WebSocket")
    assert not asks(b"Connection: Upgrade", b"Upgrade: h2c")
    assert not asks(b"Connection: Upgrade", b"Upgrade: websocket, h2c")
    assert not asks(b"Upgrade: websocket")
