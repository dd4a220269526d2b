"""What the whole sidecar costs beside the engine: a 5 s scrape of a vLLM page and 10 requests a second.

``python -m tests.bench.bench_sidecar_cost``. Processor time and memory are read from /proc for the sidecar's
process alone; the requests (16 streamed tokens each) come from this process, the page from the simulator.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import httpx

from tests.support.sidecar_process import sidecar_process, wait_for
from tests.support.simulated import simulate_process

RATE = 10
SECONDS = 20
TOKENS = 16
CPU_TARGET = 0.03
MEMORY_TARGET_MB = 90.0


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def load(base: str, model: str) -> int:
    """An open loop of ``RATE`` requests a second; how many were answered."""
    body = {"model": model, "prompt": "a b c d", "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    answered = 0

    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

        async def one() -> None:
            nonlocal answered
            answer = await client.post(base + "/v1/completions", json=body)
            answered += answer.status_code == 200

        tasks = []
        began = time.monotonic()
        for i in range(RATE * SECONDS):
            await asyncio.sleep(max(0.0, began + i / RATE - time.monotonic()))
            tasks.append(asyncio.create_task(one()))
        await asyncio.gather(*tasks)
    return answered


def main() -> int:
    """Print the table; 1 when a target is missed."""
    with (
        simulate_process("--profile", "fast", "--max-seconds", "200") as (_, url),
        sidecar_process(url) as sidecar,
    ):
        wait_for(lambda: sidecar.get("/readyz").status_code == 200)
        model = httpx.get(url + "/v1/models", timeout=20, trust_env=False).json()["data"][0]["id"]
        pid = sidecar.process.pid
        began_s, began_cpu_s = time.monotonic(), cpu_s(pid)
        answered = asyncio.run(load(sidecar.proxy, model))
        busy = (cpu_s(pid) - began_cpu_s) / (time.monotonic() - began_s)
        began_s, began_cpu_s = time.monotonic(), cpu_s(pid)
        time.sleep(6)  # one scrape at least
        idle = (cpu_s(pid) - began_cpu_s) / (time.monotonic() - began_s)
        memory = resident_mb(pid)
        page_bytes = sidecar.metrics()["goodput_engine_scrape_bytes"]
    rows = [
        (f"processor, {RATE} requests/s x {TOKENS} tokens", busy, CPU_TARGET, "of a core"),
        ("processor, idle, scraping", idle, CPU_TARGET, "of a core"),
        ("resident memory", memory, MEMORY_TARGET_MB, "MB"),
    ]
    print(f"{answered} of {RATE * SECONDS} requests answered; engine page {page_bytes / 1000:.0f} kB")
    print(f"{'what':<42} {'figure':>9} {'ratio':>7} {'target':>9}  ok")
    fine = answered == RATE * SECONDS
    for name, figure, target, unit in rows:
        ok = figure <= target
        fine = fine and ok
        print(
            f"{name:<42} {figure:>9.3f} {figure / target:>7.2f} {target:>9g}  {'yes' if ok else 'NO'}  {unit}"
        )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
