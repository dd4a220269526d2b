"""The figures of one load level, drawn from what came back. Pure.

The rule for edges: a request belongs to the level in whose measured window it *started* (open loop: was
scheduled, sent or not). The drain waits for those; the window's length divides. What started in the warm-up
or in the drain only makes load. Failed requests never enter a latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from loadgen.guards import Expectations, Finding, examine
from loadgen.plan import LevelPlan, Measured
from loadgen.results import ClassResult, LevelResult
from loadgen.stats import Distribution, Started, batch_means_interval, closed_loop_interval, quantiles_of
from sidecar.requests.records import Outcome, RequestRecord
from sidecar.requests.slo import SloClass, SloPolicy, Verdict, judge


def started_at(record: RequestRecord) -> int:
    """The moment that decides to which window a request belongs: scheduled where there is a schedule."""
    return record.start_ns if record.scheduled_ns is None else record.scheduled_ns


def in_window(records: Iterable[RequestRecord], window_ns: tuple[int, int]) -> list[RequestRecord]:
    """The requests that started inside the half-open window."""
    return [r for r in records if window_ns[0] <= started_at(r) < window_ns[1]]


def mean_in_flight(records: Iterable[RequestRecord], window_ns: tuple[int, int]) -> float:
    """Time average of requests on the server during the window, whichever window they belong to."""
    start_ns, end_ns = window_ns
    busy_ns = 0
    for record in records:
        sent_ns = record.start_ns if record.sent_ns is None else record.sent_ns
        busy_ns += max(0, min(record.end_ns, end_ns) - max(sent_ns, start_ns))
    return busy_ns / (end_ns - start_ns)


def send_lags_ns(records: Iterable[RequestRecord]) -> list[int]:
    """How long after its due time each request was sent; one never sent counts until it was given up."""
    return [
        (r.end_ns if r.sent_ns is None else r.sent_ns) - r.scheduled_ns
        for r in records
        if r.scheduled_ns is not None
    ]


def _window_of(plan: LevelPlan, measured: Measured) -> tuple[int, int]:
    start_ns, end_ns = plan.window_ns
    if measured.cut_ns is not None:
        end_ns = max(start_ns + 1, min(end_ns, measured.cut_ns))
    return start_ns, end_ns


def level_result(
    plan: LevelPlan,
    measured: Measured,
    slo: SloClass | SloPolicy,
    expectations: Expectations | None = None,
) -> LevelResult:
    """All figures of one level. With a policy, each request is judged by the bounds of its own class.

    ``expectations`` is what the workload promised (output lengths, no shared prefixes); what does not hold
    becomes a flag. A latency without any completed request is absent, never zero.
    """
    window_ns = _window_of(plan, measured)
    window_s = (window_ns[1] - window_ns[0]) / 1e9
    records = in_window(measured.records, window_ns)
    policy = SloPolicy(slo, (slo,)) if isinstance(slo, SloClass) else slo
    verdicts = [judge(record, policy.class_for(record)) for record in records]
    completed = [r for r in records if r.outcome is Outcome.COMPLETED]
    good = [r for r, verdict in zip(records, verdicts, strict=True) if verdict.good]
    eligible = sum(verdict.eligible for verdict in verdicts)
    lags = Distribution()
    lags.record_all(max(0, lag) for lag in send_lags_ns(records))
    e2e = quantiles_of(r.e2e_ns for r in completed)
    in_flight = mean_in_flight(measured.records, window_ns)
    known_prompts = [r.prompt_tokens for r in completed if r.prompt_tokens is not None]
    badput, untold = share_out_waiting(_badput(verdicts), measured.engine)
    findings = (
        *measured.findings,
        *([untold] if untold is not None else []),
        *[Finding("unaccounted", text) for text in (measured.books.unexplained if measured.books else ())],
        *examine(
            load=plan.load,
            open_loop=plan.arrivals.open_loop,
            records=records,
            send_lag_p99_s=lags.at(0.99),
            in_flight_mean=in_flight,
            cpu_share=measured.client.cpu_share,
            loop_lag_p99_s=measured.client.loop_lag_p99_s,
            stamp=measured.client.stamp,
            shared_stamp_share=measured.client.shared_stamp_share,
            engine=measured.engine,
            expectations=expectations or Expectations(),
            cut=measured.cut_ns is not None,
        ),
    )
    return LevelResult(
        load=plan.load,
        kind="rate" if plan.arrivals.open_loop else "concurrency",
        started_wall=measured.started_wall,
        warmup_s=plan.warmup_s,
        window_s=window_s,
        drain_s=measured.drain_s,
        sent=len(records),
        completed=len(completed),
        eligible=eligible,
        good=len(good),
        not_eligible=len(records) - eligible,
        badput=badput,
        errors=dict(Counter(r.error_kind.value for r in records if r.error_kind is not None)),
        goodput_rps=len(good) / window_s,
        goodput_ci_rps=_interval(
            records,
            verdicts,
            (window_ns[0] / 1e9, window_ns[1] / 1e9),
            always_in_flight=not (plan.arrivals.open_loop or (expectations and expectations.thinks)),
        ),
        token_goodput_tps=_tokens(good) / window_s,
        throughput_rps=len(completed) / window_s,
        output_tps=_tokens(completed) / window_s,
        attainment=len(good) / eligible if eligible else None,
        ttft=quantiles_of(t for r in completed if (t := r.ttft_ns) is not None),
        tpot=quantiles_of(tpot for r in completed if (tpot := r.tpot_ns) is not None),
        itl=quantiles_of(gap for r in completed for gap in r.gaps_ns),
        e2e=e2e,
        in_flight_mean=in_flight,
        output_tokens=_tokens(completed),
        prompt_tokens=sum(known_prompts) if known_prompts else None,
        tokens_estimated=any(r.tokens_estimated for r in completed),
        send_lag_p99_s=lags.at(0.99),
        client_cpu_share=measured.client.cpu_share,
        valid=not any(finding.voids for finding in findings),
        flags=tuple(str(finding) for finding in findings),
        engine=dict(measured.engine),
        classes=_by_class(records, verdicts, window_s),
        books=measured.books.sides if measured.books else {},
        books_notes=(*measured.books.notes, *measured.books.unexplained) if measured.books else (),
    )


def _by_class(
    records: Sequence[RequestRecord], verdicts: Sequence[Verdict], window_s: float
) -> dict[str, ClassResult]:
    """The figures of each named class; none where all requests are of one kind."""
    pairs: dict[str, list[tuple[RequestRecord, Verdict]]] = {}
    for record, verdict in zip(records, verdicts, strict=True):
        pairs.setdefault(record.request_class, []).append((record, verdict))
    if len(pairs) < 2:
        return {}
    return {name: _class_result(found, window_s) for name, found in sorted(pairs.items())}


def _class_result(found: Sequence[tuple[RequestRecord, Verdict]], window_s: float) -> ClassResult:
    completed = [r for r, _ in found if r.outcome is Outcome.COMPLETED]
    eligible = sum(v.eligible for _, v in found)
    good = sum(v.good for _, v in found)
    return ClassResult(
        sent=len(found),
        completed=len(completed),
        eligible=eligible,
        good=good,
        badput=_badput([v for _, v in found]),
        goodput_rps=good / window_s,
        attainment=good / eligible if eligible else None,
        ttft=quantiles_of(t for r in completed if (t := r.ttft_ns) is not None),
        tpot=quantiles_of(tpot for r in completed if (tpot := r.tpot_ns) is not None),
        e2e=quantiles_of(r.e2e_ns for r in completed),
        output_tokens=_tokens(completed),
    )


def _interval(
    records: Sequence[RequestRecord],
    verdicts: Sequence[Verdict],
    window_s: tuple[float, float],
    *,
    always_in_flight: bool,
) -> tuple[float, float] | None:
    requests = [
        Started(started_at(r) / 1e9, v.good, r.e2e_ns / 1e9) for r, v in zip(records, verdicts, strict=True)
    ]
    if always_in_flight and all(r.outcome is Outcome.COMPLETED for r in records):
        return closed_loop_interval(requests, window_s)
    e2e_s = sum(r.e2e_s for r in requests) / len(requests) if requests else None
    return batch_means_interval([r.at_s for r in requests if r.good], window_s, e2e_s)


def _badput(verdicts: Sequence[Verdict]) -> dict[str, int]:
    return dict(
        Counter(v.bucket.value for v in verdicts if v.eligible and not v.good and v.bucket is not None)
    )


def share_out_waiting(
    badput: dict[str, int], engine: dict[str, float]
) -> tuple[dict[str, int], Finding | None]:
    """TTFT misses told apart into ``queue`` and ``prefill``, which a client cannot see by itself.

    The judge counts them all as ``prefill``. Where the engine's own mean queue and prefill times over the
    window are known, the misses are shared out in proportion to those (an estimate for the level as a whole,
    not a verdict on each request); elsewhere a finding says that they cannot be told apart.
    """
    misses = badput.get("prefill", 0)
    if not misses:
        return badput, None
    queue_s, prefill_s = engine.get("queue_mean_s"), engine.get("prefill_mean_s")
    if queue_s is None or prefill_s is None or queue_s + prefill_s <= 0:
        return badput, Finding(
            "ttft_cause",
            "TTFT misses are counted as prefill: the client cannot tell waiting from prefill, and the "
            "server's metrics were not there to say",
        )
    queued = round(misses * queue_s / (queue_s + prefill_s))
    shared = {**badput, "queue": badput.get("queue", 0) + queued, "prefill": misses - queued}
    return {bucket: count for bucket, count in shared.items() if count}, None


def _tokens(records: Iterable[RequestRecord]) -> int:
    return sum(r.output_tokens or 0 for r in records)
