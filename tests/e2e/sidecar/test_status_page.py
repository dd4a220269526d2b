"""The status page in a real browser: it shows the figures, without an error or an outside request."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

import httpx
import pytest

from tests.support.page_shot import browsed
from tests.support.screenshot import chromium
from tests.support.sidecar_process import Running, sidecar_process, wait_for
from tests.support.simulated import simulate_process

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="chromium (Debian package chromium) is not installed"
)


def traffic(sidecar: Running) -> None:
    with httpx.Client(base_url=sidecar.proxy, timeout=60, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": "a b c", "max_tokens": 6, "stream": True, "ignore_eos": True}
        for fault in ("", "", "error=1", ""):
            client.post("/v1/completions", json=body, headers={"x-sim-fault": fault} if fault else {})


async def look(sidecar: Running, out: Path | None) -> None:
    for width, dark in ((1200, False), (390, True)):
        async with browsed(sidecar.admin + "/", width=width, height=900, dark=dark) as page:
            await page.until("document.querySelectorAll('#tiles dd').length === 6")
            shown = await page.js("document.body.innerText")
            assert "75 %" in shown
            assert "error: 25 % of requests failed." in shown
            assert "By kind: http 1" in shown
            await page.until("document.getElementById('live').textContent === 'live'")
            # Readable on a phone: the page itself never scrolls sideways.
            assert await page.js("document.documentElement.scrollWidth <= innerWidth")
            ground = await page.js("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, ground[4:-1].split(","))) < 3 * 128) is dark
            # What a keyboard or a screen reader needs: names, a language, headings, no positive tabindex.
            assert await page.js("document.documentElement.lang") == "en"
            for selector, holds in (
                ("section", "e.hasAttribute('aria-labelledby')"),
                ("[tabindex]", "e.tabIndex === 0"),
                ("th", "e.scope"),
            ):
                assert await page.js(f"[...document.querySelectorAll('{selector}')].every(e => {holds})"), (
                    selector
                )
            said = await page.js("document.querySelector('#chart svg').getAttribute('aria-label')")
            assert said.startswith("3 of 4 requests were good")
            loaded = await page.js("performance.getEntriesByType('resource').map(r => r.name).join(' ')")
            assert all(name.startswith(sidecar.admin) for name in loaded.split()), loaded
            picture = await page.shoot()
            assert picture[:8] == b"\x89PNG\r\n\x1a\n"
            assert struct.unpack(">I", picture[16:20])[0] >= 380
            if out is not None:
                (out / f"status-{width}-{'dark' if dark else 'light'}.png").write_bytes(picture)
            bad = [e for e in page.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
            assert bad == []


def test_the_page_shows_the_figures_in_light_and_dark_on_screen_and_phone() -> None:
    out = os.environ.get("GOODPUT_SCREENSHOTS")
    with (
        simulate_process("--profile", "fast", "--max-seconds", "300") as (_, url),
        sidecar_process(url, "--slo", "ttft=30,tpot=10", "--scrape-interval-s", "1") as sidecar,
    ):
        wait_for(lambda: sidecar.get("/readyz").status_code == 200)
        traffic(sidecar)
        wait_for(lambda: sidecar.status()["overall"]["1h"]["eligible"] == 4)
        asyncio.run(look(sidecar, Path(out) if out else None))
