"""Which signals a page lacks, and what each lack costs. Pure.

Many useful fields are in no exporter's default list: they must be asked for on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.gpu.reading import Gpu, Reading

# Signals of which one is enough, the DCGM field to add, and what cannot be said without.
_WANTED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("energy_joules_total",),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "energy and cost per token are only estimated from the power gauge, which misses spikes",
    ),
    (("power_watts",), "DCGM_FI_DEV_POWER_USAGE", "the quickest check of real load is missing"),
    (
        ("power_limit_watts",),
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "power is compared with the datasheet, and a capped board looks idle",
    ),
    (
        ("dram_active_ratio",),
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "memory bound and starved by the host cannot be told apart",
    ),
    (
        ("tensor_active_ratio",),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "compute bound cannot be told from busy with other work",
    ),
    (("sm_active_ratio",), "DCGM_FI_PROF_SM_ACTIVE", "idle parts of a busy GPU stay hidden"),
    (("sm_clock_hertz",), "DCGM_FI_DEV_SM_CLOCK", "a slow GPU among its peers is not found"),
    (("sm_clock_max_hertz",), "DCGM_FI_DEV_MAX_SM_CLOCK", "clocks below boost are only seen against peers"),
    (
        ("clock_event_reasons",),
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "a slow clock has no reason: heat, power and a clock lock look the same",
    ),
    (
        (
            "throttle_hw_thermal_seconds_total",
            "violation_thermal_seconds_total",
            "throttle_socket_thermal_total",
        ),
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "throttling between two looks is missed",
    ),
    (
        ("ecc_uncorrected_volatile_total",),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "uncorrected memory errors only show as Xids",
    ),
    (
        ("row_remap_pending",),
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "whether a reset is due after a memory error is not known",
    ),
    (
        ("row_remap_failed",),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "memory repair that is used up is not seen",
    ),
    (
        ("recovery_action",),
        "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "the driver's own word on what to do is missing",
    ),
    (
        ("last_xid",),
        "DCGM_FI_DEV_XID_ERRORS",
        "Xids are only seen in the kernel log (absent may also mean that none was seen yet)",
    ),
)
# AMD's exporter has no equivalent of these.
_AMD_LACKS = frozenset(
    {
        "power_limit_watts",
        "clock_event_reasons",
        "row_remap_pending",
        "row_remap_failed",
        "recovery_action",
        "last_xid",
    }
)


@dataclass(frozen=True, slots=True)
class Gap:
    """A signal that no board of the page has. ``field``: what to add to dcgm-exporter's counter list."""

    signal: str
    field: str
    cost: str


def gaps(reading: Reading) -> list[Gap]:
    """What the page lacks; for AMD boards only what their exporter can give."""
    if not reading.gpus:
        return []
    have = {signal for gpu in reading.gpus for values in _all_values(gpu) for signal in values}
    amd = all(gpu.vendor == "amd" for gpu in reading.gpus)
    return [
        Gap(signals[0], "" if amd else field, cost)
        for signals, field, cost in _WANTED
        if not have.intersection(signals) and not (amd and signals[0] in _AMD_LACKS)
    ]


def wanted_fields() -> list[str]:
    """The DCGM fields that this product makes use of and that must not be missing."""
    return [field for _, field, _ in _WANTED]


def _all_values(gpu: Gpu) -> list[Mapping[str, float]]:
    return [gpu.values, *(part.values for part in gpu.parts)]
