"""Request and response heads: parsed by llhttp (httptools), then read once more, strictly.

llhttp is lenient where old clients need it; a proxy must not be, because what two servers read differently
can be smuggled past one of them. So a head that is ambiguous in any way is refused here and never forwarded.
Pure: bytes in, data or ``Refused`` out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

import httptools

from sidecar.proxy.framing import Body, ChunkedBody, LengthBody, NoBody, UntilClose

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_REQUEST_LINE = re.compile(rb"([A-Z][A-Z\-]{0,31}) ([\x21-\x7e\x80-\xff]+) HTTP/(\d)\.(\d)")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: [\t\x20-\x7e\x80-\xff]*)?")
_LENGTH = re.compile(rb"\d{1,18}")

_MAX_FIELDS = 1000  # parsing more would hold up everybody's streams
_MAX_OPTIONS = 1024  # bytes of a list field that is taken apart here
_BARE_LF = re.compile(rb"(?<!\r)\n")
_NONE: list[bytes] = []


class Refused(Exception):
    """A head that is not passed on. ``status`` is the answer a client gets, ``reason`` the counter's
    label."""

    def __init__(self, status: HTTPStatus, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def _bad(reason: str, message: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, reason, message)


def _too_large(message: str) -> Refused:
    return Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_size", message)


@dataclass(frozen=True, slots=True)
class Head:
    """A parsed head. ``raw`` is all of it; ``lines`` its lines (start line first, no CRLF), ``names`` the
    lower-case field names of lines[1:], ``fields`` the values of each name in order, without outer blanks."""

    raw: bytes
    lines: list[bytes]
    names: list[bytes]
    fields: dict[bytes, list[bytes]]
    minor: int  # of HTTP/1.minor
    method: bytes = b""
    target: bytes = b""
    status: int = 0

    def values(self, name: bytes) -> list[bytes]:
        """All values of a field, in order; ``name`` in lower case."""
        return self.fields.get(name, _NONE)

    def first(self, name: bytes) -> bytes:
        """The first value, or empty."""
        return self.fields[name][0] if name in self.fields else b""

    def tokens(self, name: bytes) -> list[bytes]:
        """A comma-separated list field as lower-case tokens."""
        if name not in self.fields:
            return []
        return [t for v in self.fields[name] for part in v.split(b",") if (t := part.strip(b" \t").lower())]

    def items(self) -> list[tuple[str, str]]:
        """Names and values as text, for those who only read them."""
        return [
            (k.decode("latin-1"), v.decode("latin-1")) for k, values in self.fields.items() for v in values
        ]

    @property
    def keep_alive(self) -> bool:
        """What the head says about the connection's life."""
        options = self.tokens(b"connection")
        return b"close" not in options and (self.minor == 1 or b"keep-alive" in options)


def head_end(buf: bytes, scanned: int, limit: int) -> int:
    """Length of the request head that ``buf`` begins with, 0 while its end has not come.

    ``scanned``: how much of ``buf`` was there the last time. Raises Refused when it is longer than ``limit``
    or cannot become a head.
    """
    end = buf.find(b"\r\n\r\n", max(0, scanned - 3))
    if end > limit or (end < 0 and len(buf) > limit):
        raise _too_large("the request head is too long")
    if end >= 0:
        return end + 4
    if _BARE_LF.search(buf, max(0, scanned - 1)) or not (65 <= buf[0] <= 90 or buf == b"\r"):
        raise _bad("field", "bare LF, or no HTTP request")
    return 0


