"""One HTTP request at a time over its own socket, read in batches on gevent's loop.

A greenlet switch for every chunk is what makes Locust's own clients late. Here the greenlet that sends a
request sleeps until the answer has ended; the socket reader takes each piece off the socket with the kernel's
arrival time and feeds the stream meter. Nothing is decoded here but HTTP itself.
"""

from __future__ import annotations

import errno
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gevent
import httptools
from gevent import get_hub, monkey
from gevent.event import Event
from gevent.socket import AF_UNSPEC, IPPROTO_TCP, MSG_PEEK, SOCK_STREAM, TCP_NODELAY, gaierror, getaddrinfo

from loadgen.address import Target
from loadgen.clock import ArrivalClock, stamping
from loadgen.socket_reader import SocketReader
from sidecar.requests.records import Api, End, RequestRecord
from sidecar.requests.stream import StreamMeter

if TYPE_CHECKING:
    from socket import socket as _Socket
else:
    # The real, unpatched socket: gevent's would park the hub's own callback when a read would block.
    _Socket = monkey.get_original("socket", "socket")

_READ = 1
_WRITE = 2
_READ_BYTES = 16 * 1024
_ANCILLARY_BYTES = 64
CONNECT_TIMEOUT_S = 10.0


class ReadCounts:
    """How reads came in, over all connections of a process: tells how sharp the time stamps are."""

    def __init__(self) -> None:
        self.event_reads = 0  # reads that carried at least one event
        self.shared_reads = 0  # ... more than one: the earlier ones' stamps are upper bounds


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is over, its record not made yet: that takes longer than sending the next request should
    wait.
    """

    meter: StreamMeter
    end: End
    end_ns: int
    sent_ns: int  # monotonic time of the first byte sent

    @property
    def gave_output(self) -> bool:
        """Whether any output came, whatever became of it afterwards."""
        return self.meter.first_ns is not None

    def record(self) -> RequestRecord:
        """The record; ask once."""
        return self.meter.finish(self.end, self.end_ns)


class Connection:
    """A kept-alive connection and at most one exchange on it.

    ``exchange`` runs in the caller's greenlet; `_readable` is called by the socket reader. Both
    run in one thread.
    """

    def __init__(
        self,
        target: Target,
        clock: ArrivalClock,
        counts: ReadCounts,
        reader: SocketReader,
        context: ssl.SSLContext | None,
    ):
        self._target = target
        self._clock = clock
        self._counts = counts
        self._sock: _Socket | None = None
        self._tls: _Tls | None = None
        self._context = context
        self._reader = reader
        self._fd = -1
        self._done = Event()
        self._end: End | None = None
        self._end_ns = 0
        self._meter: StreamMeter | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._feed: Any = None
        self._recvmsg: Any = None
        self._at_ns = 0
        self._headers: list[tuple[str, str]] = []
        self._until_close = False
        self._reusable = False

    @property
    def connected(self) -> bool:
        """True while the connection can carry another request."""
        return self._sock is not None

    def drop_if_stale(self) -> None:
        """Close the connection if the server has closed it, or said something unasked, while it lay idle."""
        if self._sock is None:
            return
        try:
            self._sock.recv(1, MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def connect(self) -> None:
        """Open the connection, TLS included. Raises `OSError` (also for a timeout or a bad certificate)."""
        try:
            found = getaddrinfo(self._target.host, self._target.port, AF_UNSPEC, SOCK_STREAM, IPPROTO_TCP)
        except gaierror as error:
            raise OSError(f"{self._target.host}: {error.strerror}") from None
        failure: OSError = OSError(f"{self._target.host}: no address")
        for family, kind, protocol, _, address in found:
            sock = _Socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
                stamping(sock)
                code = sock.connect_ex(address)
                if code == errno.EINPROGRESS:
                    self._wait(sock, _WRITE, CONNECT_TIMEOUT_S)
                    code = sock.getsockopt(1, 4)  # SOL_SOCKET, SO_ERROR
                if code:
                    raise OSError(code, errno.errorcode.get(code, str(code)))
                if self._context is not None:
                    self._tls = _Tls(self._context, self._target.host)
                    self._handshake(sock)
            except OSError as error:
                sock.close()
                failure = error
                continue
            self._sock = sock
            return
        raise failure

    @staticmethod
    def _wait(sock: _Socket, events: int, limit_s: float) -> None:
        watcher = get_hub().loop.io(sock.fileno(), events)
        try:
            with gevent.Timeout(limit_s, TimeoutError("timed out")):
                get_hub().wait(watcher)
        finally:
            watcher.stop()
            watcher.close()

    def _handshake(self, sock: _Socket) -> None:
        assert self._tls is not None
        while True:
            finished = self._tls.handshake()
            self._send_all(sock, self._tls.pending_out())
            if finished:
                return
            self._wait(sock, _READ, CONNECT_TIMEOUT_S)
            data = sock.recv(_READ_BYTES)
            if not data:
                raise OSError("the server closed the connection during the TLS handshake")
            self._tls.incoming.write(data)

    def _send_all(self, sock: _Socket, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[sock.send(view) :]
            except BlockingIOError:
                self._wait(sock, _WRITE, CONNECT_TIMEOUT_S)

    def exchange(
        self,
        request: bytes,
        api: Api,
        *,
        model: str,
        scheduled_ns: int | None,
        timeout_s: float,
        capture_chars: int = 0,
    ) -> Exchange:
        """Send one request and measure its answer.

        ``scheduled_ns`` is the start in open loop; in closed loop the start is just before the first byte is
        written. Never raises for what the server does: that is the record's outcome.
        """
        sock = self._sock
        assert sock is not None
        self._done.clear()
        self._end = None
        self._headers = []
        self._until_close = True
        self._reusable = False
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._recvmsg = sock.recvmsg
        wire = request if self._tls is None else self._tls.encrypt(request)
        sent_ns = time.monotonic_ns()
        meter = StreamMeter(
            api,
            start_ns=sent_ns if scheduled_ns is None else scheduled_ns,
            model=model,
            stream=True,
            capture_chars=capture_chars,
        )
        self._meter = meter
        self._fd = sock.fileno()
        self._reader.add(self._fd, self._readable)
        try:
            try:
                self._send_all(sock, wire)
            except OSError:
                self._finish(End.RESET, time.monotonic_ns())
            if not self._done.wait(timeout_s):
                self._finish(End.TIMEOUT, time.monotonic_ns())
        except BaseException:
            # The greenlet is being killed: whoever watches must not feed a meter that nobody reads.
            self.close()
            raise
        assert self._end is not None
        if not self._reusable:
            self.close()
        return Exchange(meter, self._end, self._end_ns, sent_ns)

    def abort(self, end: End) -> None:
        """End the exchange under way from outside; its greenlet wakes and closes its record."""
        if self._meter is not None and self._end is None:
            self._finish(end, time.monotonic_ns())

    def close(self) -> None:
        """Close the connection; safe to call again."""
        self._reader.remove(self._fd)
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._tls = None

    def _finish(self, end: End, at_ns: int) -> None:
        if self._end is None:
            self._end = end
            self._end_ns = at_ns
            self._reader.remove(self._fd)
            self._done.set()

    def _readable(self) -> None:
        """Called by the reader: take what has arrived, with its time, and feed the parser. Must not block."""
        try:
            data, ancillary, _, _ = self._recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._finish(End.RESET, time.monotonic_ns())
            return
        now_ns = time.monotonic_ns()
        if not data:
            proper = self._until_close and bool(self._headers)
            self._finish(End.EOF if proper else End.RESET, now_ns)
            return
        at_ns = self._clock.at(ancillary, now_ns)
        if at_ns > self._at_ns:  # two clocks meet here: a stream's times must not run backwards
            self._at_ns = at_ns
        try:
            plain = data if self._tls is None else self._tls.decrypt(data)
            if plain:
                self._feed(plain)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ssl.SSLError):
            self._finish(End.RESET, self._at_ns)
            return
        events = plain.count(b"data: {")
        if events:
            counts = self._counts
            counts.event_reads += 1
            # The last token, the usage and the end come in one piece from most servers: no sign of lateness.
            counts.shared_reads += events > 1 and b"[DONE]" not in plain

    # Called by the HTTP parser, inside `_readable`:

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        assert self._meter is not None
        self._until_close = not any(
            name in ("content-length", "transfer-encoding") for name, _ in self._headers
        )
        self._meter.on_headers(self._parser.get_status_code(), self._headers, self._at_ns)

    def on_body(self, body: bytes) -> None:
        self._meter.feed(body, self._at_ns)  # type: ignore[union-attr]  # this line runs for each token

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._parser.get_status_code() < 200:
            return  # 100-continue and its like: the answer is still to come
        self._reusable = self._parser.should_keep_alive()
        self._finish(End.EOF, self._at_ns)


class _Tls:
    """TLS over two memory buffers, so that the socket stays ours to read and stamp."""

    def __init__(self, context: ssl.SSLContext, host: str):
        self.incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self.incoming, self._outgoing, server_hostname=host)

    def handshake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def pending_out(self) -> bytes:
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        self.incoming.write(data)
        pieces = []
        while True:
            try:
                piece = self._object.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            if not piece:
                break
            pieces.append(piece)
        return b"".join(pieces)


def _kernel_stamps() -> bool:
    with _Socket() as probe:
        return stamping(probe)


class StreamClient:
    """Connections to one server, kept alive and handed out one to a request."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.clock = ArrivalClock()
        self.counts = ReadCounts()
        # Without the kernel's stamps a batch would be late by its own length.
        self._reader = SocketReader() if _kernel_stamps() else SocketReader(batch_s=0)
        self._context = target.tls_context()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    @property
    def in_flight(self) -> int:
        """Requests under way now."""
        return len(self._busy)

    def request(
        self,
        request: bytes,
        api: Api,
        *,
        model: str = "",
        scheduled_ns: int | None = None,
        timeout_s: float = 600.0,
        capture_chars: int = 0,
    ) -> Exchange:
        """Send one whole HTTP request and wait for the end of its answer. Never raises for what the server
        does.

        ``capture_chars``: characters of the answer to keep in its record, for who must send them back.
        Connecting happens before the clock starts in closed loop; in open loop it counts, since the request
        was due.
        """
        connection = (
            self._idle.pop()
            if self._idle
            else Connection(self.target, self.clock, self.counts, self._reader, self._context)
        )
        self._busy.add(connection)
        try:
            connection.drop_if_stale()
            if not connection.connected:
                began_ns = time.monotonic_ns()
                try:
                    connection.connect()
                except OSError:
                    start_ns = began_ns if scheduled_ns is None else scheduled_ns
                    meter = StreamMeter(api, start_ns=start_ns, model=model, stream=True)
                    return Exchange(meter, End.CONNECT, time.monotonic_ns(), began_ns)
            return connection.exchange(
                request,
                api,
                model=model,
                scheduled_ns=scheduled_ns,
                timeout_s=timeout_s,
                capture_chars=capture_chars,
            )
        finally:
            self._busy.discard(connection)
            if connection.connected:
                self._idle.append(connection)

    def abort_all(self, end: End) -> None:
        """End every request under way; each gets a record with that end."""
        for connection in list(self._busy):
            connection.abort(end)

    def close(self) -> None:
        """Close all connections."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()
        self._reader.close()
