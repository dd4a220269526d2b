"""The simulator through real sockets: the clients people use, what they leave behind, what the page says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, RateLimitError
from prometheus_client.parser import text_string_to_metric_families

from loadgen.simulator.faults import parse_faults
from loadgen.simulator.profile import find_profile
from loadgen.simulator.server import Simulator
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.requests.records import Api, End, ErrorKind, Outcome
from sidecar.requests.stream import StreamMeter
from tests.support.simulated import simulated, until

CHAT = {"messages": [{"role": "user", "content": "tell me about files"}]}
SLOW = replace(find_profile("fast"), step_overhead_s=0.02)
LIMIT_S = 30.0


@contextlib.asynccontextmanager
async def client_of(simulator: Simulator) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(
        base_url=simulator.url, timeout=LIMIT_S, trust_env=False, limits=limits
    ) as client:
        yield client


def openai_of(simulator: Simulator) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{simulator.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=LIMIT_S,
        http_client=httpx.AsyncClient(trust_env=False),
    )


async def counters(client: httpx.AsyncClient) -> dict[str, float]:
    """Every sample of the page without its histogram buckets, summed over labels except the finish reason."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason")
            name = sample.name.removeprefix("vllm:") + (f"|{reason}" if reason else "")
            if "le" not in sample.labels:
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums


async def test_the_small_endpoints() -> None:
    async with simulated("demo") as simulator, client_of(simulator) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/version")).json()["version"] == "0.32.0"
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("demo-1b", 8192)
        counted = (await client.post("/tokenize", json={"model": "demo-1b", **CHAT})).json()
        assert counted["count"] == len(counted["tokens"])
        answer = await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})
        assert answer.json()["usage"]["prompt_tokens"] == counted["count"]
        assert (await client.post("/tokenize", json={"prompt": "a b c"})).json()["count"] == 3
        assert (await client.post("/tokenize", json={"prompt": 5})).status_code == 400
        assert (await client.get("/nowhere")).status_code == 404
        assert (await client.get("/v1/completions")).status_code == 405
        about = (await client.get("/simulator")).json()
        assert 12 <= about["true_peak"]["load"] <= 20
        assert answer.headers["server"].startswith("goodput-simulator/")


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "nope", **CHAT}, 404), ({"messages": []}, 400), ({**CHAT, "max_tokens": -3}, 400)],
)
async def test_refusals_have_vllms_form(body: dict[str, Any], status: int) -> None:
    async with simulated() as simulator, client_of(simulator) as client:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == status
        assert simulator.engine.stats.steps == 0


async def test_openai_client_streams_chat_with_usage() -> None:
    async with simulated() as simulator, openai_of(simulator) as client:
        stream = await client.chat.completions.create(
            model="fast-tiny",
            messages=[{"role": "user", "content": "hello there"}],
            max_tokens=12,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        texts, reasons, usage = ["", ""], {}, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    reasons[choice.index] = choice.finish_reason
        assert [len(text.split()) for text in texts] == [12, 12]
        assert reasons == {0: "length", 1: "length"}
        assert usage is not None
        assert (usage.completion_tokens, usage.prompt_tokens) == (24, 6)


async def test_openai_client_without_streaming_and_natural_stop() -> None:
    async with simulated() as simulator, openai_of(simulator) as client:
        chat = await client.chat.completions.create(
            model="fast-tiny", messages=[{"role": "user", "content": "hello"}]
        )
        answer = find_profile("fast").answer_tokens
        assert chat.choices[0].finish_reason == "stop"
        assert chat.usage is not None
        assert answer.low <= chat.usage.completion_tokens <= answer.high
        assert len((chat.choices[0].message.content or "").split()) == chat.usage.completion_tokens
        done = await client.completions.create(model="fast-tiny", prompt=["a b", "c"], max_tokens=3, n=2)
        assert [(c.index, len(c.text.split()), c.finish_reason) for c in done.choices] == [
            (i, 3, "length") for i in range(4)
        ]


async def test_a_stop_string_ends_the_text_before_it() -> None:
    async with simulated(seed=4) as simulator, client_of(simulator) as client:
        body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
        text = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    stop = " ".join(text.split()[7:9])
    async with simulated(seed=4) as simulator, client_of(simulator) as client:
        body = {"prompt": "a", "max_tokens": 20, "stop": [stop], "ignore_eos": True, "stream": True}
        answer = await client.post("/v1/completions", json=body)
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
        choices = [event["choices"][0] for event in events]
        assert "".join(choice["text"] for choice in choices) == text[: text.index(stop)]
        assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)
        assert len(choices) == 9


