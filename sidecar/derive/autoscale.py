"""The autoscaler's signal: saturation = requests in flight / load at the measured peak, per replica. Pure.

Goodput falls only after saturation and does not exist when idle, so it cannot be scaled on; saturation is a
true 0 when idle, never NaN, and not capped above. What is not known is ``None`` and published as an error,
because an autoscaler reads 0 as "scale down".
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a sweep measured for one replica."""

    peak_load: float  # requests in flight where goodput peaks
    target_saturation: float | None = None
    peak_goodput_rps: float | None = None
    model: str = ""
    measured: str = ""  # ISO 8601


@dataclass(frozen=True, slots=True)
class Autoscale:
    """The signal now. Where ``saturation`` is ``None``, ``reason`` says why."""

    saturation: float | None
    in_flight: float | None
    source: str  # "engine", "proxy" or ""
    reason: str


def saturation(in_flight: float | None, peak_load: float) -> float | None:
    """In flight / peak; ``None`` for unknown. Raises ValueError for a peak that is not above 0."""
    if not (math.isfinite(peak_load) and peak_load > 0):
        raise ValueError(f"the load at the peak must be above 0, not {peak_load}")
    return None if in_flight is None else in_flight / peak_load


def signal(
    capacity: Capacity | None,
    *,
    engine_up: bool,
    engine_age_s: float | None,
    running: float | None,
    waiting: float | None,
    proxy_in_flight: int | None,
    stale_after_s: float,
    frozen: bool = False,
) -> Autoscale:
    """The signal from what is known.

    The engine's running + waiting counts, as long as it was seen within ``stale_after_s``. Without those
    gauges (statistics switched off), or when they are ``frozen`` (standing above zero while no token is
    made, as after a mass abort), the proxy's own count does. When the engine cannot be seen at all the
    proxy's count is a true lower bound if above 0, while 0 would only mean that nothing gets through.
    """
    fresh = engine_up and engine_age_s is not None and engine_age_s <= stale_after_s
    in_flight: float | None = None
    source = reason = ""
    if fresh and running is not None and not frozen:
        in_flight, source = running + (waiting or 0.0), "engine"
    elif proxy_in_flight is not None and (fresh or proxy_in_flight > 0):
        in_flight, source = float(proxy_in_flight), "proxy"
    elif not fresh:
        age = "never seen" if engine_age_s is None else f"last seen {engine_age_s:.0f} s ago"
        reason = f"the engine's metrics cannot be read ({age})"
    else:
        reason = "neither the engine nor the proxy says how many requests are in flight"
    if capacity is None:
        return Autoscale(None, in_flight, source, "no capacity file: run a sweep and pass --capacity")
    return Autoscale(saturation(in_flight, capacity.peak_load), in_flight, source, reason)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Several replicas. Means and sums are over those that report; ``None`` where none does."""

    each: tuple[float | None, ...]
    mean: float | None
    in_flight_sum: float | None
    replicas_needed: int | None


def fleet(in_flight: Sequence[float | None], peak_load: float) -> Fleet:
    """Saturation of each replica, their mean, and how many replicas would hold the load at the peak.

    The sum of saturations is no saturation: it is the number of replicas that would all stand at the peak.
    """
    each = tuple(saturation(load, peak_load) for load in in_flight)
    known = [load for load in in_flight if load is not None]
    if not known:
        return Fleet(each, None, None, None)
    total = math.fsum(known)
    needed = math.ceil(round(total / peak_load, 9))
    return Fleet(each, total / peak_load / len(known), total, needed)


def load_capacity(path: Path) -> Capacity:
    """Read what ``goodput-loadgen target`` wrote. Raises SettingsError naming file and key."""
    try:
        raw: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: is not JSON ({error}); write it with: goodput-loadgen target") from None
    if not isinstance(raw, dict):
        raise SettingsError(f"{path}: must be a JSON object with peak_load_per_replica")
    if "levels" in raw and "peak" in raw:
        raise SettingsError(
            f"{path}: is a sweep's report.json; make the capacity file from it with: goodput-loadgen target"
        )
    if raw.get("format") != 1:
        raise SettingsError(f"{path}: format: must be 1, not {raw.get('format')!r}")
    peak = _positive(path, raw, "peak_load_per_replica")
    if peak is None:
        raise SettingsError(
            f"{path}: peak_load_per_replica: is missing; it is the load in flight at the peak"
        )
    return Capacity(
        peak_load=peak,
        target_saturation=_positive(path, raw, "target_saturation"),
        peak_goodput_rps=_positive(path, raw, "peak_goodput_rps"),
        model=str(raw.get("model") or ""),
        measured=str(raw.get("measured") or ""),
    )


def _positive(path: Path, raw: dict[str, Any], key: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"{path}: {key}: must be a number above 0, not {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise SettingsError(f"{path}: {key}: must be a number above 0, not {value!r}")
    return float(value)
