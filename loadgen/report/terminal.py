"""The result on a terminal: the answer first, then a table of the levels."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.report.curve import kind_of, limit_of, points
from loadgen.report.text import (
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


def render(report: SweepReport) -> RenderableType:
    """A rich renderable, made for 80 columns. Server text is shown literally, never as markup."""
    return Group(_table(report), Text(), *_answer(report))


def _table(report: SweepReport) -> Table:
    table = Table(title=None, box=None, pad_edge=False, header_style="bold")
    for name in ("load", "good-\nput/s", "95 %", "through-\nput/s", "good", "TTFT\np99", "TPOT\np99"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mostly\nlost to", overflow="fold")
    for p in points(report):
        at_peak = p.load == report.peak.load
        bad = {b: s for b, s in p.shares().items() if b != "good" and s > 0}
        worst = max(bad, key=lambda b: bad[b], default=None)
        note = f"{worst} {percent(bad[worst])}" if worst else ""
        if not p.valid:
            flags = "; ".join(dict.fromkeys(f for level in p.levels for f in level.flags))
            note = f"does not count: {flags}" if flags else "does not count"
        cells = [
            number(p.load) + (" *" if at_peak else "  "),
            number(p.goodput_rps),
            interval(p.goodput_ci_rps),
            number(p.throughput_rps),
            percent(p.attainment),
            seconds(p.quantile("ttft", "p99_s")),
            seconds(p.quantile("tpot", "p99_s")),
            note,
        ]
        table.add_row(
            *(Text(c) for c in cells), style="bold green" if at_peak else ("" if p.valid else "dim")
        )
    return table


def _answer(report: SweepReport) -> list[Text]:
    peak, limit = report.peak, limit_of(report)
    bounds = ", ".join(f"{name} ≤ {seconds(value)}" for name, value in slo_bounds(report.slo)) or "no bound"
    lines = []
    if peak.load is None or peak.goodput_rps is None:
        lines.append(Text(f"No goodput peak: {sentence(peak.reason)}", style="bold yellow"))
    else:
        least = "" if peak.bracketed else "at least "
        unit = load_unit(kind_of(report), peak.load)
        first = (
            f"Goodput peak: {least}{number(peak.goodput_rps)} good requests/s at {number(peak.load)} {unit}"
        )
        ci = f" (95 %: {interval(peak.goodput_ci_rps)})" if peak.goodput_ci_rps else " (no interval)"
        lines += [Text(first + ci, style="bold green"), Text(sentence(peak.reason))]
        if peak.plateau is not None and peak.plateau[0] < peak.plateau[1] and "told apart" not in peak.reason:
            lines.append(
                Text(
                    f"Loads {number(peak.plateau[0])} to {number(peak.plateau[1])} are as good, within noise."
                )
            )
    held = [
        f"{c.share:.0%} up to load {number(c.load)}" if c.load is not None else f"{c.share:.0%} at no load"
        for c in peak.capacity
    ]
    if held:
        lines.append(Text(f"Attainment held: {', '.join(held)}"))
    lines.append(Text(f"What breaks first: {limit.title}. {limit.text}"))
    lines.append(Text(f"SLO: {bounds}"))
    if early := stopped_text(report.stopped):
        lines.append(Text(early, style="yellow"))
    lines += [Text(f"Note: {flag}", style="yellow") for flag in report.flags]
    return lines
