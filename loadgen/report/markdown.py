"""A sweep as Markdown, for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.report.curve import kind_of, limit_of, points
from loadgen.report.text import (
    ABSENT,
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


def cell(text: object) -> str:
    """A text that stays inside its table cell and is shown as it is."""
    flat = " ".join(str(text).split())
    for mark in ("\\", "|", "<", "[", "*", "_", "`"):
        flat = flat.replace(mark, f"\\{mark}")
    return flat


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, the first column left, the others right aligned."""
    lines = [
        "| " + " | ".join(map(cell, head)) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
        *("| " + " | ".join(map(cell, row)) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def to_markdown(report: SweepReport) -> str:
    """The answer, what to know, and the levels."""
    peak, limit = report.peak, limit_of(report)
    if peak.load is None or peak.goodput_rps is None:
        title = "No goodput peak was found"
    else:
        least = "" if peak.bracketed else "at least "
        unit = load_unit(kind_of(report), peak.load)
        title = (
            f"Goodput peak: {least}{number(peak.goodput_rps)} good requests/s at {number(peak.load)} {unit}"
        )
    held = [f"{c.share:.0%}: {ABSENT if c.load is None else number(c.load)}" for c in peak.capacity]
    bounds = [f"{name} ≤ {seconds(value)}" for name, value in slo_bounds(report.slo)]
    known = [
        ("95 % interval", f"{interval(peak.goodput_ci_rps)} requests/s"),
        ("how sure", sentence(peak.reason)),
        ("what breaks first", f"{limit.title}. {limit.text}"),
        ("highest load that keeps", ", ".join(held) or ABSENT),
        ("SLO", ", ".join(bounds) or "no bound"),
        ("server", f"{report.model or 'unnamed model'} on {report.server or 'unknown server'}"),
    ]
    warnings = [w for w in (stopped_text(report.stopped), *report.flags) if w]
    rows = [
        [
            number(p.load) + (" (peak)" if p.load == peak.load else "") + ("" if p.valid else " ×"),
            number(p.goodput_rps),
            interval(p.goodput_ci_rps),
            number(p.throughput_rps),
            percent(p.attainment),
            seconds(p.quantile("ttft", "p99_s")),
            seconds(p.quantile("tpot", "p99_s")),
        ]
        for p in points(report)
    ]
    head = ["load", "goodput/s", "95 %", "throughput/s", "good", "TTFT p99", "TPOT p99"]
    parts = [
        f"## {cell(title)}\n",
        *(f"> {cell(w)}\n" for w in warnings),
        table(["", ""], known),
        table(head, rows),
    ]
    return "\n".join(parts)
