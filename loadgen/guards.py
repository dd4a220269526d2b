"""When not to believe a level: pure checks whose findings are printed with it, and may void it.

Each limit is written here once, with the reason for its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.requests.records import Outcome, RequestRecord

# A request sent this late has a TTFT that is the generator's fault rather than the server's. Locust's
# dispatcher holds about 2 ms; a tenth of a second is far outside that and well inside any TTFT bound in use.
MAX_SEND_LAG_S = 0.1
# In closed loop the users must be on the server nearly all the time, else the level is not the load it says.
MIN_LOAD_HELD = 0.9
# Above this share of its one core the process queues its own events.
MAX_CPU_SHARE = 0.95
# A later event loop than this makes late stamps, unless the kernel's stamps make up for it.
MAX_LOOP_LAG_S = 0.02
MAX_SHARED_STAMPS = 0.1
# Above this prefix-cache hit rate, prompts meant to be distinct were not new to the server.
MAX_HIT_RATE = 0.1
# More requests on the server than ours by this much cannot be the few scrapes' chance.
FOREIGN_SHARE = 1.25
FOREIGN_REQUESTS = 2.0
# Fewer outputs of the length asked for than this, and the workload is another than the one named.
MIN_AS_ASKED = 0.95


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know about a level. ``voids``: the level says nothing about the server and is not used."""

    code: str
    text: str
    voids: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the workload promised, for comparison with what came back."""

    exact_outputs: bool = False  # ignore_eos: every answer must have the length asked for
    own_hit_rate: float | None = 0.0  # share of prompt tokens shared on purpose; None: cannot be said
    model: str = ""  # the model asked for, where a record does not say otherwise
    thinks: bool = False  # users pause between requests, and are then not in flight
    inexact_classes: frozenset[str] = frozenset()  # classes whose answers end by themselves


def client_limited(
    *,
    load: float,
    open_loop: bool,
    failures: int,
    sent: int,
    send_lag_p99_s: float | None,
    in_flight_mean: float | None,
    cpu_share: float | None,
) -> Finding | None:
    """Whether the generator, not the server, held the level back.

    Open loop: requests left late, whether the process was busy or its ceiling on requests in flight was
    reached. Closed loop: the users were not in flight all the time (answers that fail at once explain that
    otherwise).
    """
    remedy = "use more --workers"
    if open_loop and send_lag_p99_s is not None and send_lag_p99_s > MAX_SEND_LAG_S:
        return Finding(
            "client_limited",
            f"requests left {send_lag_p99_s:.3f} s late (p99); {remedy} or raise --max-in-flight",
            voids=True,
        )
    if cpu_share is not None and cpu_share > MAX_CPU_SHARE:
        return Finding(
            "client_limited", f"the generator used {cpu_share:.0%} of its core; {remedy}", voids=True
        )
    held_back = in_flight_mean is not None and in_flight_mean < MIN_LOAD_HELD * load
    if not open_loop and sent and failures * 10 < sent and held_back:
        return Finding(
            "client_limited",
            f"only {in_flight_mean:.1f} of {load:g} requests were in flight on average; {remedy}",
            voids=True,
        )
    return None


def output_lengths(pairs: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """(share of answers exactly as long as asked, mean length) of (asked, got) pairs; ``None`` for none."""
    if not pairs:
        return None
    as_asked = sum(asked == got for asked, got in pairs) / len(pairs)
    return as_asked, sum(got for _, got in pairs) / len(pairs)


def short_outputs(pairs: Sequence[tuple[int, int]]) -> Finding | None:
    """A finding where answers asked for with ``ignore_eos`` came back with another length."""
    figures = output_lengths(pairs)
    if figures is None or figures[0] >= MIN_AS_ASKED:
        return None
    asked = sum(pair[0] for pair in pairs) / len(pairs)
    return Finding(
        "output_length",
        f"output length: only {figures[0]:.0%} of answers are as long as asked "
        f"(mean {figures[1]:.1f} tokens of {asked:.1f}); short outputs flatter every figure",
    )


def prefix_hit_rate(
    *, queries_before: float, hits_before: float, queries_after: float, hits_after: float
) -> float | None:
    """Share of prompt tokens found in the server's prefix cache between two scrapes.

    ``None`` where no token was asked for or the counters were reset in between.
    """
    queries = queries_after - queries_before
    hits = hits_after - hits_before
    return hits / queries if queries > 0 and hits >= 0 else None


def warm_prefix(
    hit_rate: float | None, *, shared_prefix: bool = False, own_rate: float | None = 0.0
) -> Finding | None:
    """A finding where the server's prefix cache held more than the workload shares by itself.

    ``own_rate`` is what an endless cache would find by the workload's own doing (``None`` or
    ``shared_prefix``: not known, so nothing can be said).
    """
    if hit_rate is None or shared_prefix or own_rate is None or hit_rate <= own_rate + MAX_HIT_RATE:
        return None
    if own_rate > 0:
        return Finding(
            "prefix_cache",
            f"the prefix cache held {hit_rate:.0%} of the prompt tokens though the workload shares only "
            f"{own_rate:.0%}; use another --seed or restart the server",
        )
    return Finding(
        "prefix_cache",
        f"the prefix cache held {hit_rate:.0%} of the prompt tokens though no prefix is shared on purpose; "
        "use another --seed or restart the server",
    )


def foreign_traffic(engine: dict[str, float], in_flight_mean: float | None) -> Finding | None:
    """A finding where the server had clearly more requests than this generator sent it."""
    running = engine.get("running_mean")
    if running is None or in_flight_mean is None:
        return None
    there = running + engine.get("waiting_mean", 0.0)
    if there <= FOREIGN_SHARE * in_flight_mean + FOREIGN_REQUESTS:
        return None
    return Finding(
        "foreign_traffic",
        f"the server had {there:.1f} requests on average, of which {in_flight_mean:.1f} were ours",
    )


def late_stamps(stamp: str, loop_lag_p99_s: float | None, shared_stamp_share: float | None) -> Finding | None:
    """A finding where arrival times cannot be trusted because the generator came too late to its sockets.

    The kernel stamps each segment on arrival, but segments that wait unread are merged and keep only the
    newest stamp. So a late reader does harm where it reads its own clock, or where many reads carried several
    chunks. (A prompt reader that finds several chunks in one read got them in one from the server.)
    """
    if loop_lag_p99_s is None or loop_lag_p99_s <= MAX_LOOP_LAG_S:
        return None
    late = f"the generator came {loop_lag_p99_s * 1e3:.0f} ms late to its sockets (p99)"
    if stamp == "read":
        return Finding(
            "late_stamps", f"{late} and the kernel gives no arrival times; use more --workers", voids=True
        )
    if shared_stamp_share is not None and shared_stamp_share > MAX_SHARED_STAMPS:
        return Finding(
            "late_stamps",
            f"{late} and {shared_stamp_share:.0%} of its reads hold several chunks; use more --workers",
            voids=True,
        )
    return None


def examine(
    *,
    load: float,
    open_loop: bool,
    records: Sequence[RequestRecord],
    send_lag_p99_s: float | None,
    in_flight_mean: float | None,
    cpu_share: float | None,
    loop_lag_p99_s: float | None,
    stamp: str,
    shared_stamp_share: float | None,
    engine: dict[str, float],
    expectations: Expectations,
    cut: bool,
) -> list[Finding]:
    """Every finding about one level, the voiding ones first."""
    # What was under way when the level was cut short was ended by us: that is no failure of the server.
    ours = sum(r.outcome is Outcome.CLIENT_LEFT for r in records) if cut else 0
    ended = len(records) - ours
    failures = ended - sum(r.outcome is Outcome.COMPLETED for r in records)
    findings = [
        client_limited(
            load=load,
            open_loop=open_loop,
            failures=failures,
            sent=len(records),
            send_lag_p99_s=send_lag_p99_s,
            in_flight_mean=None if cut or expectations.thinks else in_flight_mean,
            cpu_share=cpu_share,
        )
    ]
    if cut:
        findings.append(Finding("interrupted", "the level was cut short", voids=True))
    if not records and not cut:
        findings.append(Finding("empty", "no request started in the window; make it longer", voids=True))
    elif failures == ended and ended:
        findings.append(Finding("all_failed", f"all {failures} requests failed"))
    elif failures:
        findings.append(Finding("failures", f"{failures} of {ended} requests failed"))
    findings.append(late_stamps(stamp, loop_lag_p99_s, shared_stamp_share))
    if expectations.exact_outputs:
        pairs = [
            (int(asked), r.output_tokens)
            for r in records
            if r.outcome is Outcome.COMPLETED
            and r.output_tokens is not None
            and (asked := r.extra.get("asked_tokens")) is not None
            and r.request_class not in expectations.inexact_classes
        ]
        findings.append(short_outputs(pairs))
    findings.append(warm_prefix(engine.get("prefix_hit_rate"), own_rate=expectations.own_hit_rate))
    findings.append(None if cut else foreign_traffic(engine, in_flight_mean))
    if expectations.model:
        others = sorted(
            {
                (r.model, asked)
                for r in records
                if r.model
                and r.outcome is Outcome.COMPLETED
                and r.model != (asked := r.extra.get("asked_model", expectations.model))
            }
        )
        if others:
            said = "; ".join(f"answers came from {got}, not {asked}" for got, asked in others)
            findings.append(Finding("other_model", said))
    return sorted((f for f in findings if f is not None), key=lambda finding: not finding.voids)
