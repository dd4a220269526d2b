"""An engine that is nothing but its recordings: a real vLLM's page and stream, served with hardly any work.

For benchmarks, where a simulator beside the process under test would take the processor from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

_FIXTURES = Path(__file__).parents[1] / "fixtures" / "vllm" / "0.32.0"
_MODELS = b'{"object":"list","data":[{"id":"tiny-llama","object":"model"}]}'


def recorded_stream(tokens: int) -> list[bytes]:
    """A recorded chat answer's events, its tokens repeated until there are ``tokens`` of them."""
    text = (_FIXTURES / "sse" / "chat_usage.txt").read_bytes()
    events = [event + b"\n\n" for event in text.split(b"\n\n") if event.strip()]
    role, content, tail = events[0], events[1:-3], events[-3:]
    return [role, *(content[i % len(content)] for i in range(tokens)), *tail]


@contextlib.asynccontextmanager
async def recorded_engine(
    *, tokens: int = 16, gap_s: float = 0.02, page: str = "metrics_busy.txt"
) -> AsyncIterator[str]:
    """Its URL. Each POST is answered with a stream of ``tokens`` tokens, ``gap_s`` apart."""
    metrics = (_FIXTURES / page).read_bytes()
    packed = gzip.compress(metrics)
    version = (_FIXTURES / "version.json").read_bytes()
    events = recorded_stream(tokens)

    def plain(body: bytes, kind: bytes, more: bytes = b"") -> bytes:
        head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n"
        return head % (kind, len(body), more) + body

    async def stream(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await asyncio.sleep(gap_s)
        writer.write(b"0\r\n\r\n")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                _, _, length = head.partition(b"content-length:")
                await reader.readexactly(int(length.split(b"\r\n")[0] or b"0"))
                path = head.split(b" ", 2)[1]
                if head.startswith(b"post"):
                    await stream(writer)
                elif path == b"/metrics":
                    text = b"text/plain; version=1.0.0; charset=utf-8"
                    if b"gzip" in head:
                        writer.write(plain(packed, text, b"content-encoding: gzip\r\n"))
                    else:
                        writer.write(plain(metrics, text))
                else:
                    body = {b"/version": version, b"/v1/models": _MODELS}.get(path, b"")
                    writer.write(plain(body, b"application/json"))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
