"""A scripted HTTP server on a real socket: each request gets the next answer of its path, byte for byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
TEXT = "text/plain; version=0.0.4; charset=utf-8"


def answer(
    body: bytes,
    *,
    status: str = "200 OK",
    content_type: str = TEXT,
    length: int | None = None,
    more: str = "",
):
    """A whole response; ``length`` overrides the Content-Length that is announced."""
    announced = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {announced}\r\n{more}\r\n"
    return head.encode() + body


class MetricsServer:
    """Use as an async context manager. The last answer of a path repeats. ``requests`` are the raw heads."""

    def __init__(
        self, answers: dict[str, list[Answer]], *, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self.answers = answers
        self.requests: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.port = port
        self._tls = tls
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.wait_for(self._server.wait_closed(), 10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            path = head.split(" ")[1]
            script = self.answers.get(path, [answer(b"not found\n", status="404 Not Found")])
            one = script.pop(0) if len(script) > 1 else script[0]
            if isinstance(one, bytes):
                writer.write(one)
                await writer.drain()
            else:
                await one(writer)
            self.at_once -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.at_once -= 1
        finally:
            writer.close()
