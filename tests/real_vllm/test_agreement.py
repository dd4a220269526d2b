"""Sidecar, client and vLLM count the same requests and the same output tokens (real vLLM on the CPU)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from loadgen.report.jsonio import load
from sidecar.engine.scrape import fetch_view
from sidecar.requests.records import Api, End, Outcome, RequestRecord
from sidecar.requests.stream import StreamMeter
from tests.support.loadgen_runs import loadgen
from tests.support.sidecar_process import Running, sidecar_process, wait_for

pytestmark = pytest.mark.real_vllm

REQUESTS = 24


def _engine_counts(base_url: str) -> tuple[int, int]:
    """(finished requests, output tokens) by vLLM's own counters."""
    view = fetch_view(base_url, 10.0).view
    assert view is not None
    return round(view.total("success") or 0), round(view.total("generation_tokens") or 0)


def _sidecar_counts(sidecar: Running) -> tuple[int, int]:
    """(eligible and not eligible requests, output tokens) by the sidecar's page."""
    page = sidecar.metrics()

    def total(family: str) -> int:
        return round(sum(value for name, value in page.items() if name.startswith(family + "{")))

    finished = total("goodput_eligible_requests_total") + total("goodput_not_eligible_requests_total")
    return finished, total("goodput_output_tokens_total")


def _ask(base_url: str, number: int) -> RequestRecord:
    """One request, streamed or not, chat or completions, measured by the meter.

    Streams ask for usage: without it tokens are estimated by chunks, and a token that completes no character
    makes no chunk (byte-level vocabulary), so no one but vLLM could know the number.
    """
    streamed, chat = number % 4 != 0, number % 2 == 0
    body: dict[str, object] = {"model": "tiny-llama", "max_tokens": 5 + number, "stream": streamed}
    if streamed:
        body["stream_options"] = {"include_usage": True}
    if chat:
        body["messages"] = [{"role": "user", "content": f"say {number} things"}]
    else:
        body |= {"prompt": f"number {number} is", "ignore_eos": True}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    meter = StreamMeter(Api.CHAT if chat else Api.COMPLETIONS, start_ns=time.monotonic_ns())
    with httpx.stream("POST", base_url + path, json=body, timeout=120, trust_env=False) as answer:
        meter.on_headers(answer.status_code, answer.headers.items(), time.monotonic_ns())
        for piece in answer.iter_raw():
            meter.feed(piece, time.monotonic_ns())
    return meter.finish(End.EOF, time.monotonic_ns())


def test_sidecar_client_and_engine_agree(real_vllm: str) -> None:
    with sidecar_process(real_vllm, "--scrape-interval-s", "1") as sidecar:
        requests_before, tokens_before = _engine_counts(real_vllm)
        with ThreadPoolExecutor(8) as pool:
            records = list(pool.map(lambda number: _ask(sidecar.proxy, number), range(REQUESTS)))
        assert {record.outcome for record in records} == {Outcome.COMPLETED}
        client_tokens = sum(record.output_tokens or 0 for record in records)
        assert client_tokens > 0
        assert not any(record.tokens_estimated for record in records)
        # vLLM counts a request after its last byte has left, so its counters may be a moment late.
        wait_for(lambda: _engine_counts(real_vllm)[0] - requests_before >= REQUESTS)
        requests_after, tokens_after = _engine_counts(real_vllm)
        assert requests_after - requests_before == REQUESTS
        assert tokens_after - tokens_before == client_tokens
        wait_for(lambda: _sidecar_counts(sidecar)[0] >= REQUESTS)
        assert _sidecar_counts(sidecar) == (REQUESTS, client_tokens)


def test_openai_client_through_the_sidecar(real_vllm: str) -> None:
    with sidecar_process(real_vllm) as sidecar:
        client = openai.OpenAI(base_url=sidecar.proxy + "/v1", api_key="none", max_retries=0, timeout=120)
        messages = [{"role": "user", "content": "count"}]
        whole = client.chat.completions.create(model="tiny-llama", messages=messages, max_tokens=9)  # type: ignore[call-overload]
        assert 0 < whole.usage.completion_tokens <= 9
        stream = client.chat.completions.create(  # type: ignore[call-overload]
            model="tiny-llama",
            messages=messages,
            max_tokens=9,
            stream=True,
            stream_options={"include_usage": True},
        )
        events = list(stream)
        assert events[-1].usage.completion_tokens > 0


def test_client_that_leaves_frees_the_engine(real_vllm: str) -> None:
    with sidecar_process(real_vllm) as sidecar:
        body = {"model": "tiny-llama", "prompt": "on and on", "max_tokens": 1500, "ignore_eos": True}
        with httpx.stream(
            "POST",
            sidecar.proxy + "/v1/completions",
            json={**body, "stream": True},
            timeout=120,
            trust_env=False,
        ) as answer:
            next(answer.iter_raw())

        def idle() -> bool:
            view = fetch_view(real_vllm, 10.0).view
            return view is not None and view.total("running") == 0

        wait_for(idle)
        page = sidecar.metrics()
        assert any(n.startswith("goodput_not_eligible_requests_total") and v >= 1 for n, v in page.items()), (
            page
        )


def test_sweep_agrees_with_the_engine(real_vllm: str, tmp_path: Path) -> None:
    requests_before, tokens_before = _engine_counts(real_vllm)
    done = loadgen(
        *("sweep", "--url", real_vllm, "--levels", "1..4", "--slo", "ttft=5,tpot=1", "--out", str(tmp_path)),
        *("--prompt-tokens", "32", "--output-tokens", "16", "--warmup-s", "1", "--window-s", "4"),
    )
    assert done.status == 0, done.err
    report = load(tmp_path / "report.json")
    assert report.peak.load is not None
    requests_after, tokens_after = _engine_counts(real_vllm)
    measured_requests = sum(level.completed for level in report.levels)
    assert 0 < measured_requests <= requests_after - requests_before
    assert 0 < sum(level.output_tokens for level in report.levels) <= tokens_after - tokens_before
