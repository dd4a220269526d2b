"""The proxy cases through real sockets: scripted upstream, proxy, bare client."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.requests.records import Outcome, RequestRecord
from sidecar.requests.slo import DEFAULT_SLO, judge
from tests.support.proxied import proxied, until
from tests.support.rawhttp import Answer, read_answer, request_bytes
from tests.support.upstream import Seen, Upstream, chunk, reset, upstream, wait_closed

BUSY_S = 2.0  # what a starved machine may add; each case's wrong behaviour takes much longer
CASES = json.loads((Path(__file__).parents[2] / "cases" / "proxy.json").read_text())["cases"]


def client_body(spec: dict[str, Any]) -> bytes | None:
    """The request body a case asks for."""
    if fill := spec.get("body_fill"):
        return json.dumps({"model": "demo", fill["json_field"]: fill["fill"] * fill["count"]}).encode()
    return spec["body"].encode() if spec.get("body") is not None else None


def script_of(spec: dict[str, Any], sent: list[float]) -> Any:
    """The upstream's behaviour as a script; ``sent`` gets the time of each piece."""

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if "silent_s" in spec:
            await wait_closed(seen, reader, spec["silent_s"])
            return False
        if "raw_b64" in spec:
            writer.write(base64.b64decode(spec["raw_b64"]))
            return bool(spec["end"] == "keepalive")
        if "every_s" in spec:
            pieces = [(spec["every_s"] * i, spec["event"].encode()) for i in range(1, spec["count"] + 1)]
        else:
            pieces = [
                (p["t"], base64.b64decode(p["b64"]) if "b64" in p else p["data"].encode())
                for p in spec["pieces"]
            ]
        headers = list(spec["headers"])
        names = {name.lower() for name, _ in headers}
        chunked = "transfer-encoding" in names
        if not chunked and "content-length" not in names:
            headers.append(["content-length", str(sum(len(data) for _, data in pieces))])
        head = f"HTTP/1.1 {spec['status']} X\r\n" + "".join(f"{n}: {v}\r\n" for n, v in headers) + "\r\n"
        begin = time.monotonic()
        watcher = asyncio.ensure_future(wait_closed(seen, reader))
        try:
            for number, (at, data) in enumerate(pieces):
                done, _ = await asyncio.wait({watcher}, timeout=max(0.0, begin + at - time.monotonic()))
                if done:
                    return False
                sent.append(time.monotonic())
                writer.write((b"" if number else head.encode()) + (chunk(data) if chunked else data))
        finally:
            watcher.cancel()
        if spec["end"] == "reset":
            await asyncio.sleep(0.05)
            reset(writer)
        elif chunked:
            writer.write(b"0\r\n\r\n")
        return False

    return script


async def talk(port: int, spec: dict[str, Any], left: list[float]) -> tuple[Answer, bytes | None]:
    """Play the client's part; ``left`` gets the time at which it left early."""
    body = client_body(spec)
    headers = [tuple(h) for h in spec["headers"] + spec.get("extra_headers", [])]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if spec.get("expect_continue"):
            assert body is not None
            whole = request_bytes(
                spec["method"], spec["target"], [*headers, ("expect", "100-continue")], body
            )
            cut = whole.index(b"\r\n\r\n") + 4
            writer.write(whole[:cut])
            begin = time.monotonic()
            interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), spec["wait_for_100_s"])
            waited = time.monotonic() - begin
            writer.write(whole[cut:])
            answer = await read_answer(reader)
            if interim.startswith(b"HTTP/1.1 100"):
                answer.interim.append(100)
            answer.first_body_at = waited
            return answer, body
        writer.write(request_bytes(spec["method"], spec["target"], headers, body))
        if "leave_at_s" in spec:
            await asyncio.sleep(spec["leave_at_s"])
            left.append(time.monotonic())
            return Answer(), body
        events = spec.get("leave_after_events", 0)
        answer = await read_answer(reader, stop_after_events=events)
        if events:
            left.append(time.monotonic())
        return answer, body
    finally:
        writer.close()


def check_client(expect: dict[str, Any], answer: Answer, sent: list[float]) -> None:
    """What the client must have seen."""
    for key, want in expect.items():
        if key == "status":
            assert answer.status == want
        elif key == "body":
            assert answer.body == want.encode()
        elif key == "body_sha256":
            assert hashlib.sha256(answer.body).hexdigest() == want
        elif key == "complete":
            assert answer.complete is want
        elif key == "headers_have":
            assert {name: answer.header(name) for name in want} == want
        elif key == "headers_lack":
            assert [name for name in want if answer.header(name) is not None] == []
        elif key == "header_values":
            for name, values in want.items():
                assert [v for n, v in answer.headers if n == name] == values
        elif key == "saw_100":
            assert (100 in answer.interim) is want
        elif key == "saw_100_within_s":
            assert answer.first_body_at is not None
            assert answer.first_body_at <= want + BUSY_S
        elif key == "first_body_byte_within_s_of_upstream":
            assert answer.first_body_at is not None
            assert answer.first_body_at - sent[0] <= want + BUSY_S
        else:
            raise AssertionError(f"unknown key {key}")


def check_upstream(expect: dict[str, Any], up: Upstream, body: bytes | None, left: list[float]) -> None:
    """What the server must have seen."""
    seen = up.seen[0]
    for key, want in expect.items():
        if key == "method":
            assert seen.method == want
        elif key == "target":
            assert seen.target == want
        elif key == "requests":
            assert len(up.seen) == want
        elif key == "headers_have":
            assert {name: seen.header(name) for name in want} == want
        elif key == "headers_lack":
            assert [name for name in want if seen.header(name) is not None] == []
        elif key == "body_json_lacks":
            assert [name for name in want if name in json.loads(seen.body)] == []
        elif key in ("body_length_equal", "body_sha256_equal"):
            assert seen.body == body
        elif key == "closed_within_s_of_leaving":
            assert seen.closed_at is not None
            assert seen.closed_at - left[0] <= want + BUSY_S
        else:
            raise AssertionError(f"unknown key {key}")


def check_record(expect: dict[str, Any] | None, records: list[RequestRecord]) -> None:
    """What the product must have noted."""
    if expect is None:
        assert records == []
        return
    (record,) = records
    for key, want in expect.items():
        if key == "n":
            assert record.output_tokens == want
        elif key == "completed":
            assert (record.outcome is Outcome.COMPLETED) is want
        elif key == "client_left":
            assert (record.outcome is Outcome.CLIENT_LEFT) is want
        elif key == "ttft_s":
            assert record.ttft_ns == want
        elif key == "bucket":
            assert judge(record, DEFAULT_SLO).bucket == want
        elif key == "max_gap_s_between":
            assert record.max_gap_ns is not None
            assert want[0] <= record.max_gap_ns / 1e9 <= want[1] + BUSY_S
        else:
            raise AssertionError(f"unknown key {key}")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
async def test_proxy_case(case: dict[str, Any]) -> None:
    spec, expect = case["input"], case["expect"]
    records: list[RequestRecord] = []
    sent: list[float] = []
    left: list[float] = []
    async with (
        upstream(script_of(spec["upstream"], sent)) as up,
        proxied(up.port, records=records) as proxy,
    ):
        answer, body = await talk(proxy.port, spec["client"], left)
        if left:
            await until(lambda: up.seen[0].closed_at is not None)
        await until(lambda: proxy.in_flight == 0)
        await asyncio.sleep(0)
        check_client(expect.get("client", {}), answer, sent)
        check_upstream(expect.get("upstream", {}), up, body, left)
        if "record" in expect:
            check_record(expect["record"], records)
        assert proxy.dropped == {}
