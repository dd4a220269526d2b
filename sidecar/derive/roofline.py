"""The roofline of a decode step: how far a batch is from the memory and from the compute roof. Pure.

bytes = weights + batch x context x KV bytes per token; memory time = bytes / bandwidth; compute time =
batch x 2 x parameters / peak; a step takes the longer. Attention FLOPs and kernel overhead are left out, so
it is an upper bound on what a device can do.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOPS_PER_PARAM = 2  # one multiplication and one addition


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder. ``kv_bytes_per_token`` over all layers, keys and values."""

    params: float
    weight_bytes: float
    kv_bytes_per_token: float

    @property
    def flops_per_token(self) -> float:
        """Of the weights alone, forward pass."""
        return FLOPS_PER_PARAM * self.params


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype_bytes: float) -> float:
    """2 (keys and values) x layers x KV heads x head size x bytes of a number."""
    return 2 * layers * kv_heads * head_dim * dtype_bytes


@dataclass(frozen=True, slots=True)
class Roofs:
    """The device, or all devices of a replica together: dense FLOP/s and bytes per second."""

    peak_flops: float
    bandwidth_bytes_per_s: float

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity above which work is compute bound."""
        return self.peak_flops / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of ``batch`` sequences of ``context`` tokens each. Seconds, bytes, shares 0..1."""

    batch: float
    context: float
    bytes_moved: float
    kv_bytes: float
    memory_s: float
    compute_s: float

    @property
    def step_s(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s

    @property
    def tensor_busy(self) -> float:
        """Share of the step in which arithmetic can be going on."""
        return self.compute_s / self.step_s

    @property
    def memory_busy(self) -> float:
        """Share of the step in which memory can be moving."""
        return self.memory_s / self.step_s

    @property
    def bound(self) -> str:
        """``memory`` or ``compute``: which roof is reached first."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


def step(model: ModelShape, roofs: Roofs, batch: float, context: float) -> Step:
    """The step of a batch. ``batch`` above 0, ``context`` at least 0; raises ValueError."""
    if not batch > 0 or not context >= 0:
        raise ValueError(f"batch {batch} must be above 0 and context {context} at least 0")
    kv_bytes = batch * context * model.kv_bytes_per_token
    moved = model.weight_bytes + kv_bytes
    return Step(
        batch=batch,
        context=context,
        bytes_moved=moved,
        kv_bytes=kv_bytes,
        memory_s=moved / roofs.bandwidth_bytes_per_s,
        compute_s=batch * model.flops_per_token / roofs.peak_flops,
    )


def sequences_that_fit(model: ModelShape, memory_bytes: float, context: float) -> int | None:
    """Sequences whose KV cache fits beside the weights; ``None`` without a context (no limit)."""
    if context <= 0 or model.kv_bytes_per_token <= 0:
        return None
    return max(0, int((memory_bytes - model.weight_bytes) // (context * model.kv_bytes_per_token)))


def batch_where_kv_equals_weights(model: ModelShape, context: float) -> float | None:
    """Batch from which the cache moves more bytes than the weights; ``None`` without a context."""
    each = context * model.kv_bytes_per_token
    return model.weight_bytes / each if each > 0 else None


def batch_compute_bound(model: ModelShape, roofs: Roofs, context: float) -> float | None:
    """Batch from which the step is compute bound; ``None`` where each sequence adds more memory time than
    compute time, so that no batch ever is."""
    gain = model.flops_per_token / roofs.peak_flops - (
        context * model.kv_bytes_per_token / roofs.bandwidth_bytes_per_s
    )
    return model.weight_bytes / roofs.bandwidth_bytes_per_s / gain if gain > 0 else None


def context_below_which_compute_bound(model: ModelShape, roofs: Roofs) -> float | None:
    """Context below which some batch is compute bound; ``None`` without a KV cache (any context)."""
    if model.kv_bytes_per_token <= 0:
        return None
    return model.flops_per_token / roofs.peak_flops * roofs.bandwidth_bytes_per_s / model.kv_bytes_per_token
