"""The side of the proxy that faces vLLM: one connection, owned by one client connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from sidecar.proxy.framing import WHOLE_CHUNKS, Body, ChunkedBody, FramingError, UntilClose
from sidecar.proxy.head import Head, Refused, parse_response, response_body
from sidecar.proxy.wire import send, was_reset

if TYPE_CHECKING:
    from sidecar.proxy.client import ClientSide
    from sidecar.proxy.observe import Watch


class UpstreamSide(asyncio.Protocol):
    """Receives answers and hands their bytes straight to the client's transport."""

    __slots__ = (
        "_between",
        "_body",
        "_buf",
        "_client",
        "_clock",
        "_watch",
        "_write",
        "last_ns",
        "transport",
        "tunnel",
    )

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._clock = client.proxy.clock_ns
        self._buf = b""
        self._body: Body | None = None  # None: a head is awaited
        self._between = False  # in a chunked answer, before a size line
        self._watch: Watch | None = None
        self._write = client.transport.write
        self.last_ns = self._clock()
        self.tunnel = False
        self.transport: asyncio.Transport = client.transport  # replaced in connection_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        transport = cast(asyncio.Transport, transport)  # uvloop has its own classes
        self.transport = transport
        transport.set_write_buffer_limits(high=self._client.proxy.settings.buffer_bytes)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer. This is the hot path: a streamed chunk costs one write and one note."""
        now = self.last_ns = self._clock()
        if self._between:
            # Nearly every piece of a stream is one plain chunk (see WHOLE_CHUNKS); written out without a call
            # into the framing or the watch, because this is what a streamed token costs.
            line = WHOLE_CHUNKS[len(data)]
            if data.startswith(line) and data.endswith(b"\r\n"):
                try:
                    self._write(data)
                except RuntimeError:  # see wire.py
                    return
                watch = self._watch
                if watch is not None:
                    notes = watch.notes
                    notes.append(data)
                    notes.append(-now)  # negative: still in the chunked coding
                    if len(notes) >= watch.enough:
                        watch.later()
                return
        body = self._body
        if body is None:
            if self.tunnel:
                send(self._client.transport, data)
            else:
                self._head(self._buf + data if self._buf else data, now)
            return
        try:
            used = body.feed(data)
        except FramingError:
            # As it would without us, the client gets the broken bytes too; then nothing after them has a
            # meaning.
            send(self._client.transport, data)
            self._client.upstream_broken("framing", now)
            return
        try:
            self._write(data if used == len(data) else data[:used])
        except RuntimeError:
            return
        if self._watch is not None:
            self._watch.note_chunk(body.payload, now)
        self._between = isinstance(body, ChunkedBody) and body.between_chunks
        if body.done:
            self._body = None
            self._client.answered(now, surplus=used != len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """The upstream has closed, or was closed."""
        if exc is None and was_reset(self.transport):
            exc = ConnectionResetError()
        until_close = isinstance(self._body, UntilClose)
        self._client.upstream_lost(self, exc, complete=until_close and exc is None)

    def pause_writing(self) -> None:
        """The upstream takes no more for now: stop reading from the client."""
        self._client.hold("upstream")

    def resume_writing(self) -> None:
        """It does again."""
        self._client.release("upstream")

    def expect(self, watch: Watch | None) -> None:
        """A new request goes out; its answer is told to ``watch``."""
        self._watch = watch
        self._body = None
        self._between = False

    def _head(self, buf: bytes, now: int) -> None:
        while True:
            end = buf.find(b"\r\n\r\n")
            if end < 0:
                self._buf = buf
                if len(buf) > self._client.proxy.settings.max_head_bytes:
                    self._client.upstream_garbage("the upstream's answer: the head is too long", now)
                elif buf[:5] != b"HTTP/"[: len(buf)]:
                    self._client.upstream_garbage("the upstream's answer is not HTTP/1", now)
                return
            try:
                head = parse_response(buf[: end + 4])
            except Refused as error:
                self._client.upstream_garbage(str(error), now)
                return
            buf = buf[end + 4 :]
            self._buf = b""
            if head.status == 101 or head.status >= 200:
                break
            self._client.interim(head)
            if not buf:
                return
        self._answer(head, buf, now)

    def _answer(self, head: Head, rest: bytes, now: int) -> None:
        method = self._client.answer_head(head, now)
        if method is None:
            return
        if head.status == 101:
            self.tunnel = True
            if rest:
                send(self._client.transport, rest)
            return
        if self._watch is not None:
            self._watch.note_head(head.status, head.items(), now)
        body = response_body(head, method)
        if body.done:
            self._client.answered(now, surplus=bool(rest))
            return
        self._body = body
        if rest:
            self.data_received(rest)
        else:
            self._between = isinstance(body, ChunkedBody)
