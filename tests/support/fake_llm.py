"""A scripted OpenAI-compatible server for tests: ``python -m tests.support.fake_llm --mode MODE``.

Streams ``max_tokens`` tokens, one event each. Modes: ``ok``; ``dies:N`` answers 500 from the N-th chat
request on; ``html`` answers every path with a web page; ``fails`` answers 500 to everything; ``stalls:S``
holds one pause of S seconds in every tenth answer; ``closes`` ends each connection after its answer;
``refuses:N`` answers 429 from the N-th chat request on; ``breaks`` ends each answer with an error event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys

from aiohttp import web


class Fake:
    def __init__(self, mode: str, ttft_s: float, itl_s: float) -> None:
        self.mode, _, argument = mode.partition(":")
        self.argument = float(argument or 0)
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        self.served = 0

    async def models(self, request: web.Request) -> web.Response:
        if self.mode == "fails":
            return web.Response(status=500, text="broken")
        if self.mode == "html":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.served += 1
        number = self.served
        body = await request.json()
        if self.mode == "dies" and number >= self.argument:
            return web.json_response({"error": {"message": "the engine is dead", "code": 500}}, status=500)
        if self.mode == "refuses" and number >= self.argument:
            return web.json_response({"error": {"message": "too many", "code": 429}}, status=429)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if self.mode == "closes":
            response.force_close()
        await response.prepare(request)
        tokens = int(body["max_tokens"])
        await asyncio.sleep(self.ttft_s)
        for index in range(tokens):
            if index:
                await asyncio.sleep(self.itl_s)
            if self.mode == "breaks" and index == tokens - 1:
                await self.event(response, {"error": {"message": "the engine died", "code": 500}})
                await response.write_eof()
                return response
            if self.mode == "stalls" and index == tokens // 2 and number % 10 == 0:
                await asyncio.sleep(self.argument)
            last = "length" if index == tokens - 1 else None
            await self.event(
                response, {"choices": [{"index": 0, "delta": {"content": " x"}, "finish_reason": last}]}
            )
        usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
        await self.event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def event(self, response: web.StreamResponse, payload: dict) -> None:
        await response.write(
            b"data: " + json.dumps({"id": "c", "model": "fake", **payload}).encode() + b"\n\n"
        )


async def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="ok")
    parser.add_argument("--ttft-s", type=float, default=0.02)
    parser.add_argument("--itl-s", type=float, default=0.005)
    parser.add_argument("--cert", help="certificate and key in one PEM file: speak TLS")
    parser.add_argument("--max-seconds", type=float, default=120)
    args = parser.parse_args(argv)
    fake = Fake(args.mode, args.ttft_s, args.itl_s)
    app = web.Application()
    app.router.add_get("/v1/models", fake.models)
    app.router.add_post("/v1/chat/completions", fake.chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    context = None
    if args.cert:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(args.cert)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    scheme = "https" if context else "http"
    print(f"fake listening on {scheme}://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.sleep(args.max_seconds)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
