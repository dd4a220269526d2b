"""Known bad request heads: each has been read in two ways by some pair of servers, or asks for an open
proxy."""

from __future__ import annotations

_H = b"Host: a\r\n"


def _post(*lines: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


BAD_HEADS: list[tuple[str, bytes, int]] = [
    ("length and chunked", _post(b"Content-Length: 4", b"Transfer-Encoding: chunked"), 400),
    ("chunked and length", _post(b"Transfer-Encoding: chunked", b"Content-Length: 4"), 400),
    ("two lengths", _post(b"Content-Length: 4", b"Content-Length: 5"), 400),
    ("two equal lengths", _post(b"Content-Length: 4", b"Content-Length: 4"), 400),
    ("length list", _post(b"Content-Length: 4, 4"), 400),
    ("length with sign", _post(b"Content-Length: +4"), 400),
    ("negative length", _post(b"Content-Length: -1"), 400),
    ("hexadecimal length", _post(b"Content-Length: 0x4"), 400),
    ("length with underscore", _post(b"Content-Length: 1_0"), 400),
    ("length beyond 64 bits", _post(b"Content-Length: 18446744073709551620"), 400),
    ("empty length", _post(b"Content-Length:"), 400),
    ("length in other digits", _post("Content-Length: ٤".encode()), 400),
    ("identity", _post(b"Transfer-Encoding: identity"), 501),
    ("gzip, chunked", _post(b"Transfer-Encoding: gzip, chunked"), 501),
    ("chunked, identity", _post(b"Transfer-Encoding: chunked, identity"), 501),
    ("chunked twice", _post(b"Transfer-Encoding: chunked, chunked"), 501),
    ("two codings", _post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"), 501),
    ("two chunked", _post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 501),
    ("xchunked", _post(b"Transfer-Encoding: xchunked"), 501),
    ("quoted chunked", _post(b'Transfer-Encoding: "chunked"'), 501),
    ("chunked with parameter", _post(b"Transfer-Encoding: chunked;q=1"), 501),
    ("vertical tab before chunked", _post(b"Transfer-Encoding: \x0bchunked"), 400),
    ("chunked and NUL", _post(b"Transfer-Encoding: chunked\x00"), 400),
    ("blank before colon", _post(b"Transfer-Encoding : chunked"), 400),
    ("tab before colon", _post(b"Content-Length\t: 4"), 400),
    ("leading blank in name", b"POST / HTTP/1.1\r\n Content-Length: 4\r\nHost: a\r\n\r\n", 400),
    ("folded coding", _post(b"Transfer-Encoding:", b" chunked"), 400),
    ("folded value", _post(b"X: a", b"\tb"), 400),
    ("bare CR in value", _post(b"X: a\rTransfer-Encoding: chunked"), 400),
    ("bare LF in value", _post(b"X: a\nTransfer-Encoding: chunked"), 400),
    ("NUL in value", _post(b"X: a\x00b"), 400),
    ("control in name", _post(b"X\x01Y: 1"), 400),
    ("line without colon", _post(b"Content-Length 4"), 400),
    ("empty name", _post(b": 4"), 400),
    ("coding in HTTP/1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("user in host", b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400),
    ("path in host", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ("absolute form", b"GET http://elsewhere/ HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("absolute form, other scheme", b"GET ftp://elsewhere/ HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("authority form", b"GET elsewhere:80 HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("CONNECT", b"CONNECT elsewhere:443 HTTP/1.1\r\n" + _H + b"\r\n", 405),
    ("asterisk", b"GET * HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("fragment", b"GET /a#b HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("blank in target", b"GET /a b HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("two blanks", b"GET  / HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("tab in request line", b"GET\t/ HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("bare CR in request line", b"GET / HTTP/1.1\rX: y\r\n" + _H + b"\r\n", 400),
    ("control in target", b"GET /\x01 HTTP/1.1\r\n" + _H + b"\r\n", 400),
    ("no version", b"GET /\r\n" + _H + b"\r\n", 400),
    ("HTTP/1.2", b"GET / HTTP/1.2\r\n" + _H + b"\r\n", 505),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\n", 505),
    ("HTTP/0.9 with version", b"GET / HTTP/0.9\r\n" + _H + b"\r\n", 505),
    ("lower-case version", b"GET / http/1.1\r\n" + _H + b"\r\n", 400),
    ("lower-case method", b"get / HTTP/1.1\r\n" + _H + b"\r\n", 400),
]
