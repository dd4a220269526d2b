"""Goodput from an engine's histograms alone: not known, but bounded.

A histogram says how many requests met one bound, not which. How many met all of them at once lies between
the Fréchet bounds: at least ``sum(shares) - (k - 1)`` (the misses fall on different requests), at most
``min(shares)`` (they fall on the same ones). Both can be reached, so nothing tighter is true. Where an SLO
bound is no bucket edge each share is an interval itself, and that uncertainty is inside the result.

A histogram's observations are not the finished requests: a first token is observed long before its
request ends, so of a window's first tokens some belong to requests that still run, and some of the requests
that ended had theirs before the window. Misses and hits are therefore counted, not taken as shares, and the
requests that ran when the window began may have gone either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sidecar.engine.quantiles import Share, within
from sidecar.engine.series import History
from sidecar.engine.view import Histogram
from sidecar.requests.judge import SloClass

_COMPLETED = frozenset({"stop", "length"})
_NOT_COMPLETED = frozenset({"abort", "error"})
_NONE_KNOWN = Share(0.0, 1.0)
_HISTOGRAMS = ("ttft", "request_tpot", "itl", "e2e")
_FAMILIES = {
    "ttft": "time_to_first_token_seconds",
    "tpot": "request_time_per_output_token_seconds",
    "e2e": "e2e_request_latency_seconds",
}


@dataclass(frozen=True, slots=True)
class Marginal:
    """The share of requests that met a bound: ``bound`` is ttft, tpot, itl_p99, max_gap, e2e or completed."""

    bound: str
    threshold_s: float | None
    share: Share
    note: str = ""


@dataclass(frozen=True, slots=True)
class GoodputBounds:
    """Good requests among ``requests`` finished ones lie in [``good_low``, ``good_high``]."""

    requests: float
    good_low: float
    good_high: float
    marginals: tuple[Marginal, ...]
    elapsed_s: float | None = None

    @property
    def share_low(self) -> float:
        """Good / finished, at least."""
        return self.good_low / self.requests

    @property
    def share_high(self) -> float:
        """Good / finished, at most."""
        return self.good_high / self.requests

    @property
    def rps_low(self) -> float | None:
        """Goodput in requests per second, at least; ``None`` without a window."""
        return self.good_low / self.elapsed_s if self.elapsed_s else None

    @property
    def rps_high(self) -> float | None:
        """Goodput in requests per second, at most."""
        return self.good_high / self.elapsed_s if self.elapsed_s else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the bounds are wider than they could be, one sentence each."""
        return tuple(marginal.note for marginal in self.marginals if marginal.note)


def joint(shares: Iterable[Share]) -> tuple[float, float]:
    """Fréchet bounds of the share that is in all the given shares at once; (0, 1) is all that none says."""
    known = list(shares)
    low = max(0.0, sum(share.low for share in known) - (len(known) - 1)) if known else 0.0
    return low, min((share.high for share in known), default=1.0)


def goodput_bounds(
    histograms: Mapping[str, Histogram],
    slo: SloClass,
    *,
    success_by_reason: Mapping[str, float] | None = None,
    elapsed_s: float | None = None,
    in_flight_before: float = 0.0,
) -> GoodputBounds | None:
    """Bounds from the canonical histograms ``ttft``, ``request_tpot``, ``itl`` and ``e2e`` of one window.
    ``in_flight_before`` requests ran or waited when it began (0 for all since the engine's start).

    ``None`` when no request finished or the class has no bound at all. A bound that nothing on the page can
    judge leaves its share unknown (0 to 1), with a note. Times are the engine's own, without the network.
    """
    requests = _finished(histograms, success_by_reason)
    marginals = [
        marginal
        for marginal in (
            _ttft(histograms.get("ttft"), slo, requests, in_flight_before),
            _plain("tpot", histograms.get("request_tpot"), slo.tpot_s, requests),
            _plain("e2e", histograms.get("e2e"), slo.e2e_s, requests),
            _gaps("max_gap", histograms, slo.max_gap_s, requests, in_flight_before),
            _gaps("itl_p99", histograms, slo.itl_p99_s, requests, in_flight_before),
        )
        if marginal is not None
    ]
    if not requests > 0 or not marginals:
        return None
    completed = _completed(success_by_reason)
    if completed is not None:
        marginals.append(completed)
    low, high = joint(marginal.share for marginal in marginals)
    return GoodputBounds(requests, low * requests, high * requests, tuple(marginals), elapsed_s)