def parse_request(raw: bytes) -> Head:
    """``raw`` runs to and with the empty line. Raises Refused."""
    lines, names, fields = _lines(raw)
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise _bad("request_line", "bad request line")
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in b"01":
        raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "version", "HTTP/1.0 and HTTP/1.1 only")
    if method == b"CONNECT":
        raise Refused(
            HTTPStatus.METHOD_NOT_ALLOWED, "connect", "this is no forward proxy: CONNECT is not allowed"
        )
    if target != b"*" and not target.startswith(b"/"):
        raise _bad("absolute_form", "this is no forward proxy: the target must begin with /")
    if target == b"*" and method != b"OPTIONS":
        raise _bad("request_line", "only OPTIONS can have the target *")
    if b"#" in target:
        raise _bad("request_line", "a fragment in the request target")
    head = Head(raw, lines, names, fields, int(minor), method=method, target=target)
    for name in (b"connection", b"upgrade", b"te"):
        if sum(map(len, head.values(name))) > _MAX_OPTIONS:
            raise _too_large(f"the field {name.decode()} is too long")
    hosts = head.values(b"host")
    if len(hosts) > 1 or (not hosts and head.minor == 1):
        raise _bad("host", "exactly one Host field is needed")
    if hosts and re.search(rb"[\s/\\@,?#]", hosts[0]):
        raise _bad("host", "bad Host field")
    _check_framing(head)
    _ask_llhttp(httptools.HttpRequestParser, raw)
    return head


def parse_response(raw: bytes) -> Head:
    """``raw`` runs to and with the empty line. Raises Refused (status 502)."""
    try:
        lines, names, fields = _lines(raw)
        match = _STATUS_LINE.fullmatch(lines[0])
        if match is None:
            raise _bad("response", "the upstream's status line cannot be read")
        head = Head(raw, lines, names, fields, int(match[1]), status=int(match[2]))
        _check_framing(head)
        _ask_llhttp(httptools.HttpResponseParser, raw)
    except Refused as error:
        raise Refused(HTTPStatus.BAD_GATEWAY, "response", f"the upstream's answer: {error}") from None
    return head


def request_body(head: Head) -> Body:
    """How the request's body is framed (``head`` has passed parse_request)."""
    if head.values(b"transfer-encoding"):
        return ChunkedBody()
    length = head.first(b"content-length")
    return LengthBody(int(length)) if length else NoBody()


def response_body(head: Head, method: bytes) -> Body:
    """How the answer to a request with ``method`` is framed (RFC 9112, 6.3)."""
    if method == b"HEAD" or head.status in (204, 304) or head.status < 200:
        return NoBody()
    if head.values(b"transfer-encoding"):
        return ChunkedBody()
    length = head.first(b"content-length")
    return LengthBody(int(length)) if length else UntilClose()


def _lines(raw: bytes) -> tuple[list[bytes], list[bytes], dict[bytes, list[bytes]]]:
    lines = raw[:-4].split(b"\r\n")
    if len(lines) > _MAX_FIELDS:
        raise _too_large("too many header fields")
    names: list[bytes] = []
    fields: dict[bytes, list[bytes]] = {}
    for line in lines[1:]:
        match = _LINE.fullmatch(line)
        if match is None:
            if line[:1] in (b" ", b"\t"):
                raise _bad("folding", "obsolete line folding")
            raise _bad("field", "bad header field (blank before the colon, bare CR or LF, control character)")
        name = match[1].lower()
        names.append(name)
        fields.setdefault(name, []).append(match[2].rstrip(b" \t"))
    return lines, names, fields


def _check_framing(head: Head) -> None:
    lengths = head.values(b"content-length")
    codings = head.values(b"transfer-encoding")
    if lengths and codings:
        raise _bad("framing", "both Content-Length and Transfer-Encoding")
    if len(lengths) > 1:
        raise _bad("framing", "more than one Content-Length")
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise _bad("framing", "Content-Length is not a number")
    if codings:
        if head.minor == 0:
            raise _bad("framing", "Transfer-Encoding in HTTP/1.0")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "framing", "only the transfer coding chunked is known")


class _Ignore:
    """httptools wants a receiver; its verdict is all that is asked here."""


def _ask_llhttp(parser: type[httptools.HttpRequestParser | httptools.HttpResponseParser], raw: bytes) -> None:
    try:
        parser(_Ignore()).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an upgrade is for the caller to allow or not; the head itself is sound
    except httptools.HttpParserError:
        raise _bad("field", "the head is not valid HTTP/1.1") from None
