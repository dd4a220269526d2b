"""What the whole sidecar costs beside the engine: a 5 s scrape of a vLLM page and 10 requests a second.

``python -m tests.bench.bench_sidecar_cost``. Processor time and memory are read from /proc for the sidecar's
process alone. Requests (16 streamed tokens each) and engine come from this process: page and stream are
recordings of a real vLLM 0.32.0, for an engine that works would take the processor from what is measured.
Processor time is the least of several windows, each with a scrape: where others use the machine's cores, the
same work takes up to three times as long, through cold caches and cores shared with them. Said beside it is
what a bare pass-through of the same bytes needs in the same window (asyncio streams on uvloop, nothing read).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process

import httpx

from tests.support.recorded_engine import recorded_engine

RATE = 10
WINDOW_S = 5.2  # one scrape at least
FEWEST, MOST = 2, 7  # windows: more only while the target is missed
TOKENS = 16
CPU_TARGET = 0.03
MEMORY_TARGET_MB = 90.0

_PASS = """
import asyncio, sys, uvloop
async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def serve(reader, writer):
    up = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    await asyncio.gather(copy(reader, up[1]), copy(up[0], writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def load(client: httpx.AsyncClient, base: str) -> int:
    """An open loop of ``RATE`` requests a second over one window; how many were answered."""
    body = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "a b c d"}],
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answered = 0

    async def one() -> None:
        nonlocal answered
        answer = await client.post(base + "/v1/chat/completions", json=body)
        answered += answer.status_code == 200 and answer.text.count("data: {") > TOKENS

    began = time.monotonic()
    tasks = []
    for i in range(round(RATE * WINDOW_S)):
        await asyncio.sleep(max(0.0, began + i / RATE - time.monotonic()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    return answered


async def started(*arguments: str) -> tuple[Process, list[str]]:
    """A child and the addresses in its first lines."""
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE)
    assert child.stdout is not None
    lines = 2 if "sidecar" in arguments else 1
    return child, [(await child.stdout.readline()).decode().split()[-1] for _ in range(lines)]


async def measure() -> tuple[list[float], list[float], float, float, int, str]:
    """Shares of a core by window for the sidecar and the bare pass-through, the sidecar's share while idle,
    its memory in MB, requests answered, and its scrapes line."""
    busy: list[float] = []
    bare: list[float] = []
    answered = 0
    free = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    async with (
        recorded_engine(tokens=TOKENS) as url,
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
    ):
        sidecar, (proxy, admin) = await started("-m", "sidecar", "run", "--upstream", url, *free)
        passing, (through,) = await started("-c", _PASS, url.rpartition(":")[2])
        try:
            await load(client, proxy)  # warm
            while len(busy) < FEWEST or (min(busy) > CPU_TARGET and len(busy) < MOST):
                at_s, ours_s, bare_s = time.monotonic(), cpu_s(sidecar.pid), cpu_s(passing.pid)
                answered += sum(await asyncio.gather(load(client, proxy), load(client, through)))
                took_s = time.monotonic() - at_s
                busy.append((cpu_s(sidecar.pid) - ours_s) / took_s)
                bare.append((cpu_s(passing.pid) - bare_s) / took_s)
            at_s, ours_s = time.monotonic(), cpu_s(sidecar.pid)
            await asyncio.sleep(WINDOW_S)
            idle = (cpu_s(sidecar.pid) - ours_s) / (time.monotonic() - at_s)
            page = (await client.get(admin + "/metrics")).text
        finally:
            memory = resident_mb(sidecar.pid)
            for child in (sidecar, passing):
                child.send_signal(signal.SIGKILL)
                await child.wait()
    size = next(
        line.split()[1] for line in page.splitlines() if line.startswith("goodput_engine_scrape_bytes")
    )
    return busy, bare, idle, memory, answered, size


def main() -> int:
    """Print the table; 1 when a target is missed."""
    busy, bare, idle, memory, answered, size = asyncio.run(measure())
    wanted = 2 * len(busy) * round(RATE * WINDOW_S)
    load_1m = os.getloadavg()[0]
    print(
        f"{answered} of {wanted} requests answered; engine page {int(size) / 1000:.0f} kB; "
        f"{load_1m:.1f} processes want {os.cpu_count()} cores"
    )
    print(f"{'what':<52} {'figure':>9} {'ratio':>7} {'target':>9}  ok")
    rows = [
        (f"processor, {RATE} requests/s x {TOKENS} tokens (best window)", min(busy), CPU_TARGET, "of a core"),
        ("processor, idle, scraping", idle, CPU_TARGET, "of a core"),
        ("resident memory", memory, MEMORY_TARGET_MB, "MB"),
    ]
    fine = answered == wanted
    for name, figure, target, unit in rows:
        ok = figure <= target
        fine = fine and ok
        print(
            f"{name:<52} {figure:>9.4f} {figure / target:>7.2f} {target:>9g}  {'yes' if ok else 'NO'}  {unit}"
        )
    shares = " ".join(f"{100 * share:.1f}" for share in busy)
    print(f"all windows: {shares} % of a core; the bare pass-through: {100 * min(bare):.1f} % at best")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
