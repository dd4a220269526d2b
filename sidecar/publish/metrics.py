"""From the live picture to metric families. Pure but for the process's own figures, which are passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sidecar import __version__
from sidecar.derive.budget import BURN_WINDOWS_S
from sidecar.derive.classes import ClassState
from sidecar.derive.distserve import SHARES, defined
from sidecar.derive.live import Live
from sidecar.derive.names import OTHER, Bounded, ModelNames
from sidecar.derive.selfcheck import attainment_bounds
from sidecar.derive.windows import LATENCIES, WINDOWS
from sidecar.engine.scrape import ScrapeStats
from sidecar.engine.view import EngineView, Histogram, HistogramSignal, SeriesId, Signal, merge
from sidecar.publish.budget import DEFAULT_MAX_SERIES, keep_within
from sidecar.publish.catalog import METRICS
from sidecar.publish.exposition import Buckets, Exemplar, Family
from sidecar.requests.slo import Bucket, SloClass
from sidecar.slices import Steps, at_once

_ENGINE_SIGNALS = {
    "running": "goodput_engine_running_requests",
    "waiting": "goodput_engine_waiting_requests",
    "kv_usage": "goodput_engine_kv_usage_ratio",
    "preemptions": "goodput_engine_preemptions_total",
    "prompt_tokens": "goodput_engine_prompt_tokens_total",
    "generation_tokens": "goodput_engine_generation_tokens_total",
    "prefix_queries": "goodput_engine_prefix_queries_total",
    "prefix_hits": "goodput_engine_prefix_hits_total",
    "success": "goodput_engine_finished_requests_total",
}
_ENGINE_HISTOGRAMS = {
    "ttft": "goodput_engine_ttft_seconds",
    "itl": "goodput_engine_itl_seconds",
    "request_tpot": "goodput_engine_tpot_seconds",
    "e2e": "goodput_engine_e2e_seconds",
    "queue": "goodput_engine_queue_seconds",
    "prefill": "goodput_engine_prefill_seconds",
}
_MAX_PAIRS = 64  # of engine and model, and of model and class
SLO_BOUNDS = ("ttft_s", "tpot_s", "itl_p99_s", "max_gap_s", "e2e_s", "stall_s")


@dataclass(frozen=True, slots=True)
class ProxyView:
    """What the proxy counts."""

    in_flight: int = 0
    requests: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessView:
    """The sidecar's own process. Bytes, seconds, Unix time."""

    cpu_s: float | None = None
    resident_bytes: int | None = None
    start_time_s: float | None = None
    open_fds: int | None = None


def families(
    live: Live,
    now_ns: int,
    *,
    proxy: ProxyView | None = None,
    scrapes: ScrapeStats | None = None,
    process: ProcessView | None = None,
    more: Iterable[Family] = (),
    max_series: int = DEFAULT_MAX_SERIES,
) -> list[Family]:
    """The whole page, in the catalogue's order, then what ``more`` brings beyond the catalogue. At most
    ``max_series`` time series, unless the budget is too small for goodput itself."""
    return at_once(
        families_in_steps(
            live, now_ns, proxy=proxy, scrapes=scrapes, process=process, more=more, max_series=max_series
        )
    )


def families_in_steps(
    live: Live,
    now_ns: int,
    *,
    proxy: ProxyView | None = None,
    scrapes: ScrapeStats | None = None,
    process: ProcessView | None = None,
    more: Iterable[Family] = (),
    max_series: int = DEFAULT_MAX_SERIES,
) -> Steps[list[Family]]:
    """The same, a class or a family at a time: what belongs together is taken in one step."""
    page = {metric.name: metric.family() for metric in METRICS}
    for state in live.sorted_classes():
        _class(page, state, now_ns)
        _distserve(page, state, now_ns, live.gpus)
        yield
    _not_yet_seen(page, live)
    _slo(page, live.slos, live.objective)
    _autoscale(page, live, now_ns, proxy)
    yield from _engine(page, live, now_ns, scrapes)
    yield from _bounds(page, live, now_ns)
    _self(page, live, proxy, process)
    for family in more:
        # What the catalogue knows takes its HELP and TYPE from there; other conventions bring their own.
        page.setdefault(family.name, family).samples = family.samples
    keep_within(page, max_series)
    return list(page.values())


