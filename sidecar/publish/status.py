"""The live picture as JSON: what the status page shows, ``/goodput.json`` answers and ``explain`` reads."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from sidecar import __version__
from sidecar.derive.budget import BURN_WINDOWS_S, PAIRS, capped
from sidecar.derive.classes import CHART, ClassState
from sidecar.derive.distserve import SHARES, defined
from sidecar.derive.evidence import Evidence
from sidecar.derive.live import Live
from sidecar.derive.selfcheck import attainment_bounds
from sidecar.derive.why import Bounds, Scene, explain, headline
from sidecar.derive.windows import WINDOWS, Counts, Summary, summarize
from sidecar.publish.metrics import SLO_BOUNDS, ProxyView
from sidecar.slices import Steps, at_once

FORMAT = 1
EXPLAINED_WINDOW = "5m"
MAX_CLASSES = 12  # shown one by one, the busiest; all others only count in the whole


def status(live: Live, now_ns: int, wall_s: float, proxy: ProxyView | None = None) -> dict[str, Any]:
    """Everything, as JSON values. Unknown is ``None``; there is no NaN in it."""
    return at_once(status_in_steps(live, now_ns, wall_s, proxy))


def status_in_steps(
    live: Live, now_ns: int, wall_s: float, proxy: ProxyView | None = None
) -> Steps[dict[str, Any]]:
    """The same, a class or a window at a time."""
    autoscale = live.autoscale(now_ns, proxy.in_flight if proxy is not None else None)
    load: dict[tuple[str, str], int] = {}
    for state in live.sorted_classes():
        load[(state.model, state.name)] = state.rings["1h"].counts(now_ns).eligible
        yield
    busiest = sorted(sorted(load, key=lambda key: -load[key])[:MAX_CLASSES])
    overall = {}
    for spec in WINDOWS:
        overall[spec.name] = _summary((yield from live.overall_in_steps(spec.name, now_ns)))
    evidence = live.watch.evidence(now_ns)
    classes = []
    for key in busiest:
        one = yield from _class(live, live.classes[key], evidence, now_ns)
        classes.append(_finite(one))
        yield
    points = yield from live.chart_in_steps(now_ns)
    whole: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "at": datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds"),
        "watched_s": (now_ns - live.started_ns) / 1e9,
        "engine": _engine(live, now_ns),
        "proxy": _proxy(proxy),
        "self_check": {
            "inside": live.self_check.outcomes.inside,
            "outside": live.self_check.outcomes.outside,
            "not_comparable": live.self_check.outcomes.not_comparable,
            "last": live.self_check.outcomes.last,
        },
        "autoscale": {
            "saturation": autoscale.saturation,
            "in_flight": autoscale.in_flight,
            "peak_load": live.capacity.peak_load if live.capacity else None,
            "source": autoscale.source,
            "reason": autoscale.reason,
        },
        "overall": overall,
        "classes_left_out": len(load) - len(busiest),
        "chart": {"slot_s": CHART.slot_s, "points": _points(points)},
    }
    whole = _finite(whole)
    whole["classes"] = classes
    return whole


def scaling(live: Live, now_ns: int) -> dict[str, Any]:
    """Beside the saturation: signals that may only add replicas, and figures for people. Cheap."""
    counts, covered_s = live.recent("1m", now_ns)
    now_s = now_ns / 1e9
    burns = [b for state in live.sorted_classes() if (b := state.budget.burn(now_s, "5m")) is not None]
    view = live.watch.history.latest
    return {
        "goodput_rps": counts.good / covered_s,
        "attainment": counts.attainment,
        "burn": max(burns, default=None),
        "waiting": view.total("waiting") if view is not None else None,
        "peak_load": live.capacity.peak_load if live.capacity is not None else None,
    }


def _points(chart: list[tuple[float, Counts]]) -> list[dict[str, Any]]:
    return [
        {"ago_s": round(ago_s, 3), "good": counts.good, "badput": dict(counts.badput)}
        for ago_s, counts in chart
    ]


def _summary(summary: Summary) -> dict[str, Any]:
    counts = summary.counts
    return {
        "covered_s": summary.covered_s,
        "goodput_rps": summary.goodput_rps,
        "token_goodput_tps": summary.token_goodput_tps,
        "attainment": summary.attainment,
        "fluidity": counts.fluidity,
        "eligible": counts.eligible,
        "good": counts.good,
        "badput": dict(counts.badput),
        "not_eligible": dict(counts.not_eligible),
        "errors": dict(counts.errors),
        "latency": {
            name: {"count": found.count, "max_s": found.max_s}
            | {f"{quantile}_s": value for quantile, value in found.quantiles_s.items()}
            for name, found in summary.latencies.items()
        },
    }


def _class(live: Live, state: ClassState, evidence: Evidence, now_ns: int) -> Steps[dict[str, Any]]:
    now_s = now_ns / 1e9
    bounds = {name: getattr(state.slo, name) for name in SLO_BOUNDS}
    summaries = {}
    for spec in WINDOWS:
        covered_s = state.covered_s(spec.name, now_ns)
        summaries[spec.name] = summarize(state.slot(spec.name, now_ns), spec.name, covered_s)
        yield
    explained = summaries[EXPLAINED_WINDOW]
    scene = Scene(
        explained,
        evidence,
        Bounds(bounds["ttft_s"], bounds["tpot_s"], bounds["e2e_s"]),
        live.capacity.peak_load if live.capacity else None,
    )
    findings = explain(scene)
    firing = state.budget.firing(now_s)
    return {
        "model": state.model,
        "class": state.name,
        "slo": bounds,
        "objective": state.objective,
        "engine_bounds": _bounds(live, state, now_ns),
        "chart": {"points": _points(state.chart.by_slot(now_ns))},
        "distserve": _distserve(state, summaries, live.gpus, now_ns),
        "windows": {name: _summary(summary) for name, summary in summaries.items()},
        "budget": {
            "left": state.budget.left(now_s),
            "burn": {window: state.budget.burn(now_s, window) for window in BURN_WINDOWS_S},
            "alerts": [
                {
                    "long": pair.long,
                    "short": pair.short,
                    "threshold": capped(pair.threshold, state.objective),
                    "severity": pair.severity,
                    "firing": pair in firing,
                }
                for pair in PAIRS
            ],
        },
        "why": {
            "window": EXPLAINED_WINDOW,
            "headline": headline(explained, findings),
            "findings": [
                {
                    "bucket": one.bucket,
                    "requests": one.requests,
                    "share": one.share,
                    "what": one.what,
                    "evidence": one.evidence,
                    "sure": one.sure,
                    "help": one.help,
                }
                for one in findings
            ],
        },
    }


def _distserve(
    state: ClassState, summaries: dict[str, Summary], gpus: float | None, now_ns: int
) -> dict[str, Any] | None:
    if not defined(state.slo):
        return None
    return {
        "rps": {name: one.counts.distserve / one.covered_s for name, one in summaries.items()},
        "kept_rps": {f"{share:g}": state.kept_rate(share, now_ns) for share in SHARES},
        "gpus": gpus,
    }


def _bounds(live: Live, state: ClassState, now_ns: int) -> dict[str, Any] | None:
    found = attainment_bounds(live.watch.history, state.slo, now_ns)
    if found is None:
        return None
    return {"low": found.share_low, "high": found.share_high, "notes": list(found.notes)}


def _engine(live: Live, now_ns: int) -> dict[str, Any]:
    engine = live.engine
    if engine is None:
        return {"up": False, "reason": "not scraped yet", "age_s": None}
    view = engine.view
    seen = live.watch.evidence(now_ns, 60.0)
    return {
        "up": engine.up,
        "reason": engine.reason,
        "age_s": live.engine_age_s(now_ns),
        "server": view.server if view else None,
        "version": engine.version,
        "running": view.total("running") if view else None,
        "waiting": view.total("waiting") if view else None,
        "kv_usage": view.max("kv_usage") if view else None,
        "prompt_tps": seen.prompt_tps,
        "generation_tps": seen.generation_tps,
        "preemptions_1m": seen.preemptions,
        "prefix_hit_ratio": seen.prefix_hit_ratio,
        "notices": [notice.text for notice in view.notices] if view else [],
    }


def _proxy(proxy: ProxyView | None) -> dict[str, Any] | None:
    if proxy is None:
        return None
    return {
        "in_flight": proxy.in_flight,
        "requests": proxy.requests,
        "refused": dict(proxy.refused),
        "broken": dict(proxy.broken),
        "dropped": dict(proxy.dropped),
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
