"""How much of a core the simulator takes: 64 streams of 30 tokens a second each, for real, over sockets.

The simulator runs as its own process and tells its CPU time on its page; the client only swallows bytes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.support.simulated import simulate_process

STREAMS = 64
TOKENS_PER_S = 30.0
WARMUP_S = 2.0
WINDOW_S = 5.0
REPEATS = 2
MAX_CORE_SHARE = 0.5  # for all streams together

# The roofline of this machine is nearly nothing; its steps take the stated overhead, 1/30 s.
PROFILE = f"""
steady:
  description: one token each 1/30 s for every stream
  model_name: steady
  params: 1.0e+6
  bytes_per_param: 2
  layers: 1
  kv_heads: 1
  head_dim: 64
  kv_dtype_bytes: 2
  peak_flops: 1.0e+15
  bandwidth_bytes_per_s: 1.0e+15
  step_overhead_s: {1 / TOKENS_PER_S}
  sequence_overhead_s: 0.0
  block_size: 16
  kv_blocks: 65536
  max_batch: 256
  max_batched_tokens: 8192
  max_model_len: 8192
  answer_tokens: 256
  workload: {{prompt_tokens: 64, output_tokens: 64}}
  slo: {{tpot_s: 0.05}}
"""


async def swallow(port: int, stop: asyncio.Event) -> int:
    """One stream after another on a kept connection; returns the bytes that came."""
    body = json.dumps({"prompt": "x " * 64, "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    total = 0
    while not stop.is_set():
        data = await reader.read(65536)
        if not data:
            raise RuntimeError("the simulator closed the connection")
        total += len(data)
    writer.close()
    return total


def page(url: str) -> dict[str, float]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"
    }


async def measure(url: str) -> tuple[float, float]:
    """(share of a core, tokens per second) over the window, by the simulator's own page."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(swallow(int(url.rsplit(":", 1)[1]), stop)) for _ in range(STREAMS)]
    await asyncio.sleep(WARMUP_S)
    before, started = await asyncio.to_thread(page, url), time.monotonic()
    await asyncio.sleep(WINDOW_S)
    after, elapsed = await asyncio.to_thread(page, url), time.monotonic() - started
    stop.set()
    await asyncio.gather(*tasks)
    cpu, tokens = "process_cpu_seconds_total", "vllm:generation_tokens_total"
    return (after[cpu] - before[cpu]) / elapsed, (after[tokens] - before[tokens]) / elapsed


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steady.yaml"
        path.write_text(PROFILE)
        with simulate_process("--profile-file", str(path), "--profile", "steady") as (_, url):
            share, rate = min(asyncio.run(measure(url)) for _ in range(REPEATS))
    wanted = STREAMS * TOKENS_PER_S
    rows = (
        ("core share, 64 streams x 30 tokens/s", share, f"<= {MAX_CORE_SHARE}", share <= MAX_CORE_SHARE),
        ("core share per stream", share / STREAMS, "", True),
        ("CPU per token, microseconds", share / rate * 1e6, "", True),
        ("tokens delivered / tokens due", rate / wanted, ">= 0.95", rate >= 0.95 * wanted),
    )
    print(f"{'name':<40} {'figure':>10} {'target':>10}  ok")
    for name, figure, target, ok in rows:
        print(f"{name:<40} {figure:>10.4f} {target:>10}  {'yes' if ok else 'NO'}")
    return 0 if all(ok for *_, ok in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