def goodput_of(
    history: History, slo: SloClass, now_ns: int, window_s: float | None = None
) -> GoodputBounds | None:
    """The bounds over a window of scrapes; ``None`` also when the engine's values are stale."""
    found = {name: history.histogram(name, now_ns, window_s) for name in _HISTOGRAMS}
    finished = history.increase_by("success", "finished_reason", now_ns, window_s)
    by_reason = {reason: one.value or 0.0 for reason, one in finished.items()} if finished else None
    elapsed_s = next(iter(finished.values())).elapsed_s if finished else None
    return goodput_bounds(
        {name: one for name, one in found.items() if one is not None},
        slo,
        success_by_reason=by_reason,
        elapsed_s=elapsed_s,
        in_flight_before=history.in_flight_before(now_ns, window_s),
    )


@dataclass(slots=True)
class BoundsCheck:
    """The standing self-check: exact goodput, where requests are seen, must lie within the engine's bounds.

    Counts outcomes for the publisher. ``outside`` means that one of the two is wrong: the meter, the
    mapping, or an engine that changed what a histogram means.
    """

    inside: int = 0
    outside: int = 0
    not_comparable: int = 0
    last: str = field(default="")

    def compare(
        self, bounds: GoodputBounds | None, good: int, finished: int, in_flight: float
    ) -> bool | None:
        """True, false, or ``None`` where the two cannot be compared. See :func:`consistent`."""
        answer = consistent(bounds, good, finished, in_flight)
        if answer is None:
            self.not_comparable += 1
        elif answer:
            self.inside += 1
        else:
            self.outside += 1
            if bounds is not None:
                self.last = (
                    f"{good} good requests, but the engine says {bounds.good_low:g} to {bounds.good_high:g}"
                )
        return answer


def consistent(bounds: GoodputBounds | None, good: int, finished: int, in_flight: float) -> bool | None:
    """Whether an exact count of good requests fits the bounds of the same window.

    ``finished``: requests that the exact side saw end. ``in_flight``: requests running at the window's ends;
    they may count on one side and not yet on the other, as may those that only one side saw, so the bounds
    are widened by both. ``None`` when there are no bounds, nothing finished, or that slack is half or more of
    all requests: then the answer would mean nothing.
    """
    if bounds is None or finished <= 0:
        return None
    slack = abs(finished - bounds.requests) + in_flight
    if slack >= 0.5 * max(finished, bounds.requests):
        return None
    return bounds.good_low - slack <= good + 1e-6 and good - 1e-6 <= bounds.good_high + slack


def _finished(histograms: Mapping[str, Histogram], by_reason: Mapping[str, float] | None) -> float:
    if by_reason:
        return sum(by_reason.values())
    for name in ("e2e", "request_tpot", "ttft"):
        if name in histograms:
            return histograms[name].count
    return 0.0


def _completed(by_reason: Mapping[str, float] | None) -> Marginal | None:
    total = sum(by_reason.values()) if by_reason else 0.0
    if by_reason is None or not total > 0:
        return None
    surely = sum(count for reason, count in by_reason.items() if reason in _COMPLETED)
    surely_not = sum(count for reason, count in by_reason.items() if reason in _NOT_COMPLETED)
    note = ""
    if surely + surely_not < total:
        note = "finish reasons that may or may not be a completion: " + ", ".join(
            sorted(set(by_reason) - _COMPLETED - _NOT_COMPLETED)
        )
    return Marginal("completed", None, Share(surely / total, 1.0 - surely_not / total), note)


