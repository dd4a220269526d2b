"""Engine and boards together, over one window: utilisation, roofline, what the diagnosis looks at. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from sidecar.derive.diagnosis import Signals
from sidecar.derive.evidence import EngineWatch
from sidecar.derive.roofline import ModelShape, Roofs, Step, step
from sidecar.derive.spread import straggler_sentence
from sidecar.derive.utilisation import Ratio, decode_flops_per_token, mbu, mfu
from sidecar.engine.series import History
from sidecar.gpu.ownership import OwnGpu
from sidecar.gpu.peaks import Peak, find_peak_of
from sidecar.gpu.reading import Sharing
from sidecar.gpu.settings import ModelCosts
from sidecar.gpu.watch import GpuState, Straggler

_WORDS = {"sm_clock_hertz": "clock", "power_watts": "power", "temperature_celsius": "temperature"}


@dataclass(frozen=True, slots=True)
class Use:
    """MFU, MBU and the roofline of the present batch; ``None`` where nothing can be said, with
    ``why_not``."""

    mfu: Ratio | None = None
    mbu: Ratio | None = None
    batch_step: Step | None = None
    why_not: str = ""


def use_now(watch: EngineWatch, gpus: list[OwnGpu], model: ModelCosts, now_ns: int, window_s: float) -> Use:
    """Utilisation over the window. vLLM's own counters come first; without them (they count only with
    --enable-mfu-metrics) it is estimated from the parameters and says so."""
    if not gpus:
        return Use(why_not="no GPU of this pod is known")
    if any(own.sharing is Sharing.MIG for own in gpus):
        return Use(why_not="the share of an instance in its board's peak is not known")
    names = {own.gpu.model for own in gpus}
    peak = find_peak_of(next(iter(names))) if len(names) == 1 else None
    if peak is None:
        named = ", ".join(sorted(names)) or "no name"
        return Use(why_not=f"no peak is known for {named}, and none is guessed")
    history = watch.history
    bandwidth, memory_words = _bandwidth(gpus, peak)
    return Use(
        mfu=_mfu(history, len(gpus), model, peak, now_ns, window_s),
        mbu=_mbu(watch, len(gpus), model, bandwidth, memory_words, now_ns, window_s),
        batch_step=_batch_step(watch, len(gpus), model, peak, bandwidth, now_ns, window_s),
    )


def _bandwidth(gpus: list[OwnGpu], peak: Peak) -> tuple[float, str]:
    told = gpus[0].gpu.values.get("memory_bandwidth_peak_bytes_per_s")
    if told:
        return told, f"{peak.key} {told / 1e9:g} GB/s, from the exporter"
    doubt = ", doubtful" if peak.doubtful else ""
    return peak.bandwidth_bytes_per_s, f"{peak.key} {peak.bandwidth_bytes_per_s / 1e9:g} GB/s{doubt}"


def _per_gpu_rate(history: History, name: str, now_ns: int, window_s: float) -> float | None:
    """Mean over the engines of a counter that each keeps per GPU; a counter that never counts is none."""
    rates = history.increase_by(name, "engine", now_ns, window_s)
    known = [rate for grown in (rates or {}).values() if (rate := grown.rate)]
    return sum(known) / len(known) if known else None


def _mfu(
    history: History, gpus: int, model: ModelCosts, peak: Peak, now_ns: int, window_s: float
) -> Ratio | None:
    dense = peak.dense(model.dtype)
    if dense is None:
        return None
    counted = _per_gpu_rate(history, "flops_per_gpu", now_ns, window_s)
    if counted is not None:
        return Ratio(counted / dense, dense, peak.describe(model.dtype))
    tokens = _computed_tokens_per_s(history, now_ns, window_s)
    if not model.params or tokens is None:
        return None
    value = mfu(tokens, decode_flops_per_token(model.params), gpus, dense)
    return None if value is None else Ratio(value, dense, peak.describe(model.dtype), estimated=True)


def _computed_tokens_per_s(history: History, now_ns: int, window_s: float) -> float | None:
    """Prompt tokens that were not in the prefix cache, and generated ones."""
    prompt = history.rate("prompt_tokens", now_ns, window_s)
    made = history.rate("generation_tokens", now_ns, window_s)
    if prompt is None or made is None:
        return None
    return max(0.0, prompt - (history.rate("prefix_hits", now_ns, window_s) or 0.0)) + made


def _mbu(
    watch: EngineWatch,
    gpus: int,
    model: ModelCosts,
    bandwidth: float,
    words: str,
    now_ns: int,
    window_s: float,
) -> Ratio | None:
    history = watch.history
    read = _per_gpu_rate(history, "read_bytes_per_gpu", now_ns, window_s)
    if read is not None:
        written = _per_gpu_rate(history, "write_bytes_per_gpu", now_ns, window_s) or 0.0
        return Ratio((read + written) / bandwidth, bandwidth, words)
    steps = history.histogram("iteration_tokens", now_ns, window_s)
    elapsed_s = history.elapsed_s(now_ns, window_s)
    if not model.weight_bytes or steps is None or not elapsed_s:
        return None
    context = _context(watch, now_ns, window_s)
    running = watch.evidence(now_ns, window_s).running_mean
    moved = model.weight_bytes
    if context is not None and running is not None:
        moved += running * context * model.kv_bytes_per_token
    value = mbu(steps.count / elapsed_s * moved, gpus, bandwidth)
    return None if value is None else Ratio(value, bandwidth, words, estimated=True)


def _context(watch: EngineWatch, now_ns: int, window_s: float) -> float | None:
    """Tokens of a running sequence on average: its prompt and half of its output."""
    prompt = watch.history.histogram("request_prompt_tokens", now_ns, window_s)
    output = watch.history.histogram("request_generation_tokens", now_ns, window_s)
    if prompt is None or prompt.mean is None:
        return None
    return prompt.mean + ((output.mean or 0.0) / 2 if output is not None else 0.0)


def _batch_step(
    watch: EngineWatch,
    gpus: int,
    model: ModelCosts,
    peak: Peak,
    bandwidth: float,
    now_ns: int,
    window_s: float,
) -> Step | None:
    dense = peak.dense(model.dtype)
    running = watch.evidence(now_ns, window_s).running_mean
    context = _context(watch, now_ns, window_s)
    if not model.params or not model.weight_bytes or dense is None or not running or context is None:
        return None
    shape = ModelShape(model.params, model.weight_bytes, model.kv_bytes_per_token)
    return step(shape, Roofs(gpus * dense, gpus * bandwidth), running, context)


def straggler_text(one: Straggler) -> str:
    """A sentence on one GPU that stands out; times of day in UTC."""
    since = datetime.fromtimestamp(one.since_s, UTC).strftime("%H:%M UTC")
    ratio = one.standing.ratio if one.standing.ratio is not None else 0.0
    return straggler_sentence(one.gpu.name, ratio, _WORDS[one.signal], since, one.reasons)


def slow(stragglers: list[Straggler]) -> Straggler | None:
    """The one to speak of: the lowest clock; else the lowest power. Warm alone slows nothing."""
    for signal in ("sm_clock_hertz", "power_watts"):
        found = [s for s in stragglers if s.signal == signal and s.standing.score < 0]
        if found:
            return min(found, key=lambda one: one.standing.score)
    return None


def signals_now(state: GpuState, watch: EngineWatch, use: Use, now_ns: int, window_s: float) -> Signals:
    """What the diagnosis looks at, over one window."""
    gpus = state.gpus(now_ns)
    seen = watch.evidence(now_ns, window_s)
    throttled: dict[str, float] = {}
    for own in gpus:
        for cause, share in state.throttle(own.gpu.uuid).items():
            throttled[cause] = max(throttled.get(cause, 0.0), share)
    straggler = slow(state.stragglers)
    prompt, made = seen.prompt_tps, seen.generation_tps
    return Signals(
        power_ratio=_median(gpus, power_ratio),
        tensor_active=_median(gpus, lambda own: own.values().get("tensor_active_ratio")),
        dram_active=_median(gpus, lambda own: own.values().get("dram_active_ratio")),
        sm_active=_median(gpus, lambda own: own.values().get("sm_active_ratio")),
        clock_ratio=min((r for own in gpus if (r := clock_ratio(own)) is not None), default=None),
        memory_used_ratio=_median(gpus, memory_ratio),
        throttled=tuple(sorted(throttled.items())),
        mfu=use.mfu.value if use.mfu else None,
        mbu=use.mbu.value if use.mbu else None,
        running=seen.running_mean,
        waiting=seen.waiting_mean,
        kv_usage=seen.kv_usage_mean,
        preemptions=seen.preemptions,
        prompt_share=prompt / (prompt + made)
        if prompt is not None and made is not None and prompt + made
        else None,
        straggler=straggler_text(straggler) if straggler else None,
        profiling=not gpus or any("dram_active_ratio" in own.values() for own in gpus),
    )


def power_ratio(own: OwnGpu) -> float | None:
    """Power over the limit: the enforced one, else the requested one, else the datasheet's."""
    values = own.gpu.values
    watts = values.get("power_watts")
    limit = power_limit(own)
    return watts / limit[0] if watts is not None and limit and limit[0] > 0 else None


