"""Every cause of badput provoked with the simulator through real processes: each lands in its bucket.

Each scenario has an SLO class of its own with the one bound that it breaks, far enough from what the
simulator does otherwise that a slow machine does not matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.sidecar_process import Running, sidecar_process, wait_for
from tests.support.simulated import simulate_process

SHARE = 0.95

MACHINE = """
{name}:
  description: a scenario's machine
  model_name: scenario
  params: {params}
  bytes_per_param: 2
  layers: 4
  kv_heads: 4
  head_dim: 64
  kv_dtype_bytes: 2
  peak_flops: 6.0e+12
  bandwidth_bytes_per_s: 2.0e+11
  step_overhead_s: {step}
  sequence_overhead_s: 0.0
  block_size: 16
  kv_blocks: {kv_blocks}
  max_batch: {max_batch}
  max_batched_tokens: 2048
  max_model_len: {max_len}
  answer_tokens: [16, 32]
  workload: {{prompt_tokens: [16, 64], output_tokens: [16, 48]}}
  slo: {{ttft_s: 1.0, tpot_s: 0.05}}
"""
ROOMY = MACHINE.format(name="roomy", params="1.0e+9", step=0.01, kv_blocks=4096, max_batch=8, max_len=4096)
CRAMPED = MACHINE.format(name="cramped", params="1.0e+8", step=0.005, kv_blocks=48, max_batch=8, max_len=512)

CLASSES = """
default: plain
classes:
  plain: {e2e: 600}
  queue: {ttft: 1.0}
  prefill: {ttft: 0.15}
  decode: {tpot: 0.001, stall: 60}
  stall: {max_gap: 1.0, stall: 0.8}
  preemption: {max_gap: 0.25, stall: 0.25}
  e2e: {e2e: 0.02}
  error: {ttft: 60}
  rejected: {ttft: 60}
  abandoned: {max_gap: 0.5}
"""


@pytest.fixture(scope="module")
def slo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slo") / "slo.yaml"
    path.write_text(CLASSES, "utf-8")
    return path


def running(machine: str, slo_file: Path) -> Iterator[Running]:
    profile = slo_file.with_name("machine.yaml")
    profile.write_text(machine, "utf-8")
    name = machine.strip().partition(":")[0]
    with (
        simulate_process("--profile", name, "--profile-file", str(profile), "--max-seconds", "300") as (
            _,
            url,
        ),
        sidecar_process(url, "--slo-file", str(slo_file), "--scrape-interval-s", "1") as sidecar,
    ):
        wait_for(lambda: sidecar.get("/readyz").status_code == 200)
        yield sidecar


@pytest.fixture(scope="module")
def roomy(slo_file: Path) -> Iterator[Running]:
    yield from running(ROOMY, slo_file)


@pytest.fixture(scope="module")
def cramped(slo_file: Path) -> Iterator[Running]:
    yield from running(CRAMPED, slo_file)


async def _one(
    client: httpx.AsyncClient,
    base: str,
    name: str,
    prompt: int,
    tokens: int,
    fault: str,
    leave_after_s: float | None,
) -> None:
    headers = {"x-slo-class": name} | ({"x-sim-fault": fault} if fault else {})
    body = {
        "model": "scenario",
        "prompt": list(range(1, prompt + 1)),
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    try:
        async with (
            asyncio.timeout(leave_after_s or 100),
            client.stream("POST", base + "/v1/completions", json=body, headers=headers) as answer,
        ):
            async for _ in answer.aiter_raw():
                pass
    except TimeoutError:
        assert leave_after_s is not None
    except httpx.RemoteProtocolError:
        assert "drop" in fault


async def _many(
    base: str,
    name: str,
    count: int,
    at_once: int,
    *,
    prompt: int = 16,
    tokens: int = 16,
    fault: str = "",
    leave_after_s: float | None = None,
) -> None:
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(timeout=100, trust_env=False, limits=limits) as client:

        async def one() -> None:
            async with gate:
                await _one(client, base, name, prompt, tokens, fault, leave_after_s)

        await asyncio.gather(*(one() for _ in range(count)))


def provoke(sidecar: Running, bucket: str, count: int, at_once: int, **how: Any) -> dict[str, int]:
    """Badput by bucket of the scenario's class, once all of its requests are judged."""
    asyncio.run(_many(sidecar.proxy, bucket, count, at_once, **how))

    def window() -> dict[str, Any]:
        found = [c for c in sidecar.status()["classes"] if c["class"] == bucket]
        return found[0]["windows"]["1h"] if found else {"eligible": 0, "not_eligible": {}}

    wait_for(lambda: window()["eligible"] + sum(window()["not_eligible"].values()) >= count)
    badput: dict[str, int] = window()["badput"]
    assert window()["good"] + sum(badput.values()) == window()["eligible"]
    return badput


def check(badput: dict[str, int], bucket: str, at_least: int) -> None:
    assert sum(badput.values()) >= at_least, badput
    assert badput.get(bucket, 0) >= SHARE * sum(badput.values()), badput


def test_queue(roomy: Running) -> None:
    check(provoke(roomy, "queue", 32, 32, tokens=75), "queue", 20)


def test_prefill(roomy: Running) -> None:
    check(provoke(roomy, "prefill", 20, 1, prompt=900, tokens=2), "prefill", 20)


def test_decode(roomy: Running) -> None:
    check(provoke(roomy, "decode", 20, 4), "decode", 20)


def test_stall(roomy: Running) -> None:
    check(provoke(roomy, "stall", 16, 8, fault="stall=1,stall_s=4,stall_after=4"), "stall", 16)


def test_preemption(cramped: Running) -> None:
    check(provoke(cramped, "preemption", 24, 8, prompt=100, tokens=150), "preemption", 6)


def test_e2e(roomy: Running) -> None:
    check(provoke(roomy, "e2e", 20, 4), "e2e", 20)


@pytest.mark.parametrize("fault", ["error=1", "error_event=1", "drop=1"])
def test_error(roomy: Running, fault: str) -> None:
    check(provoke(roomy, "error", 20, 4, fault=fault), "error", 20)


def test_rejected(roomy: Running) -> None:
    check(provoke(roomy, "rejected", 20, 4, fault="reject=1"), "rejected", 20)


def test_abandonment(roomy: Running) -> None:
    badput = provoke(
        roomy, "abandoned", 24, 8, tokens=40, fault="stall=1,stall_s=30,stall_after=2", leave_after_s=2.0
    )
    check(badput, "abandoned", 24)