def _plain(
    bound: str, histogram: Histogram | None, threshold_s: float | None, requests: float, unseen: float = 0.0
) -> Marginal | None:
    """``unseen`` of the finished requests may have been observed before the window."""
    if threshold_s is None:
        return None
    share = within(histogram, threshold_s) if histogram is not None else None
    if histogram is None or share is None or not requests > 0:
        text = f"{bound}: nothing observed in {_FAMILIES[bound]}: share unknown"
        return Marginal(bound, threshold_s, _NONE_KNOWN, text)
    missed, met = histogram.count * (1.0 - share.low), histogram.count * share.high
    # What finished without any observation (no token, or only one) breaks no bound on it.
    unseen = min(unseen, requests)
    low = max(0.0, 1.0 - (missed + unseen) / requests)
    high = min(1.0, (met + max(unseen, requests - histogram.count)) / requests)
    return Marginal(bound, threshold_s, Share(low, max(low, high)), _edge_note(bound, threshold_s, share))


def _ttft(
    histogram: Histogram | None, slo: SloClass, requests: float, in_flight_before: float
) -> Marginal | None:
    marginal = _plain("ttft", histogram, slo.ttft_s, requests, in_flight_before)
    if slo.ttft_per_prompt_token_s is None:
        return marginal
    if marginal is None:
        return Marginal(
            "ttft", None, _NONE_KNOWN, "ttft: a bound by prompt length cannot be read from a histogram"
        )
    # The bound only grows with the prompt, so what met its constant part has met it.
    return Marginal(
        "ttft",
        slo.ttft_s,
        Share(marginal.share.low, 1.0),
        "ttft: the part of the bound that grows with the prompt cannot be read from a histogram",
    )


def _gaps(
    bound: str,
    histograms: Mapping[str, Histogram],
    threshold_s: float | None,
    requests: float,
    in_flight_before: float,
) -> Marginal | None:
    """From gaps to requests: each request that breaks the bound has at least one gap above it.

    So no more requests break it than there are such gaps (and than had some of theirs before the window). And
    where there is such a gap at all, at least one request breaks a bound on its longest gap (not so one on a
    percentile of its gaps), unless it is that of a request that still runs.
    """
    if threshold_s is None:
        return None
    itl, ttft = histograms.get("itl"), histograms.get("ttft")
    share = within(itl, threshold_s) if itl is not None else None
    if itl is None or share is None or not requests > 0:
        return Marginal(
            bound, threshold_s, _NONE_KNOWN, f"{bound}: no gaps between outputs observed: share unknown"
        )
    most, least = itl.count * (1.0 - share.low), itl.count * (1.0 - share.high)
    low = max(0.0, 1.0 - (most + in_flight_before) / requests)
    all_ended = in_flight_before == 0 and ttft is not None and ttft.count <= requests
    high = 1.0 - min(1.0, 1.0 / requests) if bound == "max_gap" and all_ended and least > 0.5 else 1.0
    return Marginal(bound, threshold_s, Share(low, max(low, high)), _edge_note(bound, threshold_s, share))


def _edge_note(bound: str, threshold_s: float, share: Share) -> str:
    if (
        share.below == threshold_s
        or share.above == threshold_s
        or (share.exact and share.below == share.above)
    ):
        return ""
    if share.above is None:
        edge = "no edge" if share.below is None else f"the last edge, {share.below:g} s"
        return f"{bound}: the bound of {threshold_s:g} s lies above {edge}: beyond it nothing is told apart"
    below = "0" if share.below is None else f"{share.below:g}"
    return (
        f"{bound}: the bound of {threshold_s:g} s is no bucket edge; it lies between {below} s and "
        f"{share.above:g} s, either of which would be exact"
    )
