"""Request ids and W3C trace context: what goes on to vLLM so that its spans join ours. Pure but for
randomness.

Formats: W3C Trace Context level 1. vLLM makes its own id ``chatcmpl-<X-Request-Id>``, hence the id is the
join key.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a request stands in a trace; hexadecimal ids. ``parent_span_id`` is empty at a trace's root."""

    trace_id: str
    span_id: str
    parent_span_id: str
    flags: str

    @property
    def traceparent(self) -> bytes:
        """The header that makes whoever gets it a child of our span."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}".encode()


def parse_traceparent(value: bytes) -> tuple[str, str, str] | None:
    """(trace id, span id, flags) of a valid header, else None."""
    match = _TRACEPARENT.fullmatch(value.strip())
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5]):
        return None
    if not match[2].strip(b"0") or not match[3].strip(b"0"):
        return None
    return match[2].decode(), match[3].decode(), match[4].decode()


def continue_trace(value: bytes) -> TraceContext:
    """Our own span under the caller's; a new, sampled trace where none or a broken one came."""
    span_id = secrets.token_hex(8)
    known = parse_traceparent(value)
    if known is None:
        return TraceContext(secrets.token_hex(16), span_id, "", "01")
    trace_id, parent, flags = known
    return TraceContext(trace_id, span_id, parent, flags)


def usable_request_id(value: bytes) -> str:
    """The client's id if it is short printable ASCII, else empty."""
    return value.decode() if _REQUEST_ID.fullmatch(value) else ""


def new_request_id() -> str:
    """16 hexadecimal digits, like vLLM's own: an answer that carries it is as long as without us."""
    return secrets.token_hex(8)
