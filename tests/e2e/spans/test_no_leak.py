"""Canaries in everything a caller or model can write; looked for in every byte that the sidecar writes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from sidecar.config import Settings
from sidecar.publish.exposition import render
from sidecar.redaction.engine import Hit, Redactor
from sidecar.redaction.filter import Level
from sidecar.redaction.patterns import EngineMissing
from sidecar.runtime import Runtime
from sidecar.spans.model import Event, Span
from sidecar.spans.otlp import trace_request
from sidecar.spans.receiver import ReceiverSettings
from sidecar.spans.service import SpanService
from sidecar.spans.settings import OtlpSettings, SpanSettings
from tests.support.canaries import BODY, PRIVATE, WORD, canary, canary_server, chat, found, metrics
from tests.support.otlp_tap import OtlpTap
from tests.support.sidecar_process import sidecar_process


class Failing(Redactor):
    """A redactor that breaks, with the text in its complaint."""

    def find(self, text: str, hint: str = "") -> list[Hit]:
        raise ValueError(f"cannot redact {text}")


def no_engine() -> Redactor:
    raise EngineMissing("not here")


async def everything_written(service: SpanService, tap: OtlpTap) -> bytes:
    """Runs a whole sidecar with these canaries; all its pages, metrics, and what the collector got."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/metrics", metrics)
    upstream = web.AppRunner(app, access_log=None)
    await upstream.setup()
    await web.TCPSite(upstream, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{upstream.addresses[0][1]}"
    settings = Settings(upstream=url, listen="127.0.0.1:0", admin="127.0.0.1:0", scrape_interval_s=0.3)
    runtime = Runtime(settings)
    runtime.proxy.settings = service.proxy_settings(runtime.proxy.settings)
    runtime.proxy.gate.capture_chars = runtime.proxy.settings.capture_chars
    service.attach(runtime.proxy)
    runtime.tracing = service
    assert service.receiver is not None
    running = asyncio.create_task(runtime.run())
    pages = b""
    try:
        async with asyncio.timeout(60):
            while not (runtime.proxy.port and runtime.admin.port and service.receiver.http_port):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        headers = {
            "authorization": f"Bearer {canary('header')}",
            "x-tenant": canary("header"),
            "x-slo-class": canary("header"),
            "x-request-id": f"header.{PRIVATE}",
        }
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            target = f"http://127.0.0.1:{runtime.proxy.port}/v1/chat/completions"
            for n in (1, 98, 99):
                where = {"key": canary("url"), WORD: "1"}
                answer = await client.post(target, params=where, json={**BODY, "n": n}, headers=headers)
                assert PRIVATE in answer.text or n == 1, "the client gets what the server wrote"
            # A body that is no JSON, and paths with a canary.
            prefixed = f"http://127.0.0.1:{runtime.proxy.port}/{WORD}/{PRIVATE}/v1/chat/completions"
            await client.post(prefixed, json=BODY, headers=headers)
            await client.post(target, content=f"{{ {canary('prompt')}".encode(), headers=headers)
            await client.post(f"{target}/{WORD}/{PRIVATE}", json=BODY, headers=headers)
            foreign = Span(
                "1" * 32, "2" * 16, "", canary("name"), 2, 1, 2,
                {"gen_ai.prompt": canary("prompt"), "gen_ai.latency.e2e": 1.0, "vllm.note": canary("name")},
                events=(Event("exception", 1, {"exception.message": canary("error")}),),
            )  # fmt: skip
            await client.post(
                f"http://127.0.0.1:{service.receiver.http_port}/v1/traces",
                content=trace_request(
                    [foreign], {"service.name": PRIVATE, "vllm.x": canary("name")}
                ).SerializeToString(),
                headers={"content-type": "application/x-protobuf"},
            )
            assert await asyncio.to_thread(service.recorder.flush, 30)
            for path in ("/metrics", "/goodput.json", "/", "/autoscale", "/healthz", "/readyz"):
                pages += (await client.get(f"http://127.0.0.1:{runtime.admin.port}{path}")).content
            openmetrics = {"accept": "application/openmetrics-text"}
            pages += (
                await client.get(f"http://127.0.0.1:{runtime.admin.port}/metrics", headers=openmetrics)
            ).content
    finally:
        runtime.stop()
        await running
        await upstream.cleanup()
    pages += render(service.families(), openmetrics=True)
    return pages + b"".join(tap.raw)


def service_for(tap: OtlpTap, level: Level, **more: Any) -> SpanService:
    settings = SpanSettings(
        exporter="otlp",
        otlp=OtlpSettings(f"http://127.0.0.1:{tap.http_port}/v1/traces"),
        otlp_logs=OtlpSettings(f"http://127.0.0.1:{tap.http_port}/v1/logs"),
        level=level,
        allow_full=True,
        content_on_span=True,
        content_on_event=True,
        interval_s=0.05,
    )
    return SpanService(settings, receiver=ReceiverSettings(grpc_port=0, http_port=0), **more)


@pytest.mark.parametrize("level", [Level.DROP, Level.SHAPE, Level.REDACT])
async def test_nothing_private_leaves(
    level: Level, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sidecar")
    with OtlpTap() as tap:
        written = await everything_written(service_for(tap, level), tap)
        spans = tap.spans
    printed = capfd.readouterr()
    written += (printed.out + printed.err + caplog.text).encode()
    assert len([s for s in spans if s.kind == 3]) >= 3, "the search would be worth nothing without spans"
    assert not found(written, PRIVATE)
    assert not found(written, PRIVATE.partition("@")[0])
    if level is not Level.REDACT:
        assert not found(written, WORD)
        return
    shown = next(s for s in spans if "gen_ai.output.messages" in s.attributes)
    messages = str(shown.attributes["gen_ai.input.messages"])
    for place in ("prompt", "system", "args"):
        assert f"{WORD}-{place} [EMAIL]" in messages, "the rest of the text is there"
    assert f"{WORD}-output [EMAIL]" in str(shown.attributes["gen_ai.output.messages"])
    assert f"{WORD}-schema [EMAIL]" in str(shown.attributes["gen_ai.tool.definitions"])
    assert shown.attributes["gen_ai.request.stop_sequences"] == [f"{WORD}-stop [EMAIL]"]


@pytest.mark.parametrize("broken", [lambda: Failing(), no_engine], ids=["raises", "missing"])
@pytest.mark.parametrize("level", [Level.DROP, Level.SHAPE, Level.REDACT])
async def test_nothing_leaves_when_redaction_fails(
    level: Level, broken: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sidecar")
    with OtlpTap() as tap:
        service = service_for(tap, level, make_redactor=broken)
        written = await everything_written(service, tap)
        spans = tap.spans
    printed = capfd.readouterr()
    written += (printed.out + printed.err + caplog.text).encode()
    assert len([s for s in spans if s.kind == 3]) >= 3
    assert not found(written, PRIVATE)
    assert not found(written, WORD)
    assert service.recorder.filter.counts.failures
    if level is not Level.DROP:
        assert all("failed" in str(s.attributes.get("goodput.redaction")) for s in spans if s.kind == 3)
        assert b"goodput_redaction_failures_total" in written


async def test_full_is_what_was_asked_for_and_says_so(tmp_path: Path) -> None:
    with OtlpTap() as tap:
        service = service_for(tap, Level.FULL)
        written = await everything_written(service, tap)
    assert found(written, canary("prompt")), "the canaries do get here when nothing holds them back"
    assert any("unredacted" in note for note in service.settings.notes)
    assert b'goodput_content_level_info{level="full"' in written


@pytest.mark.parametrize("level", ["drop", "shape", "redact"])
def test_the_process_writes_nothing_private(level: str, tmp_path: Path) -> None:
    """The same as a user runs it: by flags and environment, with all that the process prints."""
    lines = tmp_path / "spans.jsonl"
    with (
        canary_server() as upstream,
        sidecar_process(
            upstream,
            *("--content", level, "--spans-file", str(lines), "--scrape-interval-s", "0.3"),
            env={"OTEL_BSP_SCHEDULE_DELAY": "50", "PYTHONFAULTHANDLER": "1"},
        ) as sidecar,
    ):
        headers = {"authorization": f"Bearer {canary('header')}", "x-slo-class": canary("header")}
        for n in (1, 98, 99):
            answer = httpx.post(
                f"{sidecar.proxy}/v1/chat/completions?key={PRIVATE}",
                json={**BODY, "n": n},
                headers=headers,
                timeout=30,
                trust_env=False,
            )
            assert WORD in answer.text
        pages = b"".join(
            sidecar.get(path).content for path in ("/metrics", "/goodput.json", "/", "/autoscale")
        )
        assert sidecar.end() == 0
        assert sidecar.process.stdout is not None
        assert sidecar.process.stderr is not None
        printed = sidecar.process.stdout.read() + sidecar.process.stderr.read()
    spans = lines.read_bytes()
    assert spans.count(b"\n") == 3
    written = spans + pages + printed.encode()
    assert not found(written, PRIVATE)
    if level == "redact":
        assert f"{WORD}-prompt [EMAIL]".encode() in spans
    else:
        assert not found(written, WORD)
