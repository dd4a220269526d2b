"""The side of the proxy that faces clients: one connection, its requests one after another.

Each client connection owns one upstream connection, opened with its first request and kept as long as the
client's. So what either end does to its connection (keep alive, close, break) happens to the other in the
same way, and no request ever runs into a pooled connection that the upstream was about to close.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from sidecar.proxy import answers
from sidecar.proxy.exchange import Exchange, open_exchange
from sidecar.proxy.framing import FramingError
from sidecar.proxy.head import Head, Refused, head_end, parse_request
from sidecar.proxy.phase import Phase
from sidecar.proxy.rewrite import forward_response, websocket
from sidecar.proxy.upstream import UpstreamSide
from sidecar.proxy.wire import pause, reset_on_close, resume, send, shut_half, was_reset
from sidecar.requests.records import End

if TYPE_CHECKING:
    from sidecar.proxy.server import Proxy

_HELD_BYTES = 64 * 1024  # of pipelined requests, before reading stops
_LINGER_S = 2.0
_LINGER_BYTES = 4 * 1024 * 1024


class ClientSide(asyncio.Protocol):
    """One client connection."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.transport: asyncio.Transport
        self._up: UpstreamSide | None = None
        self._phase = Phase.HEAD
        self._buf = b""
        self._scanned = 0
        self._exchange: Exchange | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._holds: set[str] = set()
        self._thrown_away = 0
        self._last_ns = self._since_ns = proxy.clock_ns()
        self._unsent = -1
        self._gone = False
        self._half = False  # the client sends no more
        self._began = False  # the next head has begun to arrive
        self._choked = False  # the client takes no more for now
        self._bodiless = False  # the request is a HEAD: its answer has no body

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        transport = cast(asyncio.Transport, transport)  # uvloop has its own classes
        self.transport = transport
        transport.set_write_buffer_limits(high=self.proxy.settings.buffer_bytes)
        clients = self.proxy.clients
        clients.add(self)
        if len(clients) > self.proxy.settings.max_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "connections", "too many connections")

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._last_ns = self.proxy.clock_ns()
        if self._phase is Phase.TUNNEL:
            if self._up is not None:
                send(self._up.transport, data)
        elif self._phase is Phase.LINGER:
            self._thrown_away += len(data)
            if self._thrown_away > _LINGER_BYTES:
                self.transport.abort()
        elif self._phase is not Phase.CLOSING:
            if self._phase is Phase.HEAD and not self._began:
                self._began = True
                self._since_ns = self._last_ns
            self._buf = self._buf + data if self._buf else data
            self._advance()

    def eof_received(self) -> bool:
        """The client has shut its side: it may have left, or still wait for the answer, which looks the same.

        So the upstream gets the same to see. vLLM's uvicorn closes then, and the engine aborts; what was
        ready by then still arrives. Returns False to have the transport close itself.
        """
        if self._phase in (Phase.CONNECT, Phase.WAIT) and not was_reset(self.transport):
            self._half = True
            if self._up is not None:
                shut_half(self._up.transport)
            return True
        self._leave()  # an unfinished request, or a tunnel
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; whatever it still waited for is cut off, so that the engine stops working on
        it."""
        self._gone = True
        self._phase = Phase.CLOSING
        self.proxy.clients.discard(self)
        self._leave()
        self._stop_timer()
        self._up = None
        self.proxy.changed()

    def pause_writing(self) -> None:
        """The client takes no more for now: stop reading from the upstream."""
        self._choked = True
        if self._up is not None:
            pause(self._up.transport)

    def resume_writing(self) -> None:
        """It does again."""
        self._choked = False
        if self._up is not None:
            resume(self._up.transport)

    # --- requests -----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Work off the buffer as far as the phase allows."""
        while self._buf:
            if self._phase is Phase.HEAD:
                if not self._take_head():
                    return
            elif self._phase is Phase.BODY:
                self._take_body()
            else:
                if len(self._buf) > _HELD_BYTES and self._phase in (Phase.WAIT, Phase.CONNECT):
                    self.hold("pipeline")
                return

    def _take_head(self) -> bool:
        """True if a request began; False if more bytes are needed or the head was refused."""
        if self._buf.startswith(b"\r\n"):  # an empty line before the request line is allowed (RFC 9112, 2.2)
            self._buf = self._buf[2:]
            return bool(self._buf)
        self._bodiless = self._buf.startswith(b"HEAD ")
        try:
            end = head_end(self._buf, self._scanned, self.proxy.settings.max_head_bytes)
            if not end:
                self._scanned = len(self._buf)
                return False
            raw, self._buf, self._scanned = self._buf[:end], self._buf[end:], 0
            head = parse_request(raw)
        except Refused as error:
            self._refuse(error.status, error.reason, str(error))
            return False
        peer = self.transport.get_extra_info("peername")
        self._exchange = open_exchange(self.proxy, head, peer[0] if peer else "")
        self.proxy.in_flight += 1
        self.proxy.requests += 1
        if self._up is not None and self._up.transport.is_closing():
            self._up = None  # it ends between two requests; nothing was sent on it, so another will do
        if self._up is not None:
            self._send_head()
        else:
            self._phase = Phase.CONNECT
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return True

    def _send_head(self) -> None:
        exchange, up = self._exchange, self._up
        assert exchange is not None
        assert up is not None
        up.expect(exchange.watch)
        send(up.transport, exchange.outgoing)
        exchange.outgoing = b""
        if exchange.body.done:
            self._request_complete(exchange)
            return
        self._phase = Phase.BODY
        if exchange.expects_continue:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.proxy.settings.continue_after_s, self._continue, exchange)

    def _take_body(self) -> None:
        exchange, up = self._exchange, self._up
        assert exchange is not None
        assert up is not None
        data, self._buf = self._buf, b""
        try:
            used = exchange.body.feed(data)
        except FramingError as error:
            exchange.discard()
            self._refuse(HTTPStatus.BAD_REQUEST, "framing", str(error))
            return
        send(up.transport, data if used == len(data) else data[:used])
        exchange.body_began = True
        if exchange.watch is not None:
            exchange.watch.note_request_bytes(exchange.body.payload)
        if exchange.body.done:
            self._buf = data[used:]
            self._request_complete(exchange)

    def _request_complete(self, exchange: Exchange) -> None:
        exchange.complete = True
        self._phase = Phase.WAIT
        if exchange.watch is not None and not exchange.answered:
            exchange.watch.note_request_end(self._last_ns)
        if exchange.answered:
            self._next()

    def _continue(self, exchange: Exchange) -> None:
        """The upstream has let the client wait for its 100: it is due now."""
        self._timer = None
        if self._exchange is exchange and not exchange.answer_began and not exchange.body_began:
            exchange.continued = True
            send(self.transport, answers.CONTINUE)

    async def _connect(self) -> None:
        host, port = self.proxy.upstream_address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.proxy.settings.connect_timeout_s):
                _, up = await loop.create_connection(lambda: UpstreamSide(self), host, port)
        except (OSError, TimeoutError, ValueError):  # ValueError: a host name that cannot be one
            self._connecting = None
            self._note_held()
            self._end(End.CONNECT)
            self.proxy.count(self.proxy.broken, "connect")
            self._answer_and_linger(HTTPStatus.BAD_GATEWAY, "vLLM cannot be reached")
            return
        self._connecting = None
        if self._gone or self._exchange is None:
            up.transport.abort()
            return
        self._up = up
        if self._choked:
            pause(up.transport)
        self._send_head()
        self.release("pipeline")
        self._advance()
        if self._half and self._phase is Phase.WAIT:
            shut_half(up.transport)
        elif self._half:
            self.transport.close()

    def _note_held(self) -> None:
        """The request goes nowhere, but its record shall say what it was."""
        exchange = self._exchange
        if exchange is None or exchange.watch is None:
            return
        with suppress(FramingError):
            exchange.body.feed(self._buf)
            exchange.watch.note_request_bytes(exchange.body.payload)
            if exchange.body.done:
                exchange.watch.note_request_end(self._last_ns)

    # --- answers (called by the upstream side) ------------------------------------------------------------

    def interim(self, head: Head) -> None:
        """A 1xx answer that is not the last word."""
        exchange = self._exchange
        if exchange is None or exchange.answered:
            self._shut()  # nobody asked
            return
        if exchange.head.minor == 0 or (head.status == 100 and exchange.continued):
            return
        if head.status == 100:
            exchange.continued = True
        send(self.transport, forward_response(head))

    def answer_head(self, head: Head, now: int) -> bytes | None:
        """The head of the answer: it goes to the client. Returns the request's method, None if none waits."""
        exchange = self._exchange
        if exchange is None or exchange.answered:
            self._shut()  # an answer nobody asked for
            return None
        if head.status == 101 and not (exchange.upgrade and websocket(head)):
            self.upstream_garbage("the upstream's answer: an upgrade that was not asked for", now)
            return None
        exchange.answer_began = True
        # After a final answer in place of 100 nobody can tell whether the body still comes: end with it.
        unsure = exchange.expects_continue and not (exchange.continued or exchange.body_began)
        close = self.proxy.draining or (unsure and head.status >= 200)
        if not head.keep_alive or close:
            exchange.keep_alive = False
        if head.status == 101:
            send(self.transport, forward_response(head))
            self._phase = Phase.TUNNEL
            exchange.discard()
            if self._buf and self._up is not None:
                send(self._up.transport, self._buf)
                self._buf = b""
            self.release("pipeline")
        else:
            send(self.transport, forward_response(head, close=close))
        return exchange.head.method

    def answered(self, now: int, *, surplus: bool) -> None:
        """The answer is complete. ``surplus``: more bytes came than belong to it."""
        exchange = self._exchange
        assert exchange is not None
        exchange.answered = True
        if exchange.watch is not None:
            exchange.watch.note_end(End.EOF, now)
            exchange.watch = None
        if exchange.open:
            exchange.open = False
            self.proxy.in_flight -= 1
            self.proxy.changed()
        if surplus:
            self.proxy.count(self.proxy.broken, "surplus")
        if surplus or self._half or not exchange.keep_alive or self.proxy.draining:
            self._exchange = None
            self._shut(linger=not exchange.complete)
        elif exchange.complete:
            self._next()

    def upstream_lost(self, up: UpstreamSide, exc: Exception | None, *, complete: bool) -> None:
        """An upstream connection is gone; ``complete``: and that was the answer's proper end."""
        if up is not self._up or self._gone:
            return
        self._up = None
        exchange = self._exchange
        if complete and exchange is not None:
            exchange.keep_alive = False
            self.answered(up.last_ns, surplus=False)
        elif exchange is None or exchange.answered or up.tunnel:
            linger = exchange is not None and not exchange.complete and not up.tunnel
            self._end(End.EOF)
            self._shut(linger=linger)
        elif self._half:
            self._end(End.CLIENT_LEFT)
            self._shut()
        else:
            self.proxy.count(self.proxy.broken, "reset" if exc is not None else "closed")
            self._end(End.RESET)
            self._break_off(reset=exc is not None)

    def upstream_broken(self, reason: str, now: int) -> None:
        """The answer's framing is broken; its bytes so far are on their way."""
        self.proxy.count(self.proxy.broken, reason)
        self._end(End.RESET)
        self._break_off(reset=False)

    def upstream_garbage(self, message: str, now: int) -> None:
        """What the upstream sent is no answer. Nothing of it went to the client."""
        self.proxy.count(self.proxy.broken, "garbage")
        if self._exchange is None or self._exchange.answered:
            self._shut()
            return
        self._end(End.RESET)
        self._answer_and_linger(HTTPStatus.BAD_GATEWAY, message)

    # --- ends ---------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Ready for the next request on this connection."""
        self._exchange = None
        self._stop_timer()
        if self.proxy.draining:
            self._shut()
            return
        self._phase = Phase.HEAD
        self._began = bool(self._buf)
        self._since_ns = self._last_ns
        self.release("pipeline")
        self._advance()

    def _end(self, end: End) -> None:
        """The request in flight ends without a complete answer."""
        exchange, self._exchange = self._exchange, None
        self._stop_timer()
        if exchange is None:
            return
        if exchange.watch is not None:
            exchange.watch.note_end(end, self.proxy.clock_ns())
        if exchange.open:
            exchange.open = False
            self.proxy.in_flight -= 1
            self.proxy.changed()

    def _leave(self) -> None:
        """The client leaves: the upstream is told at once, by the end of its connection."""
        self._end(End.CLIENT_LEFT)
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._up is not None:
            if self._up.tunnel:  # a last message may still be on its way
                self._up.transport.close()
                asyncio.get_running_loop().call_later(_LINGER_S, self._up.transport.abort)
            else:
                self._up.transport.abort()

    def _refuse(self, status: HTTPStatus, reason: str, message: str) -> None:
        self.proxy.count(self.proxy.refused, reason)
        began = self._exchange is not None and self._exchange.answer_began
        self._end(End.RESET)
        if began:
            self._break_off(reset=False)
        else:
            self._answer_and_linger(status, message)

    def _answer_and_linger(self, status: HTTPStatus, message: str) -> None:
        extra = b"Retry-After: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else b""
        send(self.transport, answers.answer(status, message, with_body=not self._bodiless, extra=extra))
        self._shut(linger=True)

    def _shut(self, *, linger: bool = False) -> None:
        """Close both sides; what was written still goes out.

        ``linger``: the client may still be sending. Closing at once would make the kernel answer with a
        reset, which can destroy the answer before the client has read it; so only our half is shut, and
        the rest thrown away.
        """
        up, self._up = self._up, None
        if up is not None:
            up.transport.abort()
        self._buf = b""
        self._stop_timer()
        if self._gone:
            return
        self._since_ns = self.proxy.clock_ns()
        if linger and not self._half:
            self._phase = Phase.LINGER
            self._holds.clear()
            resume(self.transport)
            shut_half(self.transport)
            self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self.transport.abort)
        else:
            self._phase = Phase.CLOSING
            self.transport.close()

    def _break_off(self, *, reset: bool) -> None:
        """End the client's connection so that it cannot take the answer for complete."""
        if reset:
            reset_on_close(self.transport)
        self._shut()

    def cut(self) -> None:
        """End at once, whatever is in flight."""
        self._end(End.RESET)
        self.transport.abort()

    def close_if_idle(self) -> None:
        """Close if no request is in flight or arriving."""
        if self._phase is Phase.HEAD and not self._buf:
            self._shut()

    def check(self, now: int) -> None:
        """Called now and then: end what has stood still for too long."""
        settings = self.proxy.settings
        head_ns, idle_ns = settings.head_timeout_s * 1e9, settings.idle_timeout_s * 1e9
        if self._phase is Phase.HEAD and (self._began or self._up is None):
            if now - self._since_ns > head_ns:
                if self._buf:
                    self._refuse(HTTPStatus.REQUEST_TIMEOUT, "head_timeout", "the request head took too long")
                else:
                    self._shut()
        elif self._phase is Phase.CLOSING:
            unsent = self.transport.get_write_buffer_size()
            if unsent != self._unsent:
                self._unsent, self._since_ns = unsent, now
            elif now - self._since_ns > head_ns:
                self.transport.abort()
        elif self._phase is not Phase.LINGER:
            last = max(self._last_ns, self._up.last_ns if self._up is not None else 0)
            if now - last > idle_ns:
                self._idle()

    def _idle(self) -> None:
        exchange = self._exchange
        if exchange is None:
            self._shut()
            return
        self.proxy.count(self.proxy.broken, "idle")
        self._end(End.TIMEOUT)
        if exchange.answer_began:
            self._break_off(reset=True)
        else:
            self._answer_and_linger(HTTPStatus.GATEWAY_TIMEOUT, "nothing moved for too long")

    def hold(self, why: str) -> None:
        """Stop reading from the client."""
        if not self._holds and not self._gone:
            pause(self.transport)
        self._holds.add(why)

    def release(self, why: str) -> None:
        """Read again, if nothing else holds."""
        if why in self._holds:
            self._holds.discard(why)
            if not self._holds and not self._gone:
                resume(self.transport)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
