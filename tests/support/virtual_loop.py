"""The simulator's engine in a closed loop on a virtual clock: what a perfect client would measure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

from loadgen.simulator.engine import Engine
from loadgen.simulator.profile import Bounds, Profile, Workload


@dataclass(frozen=True, slots=True)
class VirtualRequest:
    arrival_ns: int
    first_ns: int
    end_ns: int
    tokens: int
    max_gap_ns: int

    def good(self, slo: Bounds) -> bool:
        tpot_s = (self.end_ns - self.first_ns) / 1e9 / (self.tokens - 1) if self.tokens > 1 else 0.0
        return (
            (slo.ttft_s is None or (self.first_ns - self.arrival_ns) / 1e9 <= slo.ttft_s)
            and (slo.tpot_s is None or tpot_s <= slo.tpot_s)
            and (slo.max_gap_s is None or self.max_gap_ns / 1e9 <= slo.max_gap_s)
            and (slo.e2e_s is None or (self.end_ns - self.arrival_ns) / 1e9 <= slo.e2e_s)
        )


@dataclass(frozen=True, slots=True)
class VirtualLevel:
    load: int
    window_s: float
    requests: tuple[VirtualRequest, ...]  # those that ended in the window
    slo: Bounds
    preemptions: int

    @property
    def throughput_rps(self) -> float:
        return len(self.requests) / self.window_s

    @property
    def goodput_rps(self) -> float:
        return sum(r.good(self.slo) for r in self.requests) / self.window_s

    @property
    def attainment(self) -> float:
        return self.goodput_rps / self.throughput_rps

    @property
    def tpot_s(self) -> float:
        return sum((r.end_ns - r.first_ns) / 1e9 / (r.tokens - 1) for r in self.requests) / len(self.requests)

    @property
    def ttft_s(self) -> float:
        return sum((r.first_ns - r.arrival_ns) / 1e9 for r in self.requests) / len(self.requests)


def run_level(
    profile: Profile,
    workload: Workload,
    slo: Bounds,
    load: int,
    *,
    seed: int = 0,
    warmup_s: float = 20.0,
    window_s: float = 60.0,
) -> VirtualLevel:
    """``load`` users without think time for ``warmup_s + window_s`` virtual seconds."""
    rng = random.Random(f"{seed}:{load}")
    engine = Engine(profile)
    now_ns = 0
    open_requests: dict[int, tuple[int, list[int]]] = {}
    ended: list[VirtualRequest] = []

    def send() -> None:
        sequence_id = engine.submit(
            prompt_tokens=rng.randint(workload.prompt_tokens.low, workload.prompt_tokens.high),
            output_tokens=rng.randint(workload.output_tokens.low, workload.output_tokens.high),
            now_ns=now_ns,
        )
        open_requests[sequence_id] = (now_ns, [])

    stop_ns = round((warmup_s + window_s) * 1e9)
    to_send = load
    while now_ns < stop_ns:
        # As over a socket: the engine goes on at once, what is sent in answer to a token misses that step.
        step = engine.begin_step(now_ns)
        for _ in range(to_send):
            send()
        to_send = 0
        if step is None:
            step = engine.begin_step(now_ns)
        assert step is not None
        now_ns += step.duration_ns
        for emission in engine.end_step(now_ns):
            arrival_ns, times = open_requests[emission.sequence_id]
            times.append(now_ns)
            if emission.finish_reason is None:
                continue
            del open_requests[emission.sequence_id]
            if warmup_s * 1e9 <= now_ns < stop_ns:
                gaps = [b - a for a, b in pairwise(times)]
                ended.append(VirtualRequest(arrival_ns, times[0], now_ns, len(times), max(gaps, default=0)))
            to_send += 1
    return VirtualLevel(load, window_s, tuple(ended), slo, engine.stats.preemptions)