def power_limit(own: OwnGpu) -> tuple[float, str] | None:
    """Watts, and where the limit is from: ``enforced``, ``requested`` or ``datasheet``."""
    values = own.gpu.values
    for signal, word in (("power_limit_watts", "enforced"), ("power_limit_requested_watts", "requested")):
        if values.get(signal):
            return values[signal], word
    peak = find_peak_of(own.gpu.model)
    return (peak.tdp_w, "datasheet") if peak is not None and peak.tdp_w else None


def clock_ratio(own: OwnGpu) -> float | None:
    """SM clock over its maximum."""
    clock, highest = own.gpu.values.get("sm_clock_hertz"), own.gpu.values.get("sm_clock_max_hertz")
    return clock / highest if clock is not None and highest else None


def memory_ratio(own: OwnGpu) -> float | None:
    """Device memory in use: capacity, never pressure."""
    values = own.values()
    used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
    if total is None and used is not None and "memory_free_bytes" in values:
        total = used + values["memory_free_bytes"] + values.get("memory_reserved_bytes", 0.0)
    return used / total if used is not None and total else None


def _median(gpus: list[OwnGpu], read: Callable[[OwnGpu], float | None]) -> float | None:
    values = [value for own in gpus if (value := read(own)) is not None]
    return median(values) if values else None
