"""report.html: one self-contained page. No script, no network; figures are inline SVG."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources

from loadgen.report import plots, tables
from loadgen.report.curve import kind_of, limit_of, peak_point, points
from loadgen.report.svg import el, esc
from loadgen.report.text import (
    ABSENT,
    BUCKET_MEANING,
    interval,
    load_unit,
    number,
    percent,
    seconds,
    sentence,
    slo_bounds,
    stopped_text,
)
from loadgen.results import SweepReport

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WIDE, _HALF, _NARROW = 1036.0, 505.0, 340.0
_SHARES = ("kv_usage", "kv_usage_mean", "kv_usage_max")
_ENGINE = (
    ("running", "running"),
    ("waiting", "waiting"),
    ("kv_usage", "KV cache in use"),
    ("preemptions", "preemptions"),
)


def to_html(report: SweepReport) -> str:
    """The whole page. Every text of the report is escaped; unknown values are dashes."""
    sections = [
        _warnings(report),
        _facts(report),
        _goodput(report),
        _badput(report),
        _attainment(report),
        _latency(report),
        _engine(report),
        tables.signals(report),
        tables.levels(report),
        tables.provenance(report),
    ]
    css = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    title = f"Goodput peak of {report.model}" if report.model else "Goodput peak"
    body = _header(report) + el("main", *(s for s in sections if s)) + _footer(report)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{esc(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _header(report: SweepReport) -> str:
    peak = report.peak
    subject = f"{report.model or 'unnamed model'} on {report.server or 'unknown server'}"
    if peak.load is None or peak.goodput_rps is None:
        answer = "No goodput peak was found"
        sure = esc(sentence(peak.reason))
    else:
        least = "" if peak.bracketed else "at least "
        unit = load_unit(kind_of(report), peak.load)
        answer = (
            f"<b>{least}{number(peak.goodput_rps)} good requests/s</b> at {number(peak.load)} {esc(unit)}"
        )
        sure = esc(_how_sure(report))
    return el(
        "header",
        el("h1", esc(f"How much one replica takes: {subject}")),
        el("p", answer, class_="answer"),
        el("p", sure, class_="sure"),
    )


def _how_sure(report: SweepReport) -> str:
    peak = report.peak
    said = []
    if peak.goodput_ci_rps is not None:
        said.append(f"The 95 % interval is {interval(peak.goodput_ci_rps)} good requests/s.")
    else:
        said.append("Too little was measured there for an interval.")
    if peak.plateau is not None and peak.plateau[0] < peak.plateau[1] and "told apart" not in peak.reason:
        low, high = peak.plateau
        said.append(f"Loads from {number(low)} to {number(high)} cannot be told apart from it.")
    return " ".join([*said, sentence(peak.reason)])


def _warnings(report: SweepReport) -> str:
    said = list(report.flags)
    if early := stopped_text(report.stopped):
        said.append(early)
    at_peak = peak_point(report)
    if at_peak is not None and not at_peak.valid:
        said.append("The level at the peak does not count: see its flags in the table.")
    if report.peak.excluded_loads:
        loads = ", ".join(number(load) for load in report.peak.excluded_loads)
        said.append(f"Left out of the search because they do not count: load {loads}.")
    if report.peak.load is not None and not report.peak.bracketed:
        said.append("The peak is a lower bound: goodput may rise beyond the loads measured.")
    if not said:
        return ""
    items = [el("li", esc(s)) for s in dict.fromkeys(said)]
    return el("section", el("h2", "Before you rely on this"), el("ul", *items), class_="warn")


def _facts(report: SweepReport) -> str:
    peak, at_peak, limit = report.peak, peak_point(report), limit_of(report)
    facts = [("What breaks first", esc(limit.title), limit.text)]
    facts.append(("Good at the peak", percent(peak.attainment), "of the eligible requests"))
    for capacity in peak.capacity:
        shown = ABSENT if capacity.load is None else number(capacity.load)
        note = "no load reached it" if capacity.load is None else load_unit(kind_of(report), capacity.load)
        facts.append((f"Highest load with ≥ {capacity.share:.0%} good", shown, note))
    tokens = at_peak.mean(lambda level: level.token_goodput_tps) if at_peak else None
    facts.append(("Good tokens at the peak", number(tokens), "output tokens/s of good requests"))
    bounds = slo_bounds(report.slo)
    slo = ", ".join(f"{name} ≤ {seconds(value)}" for name, value in bounds) or "no bound set"
    facts.append(("SLO", esc(report.slo.get("name") or "unnamed"), slo))
    items = [
        el("div", el("dt", esc(name)), el("dd", f"{value}{el('small', esc(_tight(note)))}"))
        for name, value, note in facts
    ]
    return el("section", el("dl", *items, class_="facts"), aria_label="The result in short")


def _tight(text: str) -> str:
    """Numbers kept on one line with their units."""
    return re.sub(r"(?<=\d) (?=(?:ms|s|µs)\b|%)|(?<=[≤≥]) ", "\u00a0", text)


def _both(draw: Callable[[str, float], str], ident: str, wide: float = _WIDE) -> str:
    """A chart twice: as wide as the page, and drawn anew for a phone so that its text stays readable."""
    return el("div", draw(f"{ident}-w", wide), class_="wide") + el(
        "div", draw(f"{ident}-n", _NARROW), class_="narrow"
    )


def _loads(report: SweepReport) -> plots.Loads:
    axis = (
        "load: requests per second offered" if kind_of(report) == "rate" else "load: requests kept in flight"
    )
    return plots.Loads(tuple(p.load for p in points(report)), axis)


def _goodput(report: SweepReport) -> str:
    if not report.levels:
        return el("section", el("h2", "Goodput against load"), el("p", "No level was measured."))
    found, loads = points(report), _loads(report)
    chart = _both(lambda ident, width: plots.goodput(found, report.peak, loads, ident, width), "goodput")
    marks = [
        ("goodput (good requests/s), with its 95 % interval", '<path class="line goodput" d="M0,7h22"/>'),
        ("throughput (all completed requests/s)", '<path class="line throughput" d="M0,7h22"/>'),
        ("the gap: completed but not good", '<rect class="gap" width="22" height="14"/>'),
    ]
    if report.peak.plateau is not None and report.peak.plateau[0] < report.peak.plateau[1]:
        marks.append(
            ("plateau: as good as the peak, within noise", '<rect class="plateau" width="22" height="14"/>')
        )
    if any(not p.valid for p in found):
        marks.append(("a level that does not count", '<path class="invalid" d="M6,2l10,10m0,-10l-10,10"/>'))
    return el("section", el("h2", "Goodput against load"), chart, _key(marks))


def _key(marks: list[tuple[str, str]]) -> str:
    def swatch(shape: str) -> str:
        return f'<svg width="22" height="14" viewBox="0 0 22 14" aria-hidden="true">{shape}</svg>'

    return el("ul", *(el("li", swatch(shape), esc(name)) for name, shape in marks), class_="key")


def _badput(report: SweepReport) -> str:
    found, loads = points(report), _loads(report)
    met = {bucket for p in found for bucket in p.shares()}
    if not met:
        return ""
    chart = _both(lambda ident, width: plots.badput(found, loads, ident, width), "badput")
    order = ["good", *(b for b in BUCKET_MEANING if b in met), *sorted(met - set(BUCKET_MEANING) - {"good"})]
    names = {b: f"{b}: {BUCKET_MEANING[b]}" if b in BUCKET_MEANING else b for b in order}
    marks = [(names[b], f'<rect class="{plots.bucket_class(b)}" width="22" height="14"/>') for b in order]
    crossed = " Bars marked × belong to levels that do not count." if any(not p.valid for p in found) else ""
    note = f"Each eligible request is either good or in exactly one bucket, by its first cause.{crossed}"
    return el(
        "section",
        el("h2", "Why requests were not good"),
        el("p", esc(note), class_="soft"),
        chart,
        _key(marks),
    )


def _attainment(report: SweepReport) -> str:
    found, loads = points(report), _loads(report)
    if all(p.attainment is None for p in found):
        return ""
    chart = _both(
        lambda ident, width: plots.attainment(found, report.peak, loads, ident, width), "attainment"
    )
    note = "Where goodput peaks not everyone is served well: choose the load by the share that must be good."
    return el("section", el("h2", "Attainment against load"), el("p", note, class_="soft"), chart)


def _latency(report: SweepReport) -> str:
    found, loads = points(report), _loads(report)
    if not found:
        return ""
    slo = dict(slo_bounds(report.slo))
    panels = (
        ("ttft", "TTFT", "time to first token", ("TTFT",)),
        ("tpot", "TPOT", "time per output token, averaged over a request", ("TPOT",)),
        ("itl", "ITL", "gap between output chunks", ("ITL p99", "longest gap")),
        ("e2e", "E2E", "the whole answer", ("E2E",)),
    )
    charts = []
    for which, name, meaning, keys in panels:
        bounds = [(key, slo[key]) for key in keys if key in slo]

        def draw(
            ident: str,
            width: float,
            which: str = which,
            name: str = name,
            bounds: list[tuple[str, float]] = bounds,
        ) -> str:
            return plots.latency(found, which, name, bounds, loads, ident, width)

        heading = el("h3", f"{name} {el('span', esc(meaning), class_='soft')}")
        charts.append(el("div", heading, _both(draw, which, _HALF)))
    note = "Of the requests that completed; the dashed lines are the bounds of the SLO."
    return el(
        "section",
        el("h2", "Latency against load"),
        el("p", note, class_="soft"),
        el("div", *charts, class_="pair"),
    )


def _engine(report: SweepReport) -> str:
    found, loads = points(report), _loads(report)
    names = {key for level in report.levels for key in level.engine}
    charts = []
    for base, title in _ENGINE:
        key = next((k for k in (base, f"{base}_mean", f"{base}_increase") if k in names), None)
        if key is None:
            continue

        def draw(ident: str, width: float, key: str = key, title: str = title) -> str:
            return plots.engine(found, key, title, key in _SHARES, loads, ident, width)

        charts.append(el("div", _both(draw, f"engine-{base}", _HALF)))
    if not charts:
        return ""
    note = "As the server's own metrics page told it during each window."
    return el(
        "section",
        el("h2", "Inside the engine"),
        el("p", note, class_="soft"),
        el("div", *charts, class_="pair"),
    )


def _footer(report: SweepReport) -> str:
    return el(
        "footer",
        el(
            "p",
            esc(
                f"{ABSENT} means unknown or undefined, never zero. Intervals are 95 %. "
                f"Goodput counts requests that completed and met every bound of the SLO. "
                f"Written by {report.tool} at {report.created_wall}."
            ),
        ),
    )
