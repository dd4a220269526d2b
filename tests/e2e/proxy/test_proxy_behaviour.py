"""What a client and a server see of each other through the proxy, on both event loops.

Above 500 lines because every test here takes the same running proxy and scripted server on both loops: apart
they would repeat that ground.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import pytest

from sidecar.proxy.server import Proxy, Started
from sidecar.requests.records import Outcome, RequestRecord
from tests.support.proxied import proxied, until
from tests.support.rawhttp import exchange, read_answer, request_bytes
from tests.support.smuggling import BAD_HEADS
from tests.support.upstream import Seen, chunk, read_body, reset, upstream, wait_closed

HOST = [("Host", "llm.example")]
CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "demo", "stream": True, "messages": []}).encode()
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"demo",'
    b'"choices":[{"index":0,"delta":{"content":"t"},"finish_reason":null}]}\n\n'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def ok(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """The plain script: 200, keep the connection."""
    writer.write(OK)
    return True


async def settled(proxy: Proxy) -> None:
    """All of the proxy's connections and the tasks it made have ended."""
    await until(lambda: not proxy.clients and proxy.in_flight == 0)


async def test_keep_alive_uses_one_connection_on_each_side() -> None:
    async with upstream(ok) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        for number in range(5):
            writer.write(request_bytes("GET", f"/{number}", HOST))
            assert (await read_answer(reader)).body == b"ok"
        assert [seen.target for seen in up.seen] == [f"/{n}" for n in range(5)]
        assert up.connections == 1
        writer.close()
        await settled(proxy)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.02 if seen.target == "/0" else 0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(seen.body), seen.body))
        return True

    async with upstream(script) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        bodies = [b"a" * (70_000 * n) for n in range(6)]
        writer.write(b"".join(request_bytes("POST", f"/{n}", HOST, body) for n, body in enumerate(bodies)))
        whole = b""
        while whole.count(b"HTTP/1.1 200") < 6 or not whole.endswith(bodies[-1]):
            whole += await asyncio.wait_for(reader.read(1 << 20), 10)
        want = b"".join(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(b), b) for b in bodies)
        assert whole == want
        assert [seen.body for seen in up.seen] == bodies
        writer.close()


async def test_requests_in_single_bytes() -> None:
    async with upstream(ok) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        data = (
            b"\r\nPOST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;e=1\r\nabc\r\n0\r\nT: 1\r\n\r\n"
        )
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await asyncio.sleep(0)
        assert (await read_answer(reader)).body == b"ok"
        assert up.seen[0].body == b"abc"
        assert up.seen[0].raw_body == b"3;e=1\r\nabc\r\n0\r\nT: 1\r\n\r\n"
        writer.close()


@pytest.mark.parametrize(("name", "raw", "status"), BAD_HEADS, ids=[name for name, _, _ in BAD_HEADS])
async def test_bad_heads_never_reach_the_upstream(name: str, raw: bytes, status: int) -> None:
    async with upstream(ok) as up, proxied(up.port) as proxy:
        answer = await exchange(proxy.port, raw + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer.status == status
        assert answer.header("connection") == "close"
        assert up.seen == []
        assert sum(proxy.refused.values()) == 1
        await settled(proxy)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00",
        b"{}",
    ],
)
async def test_what_is_no_http_is_refused_without_waiting(raw: bytes) -> None:
    async with upstream(ok) as up, proxied(up.port) as proxy:
        answer = await exchange(proxy.port, raw)
        assert answer.status == 400
        assert up.seen == []


async def test_bad_chunk_ends_both_sides() -> None:
    async with upstream(ok) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await until(lambda: len(up.seen) == 1)
        writer.write(b"0x3\r\nabc\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await read_answer(reader)
        assert answer.status == 400
        await until(lambda: up.seen[0].closed_at is not None)
        assert not up.seen[0].complete
        assert len(up.seen) == 1
        writer.close()
        await settled(proxy)


async def test_head_too_long() -> None:
    async with upstream(ok) as up, proxied(up.port, max_head_bytes=2000) as proxy:
        raw = request_bytes("GET", "/", [*HOST, ("X", "y" * 5000)])
        assert (await exchange(proxy.port, raw)).status == 431
        assert (await exchange(proxy.port, raw[:3000])).status == 431
        assert (await exchange(proxy.port, request_bytes("GET", "/", HOST))).status == 200
        assert len(up.seen) == 1


async def test_too_many_connections() -> None:
    async with upstream(ok) as up, proxied(up.port, max_connections=2) as proxy:
        held = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(2)]
        await until(lambda: len(proxy.clients) == 2)
        answer = await exchange(proxy.port, b"")
        assert answer.status == 503
        assert answer.header("retry-after") == "1"
        for _, writer in held:
            writer.close()
        await settled(proxy)
        assert (await exchange(proxy.port, request_bytes("GET", "/", HOST))).status == 200


