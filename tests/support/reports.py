"""Sweep reports built by hand: a textbook curve, and the awkward ones. Deterministic, no server."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from loadgen.results import Capacity, LevelResult, Peak, Quantiles, SweepReport

SLO: dict[str, Any] = {
    "name": "interactive",
    "ttft_s": 0.5,
    "tpot_s": 0.05,
    "itl_p99_s": None,
    "max_gap_s": 1.0,
    "e2e_s": None,
    "stall_s": 0.5,
}
LOADS = (1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0)


def quantiles(p50_s: float, spread: float, count: int = 600) -> Quantiles:
    """A long-tailed distribution with this median; ``spread`` is p99 over p50."""
    return Quantiles(
        count=count,
        mean_s=p50_s * (1 + 0.1 * spread),
        p50_s=p50_s,
        p90_s=p50_s * (1 + (spread - 1) * 0.45),
        p95_s=p50_s * (1 + (spread - 1) * 0.65),
        p99_s=p50_s * spread,
        p999_s=p50_s * spread * 1.3,
        max_s=p50_s * spread * 1.5,
    )


def level(
    load: float,
    *,
    kind: Literal["concurrency", "rate"] = "concurrency",
    scale: float = 1.0,
    window_s: float = 60.0,
    **changes: Any,
) -> LevelResult:
    """One level of a server that takes about 20 requests in flight before TTFT and TPOT break.

    ``scale`` multiplies its speed (1.1: a server ten per cent faster). ``changes`` replace fields.
    """
    tpot = (0.012 + 0.0014 * load) / scale
    throughput = load / (0.15 + 100 * tpot)
    over = max(0.0, load - 16.0) / 10.0
    attainment = max(0.02, 1.0 / (1.0 + over**3)) if over else (0.998 if load > 4 else 1.0)
    eligible = round(throughput * window_s)
    good = round(eligible * attainment)
    lost = eligible - good
    queue = round(lost * min(0.7, 0.2 + load / 120))
    stall = round(lost * 0.08)
    badput = {"queue": queue, "decode": lost - queue - stall, "stall": stall}
    rate = good / window_s
    half = 1.96 * math.sqrt(max(good, 1)) / window_s * 1.1
    made = LevelResult(
        load=load,
        kind=kind,
        started_wall="2026-12-01T12:00:00Z",
        warmup_s=10.0,
        window_s=window_s,
        drain_s=4.2,
        sent=eligible,
        completed=eligible,
        eligible=eligible,
        good=good,
        not_eligible=0,
        badput={b: n for b, n in badput.items() if n},
        errors={},
        goodput_rps=rate,
        goodput_ci_rps=(max(0.0, rate - half), rate + half),
        token_goodput_tps=rate * 100,
        throughput_rps=eligible / window_s,
        output_tps=eligible / window_s * 100,
        attainment=good / eligible,
        ttft=quantiles(0.08 + 0.004 * load + 0.02 * over**2, 2.2 + 0.02 * load),
        tpot=quantiles(tpot, 1.25),
        itl=quantiles(tpot * 0.95, 2.5),
        e2e=quantiles(0.15 + 100 * tpot, 1.4),
        in_flight_mean=load * 0.985,
        output_tokens=eligible * 100,
        prompt_tokens=eligible * 512,
        send_lag_p99_s=0.0012,
        client_cpu_share=min(0.9, 0.05 + load * 0.006),
        engine={
            "running": min(load, 32.0),
            "waiting": max(0.0, load - 32.0),
            "kv_usage": min(0.99, load / 40),
            "preemptions": max(0.0, load - 40.0) * 3,
        },
    )
    return replace(made, **changes)


def sweep(scale: float = 1.0, loads: tuple[float, ...] = LOADS, **changes: Any) -> SweepReport:
    """The textbook curve: rises, peaks near 20 in flight, falls; everything measured and bracketed."""
    levels = tuple(level(load, scale=scale) for load in loads)
    best = max(levels, key=lambda r: r.goodput_rps)

    def capacity(share: float) -> Capacity:
        held = [r.load for r in levels if r.attainment is not None and r.attainment >= share]
        return Capacity(share, max(held, default=None))

    made = SweepReport(
        format=1,
        tool="vllm-goodput 0.1.0",
        created_wall="2026-12-01T12:20:00Z",
        url="http://127.0.0.1:8000",
        model="demo-8b",
        server="goodput simulator 0.1.0",
        slo=dict(SLO),
        workload={"prompt_tokens": 512, "output_tokens": 100, "requests": "shared prefix 0 %"},
        seed=0,
        levels=levels,
        peak=Peak(
            load=best.load,
            goodput_rps=best.goodput_rps,
            goodput_ci_rps=best.goodput_ci_rps,
            attainment=best.attainment,
            bracketed=True,
            reason="Goodput rises up to this load and falls beyond it.",
            plateau=(16.0, 20.0),
            capacity=(capacity(0.99), capacity(0.95), capacity(0.9)),
        ),
        stopped="complete",
        provenance={"python": "3.11.2", "locust": "2.43.0", "host": "2 cores, Linux 6.1", "gpu": "none"},
    )
    return replace(made, **changes)


def with_repeats() -> SweepReport:
    """Every load measured three times, the repeats a few per cent apart."""
    base = sweep()
    levels = tuple(
        replace(r, goodput_rps=r.goodput_rps * f, goodput_ci_rps=None)
        for f in (0.97, 1.0, 1.03)
        for r in base.levels
    )
    return replace(base, levels=levels)


def not_bracketed() -> SweepReport:
    """Still rising at the last level."""
    base = sweep(loads=(1.0, 2.0, 4.0, 8.0))
    peak = replace(
        base.peak,
        bracketed=False,
        plateau=None,
        reason="Goodput still rises at the highest load measured: the peak is here or above.",
    )
    return replace(base, peak=peak, stopped="budget")


def no_peak() -> SweepReport:
    """No request was ever good: an SLO that the hardware cannot meet."""
    levels = tuple(
        level(
            load,
            good=0,
            badput={"prefill": 100},
            eligible=100,
            completed=100,
            sent=100,
            goodput_rps=0.0,
            goodput_ci_rps=(0.0, 0.0),
            token_goodput_tps=0.0,
            attainment=0.0,
        )
        for load in (1.0, 2.0, 4.0)
    )
    peak = Peak(
        load=None,
        goodput_rps=None,
        goodput_ci_rps=None,
        attainment=None,
        bracketed=False,
        reason="No request met the SLO at any load.",
        capacity=(Capacity(0.99, None), Capacity(0.9, None)),
    )
    return replace(sweep(), levels=levels, peak=peak)


def awkward() -> SweepReport:
    """Absent values, an invalid level, an all-failing level, hostile text, a bucket nobody knows."""
    nothing = Quantiles(count=0)
    failing = level(
        48.0,
        completed=0,
        good=0,
        eligible=300,
        badput={"error": 280, "rejected": 20},
        errors={"http": 280},
        goodput_rps=0.0,
        goodput_ci_rps=None,
        token_goodput_tps=0.0,
        throughput_rps=0.0,
        output_tps=0.0,
        attainment=0.0,
        ttft=nothing,
        tpot=nothing,
        itl=nothing,
        e2e=nothing,
        engine={},
    )
    invalid = level(32.0, valid=False, flags=("client-limited: the generator, not the server, held back",))
    idle = level(
        64.0,
        sent=0,
        completed=0,
        eligible=0,
        good=0,
        badput={},
        goodput_rps=0.0,
        goodput_ci_rps=None,
        throughput_rps=0.0,
        attainment=None,
        ttft=nothing,
        tpot=nothing,
        itl=nothing,
        e2e=nothing,
        in_flight_mean=None,
        engine={},
    )
    one = level(8.0)
    odd = replace(one, load=12.0, badput={"cosmic <rays>": one.eligible - one.good}, goodput_ci_rps=None)
    base = sweep()
    return replace(
        base,
        model="</title><script>alert(1)</script>",
        levels=(level(1.0), level(4.0), one, odd, level(16.0), invalid, failing, idle),
        peak=replace(
            base.peak,
            load=16.0,
            goodput_rps=level(16.0).goodput_rps,
            goodput_ci_rps=None,
            plateau=None,
            excluded_loads=(32.0,),
        ),
        flags=("token counts are estimated: the server sent no usage",),
        stopped="interrupted",
    )
