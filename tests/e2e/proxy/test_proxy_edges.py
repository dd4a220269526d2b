"""Ends at unlucky moments: half-closed clients, resets behind data, servers that speak out of turn."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct

import pytest

from sidecar.requests.records import Outcome, RequestRecord
from tests.support.proxied import proxied, until
from tests.support.rawhttp import exchange, read_answer, request_bytes
from tests.support.upstream import Seen, chunk, reset, upstream, wait_closed

HOST = [("Host", "llm.example")]
CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "demo", "stream": True, "messages": []}).encode()
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"t"},"finish_reason":null}]}\n\n'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def ok(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """200, keep the connection."""
    writer.write(OK)
    return True


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
async def test_a_client_that_shuts_its_side_gets_what_the_server_still_sends(pause_s: float) -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""  # the end was passed on, behind the whole request
        writer.write(OK)

    records: list[RequestRecord] = []
    async with upstream(script) as up, proxied(up.port, records=records) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request_bytes("POST", CHAT, HOST, BODY))
        await asyncio.sleep(pause_s)  # none: while the proxy still connects
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == OK
        assert up.seen[0].body == BODY
        await until(lambda: len(records) == 1 and not proxy.clients)
        assert records[0].outcome is not Outcome.CLIENT_LEFT
        writer.close()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_ends_then_was_left_by_its_client(streams: bool) -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if streams:
            writer.write(STREAM_HEAD + chunk(EVENT))
        await wait_closed(seen, reader)  # as uvicorn does: closes without a further word

    records: list[RequestRecord] = []
    async with upstream(script) as up, proxied(up.port, records=records) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request_bytes("POST", CHAT, HOST, BODY))
        if streams:
            await reader.readuntil(EVENT)
        else:
            await until(lambda: len(up.seen) == 1)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 10)
        await until(lambda: len(records) == 1 and not proxy.clients)
        assert records[0].outcome is Outcome.CLIENT_LEFT
        assert proxy.broken == {}
        writer.close()


async def test_half_a_request_and_the_end_is_no_request() -> None:
    async with upstream(ok, early=True) as up, proxied(up.port) as proxy:
        raw = request_bytes("POST", CHAT, HOST, BODY)
        for part in (raw[:30], raw[:-1]):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(part)
            writer.write_eof()
            assert not (await asyncio.wait_for(reader.read(), 10)).count(b" 50")
            writer.close()
        await until(lambda: not proxy.clients and proxy.in_flight == 0)


async def test_a_request_on_a_connection_that_the_server_has_just_closed_takes_a_new_one() -> None:
    first = True

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonlocal first
        writer.write(OK)
        if first:
            first = False
            await asyncio.sleep(0.05)
            with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as own:
                own.shutdown(socket.SHUT_WR)
            # Sent in the same turn of the loop: the proxy sees the end and the request at once.
            client.sendall(request_bytes("GET", "/second", HOST))
        return True

    async with upstream(script) as up, proxied(up.port) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port))
        client.setblocking(False)
        client.send(request_bytes("GET", "/first", HOST))
        loop = asyncio.get_running_loop()
        got = b""
        async with asyncio.timeout(10):
            while len(got) < 2 * len(OK):
                data = await loop.sock_recv(client, 65536)
                assert data, got
                got += data
        assert got == OK * 2
        assert (up.connections, [seen.target for seen in up.seen]) == (2, ["/first", "/second"])
        client.close()


async def test_head_gets_no_body_from_us_either() -> None:
    async def garbage(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nonsense\r\n\r\n")

    async with upstream(ok) as up:
        dead = up.port
    for port, status in ((dead, b"502"), (0, b"502")):
        async with upstream(garbage) as up, proxied(port or up.port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(request_bytes("HEAD", "/", HOST))
            raw = await asyncio.wait_for(reader.read(), 10)
            assert raw.startswith(b"HTTP/1.1 " + status)
            assert raw.endswith(b"\r\n\r\n")
            writer.close()


async def test_nothing_follows_an_early_answer() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\n")
        await wait_closed(seen, reader)

    async with upstream(script, early=True) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")
        assert await asyncio.wait_for(reader.read(), 10) == OK
        writer.close()


async def test_empty_lines_do_not_hold_a_connection() -> None:
    async with upstream(ok) as up, proxied(up.port, head_timeout_s=0.2) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        ended = asyncio.ensure_future(reader.read())
        async with asyncio.timeout(10):
            while not ended.done():
                writer.write(b"\r\n")
                await asyncio.sleep(0.02)
        writer.close()


async def test_a_reset_behind_data_is_a_reset() -> None:
    """The answer ends with the connection: a plain end would make what is there look like all of it."""

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 6_000_000)
        await asyncio.sleep(0.3)
        reset(writer)

    async with upstream(script) as up, proxied(up.port) as proxy:
        # A bare socket: a client on uvloop would not see the reset either.
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", proxy.port))
        slow.setblocking(False)
        slow.send(request_bytes("GET", "/", HOST))
        await asyncio.sleep(0.6)

        async def rest() -> None:
            while await asyncio.get_running_loop().sock_recv(slow, 65536):
                pass

        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(rest(), 20)
        assert proxy.broken == {"reset": 1}
        slow.close()


async def test_a_byte_at_a_time() -> None:
    async with upstream(ok) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        raw = request_bytes("POST", CHAT, HOST, BODY)
        for number in range(len(raw)):
            writer.write(raw[number : number + 1])
            await asyncio.sleep(0.001)
        assert (await read_answer(reader)).body == b"ok"
        assert up.seen[0].body == BODY
        writer.close()


async def test_over_ipv6() -> None:
    async with upstream(ok) as up, proxied(up.port, listen_host="::1", forwarded=True) as proxy:
        reader, writer = await asyncio.open_connection("::1", proxy.port)
        writer.write(request_bytes("GET", "/", HOST))
        assert (await read_answer(reader)).body == b"ok"
        assert up.seen[0].header("x-forwarded-for") == "::1"
        writer.close()


async def test_a_new_request_after_a_refused_one_is_fine() -> None:
    async with upstream(ok) as up, proxied(up.port) as proxy:
        assert (await exchange(proxy.port, b"HEAD / HTTP/9.9\r\n\r\n", head=True)).status == 505
        assert (await exchange(proxy.port, request_bytes("GET", "/", HOST))).body == b"ok"
        assert len(up.seen) == 1


@pytest.mark.parametrize(
    "came", [[], ["00-x"], ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"] * 2], ids=len
)
async def test_a_trace_that_cannot_be_continued_ends_here(came: list[str]) -> None:
    headers = [*HOST, *(("Traceparent", value) for value in came), ("tracestate", "vendor=1")]
    async with upstream(ok) as up, proxied(up.port, trace="continue") as proxy:
        await exchange(proxy.port, request_bytes("POST", CHAT, headers, BODY))
        (seen,) = up.seen
        (sent,) = [value for name, value in seen.headers if name == "traceparent"]
        assert sent not in came
        assert sent.endswith("-01")
        assert seen.header("tracestate") is None


async def test_a_reset_right_behind_the_request_is_leaving() -> None:
    go = asyncio.Event()

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()  # a server that takes no notice of its client's end

    records: list[RequestRecord] = []
    async with upstream(script) as up, proxied(up.port, records=records) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port))
        await until(lambda: len(proxy.clients) == 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(request_bytes("POST", CHAT, HOST, BODY))
        client.close()
        await until(lambda: len(records) == 1 and not proxy.clients)
        assert records[0].outcome is Outcome.CLIENT_LEFT
        go.set()
