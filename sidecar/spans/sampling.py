"""Which spans are kept: the parent's word, a ratio of new traces, and always what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.requests.records import Outcome, RequestRecord

if TYPE_CHECKING:
    from sidecar.requests.slo import Verdict

_SPACE = 1 << 56


def kept(
    record: RequestRecord,
    verdict: Verdict | None,
    *,
    trace_id: str,
    parent_sampled: bool | None,
    ratio: float,
    keep_bad: bool = True,
) -> bool:
    """True where the span of this request is to be exported.

    ``parent_sampled``: the caller's decision, ``None`` where no caller sent one; then ``ratio`` of all
    traces is kept, the same ones everywhere, by the last 56 bits of the trace id (W3C level 2).
    ``keep_bad``: errors, refusals and badput are kept whatever head sampling says.
    """
    if keep_bad and is_bad(record, verdict):
        return True
    if parent_sampled is not None:
        return parent_sampled
    return int(trace_id[-14:], 16) >= round((1.0 - ratio) * _SPACE)


def is_bad(record: RequestRecord, verdict: Verdict | None) -> bool:
    """An error, a refusal, or an eligible request that was not good."""
    if record.outcome in (Outcome.ERROR, Outcome.REJECTED):
        return True
    return verdict is not None and verdict.eligible and not verdict.good