async def test_slow_heads_and_silent_connections_are_ended() -> None:
    async with upstream(ok) as up, proxied(up.port, head_timeout_s=0.1) as proxy:
        assert (await exchange(proxy.port, b"GET / HTT")).status == 408
        silent = await exchange(proxy.port, b"")
        assert (silent.raw, silent.status) == (b"", 0)
        assert up.seen == []


async def test_idle_requests_are_ended() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen.target != "/silent":
            writer.write(STREAM_HEAD + chunk(EVENT))
        await wait_closed(seen, reader)

    records: list[RequestRecord] = []
    async with upstream(script) as up, proxied(up.port, idle_timeout_s=0.6, records=records) as proxy:
        assert (await exchange(proxy.port, request_bytes("GET", "/silent", HOST))).status == 504
        answer = await exchange(proxy.port, request_bytes("POST", CHAT, HOST, BODY))
        assert answer.body == EVENT
        assert not answer.complete
        await until(lambda: len(records) == 1)
        await until(lambda: all(seen.closed_at is not None for seen in up.seen))
        assert records[0].outcome is Outcome.ERROR


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_without_a_body(status: bytes) -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        length = b"Content-Length: 99\r\n" if seen.method == "HEAD" or status[:3] == b"304" else b""
        writer.write(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n")
        return True

    async with upstream(script) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        for method in ("GET", "HEAD", "DELETE"):
            writer.write(request_bytes(method, "/", HOST))
            raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert raw.startswith(b"HTTP/1.1 " + status)
        assert up.connections == 1
        writer.close()


async def test_interim_answers_and_trailers_pass() -> None:
    wire = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n"
    )

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        for at in range(len(wire)):  # byte by byte: heads and chunks are put together again
            writer.write(wire[at : at + 1])
            await asyncio.sleep(0)
        return True

    async with upstream(script) as up, proxied(up.port) as proxy:
        answer = await exchange(proxy.port, request_bytes("GET", "/", HOST))
        assert answer.raw == wire
        assert answer.interim == [103]
        assert answer.trailers == [("x-sum", "7")]


async def test_expect_continue_is_answered_for_a_server_that_does_not() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_body(seen, reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)

    async with upstream(script, early=True) as up, proxied(up.port, continue_after_s=0.05) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        answer = await read_answer(reader)
        assert answer.raw == OK  # the server's own late 100 is not passed on as a second one
        assert up.seen[0].body == b"abc"
        assert up.seen[0].header("expect") == "100-continue"
        writer.close()


async def test_expect_continue_refused_by_the_server() -> None:
    # The server would keep the connection; but whether the body still comes is anyone's guess.
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        return True

    async with upstream(script, early=True) as up, proxied(up.port, continue_after_s=5.0) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        answer = await read_answer(reader)
        assert (answer.status, answer.header("connection")) == (413, "close")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await settled(proxy)


async def test_early_answer_arrives_though_the_client_is_still_sending() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        writer.write_eof()
        await wait_closed(seen, reader)

    async with upstream(script, early=True) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request_bytes("POST", "/", HOST, b"x" * 3_000_000))
        answer = await read_answer(reader)
        assert (answer.status, answer.body) == (413, b"no")
        writer.close()
        await settled(proxy)


async def test_upgrade_becomes_a_tunnel() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        writer.write(head + b"\x81\x02hi")
        while data := await reader.read(65536):
            writer.write(data[::-1])

    asks = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with upstream(script) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(asks)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        assert await reader.readexactly(4) == b"\x81\x02hi"
        for message in (b"abc", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))):
            writer.write(message)
            assert await asyncio.wait_for(reader.readexactly(len(message)), 10) == message[::-1]
        assert proxy.in_flight == 1
        writer.close()
        await settled(proxy)


async def test_last_message_before_the_client_leaves_a_tunnel() -> None:
    got = bytearray()

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while data := await reader.read(65536):
            got.extend(data)
        seen.closed_at = time.monotonic()

    asks = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with upstream(script) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(asks)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"bye" * 100_000)
        writer.close()
        await until(lambda: up.seen[0].closed_at is not None)
        assert got == b"bye" * 100_000
        await settled(proxy)


