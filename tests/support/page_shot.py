"""A live page as a PNG: headless Chromium driven over its debugging port, so that events can arrive first.

``python -m tests.support.page_shot URL OUT.png [--width 1200] [--height 1600] [--dark]``
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.screenshot import chromium

LIMIT_S = 90


class Page:
    """One page of a headless browser; ``call`` speaks the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=LIMIT_S)
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    async def js(self, expression: str) -> Any:
        """Evaluate; the value."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until it is true."""
        for _ in range(10 * LIMIT_S):
            if await self.js(expression):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(expression)

    async def shoot(self) -> bytes:
        """The page in all of its height, as a PNG."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])


@contextlib.asynccontextmanager
async def browsed(
    url: str, *, width: int = 1200, height: int = 1600, dark: bool = False
) -> AsyncIterator[Page]:
    """A browser on ``url``. Ended by its pid."""
    browser = chromium()
    assert browser is not None, "no chromium on PATH"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
            *(f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(LIMIT_S):
                while b"DevTools listening on" not in (line := await process.stderr.readline()):
                    assert line, "the browser ended"
            base = line.decode().split()[-1].replace("ws://", "http://").partition("/devtools")[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{base}/json/list") as answer:
                    target = next(t for t in await answer.json() if t["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    await page.call("Runtime.enable")
                    await page.call("Log.enable")
                    await page.call(
                        "Emulation.setDeviceMetricsOverride",
                        width=width,
                        height=height,
                        deviceScaleFactor=1,
                        mobile=width < 600,
                    )
                    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
                    await page.call("Emulation.setEmulatedMedia", features=[scheme])
                    await page.call("Page.navigate", url=url)
                    yield page
        finally:
            if process.returncode is None:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 20)
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _main(args: argparse.Namespace) -> bytes:
    async with browsed(args.url, width=args.width, height=args.height, dark=args.dark) as page:
        await page.until("document.readyState === 'complete'")
        await asyncio.sleep(args.wait)
        if args.script:
            await page.js(args.script)
        return await page.shoot()


def main() -> int:
    """Command line: see the module's first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1000)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--wait", type=float, default=3.0, help="seconds for the first events")
    parser.add_argument("--script", default="", help="JavaScript to run before the picture is taken")
    args = parser.parse_args()
    args.out.write_bytes(asyncio.run(_main(args)))
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
