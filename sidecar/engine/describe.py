"""A mapped page as plain data for JSON, and as readable tables. Pure: no input, no output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.engine.bounds import GoodputBounds
from sidecar.engine.catalog import catalogs, parse_version
from sidecar.engine.quantiles import quantile, without_one_token
from sidecar.engine.series import History
from sidecar.engine.view import EngineView, Histogram, HistogramSignal, Signal

QUANTILES = (0.5, 0.9, 0.99)


def describe(view: EngineView, history: History | None = None, now_ns: int = 0) -> dict[str, Any]:
    """Everything a page says. With a ``history`` of several pages also rates, and quantiles of its window
    instead of those since the engine started. Holds no NaN and no infinity: an open bucket ends at null."""
    return {
        "server": view.server or None,
        "version": view.version,
        "generation": view.generation or None,
        "engines": list(view.engines),
        "models": list(view.models),
        "signals": {name: _signal(one, history, now_ns) for name, one in view.signals.items()},
        "histograms": {name: _histogram(view, one, history, now_ns) for name, one in view.histograms.items()},
        "prefix_hit_rate": view.prefix_hit_rate,
        "lora": _lora(view),
        "sleeping_engines": sorted(view.sleeping),
        "start_time_s": view.start_time_s,
        "hidden_restart_possible": not view.restarts_visible,
        "deprecations": [notice.text for notice in view.notices if notice.code == "deprecated"],
        "missing": [{"signal": missing.signal, "why": missing.why} for missing in view.missing],
        "by_a_setting": [{"signal": one.signal, "why": one.why} for one in view.by_a_setting],
        "notices": [{"code": n.code, "text": n.text} for n in view.notices if n.code != "deprecated"],
        "caveats": _caveats(view),
        "unmapped": list(view.unmapped),
    }


def describe_bounds(bounds: GoodputBounds | None) -> dict[str, Any] | None:
    """Goodput bounds for JSON."""
    if bounds is None:
        return None
    return {
        "finished": bounds.requests,
        "good": [bounds.good_low, bounds.good_high],
        "share": [bounds.share_low, bounds.share_high],
        "rps": None if bounds.rps_low is None else [bounds.rps_low, bounds.rps_high],
        "by_bound": {m.bound: [m.share.low, m.share.high] for m in bounds.marginals},
        "notes": list(bounds.notes),
    }


def render(told: Mapping[str, Any], *, everything: bool = False) -> str:
    """The same for a terminal: tables of values and of distributions, then what to know. Signals that are 0
    or never observed are only counted, unless they belong to the core or ``everything`` is asked for."""
    server = " ".join(str(told[key]) for key in ("server", "version") if told[key])
    generation = f" ({told['generation'].upper()} engine)" if told["generation"] else ""
    head = [(server or "no known inference server") + generation]
    if told["engines"] or told["models"]:
        head.append(f"engines {', '.join(told['engines']) or '-'}; models {', '.join(told['models']) or '-'}")
    windowed = told.get("window_s") is not None
    core = _core_names(told["server"])
    values = {n: s for n, s in told["signals"].items() if everything or n in core or s["max"] != 0}
    timings = {n: h for n, h in told["histograms"].items() if everything or n in core or h["count"]}
    parts = ["\n".join(head)]
    rows = [_value_row(name, one) for name, one in values.items()] + _derived_rows(told)
    if rows:
        parts.append(
            table([["canonical", "found", "value", "per second" if windowed else "", "unit"], *rows])
        )
    if timings:
        rows = [_timing_row(name, one) for name, one in timings.items()]
        names = ["canonical", "found", "count", "mean", "p50 (between)", "p99 (between)", "unit"]
        parts.append(table([names, *rows]))
    left = len(told["signals"]) + len(told["histograms"]) - len(values) - len(timings)
    if left:
        parts.append(f"{left} more signals are 0 or were never observed")
    if windowed:
        parts.append(f"rates and quantiles over {told['window_s']:g} s, {told['resets']} counter resets seen")
    if told.get("goodput") is not None:
        parts.append(_bounds_text(told["goodput"]))
    parts += _block("will break you", told["deprecations"])
    parts += _block("missing", _by_reason(told["missing"]))
    parts += _block("more with a setting", [f"{m['signal']}: {m['why']}" for m in told["by_a_setting"]])
    parts += _block("notice", [notice["text"] for notice in told["notices"]])
    parts += _block("worth knowing", told["caveats"])
    if told["hidden_restart_possible"] and told["signals"]:
        parts += _block(
            "restarts", ["no start time and no _created here: a hidden restart cannot be excluded"]
        )
    names = told["unmapped"][:8] + (["..."] if len(told["unmapped"]) > 8 else [])
    parts.append(f"unmapped families: {len(told['unmapped'])}" + (f" ({', '.join(names)})" if names else ""))
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, those without any text left out; the first row is the heading."""
    columns = [c for c in range(len(rows[0])) if any(row[c] for row in rows)]
    widths = {c: max(len(row[c]) for row in rows) for c in columns}
    lines = ["  ".join(row[c].ljust(widths[c]) for c in columns).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * widths[c] for c in columns))
    return "\n".join(lines)


def _signal(one: Signal, history: History | None, now_ns: int) -> dict[str, Any]:
    return {
        "found": one.found,
        "unit": one.unit,
        "kind": one.kind,
        "combine": one.combine,
        "total": None if one.combine == "share" else one.total,
        "mean": one.mean,
        "max": one.max,
        "rate": history.rate(one.name, now_ns) if history is not None and one.kind != "gauge" else None,
        "series": [
            {"engine": i.engine, "model": i.model, **dict(i.labels), "value": value}
            for i, value in one.series.items()
        ],
    }


