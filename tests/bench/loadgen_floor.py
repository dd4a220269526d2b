"""The least a Python client can do: asyncio Protocol on uvloop that stamps reads and counts events.

``python -m tests.bench.loadgen_floor PORT STREAMS SECONDS TOKENS`` prints chunks and CPU seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import uvloop

BODY = b'{"model":"mock","prompt":"a b c d","max_tokens":%d,"stream":true}'


class Client(asyncio.Protocol):
    """One connection: the same request again and again."""

    chunks = 0

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.stamps: list[int] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.stamps.append(time.monotonic_ns())
        Client.chunks += data.count(b"data: {")
        if data.endswith(b"0\r\n\r\n"):
            self.stamps.clear()
            self.transport.write(self.request)


async def run(port: int, streams: int, seconds: float, tokens: int) -> None:
    body = BODY % tokens
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    loop = asyncio.get_running_loop()
    for _ in range(streams):
        await loop.create_connection(lambda: Client(request), "127.0.0.1", port)
        await asyncio.sleep(1.0 / streams)
    await asyncio.sleep(0.5)
    chunks, cpu = Client.chunks, time.process_time()
    await asyncio.sleep(seconds)
    print(Client.chunks - chunks, time.process_time() - cpu)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
