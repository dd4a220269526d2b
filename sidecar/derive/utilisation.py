"""Model FLOPs and memory-bandwidth utilisation (MFU, MBU), of inference and of training. Pure.

Every ratio names the peak it divides by: device, dtype, dense. Nothing is clamped: a ratio above 1 means that
an input is wrong, and hiding it would hide that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

# Bands of dense training. Decode is memory bound: single digits of MFU are normal there, and MBU is the
# measure.
TRAINING_NORMAL = (0.35, 0.5)
_TRAINING_PROBLEM = 0.1


@dataclass(frozen=True, slots=True)
class Ratio:
    """A utilisation and what it was divided by. ``estimated``: not from the engine's own counters."""

    value: float
    peak: float
    against: str  # "H100-SXM bf16 dense 989.4 TFLOPS"
    estimated: bool = False


def training_flops_per_token(params: float, layers: int = 0, hidden: int = 0, context: float = 0) -> float:
    """6N + 12LHS: forward and backward through the weights, and attention."""
    return 6 * params + 12 * layers * hidden * context


def decode_flops_per_token(params: float, layers: int = 0, hidden: int = 0, context: float = 0) -> float:
    """2N + 4LHS: the forward third of the training terms."""
    return 2 * params + 4 * layers * hidden * context


def attention_share(params: float, layers: int, hidden: int, context: float) -> float:
    """Share of attention in a token's FLOPs; the same for training and inference."""
    attention = 12 * layers * hidden * context
    return attention / (6 * params + attention)


def context_where_attention_equals_weights(params: float, layers: int, hidden: int) -> float:
    """S = N / (2LH)."""
    return params / (2 * layers * hidden)


def mfu(tokens_per_s: float, flops_per_token: float, gpus: float, peak_flops: float) -> float | None:
    """tokens/s x FLOPs per token / (GPUs x dense peak of one); ``None`` without a peak."""
    whole = gpus * peak_flops
    return tokens_per_s * flops_per_token / whole if whole > 0 else None


def mbu(bytes_per_s: float, gpus: float, bandwidth_bytes_per_s: float) -> float | None:
    """Bytes moved per second / (GPUs x bandwidth of one); ``None`` without a bandwidth."""
    whole = gpus * bandwidth_bytes_per_s
    return bytes_per_s / whole if whole > 0 else None


def training_verdict(value: float) -> str:
    """``normal``, ``low`` or ``problem`` for a dense training run, whatever GPU_UTIL shows."""
    if value >= TRAINING_NORMAL[0]:
        return "normal"
    return "low" if value >= _TRAINING_PROBLEM else "problem"


def dense_arithmetic(watts: float, limit_w: float) -> bool | None:
    """Whether a board's draw fits dense arithmetic: not at half its limit or less, surely near it.

    ``None``: in between, or no limit known. It says nothing about memory-bound work, which is normal in
    decode.
    """
    if limit_w <= 0:
        return None
    share = watts / limit_w
    if share <= 0.5:
        return False
    return True if share >= 0.85 else None


def sm_active_verdict(sm_active: float) -> str:
    """DCGM's own guidance for SM_ACTIVE, a ratio."""
    if sm_active >= 0.8:
        return "necessary met, not sufficient"
    return "likely waste" if sm_active < 0.5 else "between"


@dataclass(frozen=True, slots=True)
class Slowest:
    """Which rank holds a group back. ``median_s``: the steps' medians over ranks, averaged over steps.
    ``z``: how many standard errors the rank's mean lies above it."""

    rank: int
    mean_s: float
    median_s: float
    steps_slowest: int
    steps: int
    z: float | None

    @property
    def slowdown(self) -> float:
        """Its mean time over the median."""
        return self.mean_s / self.median_s


def slowest_rank(steps: Sequence[Sequence[float]], sd_s: float | None = None) -> Slowest:
    """Rank by mean compute time over many steps, not by one step. ``steps[i][rank]`` in seconds.

    ``sd_s``: known standard deviation of one step's time; else taken from the ranks' own (pooled, median over
    ranks, so that the slow one does not widen it). Raises ValueError for ragged or empty input.
    """
    ranks = len(steps[0]) if steps else 0
    if not ranks or any(len(one) != ranks for one in steps):
        raise ValueError("each step needs the same ranks, and there must be at least one of both")
    means = [fmean(column) for column in zip(*steps, strict=True)]
    worst = max(range(ranks), key=means.__getitem__)
    if sd_s is None and len(steps) > 1:
        sd_s = median(_sd(column) for column in zip(*steps, strict=True))
    middle = fmean(median(one) for one in steps)
    z = (means[worst] - middle) / (sd_s / sqrt(len(steps))) if sd_s else None
    return Slowest(
        rank=worst,
        mean_s=means[worst],
        median_s=middle,
        steps_slowest=sum(max(range(ranks), key=one.__getitem__) == worst for one in steps),
        steps=len(steps),
        z=z,
    )


def mean_step_s(steps: Sequence[Sequence[float]], collective_s: float = 0.0) -> float:
    """Each step takes its slowest rank's time and the collective after it."""
    return fmean(max(one) for one in steps) + collective_s


def _sd(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
