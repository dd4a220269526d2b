"""DistServe's goodput beside ours: the same records, another view. Pure.

DistServe (OSDI 2024) asks of a request only that it meets both its TTFT and its TPOT bound, and calls goodput
the highest request rate at which a given share of requests (90 %, 99 %) does, per GPU. vLLM's own benchmark
counts the sum of 1[TTFT <= a and TPOT <= b] over the time. A running sidecar does not choose the rate, so the
highest one that it saw kept for half a minute is a floor under what the server can do.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.derive.windows import Counts
from sidecar.requests.records import Outcome, RequestRecord
from sidecar.requests.slo import SloClass, Verdict

SHARES = (0.9, 0.99)


def defined(slo: SloClass) -> bool:
    """Whether the class has both bounds."""
    return slo.ttft_s is not None and slo.tpot_s is not None


def met_both(record: RequestRecord, verdict: Verdict) -> bool:
    """Completed, with a first token in time and no TPOT beyond its bound (one token has none)."""
    return (
        verdict.eligible
        and record.outcome is Outcome.COMPLETED
        and record.ttft_ns is not None
        and "ttft" not in verdict.misses
        and "tpot" not in verdict.misses
    )


def kept_rate(
    slots: Iterable[tuple[float, Counts]], slot_s: float, share: float, *, watched_s: float
) -> float | None:
    """The highest rate (eligible requests/s) of a whole slot in which at least ``share`` of them met both.

    ``slots``: (seconds ago at which it began, its counts). ``None`` where no slot did, or none was eligible.
    """
    rates = [
        counts.eligible / slot_s
        for ago_s, counts in slots
        # A slot that still runs, or that began before anyone watched, has no rate.
        if slot_s <= ago_s <= watched_s
        and counts.eligible
        and counts.distserve >= share * counts.eligible - 1e-9
    ]
    return max(rates, default=None)
