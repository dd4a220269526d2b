"""SLO classes, and the judge: was this request good, and if not, why not. Pure (DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sidecar.requests.records import ErrorKind, Outcome, RequestRecord


@dataclass(frozen=True, slots=True)
class SloClass:
    """Bounds in seconds, inclusive; ``None`` is no bound.

    The TTFT bound is ``ttft_s + ttft_per_prompt_token_s * prompt tokens``. A gap above ``stall_s`` (or above
    the max-gap bound, if that is less) is a stall, which is no bound but tells causes of badput apart.
    """

    name: str = "default"
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_p99_s: float | None = None
    max_gap_s: float | None = None
    e2e_s: float | None = None
    stall_s: float | None = None
    ttft_per_prompt_token_s: float | None = None
    client_errors_eligible: bool = False  # whether the client's own faults count against attainment


# For a person who reads along: two seconds until the text starts, ten tokens a second (faster than reading)
# on average, and never a pause of more than three seconds, which the average would hide.
DEFAULT_SLO = SloClass(ttft_s=2.0, tpot_s=0.1, max_gap_s=3.0, stall_s=1.0)


class Bucket(StrEnum):
    """Why an eligible request is not good: exactly one for each."""

    ERROR = "error"
    REJECTED = "rejected"
    QUEUE = "queue"
    PREFILL = "prefill"
    STALL = "stall"
    PREEMPTION = "preemption"
    DECODE = "decode"
    E2E = "e2e"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says of one request.

    ``bucket`` is set for every request that is eligible and not good, and also, with ``eligible`` false, for
    a client's own fault. ``judged``: at least one bound could be held against it. ``misses``: every bound
    that was broken (ttft, tpot, itl_p99, max_gap, e2e), whatever the bucket.
    """

    good: bool
    eligible: bool
    judged: bool
    bucket: Bucket | None
    misses: tuple[str, ...] = ()


def judge(record: RequestRecord, slo: SloClass) -> Verdict:
    """Judge a finished request. An unknown or undefined value constrains nothing."""
    checks = _checks(record, slo)
    judged = bool(checks)
    misses = tuple(name for name, met in checks.items() if not met)
    match record.outcome:
        case Outcome.REJECTED:
            return Verdict(False, True, judged, Bucket.REJECTED, misses)
        case Outcome.ERROR:
            own_fault = record.error_kind is ErrorKind.CLIENT
            return Verdict(False, not own_fault or slo.client_errors_eligible, judged, Bucket.ERROR, misses)
        case Outcome.CLIENT_LEFT:
            if misses:
                return Verdict(False, True, judged, Bucket.ABANDONED, misses)
            return Verdict(False, False, judged, None)
        case Outcome.COMPLETED:
            if not judged:
                return Verdict(False, False, False, None)
            if not misses:
                return Verdict(True, True, True, None)
            return Verdict(False, True, True, _cause(record, slo, misses), misses)


def _checks(record: RequestRecord, slo: SloClass) -> dict[str, bool]:
    """Each bound that can be held against the request: was it met (so far, if the client left)?"""
    left = record.outcome is Outcome.CLIENT_LEFT
    met: dict[str, bool] = {}
    ttft_bound_ns = _ttft_bound_ns(record, slo)
    ttft_ns = record.ttft_ns
    if ttft_ns is None and left and record.streamed:
        waited_ns = record.e2e_ns
        # Still waiting within the bound is no first token in time; only the broken bound is known.
        ttft_ns = waited_ns if ttft_bound_ns is not None and waited_ns > ttft_bound_ns else None
    if ttft_ns is not None and slo.ttft_s is not None:
        if ttft_bound_ns is not None:
            met["ttft"] = ttft_ns <= ttft_bound_ns
        elif ttft_ns <= _ns(slo.ttft_s):
            met["ttft"] = True  # met whatever the prompt's length, which is unknown
    tpot_ns = record.tpot_ns
    if slo.tpot_s is not None and tpot_ns is not None:
        met["tpot"] = tpot_ns <= _ns(slo.tpot_s)
    if slo.itl_p99_s is not None and record.gaps_ns:
        met["itl_p99"] = nearest_rank(record.gaps_ns, 0.99) <= _ns(slo.itl_p99_s)
    if slo.max_gap_s is not None:
        gap_ns = record.max_gap_ns
        if left and record.last_ns is not None:
            # The pause that the client walked out of is a gap too, as far as it went.
            gap_ns = max(gap_ns or 0, record.end_ns - record.last_ns)
        if gap_ns is not None:
            met["max_gap"] = gap_ns <= _ns(slo.max_gap_s)
    if slo.e2e_s is not None:
        met["e2e"] = record.e2e_ns <= _ns(slo.e2e_s)
    return met


