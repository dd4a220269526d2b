"""DCGM's fields: which signal a name stands for, and which numbers mean "no value". Read from YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

# DCGM marks "blank", "not found", "not supported" and "not permitted" with the top of each type's range. An
# int64 mark parsed as a double becomes 2^63, and some displays round it on, so anything near there is a mark.
_INT64_MARK = 2.0**62
_INT32_MARK = float(0x7FFFFFF0)
_DOUBLE_MARK = 2.0**47

_TRUST = {"high": 2, "medium": 1, "low": 0}


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One field. ``scale`` turns the printed number into the signal's unit."""

    id: int
    signal: str
    kind: str
    scale: float
    is_double: bool
    large: bool
    entity: str
    trust: str
    note: str

    @property
    def whole_board(self) -> bool:
        """Whether a MIG instance only repeats the board's figure."""
        return self.entity == "gpu"

    @property
    def rank(self) -> int:
        """Of two fields of one signal the one with the higher rank counts."""
        return _TRUST[self.trust]

    def value(self, printed: float) -> float | None:
        """The value in the signal's unit, or ``None`` for a mark of absence.

        By type, because an honest 2147483634 mJ of energy is the number that means "not supported" for a
        temperature.
        """
        if math.isnan(printed) or printed >= _INT64_MARK or printed == -math.inf:
            return None
        if self.is_double:
            if printed >= _DOUBLE_MARK:
                return None
        elif not self.large and printed >= _INT32_MARK:
            return None
        return printed * self.scale if self.scale != 1.0 else printed


@dataclass(frozen=True, slots=True)
class ClockReason:
    """One bit of the clock event reasons. ``cause`` (thermal, power, ...) only for those that throttle."""

    bit: int
    name: str
    exporter_name: str
    throttle: bool
    cause: str


@dataclass(frozen=True, slots=True)
class DcgmFields:
    """The whole table."""

    by_name: Mapping[str, DcgmField]
    by_id: Mapping[int, DcgmField]
    reasons: tuple[ClockReason, ...]
    recovery_actions: Mapping[int, str]


@lru_cache(maxsize=1)
def dcgm_fields() -> DcgmFields:
    """The table, read once."""
    raw = read_yaml("dcgm_fields.yaml")
    by_name: dict[str, DcgmField] = {}
    by_id: dict[int, DcgmField] = {}
    for row in raw["fields"]:
        one = DcgmField(
            id=row["id"],
            signal=row["signal"],
            kind=row["kind"],
            scale=float(row.get("scale", 1.0)),
            is_double=row["type"] == "double",
            large=row.get("large", False),
            entity=row["entity"],
            trust=row["trust"],
            note=row.get("note", ""),
        )
        by_id[one.id] = one
        for name in row["names"]:
            by_name[name] = one
    for old, name in raw["old_names"].items():
        by_name[old] = by_name[name]
    reasons = tuple(
        ClockReason(
            row["bit"],
            row["name"],
            row.get("exporter_name", row["name"]),
            row["throttle"],
            row.get("cause", ""),
        )
        for row in raw["clock_reasons"]
    )
    return DcgmFields(by_name, by_id, reasons, raw["recovery_actions"])


def decode_reasons(bits: int) -> tuple[tuple[str, ...], bool | None]:
    """Names of the clock event reasons in a bit mask, and whether any of them throttles.

    0 is no reason at all, not a bit. An unknown bit keeps a name (``unknown_bit_11``) and leaves the second
    value ``None`` unless a known bit settles it.
    """
    names: list[str] = []
    throttled: bool | None = False
    known = {reason.bit: reason for reason in dcgm_fields().reasons}
    unknown = False
    for bit in range(bits.bit_length()):
        if bits >> bit & 1:
            reason = known.get(bit)
            names.append(reason.name if reason else f"unknown_bit_{bit}")
            unknown = unknown or reason is None
            throttled = throttled or (reason is not None and reason.throttle)
    if unknown and not throttled:
        throttled = None
    return tuple(names), throttled


def causes(bits: int) -> tuple[str, ...]:
    """What throttles, in one word each (``thermal``, ``power``, ``hardware``, ``peer``), without repeats.

    ``hardware`` is dropped when a more telling cause stands beside it: that bit is the parent of the others.
    """
    found = dict.fromkeys(r.cause for r in dcgm_fields().reasons if r.throttle and bits >> r.bit & 1)
    if len(found) > 1:
        found.pop("hardware", None)
    return tuple(found)


def read_yaml(name: str) -> Any:
    """A data file of this package."""
    text = resources.files("sidecar.gpu").joinpath(name).read_text("utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
