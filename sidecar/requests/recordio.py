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
from sidecar.requests.text import shown, sound

_TIMES = ("first_ns", "last_ns", "first_answer_ns", "scheduled_ns", "sent_ns", "queue_ns")
_COUNTS = ("status", "output_tokens", "prompt_tokens", "cached_tokens", "reasoning_tokens", "accepted_tokens")
_TEXTS = ("request_id", "path", "request_class")


_MAX_WHOLE = 2**63  # what the meter itself can hold
_MAX_CHARS = 4096
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
        gaps_ns=tuple(_whole(gap, "gaps_ns", 0) for gap in _list(value, "gaps_ns")),
        retry_after_s=_number(value, "retry_after_s"),
        preemptions_rose=_flag(value, "preemptions_rose"),
        **rest,
    )
    if timed:
        _in_order(record)
    return (record if timed else without_times(record)), timed


def _in_order(record: RequestRecord) -> None:
    """Times that no meter writes would be judged as if they were true."""
    last = ("start_ns", record.start_ns)
    for key, at_ns in (("first_ns", record.first_ns), ("last_ns", record.last_ns), ("end_ns", record.end_ns)):
        if at_ns is None:
            continue
        if at_ns < last[1]:
            raise NotARecord(f"{key} must not be before {last[0]}")
        last = key, at_ns
    for choice in record.choices:
        if choice.first_ns is not None and choice.last_ns is not None and choice.last_ns < choice.first_ns:
            raise NotARecord("a choice's last_ns must not be before its first_ns")


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
        raise NotARecord(f"{key} must be one of {', '.join(kind)}, not {shown(found)}") from None


def _whole(found: Any, key: str, least: int) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found < _MAX_WHOLE:
        what = "" if least < 0 else ", 0 or more"
        raise NotARecord(f"{key} must be whole nanoseconds or a whole count{what}, not {shown(found)}")
    return found


def _int(value: Mapping[str, Any], key: str) -> int | None:
    found = value.get(key)
    # A clock may count from anywhere; how many and how long may not be negative.
    least = -_MAX_WHOLE if key.endswith("_ns") and key != "queue_ns" else 0
    return None if found is None else _whole(found, key, least)


def _number(value: Mapping[str, Any], key: str) -> float | None:
    found = value.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < _MAX_WHOLE:
        raise NotARecord(f"{key} must be a number, 0 or more, not {shown(found)}")
    return float(found)


def _flag(value: Mapping[str, Any], key: str) -> bool:
    found = value.get(key, False)
    if not isinstance(found, bool):
        raise NotARecord(f"{key} must be true or false, not {shown(found)}")
    return found


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise NotARecord(f"{key} must be a text, not {shown(found)}")
    return sound(found[:_MAX_CHARS])


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise NotARecord(f"{key} must be a list, not {shown(found)}")
    return found


def _seconds(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e9
