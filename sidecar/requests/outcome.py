"""How a request ended: the one place that decides completed, error, rejected or left. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.requests.records import End, ErrorKind, Outcome

# Finish reasons that mean that the server failed. "repetition" is a stop that the server chose, and complete.
FAILED_FINISHES = frozenset({"error", "abort"})


@dataclass(frozen=True, slots=True)
class Ending:
    """All that the decision rests on."""

    status: int | None
    end: End
    generates: bool
    streamed: bool
    proper_end: bool  # [DONE], message_stop, response.completed; of a JSON answer: read whole
    finishes: Mapping[int, str | None]
    choices: int
    error_event: bool
    malformed: str | None
    unreadable: bool  # the body is beyond us (its size or encoding), not wrong


def outcome_of(ending: Ending) -> tuple[Outcome, ErrorKind | None, str | None]:
    """The outcome, the class of failure and a short reason in our words."""
    status = ending.status
    if status is None:
        return _cut(ending, "no answer came")
    if status in (429, 503):
        return Outcome.REJECTED, None, f"HTTP {status}"
    if not 200 <= status < 300:
        client = 400 <= status < 500 and status != 408
        return Outcome.ERROR, ErrorKind.CLIENT if client else ErrorKind.HTTP, f"HTTP {status}"
    if ending.malformed is not None:
        return Outcome.ERROR, ErrorKind.MALFORMED, ending.malformed
    if ending.error_event:
        return Outcome.ERROR, ErrorKind.STREAM, "an error came inside the answer"
    failed = [reason for reason in ending.finishes.values() if reason in FAILED_FINISHES]
    if failed:
        return Outcome.ERROR, ErrorKind.STREAM, f"finish reason {failed[0]}"
    if not ending.generates or ending.unreadable:
        if ending.end is End.EOF:
            return Outcome.COMPLETED, None, None
        return _cut(ending, "the answer was cut")
    missing = _missing(ending)
    if ending.proper_end and missing is None:
        # Whoever hangs up after the proper end has lost nothing.
        return Outcome.COMPLETED, None, None
    return _cut(ending, missing or "the stream's proper end was not seen")


def _missing(ending: Ending) -> str | None:
    unfinished = [index for index, reason in ending.finishes.items() if reason is None]
    if unfinished:
        return f"no finish reason for choice {unfinished[0]}"
    if len(ending.finishes) < max(1, ending.choices):
        return f"{len(ending.finishes)} of {max(1, ending.choices)} choices came"
    return None


def _cut(ending: Ending, reason: str) -> tuple[Outcome, ErrorKind | None, str | None]:
    match ending.end:
        case End.CLIENT_LEFT:
            return Outcome.CLIENT_LEFT, None, None
        case End.TIMEOUT:
            return Outcome.ERROR, ErrorKind.TIMEOUT, "no end within the time limit"
        case End.CONNECT:
            return Outcome.ERROR, ErrorKind.CONNECT, "no connection"
        case End.RESET:
            return Outcome.ERROR, ErrorKind.RESET, "the connection broke before the answer's end"
        case End.EOF:
            return Outcome.ERROR, ErrorKind.INCOMPLETE, reason