def _histogram(
    view: EngineView, one: HistogramSignal, history: History | None, now_ns: int
) -> dict[str, Any]:
    whole: Histogram | None = one.merged
    rate = None
    if history is not None:
        whole = history.histogram(one.name, now_ns)
        elapsed_s = history.elapsed_s(now_ns)
        rate = whole.count / elapsed_s if whole is not None and elapsed_s else None
    told: dict[str, Any] = {
        "found": one.found,
        "unit": one.unit,
        "kind": "histogram",
        "rate": rate,
        "note": None,
    }
    if whole is None:
        return {**told, "count": None, "sum": None, "mean": None, "quantiles": {}, "edges": []}
    timed = whole
    if one.name == "request_tpot":
        lengths = view.histogram("request_generation_tokens")
        if history is not None:
            lengths = history.histogram("request_generation_tokens", now_ns)
        without = without_one_token(whole, lengths) if lengths is not None else None
        if without is not None and without.count < whole.count:
            timed = without
            told["note"] = (
                f"quantiles without {whole.count - without.count:g} answers of one token, which observe 0"
            )
    return {
        **told,
        "count": whole.count,
        "sum": whole.sum,
        "mean": whole.mean,
        "quantiles": {f"p{q * 100:g}": _quantile(timed, q) for q in QUANTILES},
        "edges": [edge for edge in whole.edges if math.isfinite(edge)],
    }


def _quantile(histogram: Histogram, q: float) -> dict[str, Any] | None:
    found = quantile(histogram, q)
    if found is None:
        return None
    return {"value": found.value, "at_least": found.at_least, "low": found.low, "high": found.high}


def _lora(view: EngineView) -> dict[str, Any] | None:
    if view.lora_running is None or view.lora_waiting is None:
        return None
    return {"running": sorted(view.lora_running), "waiting": sorted(view.lora_waiting), "max": view.lora_max}


def _caveats(view: EngineView) -> list[str]:
    release = parse_version(view.version)
    catalog = next((c for c in catalogs() if c.server == view.server), None)
    return [
        f"{spec.name}: {caveat.text}"
        for spec in (catalog.signals if catalog else ())
        if spec.name in view.signals or spec.name in view.histograms
        for caveat in spec.caveats
        if caveat.holds(release)
    ]


def _value_text(one: Mapping[str, Any]) -> str:
    count = len(one["series"])
    if one["combine"] == "share":
        return (
            f"{one['mean']:.4g}" if count == 1 else f"mean {one['mean']:.4g}, max {one['max']:.4g} of {count}"
        )
    labels = [key for key in one["series"][0] if key not in ("engine", "model", "value")]
    if len(labels) == 1:
        sums: dict[str, float] = {}
        for series in one["series"]:
            key = str(series.get(labels[0], ""))
            sums[key] = sums.get(key, 0.0) + series["value"]
        told = [f"{key} {value:g}" for key, value in sums.items() if value]
        if len(sums) > 1 and 0 < len(told) <= 4:
            return f"{one['total']:.10g} ({', '.join(told)})"
    return f"{one['total']:.10g}" + (f" of {count} series" if count > 1 else "")


def _core_names(server: str | None) -> set[str]:
    return {
        spec.name
        for catalog in catalogs()
        if catalog.server == server
        for spec in catalog.signals
        if spec.core
    }


def _value_row(name: str, one: Mapping[str, Any]) -> list[str]:
    rate = "" if one["rate"] is None else f"{one['rate']:.6g}"
    return [name, one["found"], _value_text(one), rate, one["unit"]]


def _derived_rows(told: Mapping[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    if told["prefix_hit_rate"] is not None:
        rows.append(["prefix_hit_rate", "(derived)", f"{told['prefix_hit_rate']:.4g}", "", "ratio"])
    if told["lora"] is not None:
        lora = told["lora"]
        text = f"running {', '.join(lora['running']) or '-'}; waiting {', '.join(lora['waiting']) or '-'}"
        rows.append(["lora", "(labels)", f"{text}; at most {lora['max'] or '?'}", "", "adapters"])
    return rows


def _timing_row(name: str, one: Mapping[str, Any]) -> list[str]:
    if not one["count"]:
        return [name, one["found"], "0" if one["count"] == 0 else "-", "", "", "", one["unit"]]
    mean = "" if one["mean"] is None else f"{one['mean']:.4g}"
    quantiles = [_quantile_text(one["quantiles"][q]) for q in ("p50", "p99")]
    return [name, one["found"], f"{one['count']:g}", mean, *quantiles, one["unit"]]


def _quantile_text(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["at_least"]:
        return f"above {found['low']:g}"
    return f"{found['value']:.4g} ({found['low']:g} to {found['high']:g})"


def _bounds_text(goodput: Mapping[str, Any]) -> str:
    low, high = goodput["share"]
    text = (
        f"goodput from histograms alone: {low:.1%} to {high:.1%} of {goodput['finished']:g} finished requests"
    )
    if goodput["rps"] is not None:
        text += f", {goodput['rps'][0]:.4g} to {goodput['rps'][1]:.4g} per second"
    return "\n".join([text, *(f"  {note}" for note in goodput["notes"])])


def _by_reason(missing: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each reason, in the order of the first signal that has it."""
    signals: dict[str, list[str]] = {}
    for one in missing:
        signals.setdefault(one["why"], []).append(one["signal"])
    return [f"{', '.join(names)}: {why}" for why, names in signals.items()]


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:\n" + "\n".join(f"  {line}" for line in lines)] if lines else []
