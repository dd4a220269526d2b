"""For which share of the time between two readings a board was held back, by cause. Pure.

From counters, so that no short event is lost: NVIDIA counts seconds, AMD counts in a unit of its own against
a reference counter.
"""

from __future__ import annotations

from sidecar.gpu.reading import Gpu

# Cause -> counters of it, the finer ones first; the first pair that both readings have is used.
_SECONDS: dict[str, tuple[str, ...]] = {
    "thermal": (
        "throttle_hw_thermal_seconds_total",
        "throttle_sw_thermal_seconds_total",
        "violation_thermal_seconds_total",
    ),
    "power": (
        "throttle_power_cap_seconds_total",
        "throttle_power_brake_seconds_total",
        "violation_power_seconds_total",
        "violation_board_limit_seconds_total",
    ),
    "peer": ("throttle_sync_boost_seconds_total", "violation_sync_boost_seconds_total"),
    "hardware": ("violation_reliability_seconds_total",),
}
_COUNTS: dict[str, tuple[str, ...]] = {
    "thermal": ("throttle_socket_thermal_total", "throttle_hbm_thermal_total", "throttle_vr_thermal_total"),
    "power": ("throttle_power_cap_total",),
    "hardware": ("throttle_prochot_total",),
}


def throttle_shares(before: Gpu, after: Gpu, elapsed_s: float) -> dict[str, float]:
    """Cause -> share 0..1 of ``elapsed_s``; a cause that nothing counts is not in it.

    Of several counters of one cause the largest counts: they may overlap in time. A counter that fell was
    reset, and its new value is what is known.
    """
    found: dict[str, float] = {}
    reference = _grown(before, after, "violation_reference_total")
    for table, whole in ((_SECONDS, elapsed_s), (_COUNTS, reference)):
        if whole is None or whole <= 0:
            continue
        for cause, counters in table.items():
            grown = [g for name in counters if (g := _grown(before, after, name)) is not None]
            if grown:
                found[cause] = max(found.get(cause, 0.0), min(1.0, max(grown) / whole))
    return found


def _grown(before: Gpu, after: Gpu, name: str) -> float | None:
    first, last = before.values.get(name), after.values.get(name)
    if first is None or last is None:
        return None
    return last - first if last >= first else last