def _ttft_bound_ns(record: RequestRecord, slo: SloClass) -> int | None:
    if slo.ttft_s is None:
        return None
    if not slo.ttft_per_prompt_token_s:
        return _ns(slo.ttft_s)
    if record.prompt_tokens is None:
        return None
    return _ns(slo.ttft_s + slo.ttft_per_prompt_token_s * record.prompt_tokens)


def _cause(record: RequestRecord, slo: SloClass, misses: Sequence[str]) -> Bucket:
    """The first cause, in the order TTFT, preemption, stall, decode, E2E."""
    if "ttft" in misses:
        ttft_ns = record.ttft_ns or 0
        waiting_larger = record.queue_ns is not None and 2 * record.queue_ns > ttft_ns
        return Bucket.QUEUE if waiting_larger else Bucket.PREFILL
    pace = [name for name in misses if name != "e2e"]
    if not pace:
        return Bucket.E2E
    if any(_met_without_stalls(name, record, slo) for name in pace):
        return Bucket.PREEMPTION if record.preemptions_rose else Bucket.STALL
    return Bucket.DECODE


def _met_without_stalls(name: str, record: RequestRecord, slo: SloClass) -> bool:
    """Whether the bound ``name``, which was broken, holds once the stalls are taken out."""
    limit_ns = _stall_ns(slo)
    if limit_ns is None:
        return False
    steady = [gap for gap in record.gaps_ns if gap <= limit_ns]
    if len(steady) == len(record.gaps_ns):
        return False
    if name == "max_gap":
        return True  # whatever breaks the max-gap bound is a stall
    if name == "itl_p99":
        return slo.itl_p99_s is not None and (not steady or nearest_rank(steady, 0.99) <= _ns(slo.itl_p99_s))
    return slo.tpot_s is not None and _tpot_without_ns(record, limit_ns) <= _ns(slo.tpot_s)


def _tpot_without_ns(record: RequestRecord, limit_ns: int) -> float:
    """The worst choice's TPOT without its stalls: neither their time nor one token for each counts."""
    worst = 0.0
    gaps = record.gaps_ns
    at = 0
    for choice in record.choices:
        size = max(0, choice.output_chunks - 1)
        own = gaps[at : at + size]
        at += size
        if choice.tpot_ns is None or choice.tokens is None:
            continue
        stalls = [gap for gap in own if gap > limit_ns]
        intervals = choice.tokens - 1 - len(stalls)
        if intervals > 0:
            total_ns = choice.tpot_ns * (choice.tokens - 1)
            worst = max(worst, (total_ns - sum(stalls)) / intervals)
    return worst


def _stall_ns(slo: SloClass) -> int | None:
    limits = [_ns(limit) for limit in (slo.stall_s, slo.max_gap_s) if limit is not None]
    return min(limits, default=None)


def stalls(record: RequestRecord, slo: SloClass) -> int:
    """How many of the request's gaps are stalls by its class; 0 where the class says nothing of stalls."""
    limit_ns = _stall_ns(slo)
    return 0 if limit_ns is None else sum(gap > limit_ns for gap in record.gaps_ns)


def nearest_rank(values: Sequence[int], share: float) -> int:
    """The smallest value at or above the share of all values (nearest rank). ``values`` must not be empty."""
    ordered = sorted(values)
    # Ceiling of share * count, with the share taken to 1e-9 so that 0.99 * 100 is 99.
    rank = -(-round(share * 1e9) * len(ordered) // 1_000_000_000)
    return ordered[max(1, rank) - 1]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
