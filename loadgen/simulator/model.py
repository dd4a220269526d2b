"""The simulator's truth: step time on the roofline and the goodput curve that follows, nothing run.

**Step time.** A step multiplies each of its tokens with every parameter once (2 FLOPs a parameter), reads
the weights once and the KV cache of each of its sequences once. It takes the longer of the two, and the
profile's stated overheads on top. Attention FLOPs are left out, as in the published table that the tests
hold this against.

**Curve.** ``load`` users each keep one request in flight and send the next the moment the last one ends.
When lengths vary, their phases drift apart, and each running sequence is in its prefill in one step of its
mean output length (renewal theory). From that follow the distribution of step times, TPOT as a mean of
steps, TTFT as the step that a prompt joins plus the wait for a free place, and the share of requests within
the bounds. It is a mean-field model: exact where nothing is random, within a few percent elsewhere while
the KV cache does not fill. Where it would fill (``TruePoint.kv_limited``) recomputation after preemption is
not in it, and the point is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import comb, erf, fsum, sqrt
from typing import Protocol

from loadgen.simulator.profile import Profile, Workload, find_profile, profiles

__all__ = [
    "SloBounds",
    "StepCost",
    "TruePoint",
    "find_profile",
    "profiles",
    "step_cost",
    "true_curve",
    "true_peak",
    "true_point",
]

FLOPS_PER_PARAM = 2  # one multiplication and one addition
_LENGTH_SAMPLES = 33  # output lengths at which attainment is worked out


class SloBounds(Protocol):
    """Any SLO class with these bounds in seconds; ``None`` is no bound."""

    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def max_gap_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one engine step costs. Seconds; ``step_s`` = max(memory, compute) + overhead."""

    memory_s: float
    compute_s: float
    overhead_s: float

    @property
    def step_s(self) -> float:
        return max(self.memory_s, self.compute_s) + self.overhead_s

    @property
    def memory_bound(self) -> bool:
        return self.memory_s >= self.compute_s


def step_cost(profile: Profile, *, tokens: float, kv_tokens: float, sequences: float) -> StepCost:
    """Cost of a step: ``tokens`` new tokens of ``sequences`` sequences over ``kv_tokens`` tokens of KV.

    memory_s = (weights + kv_tokens x KV bytes per token) / bandwidth; compute_s = tokens x 2 x params / peak.
    """
    moved = profile.weight_bytes + kv_tokens * profile.kv_bytes_per_token
    return StepCost(
        memory_s=moved / profile.bandwidth_bytes_per_s,
        compute_s=tokens * FLOPS_PER_PARAM * profile.params / profile.peak_flops,
        overhead_s=profile.step_overhead_s + sequences * profile.sequence_overhead_s,
    )


@dataclass(frozen=True, slots=True)
class TruePoint:
    """The closed-loop truth at one load. Means over requests; seconds, requests and tokens per second."""

    load: int
    running: float
    waiting: float
    step_s: float
    ttft_s: float
    tpot_s: float
    throughput_rps: float
    output_tps: float
    attainment: float
    goodput_rps: float
    kv_usage: float
    kv_limited: bool


def _normal_at_most(bound: float, mean: float, sd: float) -> float:
    if sd <= 0:
        return 1.0 if bound >= mean * (1 - 1e-12) else 0.0
    return 0.5 * (1 + erf((bound - mean) / (sd * sqrt(2))))