def _class(page: dict[str, Family], state: ClassState, now_ns: int) -> None:
    labels = {"model": state.model, "class": state.name}
    totals = state.totals
    page["goodput_eligible_requests_total"].add(totals.eligible, **labels)
    page["goodput_good_requests_total"].add(totals.good, **labels)
    page["goodput_output_tokens_total"].add(totals.output_tokens, **labels)
    page["goodput_good_output_tokens_total"].add(totals.good_tokens, **labels)
    page["goodput_prompt_tokens_total"].add(totals.prompt_tokens, **labels)
    page["goodput_estimated_requests_total"].add(totals.estimated, **labels)
    for name, label, counts in (
        # Each bucket stands there from the start, so that rate() sees its first request.
        ("goodput_badput_requests_total", "bucket", {b.value: 0 for b in Bucket} | totals.badput),
        ("goodput_not_eligible_requests_total", "reason", totals.not_eligible),
        ("goodput_failed_requests_total", "kind", totals.errors),
    ):
        for key, count in sorted(counts.items()):
            page[name].add(count, **labels, **{label: key})
    for spec in WINDOWS:
        recent = state.rings[spec.name].counts(now_ns)
        covered_s = state.rings[spec.name].covered_s(now_ns, state.since_ns)
        at = {**labels, "window": spec.name}
        page["goodput_good_requests_per_second"].add(recent.good / covered_s, **at)
        page["goodput_good_output_tokens_per_second"].add(recent.good_tokens / covered_s, **at)
        page["goodput_attainment_ratio"].add(recent.attainment, **at)
        page["goodput_fluidity_ratio"].add(recent.fluidity, **at)
    now_s = now_ns / 1e9
    page["goodput_error_budget_left_ratio"].add(state.budget.left(now_s), **labels)
    for window in BURN_WINDOWS_S:
        burn = state.budget.burn(now_s, window)
        page["goodput_error_budget_burn_rate"].add(burn, **labels, window=window)
    for latency in LATENCIES:
        histogram = state.histograms[latency]
        exemplars = {
            at: Exemplar(one.trace_id, one.value_s, one.wall_s)
            for at, one in state.exemplars[latency].items()
        }
        buckets = Buckets(histogram.edges_s, histogram.cumulative(), histogram.sum_s, exemplars)
        page[f"goodput_{latency}_seconds"].add(buckets, **labels)


def _distserve(page: dict[str, Family], state: ClassState, now_ns: int, gpus: float | None) -> None:
    if not defined(state.slo):
        return
    labels = {"model": state.model, "class": state.name}
    page["goodput_distserve_requests_total"].add(state.totals.distserve, **labels)
    for name, ring in state.rings.items():
        rate = ring.counts(now_ns).distserve / ring.covered_s(now_ns, state.since_ns)
        page["goodput_distserve_requests_per_second"].add(rate, **labels, window=name)
    for share in SHARES:
        rate_kept = state.kept_rate(share, now_ns)
        for per, over in (("replica", 1.0), ("gpu", gpus)):
            if rate_kept is not None and over:
                at = {**labels, "share": f"{share:g}", "per": per}
                page["goodput_distserve_kept_requests_per_second"].add(rate_kept / over, **at)


def _not_yet_seen(page: dict[str, Family], live: Live) -> None:
    """Zeros for what may come: a counter that begins at its first burst hides that burst from rate()."""
    pairs = [(model, slo.name) for model in sorted(live.models.served) for slo in live.slos]
    for pair in [pair for pair in pairs if pair not in live.classes][
        : max(0, _MAX_PAIRS - len(live.classes))
    ]:
        labels = {"model": pair[0], "class": pair[1]}
        page["goodput_eligible_requests_total"].add(0, **labels)
        page["goodput_good_requests_total"].add(0, **labels)
        for bucket in Bucket:
            page["goodput_badput_requests_total"].add(0, **labels, bucket=bucket.value)


def _slo(page: dict[str, Family], classes: Iterable[SloClass], objective: float) -> None:
    for slo in classes:
        page["goodput_slo_objective_ratio"].add(objective, **{"class": slo.name})
        for bound in SLO_BOUNDS:
            value = getattr(slo, bound)
            name = bound.removesuffix("_s")
            page["goodput_slo_bound_seconds"].add(value, **{"class": slo.name, "bound": name})


def _autoscale(page: dict[str, Family], live: Live, now_ns: int, proxy: ProxyView | None) -> None:
    found = live.autoscale(now_ns, proxy.in_flight if proxy is not None else None)
    page["goodput_saturation"].add(found.saturation)
    page["goodput_in_flight_requests"].add(found.in_flight)
    if live.capacity is not None:
        page["goodput_peak_load_requests"].add(live.capacity.peak_load)


