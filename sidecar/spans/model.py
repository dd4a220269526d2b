"""A finished span as plain data: what export.py writes and the tests look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Value = str | bool | int | float | list[str] | list[int] | list[float]
"""What an attribute may hold; an event's attribute may also be JSON (dict, list of dicts)."""


class Kind(IntEnum):
    """Numbers of OTLP's SpanKind."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one moment of a span; ``at_ns`` is Unix time."""

    name: str
    at_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Ids are lower-case hex; times are Unix nanoseconds."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    events: tuple[Event, ...] = ()
    logs: tuple[Event, ...] = ()  # the convention's events: they go out as log records of this span
    error: bool = False
    error_message: str = ""
    trace_state: str = ""
    flags: int = 1
    scope: str = "goodput-sidecar"
    scope_version: str = ""
    schema_url: str = ""
    resource: Mapping[str, Value] | None = None  # None: the sidecar's own resource
