"""Which causes the hardware and the engine together support, and how to tell them apart. Pure.

Each rule looks at several signals, because none alone means anything: low tensor activity is normal in
decode, GPU_UTIL is 100 % at batch 1, device memory is full from the start. A finding says what speaks for it,
what would tell it from its neighbours, and what cannot be known from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signals:
    """One window of one replica. Shares 0..1, watts, counts; ``None``: not known.

    Hardware figures are the median over the pod's GPUs, except ``clock_ratio``, the slowest one's, and
    ``throttled``: cause -> the largest share of time.
    """

    power_ratio: float | None = None  # of the enforced limit
    tensor_active: float | None = None
    dram_active: float | None = None
    sm_active: float | None = None
    clock_ratio: float | None = None  # of the highest SM clock
    memory_used_ratio: float | None = None
    throttled: tuple[tuple[str, float], ...] = ()
    mfu: float | None = None
    mbu: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    preemptions: float | None = None
    prompt_share: float | None = None  # of the tokens computed, how many were prompt
    straggler: str | None = None  # a sentence from the spread, where one GPU stands out
    profiling: bool = True  # tensor and DRAM activity are measured at all


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One supported cause. ``tell_apart``: what would settle it; ``unknown``: what nothing here can show."""

    name: str
    what: str
    evidence: tuple[str, ...]
    tell_apart: str
    unknown: str = ""


def diagnose(seen: Signals) -> list[Diagnosis]:
    """The causes that the evidence supports, the most telling first; empty where nothing stands out."""
    return [found for rule in _RULES for found in rule(seen)]


def memory_pressure(seen: Signals) -> bool | None:
    """Whether memory is short: KV usage and preemptions say so, device memory in use never does."""
    if seen.preemptions is None and seen.kv_usage is None:
        return None
    return bool(seen.preemptions) or (seen.kv_usage or 0.0) >= 0.95


def _throttled(seen: Signals) -> Iterator[Diagnosis]:
    held = [(cause, share) for cause, share in seen.throttled if share >= 0.05]
    if not held:
        return
    if all(cause == "power" for cause, _ in held) and (seen.clock_ratio or 0.0) >= 0.9:
        return  # at the power limit with clocks near boost: how a busy board runs
    causes = ", ".join(f"{cause} {_pc(share)} of the time" for cause, share in held)
    evidence = [f"held back: {causes}"]
    if seen.clock_ratio is not None:
        evidence.append(f"SM clock at {_pc(seen.clock_ratio)} of its maximum")
    yield Diagnosis(
        "clocks_below_boost",
        "A GPU runs below its clocks: cooling or power, not the model or the load.",
        tuple(evidence),
        "Compare with the peers in the pod: one hot GPU is a slot or a fan, all of them a rack or a "
        "power cap.",
        "Coolant, fans and supplies are not watched from here.",
    )


def _clocks_low(seen: Signals) -> Iterator[Diagnosis]:
    if seen.throttled or seen.clock_ratio is None or seen.clock_ratio >= 0.85 or not seen.running:
        return
    yield Diagnosis(
        "clocks_low_without_reason",
        "SM clocks are low under load, and no reason is exported.",
        (f"SM clock at {_pc(seen.clock_ratio)} of its maximum", f"{seen.running:g} requests running"),
        "Export the clock event reasons (DCGM field 112, or 1420 to 1424): a clock lock by an operator looks "
        "the same as heat without them.",
    )


def _straggler(seen: Signals) -> Iterator[Diagnosis]:
    if seen.straggler:
        yield Diagnosis(
            "straggler",
            "One GPU of the group is unlike its peers, and a tensor-parallel step waits for the slowest.",
            (seen.straggler,),
            "If the reason is thermal or power, the GPU is cause; without one, look at its links and host.",
            "Times of single ranks are not exported by vLLM.",
        )


def _kv_full(seen: Signals) -> Iterator[Diagnosis]:
    if not seen.preemptions:
        return
    evidence = [f"{seen.preemptions:g} preemptions"]
    if seen.kv_usage is not None:
        evidence.append(f"KV cache {_pc(seen.kv_usage)} full")
    yield Diagnosis(
        "kv_cache_full",
        "The KV cache is full, and running requests are thrown out and computed again.",
        tuple(evidence),
        "Fewer requests at once, shorter contexts, a smaller KV dtype or more GPU memory for the cache; if "
        "the preemptions stop with a lower limit on running requests, this was it.",
    )


def _queue_idle_kv(seen: Signals) -> Iterator[Diagnosis]:
    room = seen.kv_usage is not None and seen.kv_usage < 0.6
    if (seen.waiting or 0.0) < 1 or not room or seen.preemptions:
        return
    yield Diagnosis(
        "queue_with_idle_kv",
        "Requests wait although the KV cache has room: a limit other than memory holds them.",
        (f"{seen.waiting or 0:.3g} requests wait", f"KV cache only {_pc(seen.kv_usage or 0.0)} full"),
        "Running at max-num-seqs means that limit; long prompts mean the token budget of a step "
        "(max-num-batched-tokens); neither means that the scheduler's process is behind (its CPU).",
        "The engine's limits are not on its metrics page.",
    )