async def test_the_same_seed_gives_the_same_answers() -> None:
    async def texts(seed: int) -> list[str]:
        async with simulated(seed=seed) as simulator, client_of(simulator) as client:
            answers = [await client.post("/v1/chat/completions", json=CHAT) for _ in range(3)]
            return [answer.json()["choices"][0]["message"]["content"] for answer in answers]

    first = await texts(1)
    assert first == await texts(1)
    assert first != await texts(2)
    assert len(set(first)) == 3


async def test_the_stream_meter_reads_it_as_complete() -> None:
    async with simulated(SLOW) as simulator, aiohttp.ClientSession() as session:
        meter = StreamMeter(Api.CHAT, start_ns=time.monotonic_ns())
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {**CHAT, "max_tokens": 40, "ignore_eos": True, "stream": True, "stream_options": options}
        async with session.post(f"{simulator.url}/v1/chat/completions", json=body) as answer:
            meter.on_headers(answer.status, answer.headers.items(), time.monotonic_ns())
            async for data in answer.content.iter_any():
                meter.feed(data, time.monotonic_ns())
        record = meter.finish(End.EOF, time.monotonic_ns())
        assert record.outcome is Outcome.COMPLETED
        assert (record.output_tokens, record.tokens_estimated, record.prompt_tokens) == (40, False, 8)
        assert record.ttft_ns is not None
        assert record.ttft_ns > 0.9 * SLOW.step_overhead_s * 1e9
        # Not faster than the roofline, but for a first token that came late; slower depends on this machine.
        assert record.tpot_ns is not None
        assert record.tpot_ns > 0.5 * SLOW.step_overhead_s * 1e9


async def test_a_kept_connection_serves_one_stream_after_another() -> None:
    async with simulated() as simulator, client_of(simulator) as client:
        for tokens in (3, 5, 1):
            body = {"prompt": "x", "max_tokens": tokens, "stream": True, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=body)
            assert answer.text.count("data: {") == tokens
            assert answer.text.endswith("data: [DONE]\n\n")


async def test_an_http_1_0_client_gets_its_stream_unchunked() -> None:
    async with simulated() as simulator:
        reader, writer = await asyncio.open_connection("127.0.0.1", simulator.port)
        body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True, "ignore_eos": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = await asyncio.wait_for(reader.read(), LIMIT_S)
        writer.close()
        head, _, events = answer.partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert events.startswith(b"data: {")
        assert events.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_frees_its_blocks_running_or_queued() -> None:
    profile = replace(SLOW, max_batch=1)
    async with simulated(profile) as simulator, client_of(simulator) as client:
        engine = simulator.engine
        body = {"prompt": "x " * 500, "max_tokens": 2000, "ignore_eos": True, "stream": True}

        async def ask() -> None:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    pass

        running = asyncio.create_task(ask())
        await until(lambda: engine.stats.generation_tokens > 2)
        waiting = asyncio.create_task(ask())
        await until(lambda: len(engine.waiting) == 1)
        assert engine.kv_usage > 0
        for task in (waiting, running):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: engine.unfinished == 0)
        assert engine.free_blocks == profile.kv_blocks
        assert engine.stats.success["abort"] == 2
        page = await counters(client)
        assert page["request_success_total|abort"] == 2
        assert (page["num_requests_running"], page["num_requests_waiting"], page["kv_cache_usage_perc"]) == (
            0,
            0,
            0,
        )


