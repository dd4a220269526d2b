"""Faults on demand, so that every kind of bad request can be provoked and counted.

Written ``key=value,key=value``, on the command line (``--fault``) for all requests or in the header
``x-sim-fault`` for one. ``error``, ``reject``, ``stall``, ``drop`` and ``error_event`` are shares of
requests from 0 to 1; the rest say how: ``error_status=500``, ``reject_status=429``, ``retry_after_s=1``,
``stall_s=2`` after ``stall_after=8`` tokens, ``drop_after=4`` tokens, ``error_event_after=4`` tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from sidecar.errors import UserError

HEADER = "x-sim-fault"
_SHARES = ("error", "reject", "stall", "drop", "error_event")


@dataclass(frozen=True, slots=True)
class Faults:
    error: float = 0.0
    error_status: int = 500
    reject: float = 0.0
    reject_status: int = 429
    retry_after_s: float = 1.0
    stall: float = 0.0
    stall_s: float = 2.0
    stall_after: int = 8
    drop: float = 0.0
    drop_after: int = 4
    error_event: float = 0.0
    error_event_after: int = 4


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What happens to one request; the empty plan is an ordinary answer."""

    status: int | None = None  # answered with this status at once
    retry_after_s: float | None = None
    stall_after: int = 0
    stall_ns: int = 0
    drop_after: int | None = None  # the connection closes after this many tokens
    error_event_after: int | None = None  # an error event inside the stream


def parse_faults(text: str, *, where: str = "--fault") -> Faults:
    """Faults from ``key=value,...``; raises :class:`UserError` naming the part that is wrong."""
    kinds = {f.name: f.type for f in fields(Faults)}
    values: dict[str, float | int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, raw = part.partition("=")
        if not equals or key not in kinds:
            raise UserError(f"{where}: {part!r} is not key=value with a key of {', '.join(kinds)}")
        try:
            value = int(raw) if kinds[key] == "int" else float(raw)
        except ValueError:
            raise UserError(f"{where}: {key} needs a number, got {raw!r}") from None
        if not value >= 0 or value == float("inf") or (key in _SHARES and value > 1):
            raise UserError(f"{where}: {key}={raw} is out of range" + (" 0..1" if key in _SHARES else ""))
        if key.endswith("_status") and not 400 <= value <= 599:
            raise UserError(f"{where}: {key} must be 400..599, got {raw}")
        values[key] = value
    return Faults(**values)  # type: ignore[arg-type]


def plan_faults(faults: Faults, rng: random.Random) -> FaultPlan:
    """Draw for one request. At most one of the fatal faults happens; a stall may come before it."""
    if rng.random() < faults.reject:
        return FaultPlan(status=faults.reject_status, retry_after_s=faults.retry_after_s)
    if rng.random() < faults.error:
        return FaultPlan(status=faults.error_status)
    stalls = rng.random() < faults.stall
    drops = rng.random() < faults.drop
    fails = rng.random() < faults.error_event
    return FaultPlan(
        stall_after=faults.stall_after if stalls else 0,
        stall_ns=round(faults.stall_s * 1e9) if stalls else 0,
        drop_after=faults.drop_after if drops else None,
        error_event_after=faults.error_event_after if fails and not drops else None,
    )
