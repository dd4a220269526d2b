"""A bare HTTP/1.1 client over one socket: what it sends is what you wrote, what it reads is kept as it
came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import httptools


def request_bytes(
    method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None = None
) -> bytes:
    """A request as bytes; Content-Length is added where there is a body."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


@dataclass
class Answer:
    """What came back. ``raw`` is every byte; ``complete`` means that the framing's proper end was seen."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    raw: bytes = b""
    complete: bool = False
    reset: bool = False
    interim: list[int] = field(default_factory=list)
    first_body_at: float | None = None
    trailers: list[tuple[str, str]] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        """First value of a header, or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class _Parser:
    """Reads one final answer; interim ones are kept by status."""

    def __init__(self, answer: Answer, head_request: bool) -> None:
        self.answer = answer
        self.head_request = head_request
        self.parser = httptools.HttpResponseParser(self)
        self.headers_done = False

    def on_header(self, name: bytes, value: bytes) -> None:
        where = self.answer.trailers if self.headers_done else self.answer.headers
        where.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.answer.status = self.parser.get_status_code()
        self.headers_done = True
        if self.head_request:
            self.answer.complete = True

    def on_body(self, data: bytes) -> None:
        if self.answer.first_body_at is None:
            self.answer.first_body_at = time.monotonic()
        self.answer.body += data

    def on_message_complete(self) -> None:
        if self.answer.status < 200 and self.answer.status != 101:
            self.answer.interim.append(self.answer.status)
            self.answer.headers.clear()
            self.headers_done = False
        else:
            self.answer.complete = True


async def read_answer(
    reader: asyncio.StreamReader, *, head: bool = False, limit_s: float = 20.0, stop_after_events: int = 0
) -> Answer:
    """Read one answer to its end, to the connection's end, or until so many blank-line-ended events have
    come."""
    answer = Answer()
    parser = _Parser(answer, head)
    async with asyncio.timeout(limit_s):
        while not answer.complete:
            try:
                data = await reader.read(65536)
            except ConnectionError:
                answer.reset = True
                break
            if not data:
                # An answer without length or chunking ends with the connection.
                framed = answer.header("content-length") or answer.header("transfer-encoding")
                answer.complete = parser.headers_done and not framed
                break
            answer.raw += data
            try:
                parser.parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                answer.status, answer.complete = 101, True
            except httptools.HttpParserError:
                break  # not HTTP any more: never complete
            if stop_after_events and answer.body.count(b"\n\n") >= stop_after_events:
                break
    return answer


async def exchange(port: int, data: bytes, *, head: bool = False, limit_s: float = 20.0) -> Answer:
    """One connection: send ``data``, read one answer, close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await read_answer(reader, head=head, limit_s=limit_s)
    finally:
        writer.close()