async def test_no_tunnel_without_asking() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
        await wait_closed(seen, reader)

    async with upstream(script) as up, proxied(up.port) as proxy:
        raw = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
        assert (await exchange(proxy.port, raw)).status == 502
        assert up.seen[0].header("upgrade") is None
        await until(lambda: up.seen[0].closed_at is not None)


async def test_http_1_0_client_gets_an_answer_that_ends_with_the_connection() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert seen.head.startswith(b"GET / HTTP/1.0\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")

    async with upstream(script) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        raw = await asyncio.wait_for(reader.read(), 10)
        assert raw == b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it"
        writer.close()
        await settled(proxy)


async def test_reset_of_an_answer_without_length_is_not_its_end() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        reset(writer)

    async with upstream(script) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request_bytes("GET", "/", HOST))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await settled(proxy)


async def test_nobody_behind() -> None:
    records: list[RequestRecord] = []
    async with upstream(ok) as up:
        port = up.port
    async with proxied(port, records=records) as proxy:
        answer = await exchange(proxy.port, request_bytes("POST", CHAT, HOST, BODY))
        assert answer.status == 502
        assert "error" in json.loads(answer.body)
        await until(lambda: len(records) == 1)
        assert records[0].outcome is Outcome.ERROR
        assert (records[0].model, records[0].streamed) == ("demo", True)  # as asked: no answer came
        assert proxy.broken == {"connect": 1}


async def test_slow_client_holds_the_upstream_back() -> None:
    written = 0

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
        for _ in range(1024):
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    async with upstream(script) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=65536)
        writer.write(request_bytes("GET", "/", HOST))
        stalled = -1
        async with asyncio.timeout(20):
            while written != stalled:
                stalled = written
                await asyncio.sleep(0.3)
        assert written < 40 << 20  # kernel buffers of four sockets and a few hundred kB of our own
        (client,) = proxy.clients
        assert client.transport.get_write_buffer_size() < 1 << 20
        await reader.readuntil(b"\r\n\r\n")
        left = 64 << 20
        while left:
            data = await asyncio.wait_for(reader.read(1 << 20), 10)
            assert data
            left -= len(data)
        writer.close()


