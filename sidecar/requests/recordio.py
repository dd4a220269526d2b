"""A request's record as JSON and back: what ``meter`` prints, ``judge`` reads.

Times are whole nanoseconds of one clock under the record's own field names, so that nothing is lost. The
figures that people look for stand beside them in seconds (``ttft_s``, ``tpot_s``, ``max_gap_s``, ``e2e_s``)
and are not read back. A record without times has ``null`` for its start and end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, TypeVar

from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord

_TIMES = ("first_ns", "last_ns", "first_answer_ns", "scheduled_ns", "sent_ns", "queue_ns")
_COUNTS = ("status", "output_tokens", "prompt_tokens", "cached_tokens", "reasoning_tokens", "accepted_tokens")
_TEXTS = ("request_id", "path", "request_class")


_E = TypeVar("_E", bound=StrEnum)


class NotARecord(ValueError):
    """The JSON is not a record; the message names the key and what would be right."""


def without_times(record: RequestRecord) -> RequestRecord:
    """The record of bytes whose times are not known: everything but its times and what is made of them."""
    choices = tuple(replace(choice, first_ns=None, last_ns=None) for choice in record.choices)
    return replace(
        record,
        start_ns=0,
        end_ns=0,
        first_ns=None,
        last_ns=None,
        first_answer_ns=None,
        gaps_ns=(),
        stream_gaps_ns=(),
        token_gaps_ns=(),
        choices=choices,
    )


def to_json(record: RequestRecord, *, timed: bool = True) -> dict[str, Any]:
    """The record as plain JSON values. ``timed`` false: its times are unknown and said to be so."""
    if not timed:
        record = without_times(record)
    plain = asdict(record)
    if not timed:
        plain.update(start_ns=None, end_ns=None)
    return {
        **plain,
        "ttft_s": _seconds(record.ttft_ns),
        "tpot_s": _seconds(record.tpot_ns),
        "max_gap_s": _seconds(record.max_gap_ns),
        "e2e_s": _seconds(record.e2e_ns) if timed else None,
    }


def from_json(value: Any) -> tuple[RequestRecord, bool]:
    """The record, and whether its times are known. Raises NotARecord."""
    if not isinstance(value, dict):
        raise NotARecord("must be a JSON object")
    timed = value.get("start_ns") is not None and value.get("end_ns") is not None
    start_ns, end_ns = (_int(value, "start_ns"), _int(value, "end_ns")) if timed else (0, 0)
    rest: dict[str, Any] = {key: _int(value, key) for key in (*_TIMES, *_COUNTS)}
    rest.update((key, _text(value, key)) for key in _TEXTS)
    choices = tuple(_choice(entry) for entry in _list(value, "choices"))
    record = RequestRecord(
        api=_enum(value, "api", Api),
        model=_text(value, "model"),
        streamed=_flag(value, "streamed"),
        start_ns=start_ns or 0,
        end_ns=end_ns or 0,
        outcome=_enum(value, "outcome", Outcome),
        error_kind=_enum(value, "error_kind", ErrorKind) if value.get("error_kind") is not None else None,
        error=_text(value, "error") or None,
        output_chunks=_int(value, "output_chunks") or 0,
        tokens_estimated=_flag(value, "tokens_estimated"),
        choices=choices,
        gaps_ns=tuple(_whole(gap, "gaps_ns") for gap in _list(value, "gaps_ns")),
        retry_after_s=_number(value, "retry_after_s"),
        preemptions_rose=_flag(value, "preemptions_rose"),
        **rest,
    )
    if timed and record.end_ns < record.start_ns:
        raise NotARecord("end_ns must not be before start_ns")
    return (record if timed else without_times(record)), timed


def _choice(value: Any) -> ChoiceRecord:
    if not isinstance(value, dict):
        raise NotARecord("choices must be a list of objects")
    return ChoiceRecord(
        index=_int(value, "index") or 0,
        output_chunks=_int(value, "output_chunks") or 0,
        first_ns=_int(value, "first_ns"),
        last_ns=_int(value, "last_ns"),
        tokens=_int(value, "tokens"),
        tokens_estimated=_flag(value, "tokens_estimated"),
        finish_reason=_text(value, "finish_reason") or None,
    )


def _enum(value: Mapping[str, Any], key: str, kind: type[_E]) -> _E:
    found: Any = value.get(key)
    try:
        return kind(found)
    except ValueError:
        raise NotARecord(f"{key} must be one of {', '.join(kind)}, not {found!r}") from None


def _whole(found: Any, key: str) -> int:
    if isinstance(found, bool) or not isinstance(found, int):
        raise NotARecord(f"{key} must be whole nanoseconds or a whole count, not {found!r}")
    return found


def _int(value: Mapping[str, Any], key: str) -> int | None:
    found = value.get(key)
    return None if found is None else _whole(found, key)


def _number(value: Mapping[str, Any], key: str) -> float | None:
    found = value.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise NotARecord(f"{key} must be a number, not {found!r}")
    return float(found)


def _flag(value: Mapping[str, Any], key: str) -> bool:
    found = value.get(key, False)
    if not isinstance(found, bool):
        raise NotARecord(f"{key} must be true or false, not {found!r}")
    return found


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise NotARecord(f"{key} must be a text, not {found!r}")
    return found


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise NotARecord(f"{key} must be a list, not {found!r}")
    return found


def _seconds(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e9