def _engine(page: dict[str, Family], live: Live, now_ns: int, scrapes: ScrapeStats | None) -> Steps[None]:
    engine = live.engine
    page["goodput_engine_up"].add(1 if engine is not None and engine.up else 0)
    if engine is None:
        page["goodput_engine_down_reason"].add(1, reason="not_yet_scraped")
    elif not engine.up:
        page["goodput_engine_down_reason"].add(1, reason=engine.code or "unknown")
    page["goodput_engine_last_scrape_age_seconds"].add(live.engine_age_s(now_ns))
    page["goodput_engine_restarts_total"].add(live.watch.history.restarts)
    if scrapes is not None:
        page["goodput_engine_scrapes_total"].add(scrapes.scrapes)
        page["goodput_engine_scrape_duration_seconds"].add(scrapes.last_duration_s)
        page["goodput_engine_scrape_bytes"].add(scrapes.last_bytes)
        page["goodput_engine_scrape_lines"].add(scrapes.last_lines)
        page["goodput_engine_skipped_lines_total"].add(scrapes.skipped_lines)
        for reason, count in sorted(scrapes.failures.items()):
            page["goodput_engine_scrape_failures_total"].add(count, reason=reason)
    view = engine.view if engine is not None else None
    if view is None:
        return
    page["goodput_engine_info"].add(1, server=view.server or "unknown", version=view.version or "unknown")
    page["goodput_engine_unmapped_families"].add(len(view.unmapped))
    yield from _signals(page, view)
    _adapters(page, live.models, view)


def _bounds(page: dict[str, Family], live: Live, now_ns: int) -> Steps[None]:
    for slo in live.slos:
        found = attainment_bounds(live.watch.history, slo, now_ns)
        if found is not None:
            page["goodput_engine_attainment_low_ratio"].add(found.share_low, **{"class": slo.name})
            page["goodput_engine_attainment_high_ratio"].add(found.share_high, **{"class": slo.name})
        yield
    outcomes = live.self_check.outcomes
    for result in ("inside", "outside", "not_comparable"):
        page["goodput_self_checks_total"].add(getattr(outcomes, result), result=result)


def _signals(page: dict[str, Family], view: EngineView) -> Steps[None]:
    # Of many engines with many models each, the product counts, so pairs are bounded and not each alone.
    pairs, reasons = Bounded(_MAX_PAIRS), Bounded(16)

    def labels(one: SeriesId, signal: Signal | HistogramSignal) -> tuple[tuple[str, str], ...]:
        known = pairs.label(f"{one.engine}|{one.model}") != OTHER
        found = {
            "engine": one.engine if known else OTHER,
            "model": one.model if known else OTHER,
        }
        if signal.name == "success":
            found["reason"] = reasons.label(one.get("finished_reason") or OTHER)
        return tuple((name, value) for name, value in found.items() if value)

    for name, family in _ENGINE_SIGNALS.items():
        signal = view.get(name)
        if signal is None:
            continue
        values: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for one, value in signal.series.items():
            values.setdefault(labels(one, signal), []).append(value)
        for key, parts in values.items():
            # What was folded into one label value is joined: a page must not hold a series twice.
            share = signal.combine == "share"
            page[family].add(sum(parts) / len(parts) if share else sum(parts), **dict(key))
        yield
    for name, family in _ENGINE_HISTOGRAMS.items():
        found = view.histograms.get(name)
        if found is None:
            continue
        histograms: dict[tuple[tuple[str, str], ...], list[Histogram]] = {}
        for one, histogram in found.series.items():
            histograms.setdefault(labels(one, found), []).append(histogram)
        for key, of in histograms.items():
            whole = merge(of)
            if whole is not None:
                edges = [edge for edge in whole.edges if edge != float("inf")]
                page[family].add(Buckets(edges, whole.cumulative, whole.sum), **dict(key))
            yield


def _adapters(page: dict[str, Family], names: ModelNames, view: EngineView) -> None:
    """Adapters by name as far as names may stand as a label, all others counted together."""
    for state, adapters in (("running", view.lora_running), ("waiting", view.lora_waiting)):
        counts = Counter(name if name in names.served else OTHER for name in adapters or ())
        for name, count in sorted(counts.items()):
            page["goodput_engine_lora_adapters"].add(count, adapter=name, state=state)


def _self(page: dict[str, Family], live: Live, proxy: ProxyView | None, process: ProcessView | None) -> None:
    page["goodput_build_info"].add(1, version=__version__)
    page["goodput_held_requests"].add(live.judging.held)
    if proxy is not None:
        page["goodput_proxy_in_flight_requests"].add(proxy.in_flight)
        page["goodput_proxy_requests_total"].add(proxy.requests)
        for name, counts in (
            ("goodput_proxy_refused_total", proxy.refused),
            ("goodput_proxy_broken_total", proxy.broken),
            ("goodput_proxy_dropped_observations_total", proxy.dropped),
        ):
            for reason, count in sorted(counts.items()):
                page[name].add(count, reason=reason)
    if process is not None:
        page["process_cpu_seconds_total"].add(process.cpu_s)
        page["process_resident_memory_bytes"].add(process.resident_bytes)
        page["process_start_time_seconds"].add(process.start_time_s)
        page["process_open_fds"].add(process.open_fds)
