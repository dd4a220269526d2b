"""The report's tables as HTML: every level measured, and where the numbers come from."""

from __future__ import annotations

from typing import Any

from loadgen.report.curve import kind_of, points
from loadgen.report.signals import rank
from loadgen.report.svg import el, esc
from loadgen.report.text import interval, number, percent, seconds, slo_bounds
from loadgen.results import LevelResult, SweepReport

_HEAD = (
    ("load", ""),
    ("goodput", "requests/s"),
    ("95 % interval", "requests/s"),
    ("throughput", "requests/s"),
    ("good", "of eligible"),
    ("TTFT p50", ""),
    ("TTFT p99", ""),
    ("TPOT p50", ""),
    ("TPOT p99", ""),
    ("ITL p99", ""),
    ("E2E p50", ""),
    ("E2E p99", ""),
    ("good tokens", "per s"),
    ("in flight", "mean"),
    ("eligible", "requests"),
    ("not good", "requests"),
    ("window", ""),
)


def levels(report: SweepReport) -> str:
    """One row a measured level (repeats are rows of their own), by load, flags in the last column."""
    if not report.levels:
        return ""
    head = [el("th", esc(name), f"<br>{esc(unit)}" if unit else "", scope="col") for name, unit in _HEAD] + [
        el("th", "badput and flags", scope="col", style="text-align:left")
    ]
    rows = [_level_row(level, report) for level in sorted(report.levels, key=lambda r: r.load)]
    kind = "requests per second offered" if kind_of(report) == "rate" else "requests kept in flight"
    caption = f"Load counts {kind}. Values beyond the SLO's bound are set off."
    table = el("table", el("caption", caption), el("thead", el("tr", *head)), el("tbody", *rows))
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="All levels">{table}</div>'
    return el("section", el("h2", "All levels"), scroll)


def _level_row(level: LevelResult, report: SweepReport) -> str:
    slo = dict(slo_bounds(report.slo))

    def timed(value: float | None, bound: str | None = None) -> str:
        over = bound in slo and value is not None and value > slo[bound]
        return el("td", seconds(value), class_="over" if over else None)

    at_peak = level.load == report.peak.load
    cells = [
        el("td", number(level.goodput_rps)),
        el("td", interval(level.goodput_ci_rps)),
        el("td", number(level.throughput_rps)),
        el("td", percent(level.attainment)),
        timed(level.ttft.p50_s, "TTFT"),
        timed(level.ttft.p99_s, "TTFT"),
        timed(level.tpot.p50_s, "TPOT"),
        timed(level.tpot.p99_s, "TPOT"),
        timed(level.itl.p99_s, "ITL p99"),
        timed(level.e2e.p50_s, "E2E"),
        timed(level.e2e.p99_s, "E2E"),
        el("td", number(level.token_goodput_tps)),
        el("td", number(level.in_flight_mean)),
        el("td", number(level.eligible, 6)),
        el("td", number(sum(level.badput.values()), 6)),
        el("td", seconds(level.window_s)),
        el("td", esc(_remarks(level)), class_="words"),
    ]
    name = number(level.load) + (" peak" if at_peak else "") + ("" if level.valid else " ×")
    css = " ".join([*(["peak"] if at_peak else []), *([] if level.valid else ["invalid"])])
    return el("tr", el("th", name, scope="row"), *cells, class_=css or None)


def _remarks(level: LevelResult) -> str:
    said = [f"{bucket} {n}" for bucket, n in level.badput.items() if n]
    if level.not_eligible:
        said.append(f"not eligible {level.not_eligible}")
    said += [f"{kind} errors {n}" for kind, n in level.errors.items() if n]
    if level.tokens_estimated:
        said.append("token counts estimated")
    text = ", ".join(said)
    notes = ([] if level.valid else ["does not count"]) + list(level.flags)
    return "; ".join([*([text] if text else []), *notes])


_ADVICE = {
    "leads": "leads: rises with load before goodput falls",
    "blunt": "blunt: does not tell the last good load from the first bad one",
    "lags": "lags: nothing to see until goodput has fallen",
}


def signals(report: SweepReport) -> str:
    """The candidates for an autoscaler, best first; empty where the sweep cannot tell."""
    ranked = rank(points(report))
    if not ranked:
        return ""
    rows = [
        el(
            "tr",
            el("th", esc(s.name), scope="row"),
            el("td", percent(s.rises)),
            el("td", percent(s.shown_before)),
            el("td", esc(_ADVICE[s.verdict]), class_="words"),
        )
        for s in ranked
    ]
    names = ("signal", "rises with load", "shown one load before", "verdict")
    head = [el("th", esc(n), scope="col", style="text-align:left" if n == "verdict" else None) for n in names]
    caption = "Rises: share of steps. Shown before: of its value at the first load with less than 95 % good."
    table = el("table", el("caption", caption), el("thead", el("tr", *head)), el("tbody", *rows))
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="Signals">{table}</div>'
    return el("section", el("h2", "What an autoscaler should follow"), scroll)


def provenance(report: SweepReport) -> str:
    """Server, workload, SLO, seed and versions: what one needs to repeat the sweep."""
    rows: list[tuple[str, Any]] = [
        ("address", report.url),
        ("server", report.server),
        ("model", report.model),
        ("SLO", _written(report.slo)),
        ("workload", _written(report.workload)),
        ("seed", report.seed),
        ("created", report.created_wall),
        ("stopped", report.stopped),
        ("tool", report.tool),
        *report.provenance.items(),
    ]
    body = [el("tr", el("th", esc(name), scope="row"), el("td", esc(value))) for name, value in rows]
    return el(
        "section",
        el("h2", "Where these numbers come from"),
        el("table", el("tbody", *body), class_="plain"),
    )


def _written(value: object) -> str:
    """A nested setting on one line, unset entries left out."""
    if isinstance(value, dict):
        return ", ".join(f"{k} = {_written(v)}" for k, v in value.items() if v is not None) or "–"
    if isinstance(value, list):
        return "[" + ", ".join(_written(v) for v in value) + "]"
    return str(value)