async def test_a_client_that_does_not_read_holds_nobody_up() -> None:
    async with simulated() as simulator, client_of(simulator) as client:
        _, writer = await asyncio.open_connection("127.0.0.1", simulator.port)
        body = json.dumps({"prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await until(lambda: simulator.engine.stats.generation_tokens > 3)
        answer = await client.post(
            "/v1/completions", json={"prompt": "x", "max_tokens": 5, "ignore_eos": True}
        )
        assert answer.json()["usage"]["completion_tokens"] == 5
        writer.close()
        await until(lambda: simulator.engine.unfinished == 0)


async def test_the_page_agrees_with_the_clients() -> None:
    profile = replace(SLOW, max_batch=4)
    async with simulated(profile) as simulator, client_of(simulator) as client:

        async def ask(tokens: int) -> dict[str, int]:
            body = {"prompt": "x " * 40, "max_tokens": tokens, "ignore_eos": True}
            return dict((await client.post("/v1/completions", json=body)).json()["usage"])

        asks = [asyncio.create_task(ask(60 + i)) for i in range(6)]
        await until(
            lambda: len(simulator.engine.running) == 4 and simulator.engine.stats.generation_tokens > 4
        )
        busy = await counters(client)
        assert (busy["num_requests_running"], busy["num_requests_waiting"]) == (4, 2)
        assert busy["num_requests_waiting_by_reason"] == 2
        assert 0 < busy["kv_cache_usage_perc"] < 1
        usages = await asyncio.gather(*asks)
        answer = await client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        page = await counters(client)
        assert page["generation_tokens_total"] == sum(u["completion_tokens"] for u in usages) == 375
        assert page["prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usages) == 240
        assert page["request_success_total|length"] == 6
        for name in ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token"):
            assert page[f"{name}_seconds_count"] == 6
        assert page["inter_token_latency_seconds_count"] == 375 - 6
        assert (page["num_requests_running"], page["num_requests_waiting"]) == (0, 0)
        view = map_page(parse(answer.content, content_type=answer.headers["content-type"]), "0.32.0")
        assert view.signals["generation_tokens"].total == 375
        assert view.signals["prompt_tokens"].total == 240
        assert view.success_by_reason is not None
        assert view.success_by_reason["length"] == 6
        assert view.signals["running"].total == 0
        assert view.signals["kv_usage"].max == 0
        assert view.histograms["ttft"].merged.count == 6
        assert view.histograms["itl"].merged.count == 369
        assert view.histograms["request_tpot"].merged.count == 6
        assert view.histograms["e2e"].merged.count == 6
        assert view.histograms["iteration_tokens"].merged.sum == 375 + 240


async def test_a_small_cache_preempts_and_says_so() -> None:
    profile = replace(find_profile("fast"), kv_blocks=32, max_model_len=512)
    async with simulated(profile) as simulator, client_of(simulator) as client:
        body = {"prompt": "x " * 100, "max_tokens": 150, "ignore_eos": True}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(4)))
        assert [a.json()["usage"]["completion_tokens"] for a in answers] == [150] * 4
        page = await counters(client)
        assert page["num_preemptions_total"] > 0
        assert page["request_num_preemptions_sum"] == page["num_preemptions_total"]
        assert page["prompt_tokens_total"] == 400


async def test_faults_by_header() -> None:
    async with simulated() as simulator, client_of(simulator) as client, openai_of(simulator) as openai:
        body = {"prompt": "x", "max_tokens": 12, "ignore_eos": True, "stream": True}

        async def ask(fault: str) -> httpx.Response:
            return await client.post("/v1/completions", json=body, headers={"x-sim-fault": fault})

        with pytest.raises(RateLimitError) as limited:
            await openai.completions.create(
                model="fast-tiny", prompt="x", extra_headers={"x-sim-fault": "reject=1,retry_after_s=3"}
            )
        assert limited.value.response.headers["retry-after"] == "3"
        with pytest.raises(APIStatusError) as failed:
            await openai.completions.create(
                model="fast-tiny", prompt="x", extra_headers={"x-sim-fault": "error=1,error_status=503"}
            )
        assert failed.value.status_code == 503
        assert (await ask("error=1")).status_code == 500
        broken = await ask("error_event=1,error_event_after=3")
        assert (broken.status_code, broken.text.count('"text"'), '"code":500' in broken.text) == (
            200,
            3,
            True,
        )
        whole = await client.post(
            "/v1/completions", json=body | {"stream": False}, headers={"x-sim-fault": "error_event=1"}
        )
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, 500)
        with pytest.raises(httpx.RemoteProtocolError):
            await ask("drop=1,drop_after=3")
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(
                "/v1/completions", json=body | {"stream": False}, headers={"x-sim-fault": "drop=1"}
            )
        assert (await ask("boom=1")).status_code == 400
        await until(lambda: simulator.engine.unfinished == 0)
        assert simulator.engine.free_blocks == simulator.profile.kv_blocks
        success = simulator.engine.stats.success
        assert (success["error"], success["abort"]) == (2, 2)
        assert (await ask("")).text.endswith("data: [DONE]\n\n")


