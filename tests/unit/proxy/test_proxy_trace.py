from __future__ import annotations

import pytest

from sidecar.proxy.trace import continue_trace, new_request_id, parse_traceparent, usable_request_id

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_continues_a_trace_with_its_flags() -> None:
    context = continue_trace(f"00-{TRACE}-{SPAN}-00".encode())
    assert (context.trace_id, context.parent_span_id, context.flags) == (TRACE, SPAN, "00")
    assert context.span_id not in (SPAN, "0" * 16)
    assert parse_traceparent(context.traceparent) == (TRACE, context.span_id, "00")


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
    ],
)
def test_a_broken_header_begins_a_new_trace(value: str) -> None:
    context = continue_trace(value.encode())
    assert parse_traceparent(value.encode()) is None
    assert context.parent_span_id == ""
    assert context.trace_id not in (TRACE, "0" * 32)
    assert parse_traceparent(context.traceparent) is not None


def test_a_later_version_may_carry_more() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-more".encode()) == (TRACE, SPAN, "01")


def test_request_ids() -> None:
    assert usable_request_id(b"abc-1") == "abc-1"
    assert usable_request_id(b"") == ""
    assert usable_request_id(b"a b") == ""
    assert usable_request_id(b"x" * 129) == ""
    assert len(new_request_id()) == 16
    assert new_request_id() != new_request_id()