def _not_model_work(seen: Signals) -> Iterator[Diagnosis]:
    if seen.power_ratio is None or seen.power_ratio < 0.7 or seen.mfu is None or seen.mfu >= 0.05:
        return
    if (seen.dram_active or 0.0) >= 0.5 or (seen.mbu or 0.0) >= 0.5:
        return  # memory bound: power goes into moving bytes, as decode must
    yield Diagnosis(
        "power_without_model_work",
        "The board draws much power for little model work.",
        (f"power at {_pc(seen.power_ratio)} of the limit", f"MFU {_pc(seen.mfu)}"),
        "Another process on the GPU, recomputation after preemption, or work that the FLOPs count leaves out "
        "(sampling, padding, drafts that are rejected); a list of processes tells the first.",
        "Padding and rejected drafts are invisible to every hardware counter.",
    )


def _memory_or_launch(seen: Signals) -> Iterator[Diagnosis]:
    low_power = seen.power_ratio is not None and seen.power_ratio < 0.5
    low_tensor = seen.tensor_active is not None and seen.tensor_active < 0.2
    if not low_power or not low_tensor or not seen.running:
        return
    evidence = [
        f"power at {_pc(seen.power_ratio or 0.0)} of the limit",
        f"tensor pipes active {_pc(seen.tensor_active or 0.0)} of the time",
    ]
    if seen.mfu is not None:
        evidence.append(f"MFU {_pc(seen.mfu)}")
    moving = seen.dram_active if seen.dram_active is not None else seen.mbu
    if moving is None:
        yield Diagnosis(
            "memory_or_launch_bound",
            "The GPU computes little: it waits for memory, or for the host to launch work.",
            tuple(evidence),
            "DRAM activity (DCGM field 1005) tells them apart: high means memory, low means the host.",
        )
    elif moving >= 0.5:
        yield Diagnosis(
            "memory_bound",
            "Decode is memory bound, as it should be at this batch: more requests at once cost little time.",
            (*evidence, f"memory busy {_pc(moving)} of the time"),
            "More running requests raise tokens/s and tensor activity together while TPOT holds.",
        )
    else:
        yield Diagnosis(
            "launch_bound",
            "Neither arithmetic nor memory is busy: the host does not keep the GPU fed.",
            (*evidence, f"memory busy only {_pc(moving)} of the time"),
            "CPU of the engine's process at 100 %, CUDA graphs off (enforce-eager), or very small batches.",
            "The host's CPU and PCIe latency are not watched from here.",
        )


def _prefill_heavy(seen: Signals) -> Iterator[Diagnosis]:
    if (seen.prompt_share or 0.0) < 0.8 or (seen.tensor_active or 0.0) < 0.4:
        return
    yield Diagnosis(
        "prefill_bound",
        "Most of the work is prompts: the GPU is compute bound, and decodes wait behind them.",
        (
            f"{_pc(seen.prompt_share or 0.0)} of the tokens are prompt",
            f"tensor pipes active {_pc(seen.tensor_active or 0.0)} of the time",
        ),
        "A higher prefix-cache hit rate or prefill on other GPUs lowers tensor activity and TTFT together.",
    )


def _idle(seen: Signals) -> Iterator[Diagnosis]:
    if seen.running == 0 and not seen.waiting and (seen.memory_used_ratio or 0.0) >= 0.5:
        yield Diagnosis(
            "idle_with_full_memory",
            "Nothing runs; the device memory in use is the cache set aside at the start, not pressure.",
            (f"device memory {_pc(seen.memory_used_ratio or 0.0)} in use", "no request runs or waits"),
            "KV usage and preemptions show memory pressure; both are at rest.",
        )


def _blind(seen: Signals) -> Iterator[Diagnosis]:
    if not seen.profiling and seen.running:
        yield Diagnosis(
            "profiling_missing",
            "Tensor and DRAM activity are not measured, so memory and compute bound cannot be told apart.",
            ("power is known" if seen.power_ratio is not None else "power is not known either",),
            "Another profiler may hold the counters (dcgmi profile --resume frees them), or the exporter may "
            "lack the right or the fields.",
        )


_RULES = (
    _straggler,
    _throttled,
    _clocks_low,
    _kv_full,
    _queue_idle_kv,
    _not_model_work,
    _prefill_heavy,
    _memory_or_launch,
    _idle,
    _blind,
)


def sentences(found: Iterable[Diagnosis]) -> list[str]:
    """For a terminal or a page: one paragraph each."""
    said = []
    for one in found:
        text = f"{one.what} Evidence: {'; '.join(one.evidence)}. To tell: {one.tell_apart}"
        said.append(f"{text} Not known: {one.unknown}" if one.unknown else text)
    return said


def _pc(share: float) -> str:
    return f"{100 * share:.3g} %"