async def test_slow_upstream_holds_the_client_back() -> None:
    go = asyncio.Event()

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await read_body(seen, reader)
        writer.write(OK)

    async with upstream(script, early=True) as up, proxied(up.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        body = b"y" * (64 << 20)
        writer.write(request_bytes("POST", "/", HOST, body))
        await asyncio.sleep(0.3)
        left = writer.transport.get_write_buffer_size()
        assert left > 24 << 20
        go.set()
        assert (await read_answer(reader)).body == b"ok"
        assert up.seen[0].body == body
        writer.close()


async def test_what_goes_wrong_in_observing_is_counted_and_seen_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(STREAM_HEAD + chunk(EVENT) + chunk(EVENT) + b"0\r\n\r\n")
        return True

    def fail(*args: Any) -> None:
        raise ValueError("broken observer")

    raw = request_bytes("POST", CHAT, HOST, BODY)
    async with upstream(script) as up:
        async with proxied(up.port, on_record=fail, on_start=fail) as proxy:
            assert (await exchange(proxy.port, raw)).body == EVENT * 2
            await until(lambda: proxy.dropped == {"on_record": 1, "on_start": 1})
        for name in ("on_headers", "feed", "finish"):
            with monkeypatch.context() as patch:
                patch.setattr(f"sidecar.requests.stream.StreamMeter.{name}", fail)
                records: list[RequestRecord] = []
                async with proxied(up.port, records=records) as proxy:
                    assert (await exchange(proxy.port, raw)).body == EVENT * 2
                    await until(lambda p=proxy: p.dropped == {"meter": 1})
                    assert records == []
        with monkeypatch.context() as patch:
            patch.setattr("sidecar.proxy.observe.request_facts", fail)
            async with proxied(up.port) as proxy:
                assert (await exchange(proxy.port, raw)).body == EVENT * 2
                await until(lambda: proxy.dropped == {"facts": 1})
        with monkeypatch.context() as patch:
            patch.setattr("sidecar.proxy.exchange.api_of", fail)
            async with proxied(up.port) as proxy:
                assert (await exchange(proxy.port, raw)).body == EVENT * 2
                assert proxy.dropped == {"api": 1}


async def test_a_slow_observer_is_switched_off_for_a_while() -> None:
    def slow(record: RequestRecord) -> None:
        time.sleep(1.3)

    async with upstream(ok) as up, proxied(up.port, on_record=slow) as proxy:
        raw = request_bytes("POST", CHAT, HOST, BODY)
        for _ in range(6):
            assert (await exchange(proxy.port, raw)).body == b"ok"
        await until(lambda: proxy.dropped.get("overload", 0) >= 4)


async def test_own_fields_and_the_start_hook() -> None:
    started: list[Started] = []
    records: list[RequestRecord] = []
    settings: dict[str, Any] = {"trace": "continue", "forwarded": True, "host": "upstream"}
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = [
        *HOST,
        ("traceparent", f"00-{trace}-{span}-01"),
        ("X-SLO-Class", "gold"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("Authorization", "Bearer sk-secret"),
    ]
    async with (
        upstream(ok) as up,
        proxied(up.port, records=records, on_start=started.append, **settings) as proxy,
    ):
        await exchange(proxy.port, request_bytes("POST", f"{CHAT}?key=sk-secret", headers, BODY))
        await exchange(proxy.port, request_bytes("POST", CHAT, [*HOST, ("X-Request-Id", "mine")], BODY))
        await exchange(proxy.port, request_bytes("GET", "/v1/models", HOST))
        await until(lambda: len(records) == 2)
        first, second, third = up.seen
        assert first.header("host") == f"127.0.0.1:{up.port}"
        assert first.header("x-forwarded-for") == "10.0.0.1, 127.0.0.1"
        assert first.header("x-forwarded-proto") == "http"
        assert first.header("x-forwarded-host") == "llm.example"
        assert first.header("authorization") == "Bearer sk-secret"
        sent = (first.header("traceparent") or "").split("-")
        assert sent[1] == trace
        assert sent[2] != span
        assert records[0].extra == {
            "trace_id": trace,
            "span_id": sent[2],
            "parent_span_id": span,
            "trace_flags": "01",
        }
        assert records[0].request_id == first.header("x-request-id") != ""
        assert records[0].request_class == "gold"
        assert records[0].path == CHAT
        assert second.header("x-request-id") == records[1].request_id == "mine"
        assert third.header("x-request-id") is None
        assert third.header("traceparent") is None
        assert [s.facts.model for s in started] == ["demo", "demo"]
        assert started[0].body == BODY
        assert "sk-secret" not in repr((records, started))


async def test_by_default_only_the_request_id_is_added() -> None:
    async with upstream(ok) as up, proxied(up.port, set_request_id=False) as proxy:
        headers = [*HOST, ("traceparent", "00-x"), ("Accept", "*/*"), ("accept", "text/plain")]
        raw = request_bytes("POST", CHAT, headers, BODY)
        await exchange(proxy.port, raw)
        assert up.seen[0].head + up.seen[0].body == raw


async def test_drain_lets_streams_finish_and_takes_no_more() -> None:
    go = asyncio.Event()

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(STREAM_HEAD + chunk(EVENT))
        await go.wait()
        writer.write(chunk(EVENT) + b"0\r\n\r\n")
        return True

    records: list[RequestRecord] = []
    async with upstream(script) as up, proxied(up.port, records=records) as proxy:
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request_bytes("POST", CHAT, HOST, BODY))
        await reader.readuntil(b"\r\n\r\n")
        draining = asyncio.ensure_future(proxy.drain(20))
        assert await asyncio.wait_for(idle_reader.read(), 10) == b""
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        assert not draining.done()
        go.set()
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(chunk(EVENT) + b"0\r\n\r\n")
        assert await draining is True
        assert len(records) == 1
        writer.close()
        idle_writer.close()


async def test_drain_has_a_limit_and_close_cuts() -> None:
    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(EVENT))
        await wait_closed(seen, reader)

    records: list[RequestRecord] = []
    async with upstream(script) as up, proxied(up.port, records=records) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request_bytes("POST", CHAT, HOST, BODY))
        await reader.readuntil(b"\r\n\r\n")
        assert await proxy.drain(0.1) is False
        await proxy.close()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == chunk(EVENT)
        await until(lambda: up.seen[0].closed_at is not None)
        assert (proxy.in_flight, len(records)) == (0, 1)
        writer.close()


async def test_an_address_in_use_is_told_in_one_line() -> None:
    from sidecar.errors import UserError
    from sidecar.proxy.server import ProxySettings

    async with upstream(ok) as up:
        proxy = Proxy(ProxySettings("http://127.0.0.1:1", listen_port=up.port), on_record=lambda record: None)
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{up.port}"):
            await proxy.start()
