"""Canaries for leak tests: texts to be found nowhere, a request and a server full of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

WORD = "kanarienvogel"  # in every text, not private by its shape
PRIVATE = "kanari.e.vogel77@leak.example"  # a shape that redaction must find
PLACES = [
    "prompt",
    "system",
    "args",
    "schema",
    "stop",
    "user",
    "header",
    "url",
    "error",
    "output",
    "name",
    "meta",
]


def canary(place: str) -> str:
    """A text for one place: a plain word and a private value, both telling where they came from."""
    return f"{WORD}-{place} {place}.{PRIVATE}"


BODY: dict[str, Any] = {
    "model": "demo",
    "stream": True,
    "stop": [canary("stop")],
    "user": canary("user"),
    "metadata": {"note": canary("meta")},
    "messages": [
        {"role": "system", "content": canary("system")},
        {"role": "user", "name": f"{WORD}_name", "content": [{"type": "text", "text": canary("prompt")}]},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "send_mail", "arguments": json.dumps({"to": canary("args")})},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": canary("args")},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "send_mail",
                "description": canary("schema"),
                "parameters": {"type": "object", "properties": {"to": {"description": canary("schema")}}},
            },
        }
    ],
}


async def chat(request: web.Request) -> web.StreamResponse:
    try:
        body = await request.json()
    except ValueError:
        return web.json_response({"error": {"message": canary("error"), "code": 400}}, status=400)
    if body.get("n") == 99:
        return web.json_response({"error": {"message": canary("error"), "code": 400}}, status=400)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    pieces = [f"{WORD}-out", "put outp", f"ut.{PRIVATE[:9]}", PRIVATE[9:]]
    for number, piece in enumerate(pieces):
        last = "stop" if number == len(pieces) - 1 else None
        event = {
            "model": "demo",
            "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": last}],
        }
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    if body.get("n") == 98:
        broken = {"error": {"message": canary("error"), "type": "server_error"}}
        await response.write(b"data: " + json.dumps(broken).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def metrics(request: web.Request) -> web.Response:
    return web.Response(text="vllm:num_requests_running 0\n")


def found(haystack: bytes, needle: str) -> list[str]:
    """Where ``needle`` is, whole or with the usual escapes."""
    forms = {needle, needle.replace("@", "%40"), needle.replace("@", "\\u0040")}
    text = haystack.decode("utf-8", errors="replace")
    return [text[max(0, at - 60) : at + 60] for form in forms if (at := text.find(form)) >= 0]


@contextmanager
def canary_server() -> Iterator[str]:
    """The server on a thread of its own; its URL."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
