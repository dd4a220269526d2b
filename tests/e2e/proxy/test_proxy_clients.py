"""Real clients through the proxy: httpx, aiohttp, the openai package, curl."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import httpx
import openai
import pytest
from aiohttp import web

from sidecar.proxy.server import Proxy
from sidecar.requests.records import Outcome, RequestRecord
from tests.support.proxied import proxied, until

WORDS = ["Good", "put", " counts", " what", " arrives", " in", " time", "."]


def _delta(text: str, finish: str | None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return json.dumps(
        {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "demo", "choices": [choice]}
    )


async def _chat(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    if not asked.get("stream"):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(WORDS)},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": 3, "completion_tokens": len(WORDS), "total_tokens": 3 + len(WORDS)}
        whole = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "demo"}
        body = json.dumps(whole | {"choices": [choice], "usage": usage}).encode()
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            packed = gzip.compress(body)
            return web.Response(
                body=packed, headers={"Content-Encoding": "gzip"}, content_type="application/json"
            )
        return web.Response(body=body, content_type="application/json")
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for number, word in enumerate(WORDS):
        event = _delta(word, "stop" if number == len(WORDS) - 1 else None)
        await answer.write(f"data: {event}\n\n".encode())
        await asyncio.sleep(0.002)
    await answer.write(b"data: [DONE]\n\n")
    await answer.write_eof()
    return answer


async def _upload(request: web.Request) -> web.Response:
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
    return web.json_response({"size": size})


async def _realtime(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(message.data.upper())
    return socket


@asynccontextmanager
async def serving(records: list[RequestRecord]) -> AsyncIterator[Proxy]:
    """An aiohttp server with a chat API, and the proxy before it."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_post("/upload", _upload)
    app.router.add_put("/upload", _upload)
    app.router.add_get("/v1/realtime", _realtime)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with proxied(runner.addresses[0][1], records=records) as proxy:
            yield proxy
            assert proxy.refused == {}
            assert proxy.broken == {}
            assert proxy.dropped == {}
    finally:
        await runner.cleanup()


def body(stream: bool) -> dict[str, object]:
    """A chat request."""
    return {"model": "demo", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}


async def check_records(records: list[RequestRecord], streamed: list[bool]) -> None:
    """One completed record each, with as many tokens as words."""
    await until(lambda: len(records) == len(streamed))
    assert [r.outcome for r in records] == [Outcome.COMPLETED] * len(streamed)
    assert [r.output_tokens for r in records] == [len(WORDS)] * len(streamed)
    assert [r.first_ns is not None for r in records] == streamed


async def test_openai_package() -> None:
    records: list[RequestRecord] = []
    async with serving(records) as proxy:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0)
        async with client:
            chat = client.chat.completions
            stream = await chat.create(
                model="demo", stream=True, messages=[{"role": "user", "content": "hi"}]
            )
            assert [c.choices[0].delta.content async for c in stream] == WORDS
            whole = await client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "hi"}]
            )
            assert whole.choices[0].message.content == "".join(WORDS)
        await check_records(records, [True, False])


async def test_httpx() -> None:
    records: list[RequestRecord] = []
    async with (
        serving(records) as proxy,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}", trust_env=False) as client,
    ):
        whole = await client.post("/v1/chat/completions", json=body(False))
        assert whole.headers["content-encoding"] == "gzip"
        assert whole.json()["choices"][0]["message"]["content"] == "".join(WORDS)
        async with client.stream("POST", "/v1/chat/completions", json=body(True)) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
        assert len(lines) == len(WORDS) + 1
        assert lines[-1] == "data: [DONE]"

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield b"x" * 100_000

        uploaded = await client.post("/upload", content=pieces())
        assert uploaded.json() == {"size": 5_000_000}
        await check_records(records, [False, True])


async def test_aiohttp() -> None:
    records: list[RequestRecord] = []
    async with serving(records) as proxy, aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}") as session:
        async with session.post("/v1/chat/completions", json=body(True)) as answer:
            text = (await answer.read()).decode()
        assert text.count("data: ") == len(WORDS) + 1
        async with session.post("/v1/chat/completions", json=body(False)) as answer:
            assert (await answer.json())["usage"]["completion_tokens"] == len(WORDS)
        async with session.post("/upload", data=b"y" * 3_000_000, expect100=True) as answer:
            assert await answer.json() == {"size": 3_000_000}
        async with session.ws_connect("/v1/realtime") as socket:
            for word in WORDS:
                await socket.send_str(word)
                assert (await socket.receive_str(timeout=10)) == word.upper()
        await check_records(records, [True, False])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl() -> None:
    async def curl(*args: str, stdin: bytes = b"") -> bytes:
        process = await asyncio.create_subprocess_exec(
            "curl", "-sS", "--noproxy", "*", "--max-time", "30", *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await asyncio.wait_for(process.communicate(stdin), 60)
        assert (process.returncode, errors) == (0, b"")
        return out

    records: list[RequestRecord] = []
    async with serving(records) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        chat, upload, size = f"{url}/v1/chat/completions", f"{url}/upload", {"size": 2_000_000}
        sent = json.dumps(body(True))
        out = await curl("-N", "--json", sent, chat)
        assert out.count(b"data: ") == len(WORDS) + 1
        # Two requests on one kept connection, with compression.
        both = await curl(
            "--compressed",
            "--json",
            json.dumps(body(False)),
            chat,
            chat,
        )
        assert both.count(b'"completion_tokens": 8') == 2
        # Chunked upload; and one large enough that curl waits for 100 Continue.
        assert json.loads(await curl("-T", "-", upload, stdin=b"z" * 2_000_000)) == {"size": 2_000_000}
        large = await curl(
            "--data-binary", "@-", "-H", "Expect: 100-continue", upload, stdin=b"z" * 2_000_000
        )
        assert json.loads(large) == size
        assert b"HTTP/1.1 405" in await curl("-I", chat)
        await check_records(records, [True, False, False])
