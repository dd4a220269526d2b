"""A scripted server behind the proxy: keeps every request byte for byte and answers as it is told."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One request as the server saw it. ``head`` are the raw bytes to the empty line, ``body`` is decoded."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    head: bytes
    body: bytes = b""
    raw_body: bytes = b""
    complete: bool = False
    closed_at: float | None = None

    def header(self, name: str) -> str | None:
        """First value of a header (lower-case name), or None."""
        return next((value for key, value in self.headers if key == name), None)


Script = Callable[[Seen, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool | None]]


@dataclass
class Upstream:
    """A listening scripted server. The script returns True to keep the connection for another request."""

    script: Script
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    early: bool = False  # run the script as soon as the head is there, without reading the body
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        self.writers.append(writer)
        seen: Seen | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                seen = parse_seen(head)
                self.seen.append(seen)
                if not self.early:
                    if (seen.header("expect") or "").lower() == "100-continue":
                        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    await read_body(seen, reader)
                if not await self.script(seen, reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):
            if seen is not None and seen.closed_at is None:
                seen.closed_at = time.monotonic()
        finally:
            with suppress(RuntimeError):
                writer.close()


def parse_seen(head: bytes) -> Seen:
    """A request head as data."""
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(n.lower(), v.strip()) for n, _, v in (line.partition(":") for line in lines)]
    return Seen(method, target, headers, head)


async def read_body(seen: Seen, reader: asyncio.StreamReader) -> None:
    """Read the request's body, both as it came and decoded."""
    if (seen.header("transfer-encoding") or "").lower() == "chunked":
        while True:
            line = await reader.readuntil(b"\r\n")
            seen.raw_body += line
            size = int(line.split(b";")[0], 16)
            if not size:
                break
            data = await reader.readexactly(size + 2)
            seen.raw_body += data
            seen.body += data[:-2]
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            seen.raw_body += line
        seen.raw_body += line
    else:
        seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
        seen.raw_body = seen.body
    seen.complete = True


@asynccontextmanager
async def upstream(script: Script, *, early: bool = False) -> AsyncIterator[Upstream]:
    """Run a scripted server on a free port."""
    running = Upstream(script, early=early)
    server = await asyncio.start_server(running.handle, "127.0.0.1", 0, limit=2**20)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        for writer in running.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def wait_closed(seen: Seen, reader: asyncio.StreamReader, limit_s: float = 30.0) -> None:
    """Wait for the peer to go away and note when it did."""
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(limit_s):
            while await reader.read(65536):
                pass
    seen.closed_at = time.monotonic()


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with a TCP reset."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)
