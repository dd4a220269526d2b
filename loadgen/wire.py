"""Request records as plain msgpack values: how they travel from a Locust process to the sweep.

Only durations travel: a worker re-bases its records to its own start of the level before they leave, so no
two machines' clocks are ever compared. Integers are 64-bit nanoseconds.
"""

from __future__ import annotations

from array import array
from dataclasses import fields, replace
from typing import Any

import msgpack  # type: ignore[import-untyped]

from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord

_ENUMS: dict[str, type[Api] | type[Outcome] | type[ErrorKind]] = {
    "api": Api,
    "outcome": Outcome,
    "error_kind": ErrorKind,
}
_TIMES = ("start_ns", "end_ns", "first_ns", "last_ns", "first_answer_ns", "scheduled_ns", "sent_ns")
_NAMES = tuple(field.name for field in fields(RequestRecord))
_CHOICE_NAMES = tuple(field.name for field in fields(ChoiceRecord))


def rebase(record: RequestRecord, origin_ns: int) -> RequestRecord:
    """The same record with every moment counted from ``origin_ns``. Durations do not change."""
    moved = {name: value - origin_ns for name in _TIMES if (value := getattr(record, name)) is not None}
    choices = tuple(
        replace(
            choice,
            first_ns=None if choice.first_ns is None else choice.first_ns - origin_ns,
            last_ns=None if choice.last_ns is None else choice.last_ns - origin_ns,
        )
        for choice in record.choices
    )
    return replace(record, choices=choices, **moved)


def pack(records: list[RequestRecord]) -> bytes:
    """Records to bytes. Field order is the class's own: both ends are the same version of this package."""
    rows = []
    for record in records:
        row: list[Any] = [getattr(record, name) for name in _NAMES]
        row[_NAMES.index("choices")] = [
            [getattr(choice, name) for name in _CHOICE_NAMES] for choice in record.choices
        ]
        row[_NAMES.index("gaps_ns")] = array("q", record.gaps_ns).tobytes()
        rows.append(row)
    packed: bytes = msgpack.packb([list(_NAMES), rows], default=str)
    return packed


def unpack(data: bytes) -> list[RequestRecord]:
    """Bytes of `pack` to records. Raises `ValueError` when the other end is another version."""
    names, rows = msgpack.unpackb(data, use_list=False)
    if tuple(names) != _NAMES:
        raise ValueError("the worker runs another version of vllm-goodput; install the same one everywhere")
    records = []
    for row in rows:
        values = dict(zip(_NAMES, row, strict=True))
        for name, enum in _ENUMS.items():
            if values[name] is not None:
                values[name] = enum(values[name])
        values["choices"] = tuple(ChoiceRecord(*choice) for choice in values["choices"])
        gaps = array("q")
        gaps.frombytes(values["gaps_ns"])
        values["gaps_ns"] = tuple(gaps)
        records.append(RequestRecord(**values))
    return records