async def test_an_injected_stall_is_one_long_gap() -> None:
    async with simulated() as simulator, client_of(simulator) as client:
        body = {"prompt": "x", "max_tokens": 12, "ignore_eos": True, "stream": True}
        fault = {"x-sim-fault": "stall=1,stall_s=1.0,stall_after=5"}
        times = []
        async with client.stream("POST", "/v1/completions", json=body, headers=fault) as answer:
            async for line in answer.aiter_lines():
                if '"text"' in line:
                    times.append(time.monotonic())
        gaps = [b - a for a, b in pairwise(times)]
        assert len(times) == 12
        assert gaps[4] > 0.7


async def test_faults_for_all_and_the_queue_limit() -> None:
    async with simulated(faults=parse_faults("error=1")) as simulator, client_of(simulator) as client:
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 500
        header = {"x-sim-fault": ""}  # a request's own header stands instead
        assert (await client.post("/v1/completions", json={"prompt": "x"}, headers=header)).status_code == 200
    async with (
        simulated(replace(SLOW, max_batch=1), max_queued=1) as simulator,
        client_of(simulator) as client,
    ):
        body = {"prompt": "x", "max_tokens": 75, "ignore_eos": True}
        first = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: len(simulator.engine.running) == 1)
        second = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: len(simulator.engine.waiting) == 1)
        refused = await client.post("/v1/completions", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert [(await a).status_code for a in (first, second)] == [200, 200]
        assert (await counters(client))["admission_rejections_total"] == 1


async def test_a_dropped_stream_is_incomplete_to_the_meter() -> None:
    async with simulated() as simulator, aiohttp.ClientSession() as session:
        meter = StreamMeter(Api.COMPLETIONS, start_ns=time.monotonic_ns())
        body = {"prompt": "x", "max_tokens": 12, "ignore_eos": True, "stream": True}
        end = End.EOF
        async with session.post(
            f"{simulator.url}/v1/completions", json=body, headers={"x-sim-fault": "drop=1"}
        ) as answer:
            meter.on_headers(answer.status, answer.headers.items(), time.monotonic_ns())
            try:
                async for data in answer.content.iter_any():
                    meter.feed(data, time.monotonic_ns())
            except aiohttp.ClientPayloadError:
                end = End.RESET
        record = meter.finish(end, time.monotonic_ns())
        assert end is End.RESET
        assert (record.outcome, record.output_chunks) == (Outcome.ERROR, 4)
        assert record.error_kind in (ErrorKind.RESET, ErrorKind.INCOMPLETE)
