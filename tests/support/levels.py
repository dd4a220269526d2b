"""Measured levels for tests that are not about measuring."""

from __future__ import annotations

from typing import Any

from loadgen.results import LevelResult, Quantiles


def level(
    load: float,
    goodput_rps: float,
    *,
    attainment: float | None = 1.0,
    kind: str = "concurrency",
    valid: bool = True,
    ci: tuple[float, float] | None = None,
    ttft_s: float | None = 0.1,
    completed: int | None = None,
    **more: Any,
) -> LevelResult:
    """A level of a thousand eligible requests of which so many were good; everything else plausible."""
    eligible = 0 if attainment is None else 1000
    good = round(eligible * (attainment or 0.0))
    return LevelResult(
        **{
            "load": load,
            "kind": kind,
            "started_wall": "2026-01-01T00:00:00+00:00",
            "warmup_s": 1.0,
            "window_s": 8.0,
            "drain_s": 0.5,
            "sent": eligible,
            "completed": eligible if completed is None else completed,
            "eligible": eligible,
            "good": good,
            "not_eligible": 0,
            "badput": {"decode": eligible - good} if eligible > good else {},
            "errors": {},
            "goodput_rps": goodput_rps,
            "goodput_ci_rps": ci,
            "token_goodput_tps": goodput_rps * 64,
            "throughput_rps": goodput_rps / attainment if attainment else goodput_rps,
            "output_tps": goodput_rps * 64,
            "attainment": attainment,
            "ttft": Quantiles(count=0) if ttft_s is None else Quantiles(count=eligible, p50_s=ttft_s),
            "tpot": Quantiles(count=0),
            "itl": Quantiles(count=0),
            "e2e": Quantiles(count=0),
            "valid": valid,
            "flags": () if valid else ("client_limited: for the test",),
            **more,
        }
    )
