"""What the GPU part costs: one look at eight GPUs against a plain parser that reads the same page."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sidecar.derive.live import Live
from sidecar.engine.exposition import Parser
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.ownership import Identity
from sidecar.gpu.settings import GpuSettings
from sidecar.gpu.watch import GpuWatch
from sidecar.publish.gpu import gpu_families
from sidecar.requests.slo import SloPolicy

PAGE = Path(__file__).parents[1] / "fixtures" / "gpu" / "dcgm_h100x8_t0.txt"
ROUNDS = 15
TARGET = 1.0  # of the plain parser's time, which only reads
INTERVAL_S = 15.0


def best_s(work: Callable[[], object]) -> float:
    """The shortest of several rounds."""
    shortest = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest


def main() -> int:
    """Prints the table; 1 when a target is missed."""
    body = PAGE.read_bytes()
    text = body.decode()
    parser = Parser()
    watch = GpuWatch(GpuSettings(identity=Identity(pod="llama-70b-1")), collectors=[])
    live = Live(policy=SloPolicy(), started_ns=0)
    clock = [0]

    def look() -> None:
        clock[0] += int(INTERVAL_S * 1e9)
        watch.state.take("dcgm", read_dcgm(parser.parse(body)), clock[0], clock[0] / 1e9)

    look()
    gc.collect()
    look_s = best_s(look)
    page_s = best_s(lambda: gpu_families(watch, live, clock[0]))
    plain_s = best_s(lambda: [s for f in text_string_to_metric_families(text) for s in f.samples])
    rows = [
        ("one look at 8 GPUs", f"{look_s * 1e3:.2f} ms", look_s / plain_s, TARGET),
        ("their part of the page", f"{page_s * 1e3:.2f} ms", page_s / plain_s, TARGET),
        ("share of a core at 15 s", f"{look_s / INTERVAL_S:.4%}", look_s / INTERVAL_S, 0.001),
    ]
    print(f"{'what':28} {'figure':>12} {'ratio':>8} {'target':>8}  ok")
    for name, figure, ratio, target in rows:
        print(f"{name:28} {figure:>12} {ratio:8.4f} {target:8.4f}  {'yes' if ratio <= target else 'NO'}")
    print(f"prometheus_client reads the same page in {plain_s * 1e3:.2f} ms")
    return 0 if all(ratio <= target for _, _, ratio, target in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
