"""The simulator's truth: step time on the roofline and the goodput curve that follows, nothing run.

**Step time.** A step multiplies each of its tokens with every parameter once (2 FLOPs a parameter), reads
the weights once and the KV cache of each of its sequences once. It takes the longer of the two, and the
profile's stated overheads on top. Attention FLOPs are left out, as in the published table that the tests
hold this against.

**Curve.** ``load`` users each keep one request in flight and send the next when the last one has ended, by
when the engine's next step has begun without it. When lengths vary, their phases drift apart, and each
user's prompt is computed in one step of those that a request takes on the mean (renewal theory). From that
follow the distribution of step times, TPOT as a mean of steps, TTFT as the step missed plus the step that the
prompt joins plus the wait for a free place, and the share of requests within the bounds.

It is a mean-field model: throughput and mean latencies within a few percent of the engine's, attainment
within 0.1, while the KV cache does not fill. Where it would fill (``TruePoint.kv_limited``) recomputation
after preemption is not in it: throughput is then an upper bound and attainment a guess. Of an SLO's bounds it
knows TTFT, TPOT, the longest gap and the end; an ITL percentile is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, erf, exp, floor, fsum, lgamma, log, log1p, sqrt
from typing import Protocol

from loadgen.simulator.profile import Profile, Span, Workload, find_profile, profiles

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


def _normal_at_most(bound: float | None, mean: float, sd: float) -> float:
    if bound is None:
        return 1.0
    if sd <= 0:
        return 1.0 if bound >= mean * (1 - 1e-12) else 0.0
    return 0.5 * (1 + erf((bound - mean) / (sd * sqrt(2))))


def _binomial(n: int, p: float) -> list[tuple[int, float]]:
    """(k, P(k of n)) for every k that has any weight, within ten standard deviations of the mean."""
    if n == 0 or p <= 0:
        return [(0, 1.0)]
    if p >= 1:
        return [(n, 1.0)]
    reach = 10 * sqrt(n * p * (1 - p)) + 1
    ks = range(max(0, floor(n * p - reach)), min(n, ceil(n * p + reach)) + 1)
    all_ways = lgamma(n + 1)
    logs = [all_ways - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log1p(-p) for k in ks]
    return [(k, exp(weight)) for k, weight in zip(ks, logs, strict=True)]


def _renewal_variance(steps: int, low: int, high: int) -> float:
    """Variance of how often one user starts a prompt within ``steps`` steps; outputs even on low..high.

    In the steady state the mean is steps / mean length, and P(at least one) = sum over x <= steps of
    P(length >= x) / mean length. At most two are counted: more need two whole outputs within the span of
    one.
    """
    mean_length = (low + high) / 2
    reach = min(steps, high)
    values, beyond = high - low + 1, max(0, reach - low)  # P(length >= x) falls by 1 / values beyond low
    survive = min(reach, low) + beyond - beyond * (beyond + 1) / (2 * values)
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


@dataclass(frozen=True, slots=True)
class _Batch:
    """The batch that a running request finds itself in, in the steady state."""

    profile: Profile
    others: int  # users beside the request's own that may be in the batch
    absent: float  # share of steps in which one of them is between two requests
    prefill_share: float  # share of steps in which one of them has (a chunk of) its prompt computed
    chunks: int  # steps that a prompt takes
    chunk_tokens: float
    context: float  # tokens of a sequence in the cache, on the mean

    def step_s(self, prefills: int, own: int = 1) -> float:
        """A step with ``prefills`` prompts in it and ``own`` (0 or 1) of the request itself.

        Prompts that meet are added up although the budget may push one to the next step: work is conserved.
        """
        sequences = own + self.others * (1 - self.absent)
        tokens = max(0.0, sequences - prefills) + prefills * self.chunk_tokens
        cost = step_cost(self.profile, tokens=tokens, kv_tokens=sequences * self.context, sequences=sequences)
        return cost.step_s


def _batch(profile: Profile, workload: Workload, load: int) -> tuple[_Batch, bool, bool]:
    """The batch at ``load``, whether it is full (others queue), and whether the KV cache limits it."""
    prompt, output = workload.prompt_tokens, workload.output_tokens
    context = prompt.mean + _age(output)
    kv_room = max(1, int(profile.kv_blocks / _blocks(profile, context)))
    places = min(profile.max_batch, kv_room)
    # A prompt longer than the step's budget takes several steps.
    chunks = max(1, -(-round(prompt.mean) // max(1, profile.max_batched_tokens - min(load, places) + 1)))
    steps = output.mean + chunks - 1
    # The next request arrives when a step without it has just begun, and misses that one; a lone user's
    # does not.
    missed = 1 if load > 1 else 0
    full = load * steps / (steps + missed) > places
    if full:
        members, missed = places, 0
    else:
        members = load
    batch = _Batch(
        profile=profile,
        others=members - 1,
        absent=missed / (steps + missed),
        prefill_share=min(1.0, chunks / (steps + missed)),
        chunks=chunks,
        chunk_tokens=prompt.mean / chunks,
        context=context,
    )
    return batch, full, full and kv_room < profile.max_batch


def _age(output: Span) -> float:
    """Tokens that a sequence has produced at a random step: long outputs are met more often."""
    return (output.variance + output.mean**2) / (2 * output.mean)


def _blocks(profile: Profile, context: float) -> float:
    return context / profile.block_size + 0.5  # the last block is half full on the mean


def true_point(profile: Profile, workload: Workload, slo: SloBounds, load: int) -> TruePoint:
    """The truth at ``load`` requests in flight (closed loop, no think time); ``load`` >= 1."""
    output = workload.output_tokens
    batch, full, kv_limited = _batch(profile, workload, load)
    pmf = _binomial(batch.others, batch.prefill_share)  # of prompts of others in a step
    decodes = [(p, k, batch.step_s(k)) for k, p in pmf]
    joins = [(p, batch.chunks * batch.step_s(k + 1)) for k, p in pmf]
    decode_s = fsum(p * t for p, _, t in decodes)
    join_s = fsum(p * t for p, t in joins)
    served_s = join_s + (output.mean - 1) * decode_s
    if full:
        throughput = (batch.others + 1) / served_s
        wait_s = load / throughput - served_s  # Little's law
        running = float(batch.others + 1)
    else:
        wait_s = fsum(p * batch.step_s(k, own=0) for k, p in pmf) if batch.others else 0.0
        throughput = load / (wait_s + served_s)
        running = load * (1 - batch.absent)
    spread = _spread(batch, workload, decodes, decode_s)
    in_time = _at_most(slo.ttft_s, ((p, wait_s + t) for p, t in joins))
    step_in_gap = _at_most(slo.max_gap_s, ((p, t) for p, _, t in decodes))
    goods = []
    for tokens in _samples(output.low, output.high):
        good, gaps, sd_s = in_time, tokens - 1, 0.0
        if gaps:
            sd_s = spread.sd_s(gaps)
            good *= step_in_gap**gaps * _normal_at_most(slo.tpot_s, decode_s, sd_s)
        goods.append(good * _normal_at_most(slo.e2e_s, wait_s + join_s + gaps * decode_s, gaps * sd_s))
    attained = fsum(goods) / len(goods)
    return TruePoint(
        load=load,
        running=running,
        waiting=load - running,
        step_s=decode_s,
        ttft_s=wait_s + join_s,
        tpot_s=decode_s,
        throughput_rps=throughput,
        output_tps=throughput * output.mean,
        attainment=attained,
        goodput_rps=throughput * attained,
        kv_usage=min(1.0, running * _blocks(profile, batch.context) / profile.kv_blocks),
        kv_limited=kv_limited,
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """How TPOT varies between requests.

    A step's time is taken as a line in the number of prompts in it, and a rest. The line moves with how many
    prompts of others fall into the request's steps, which is steadier than chance; the rest and the lengths
    of those prompts are chance anew in each step; contexts stay as they are.
    """

    output: Span
    others: int
    slope_s: float
    step_variance: float
    context_variance: float

    def sd_s(self, gaps: int) -> float:
        """Standard deviation between requests with ``gaps`` decode steps, seconds."""
        prompts = self.others * _renewal_variance(gaps, self.output.low, self.output.high)
        return sqrt((self.slope_s / gaps) ** 2 * prompts + self.step_variance / gaps + self.context_variance)


def _spread(
    batch: _Batch, workload: Workload, decodes: Sequence[tuple[float, int, float]], decode_s: float
) -> _Spread:
    profile, prompt, output = batch.profile, workload.prompt_tokens, workload.output_tokens
    mean = fsum(p * k for p, k, _ in decodes)
    variance = fsum(p * (k - mean) ** 2 for p, k, _ in decodes)
    slope_s = fsum(p * (k - mean) * t for p, k, t in decodes) / variance if variance > 0 else 0.0
    rest = fsum(p * (t - decode_s - slope_s * (k - mean)) ** 2 for p, k, t in decodes)
    token_s = FLOPS_PER_PARAM * profile.params / profile.peak_flops
    shown = min(1.0, slope_s / (token_s * batch.chunk_tokens))  # of a prompt's FLOPs, not hidden by memory
    kv_s = profile.kv_bytes_per_token / profile.bandwidth_bytes_per_s
    return _Spread(
        output=output,
        others=batch.others,
        slope_s=slope_s,
        step_variance=rest + mean * (shown * token_s) ** 2 * prompt.variance,
        context_variance=kv_s**2
        * (prompt.variance + batch.others * (prompt.variance + _age(output) ** 2 / 12)),
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