def _binomial(n: int, p: float) -> list[float]:
    """P(k of n), k = 0..n."""
    if p >= 1:
        return [0.0] * n + [1.0]
    return [comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def _moments(pmf: Sequence[float], value: Callable[[int], float]) -> float:
    return sum(p * value(k) for k, p in enumerate(pmf) if p > 0)


def _renewal_variance(steps: int, low: int, high: int) -> float:
    """Variance of how often one user starts a prompt within ``steps`` steps; outputs even on low..high.

    In the steady state the mean is steps / mean length, and P(at least one) = sum over x <= steps of
    P(length >= x) / mean length. At most two are counted: more need two whole outputs within the span of
    one.
    """
    mean_length = (low + high) / 2
    reach = min(steps, high)
    survive = min(reach, low) + sum((high - x + 1) / (high - low + 1) for x in range(low + 1, reach + 1))
    once = min(1.0, survive / mean_length)
    mean = steps / mean_length
    twice = max(0.0, mean - once)
    return max(0.0, (once - twice) + 4 * twice - mean**2)


def _samples(low: int, high: int) -> list[int]:
    """Lengths spread evenly over low..high, at most a few dozen."""
    count = min(high - low + 1, _LENGTH_SAMPLES)
    if count == 1:
        return [low]
    return [low + round(i * (high - low) / (count - 1)) for i in range(count)]


def true_point(profile: Profile, workload: Workload, slo: SloBounds, load: int) -> TruePoint:
    """The truth at ``load`` requests in flight (closed loop, no think time); ``load`` >= 1."""
    prompt, output = workload.prompt_tokens, workload.output_tokens
    # A sequence's context at a random step: its prompt and, on the mean, the length-weighted half of its
    # output.
    age = (output.variance + output.mean**2) / (2 * output.mean)
    context = prompt.mean + age
    blocks_each = context / profile.block_size + 0.5  # the last block is half full on the mean
    kv_room = max(1, int(profile.kv_blocks / blocks_each))
    places = min(profile.max_batch, kv_room)
    running = min(load, places)
    waiting = load - running
    kv_limited = kv_room < min(load, profile.max_batch)

    # A prompt longer than the step's budget takes several steps; each of its chunks is then one "prefill".
    budget = max(1, profile.max_batched_tokens - (running - 1))
    chunks = max(1, -(-round(prompt.mean) // budget))
    chunk_tokens = prompt.mean / chunks
    cycle_steps = output.mean + chunks - 1
    prefill_share = min(1.0, chunks / cycle_steps)

    # Prompts that meet in one step are added up although the budget may push one to the next: work is
    # conserved.
    def step(prefills: int) -> float:
        tokens = running - prefills + prefills * chunk_tokens
        return step_cost(profile, tokens=tokens, kv_tokens=running * context, sequences=running).step_s

    everyone = _binomial(running, prefill_share)
    others = _binomial(running - 1, prefill_share)
    step_mean = _moments(everyone, step)
    decode_mean = _moments(others, step)
    joined = [step(k + 1) for k in range(len(others))]
    join_mean = sum(p * t for p, t in zip(others, joined, strict=True))
    cycle_s = chunks * join_mean + (output.mean - 1) * decode_mean
    throughput = running / cycle_s
    queue_s = waiting / throughput if waiting else 0.0
    ttft = queue_s + chunks * join_mean

    # How TPOT spreads between requests. A step's time is taken as a line in the number of prompts in it,
    # and a rest. The line moves with how many prompts of others fall into the request's steps, which is
    # steadier than chance; the rest, the lengths of those prompts and the contexts are chance.
    k_mean = _moments(others, float)
    k_variance = _moments(others, lambda k: (k - k_mean) ** 2)
    slope = _moments(others, lambda k: (k - k_mean) * step(k)) / k_variance if k_variance > 0 else 0.0
    rest_variance = _moments(others, lambda k: (step(k) - decode_mean - slope * (k - k_mean)) ** 2)
    prompt_token_s = FLOPS_PER_PARAM * profile.params / profile.peak_flops
    shown = min(
        1.0, slope / (prompt_token_s * chunk_tokens)
    )  # the part of a prompt's FLOPs not hidden by memory
    size_variance = (shown * prompt_token_s) ** 2 * prompt.variance
    kv_slope = profile.kv_bytes_per_token / profile.bandwidth_bytes_per_s
    context_variance = prompt.variance + age**2 / 12
    goods = []
    for n in _samples(output.low, output.high):
        good = _at_most(slo.ttft_s, [(p, queue_s + chunks * t) for p, t in zip(others, joined, strict=True)])
        gaps = n - 1
        spread = 0.0
        if gaps:
            prefills_variance = (running - 1) * _renewal_variance(gaps, output.low, output.high)
            spread = sqrt(
                (slope / gaps) ** 2 * prefills_variance
                + (rest_variance + k_mean * size_variance) / gaps
                + kv_slope**2 * (prompt.variance + (running - 1) * context_variance)
            )
            if slo.tpot_s is not None:
                good *= _normal_at_most(slo.tpot_s, decode_mean, spread)
            if slo.max_gap_s is not None:
                good *= _at_most(slo.max_gap_s, [(p, step(k)) for k, p in enumerate(others)]) ** gaps
        if slo.e2e_s is not None:
            good *= _normal_at_most(slo.e2e_s, ttft + gaps * decode_mean, gaps * spread)
        goods.append(good)
    attained = fsum(goods) / len(goods)
    return TruePoint(
        load=load,
        running=running,
        waiting=waiting,
        step_s=step_mean,
        ttft_s=ttft,
        tpot_s=decode_mean,
        throughput_rps=throughput,
        output_tps=throughput * output.mean,
        attainment=attained,
        goodput_rps=throughput * attained,
        kv_usage=min(1.0, running * blocks_each / profile.kv_blocks),
        kv_limited=kv_limited,
    )


def _at_most(bound: float | None, outcomes: Iterable[tuple[float, float]]) -> float:
    if bound is None:
        return 1.0
    return min(1.0, fsum(p for p, value in outcomes if value <= bound))


def true_curve(
    profile: Profile, workload: Workload, slo: SloBounds, levels: Iterable[int]
) -> list[TruePoint]:
    """The truth at each of ``levels``, in their order."""
    return [true_point(profile, workload, slo, level) for level in levels]


def true_peak(
    profile: Profile, workload: Workload, slo: SloBounds, levels: Iterable[int] | None = None
) -> TruePoint:
    """The point of highest goodput, the lowest load among equals; over 1 to twice the batch by default."""
    where = range(1, 2 * profile.max_batch + 1) if levels is None else levels
    return max(true_curve(profile, workload, slo, where), key=lambda point: (point.goodput_rps, -point.load))
