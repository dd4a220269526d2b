"""What a sweep leaves behind: plain data between measuring, searching, reporting and targets.

Times are seconds (suffix ``_s``) because these objects are the published JSON. ``None`` means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A latency distribution of one level, seconds; nearest-rank percentiles from an HDR histogram."""

    count: int
    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    p999_s: float | None = None
    max_s: float | None = None
    min_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClassResult:
    """One class of a mixed level, judged by its own bounds; the figures mean what they mean for the level."""

    sent: int
    completed: int
    eligible: int
    good: int
    badput: dict[str, int]
    goodput_rps: float
    attainment: float | None
    ttft: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One load level, measured once (a repeat is another LevelResult of the same load)."""

    load: float
    kind: Literal["concurrency", "rate"]
    started_wall: str  # ISO 8601, UTC
    warmup_s: float
    window_s: float
    drain_s: float
    sent: int  # requests that started inside the window
    completed: int
    eligible: int
    good: int
    not_eligible: int
    badput: dict[str, int]  # bucket -> requests; good + sum(badput) == eligible
    errors: dict[str, int]  # ErrorKind value -> requests
    goodput_rps: float
    goodput_ci_rps: tuple[float, float] | None  # 95 %, batch means
    token_goodput_tps: float
    throughput_rps: float  # completed per second
    output_tps: float
    attainment: float | None
    ttft: Quantiles
    tpot: Quantiles
    itl: Quantiles
    e2e: Quantiles
    in_flight_mean: float | None = None
    output_tokens: int = 0
    prompt_tokens: int | None = None
    tokens_estimated: bool = False
    send_lag_p99_s: float | None = None
    client_cpu_share: float | None = None
    valid: bool = True
    flags: tuple[str, ...] = ()  # why it is not valid, or what to know
    engine: dict[str, float] = field(default_factory=dict)  # canonical engine signals over the window
    classes: dict[str, ClassResult] = field(default_factory=dict)  # where there are several
    # Requests, tokens and mean TTFT of the whole level (warm-up and drain too) as client, sidecar and engine
    # booked them, and how their differences come about.
    books: dict[str, dict[str, float]] = field(default_factory=dict)
    books_notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """Highest load whose attainment is at least ``share``; ``load`` is None where no level reached it."""

    share: float
    load: float | None


@dataclass(frozen=True, slots=True)
class Peak:
    """Where goodput is highest. ``load`` None: no peak can be named (see ``reason``)."""

    load: float | None
    goodput_rps: float | None
    goodput_ci_rps: tuple[float, float] | None
    attainment: float | None
    bracketed: bool  # False: the true peak may lie beyond the levels measured
    reason: str  # one sentence for a person
    plateau: tuple[float, float] | None = None  # loads whose goodput cannot be told from the peak's
    capacity: tuple[Capacity, ...] = ()
    excluded_loads: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The whole result: written as report.json, read by report, target and compare."""

    format: int
    tool: str  # "vllm-goodput 0.1.0"
    created_wall: str
    url: str
    model: str
    server: str  # "vLLM 0.32.0", "goodput simulator 0.1.0"
    slo: dict[str, Any]  # name and bounds in seconds: ttft_s, tpot_s, itl_p99_s, max_gap_s, e2e_s, stall_s
    workload: dict[str, Any]
    seed: int
    levels: tuple[LevelResult, ...]
    peak: Peak
    stopped: str  # "complete" | "budget" | "interrupted" | why
    flags: tuple[str, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)
