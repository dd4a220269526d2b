"""``goodput-loadgen compare A.json B.json``: what changed, and a gate for CI."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.compare import METRICS, Change, Comparison, Ruling, compare, parse_rule, rule_on
from loadgen.junit import to_junit
from loadgen.report import write_files
from loadgen.report.jsonio import load
from loadgen.report.markdown import cell, table
from loadgen.report.text import ABSENT, number, percent, seconds

EXIT = {"pass": 0, "fail": 1, "undecided": 3}


def add_parser(subparsers: Any) -> None:
    """Add ``compare`` and its flags."""
    parser = subparsers.add_parser(
        "compare",
        help="compare two sweeps; with --fail-if, a gate for CI",
        description="Differences between a baseline A and a candidate B, with 95 % intervals. "
        "Exit code 0; with --fail-if 1 for a broken rule and 3 for one that cannot be decided; "
        "2 for wrong usage.",
    )
    parser.add_argument("a", type=Path, metavar="A.json", help="the baseline's report.json")
    parser.add_argument("b", type=Path, metavar="B.json", help="the candidate's report.json")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print JSON")
    shape.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the rules' results as JUnit XML")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="METRIC:PERCENT",
        help=f"fail when METRIC is worse by more, e.g. goodput:5%%; may repeat ({', '.join(METRICS)})",
    )
    parser.add_argument("--force", action="store_true", help="judge although SLO or workload differ")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    rules = [parse_rule(text) for text in args.fail_if]
    found = compare(load(args.a), load(args.b))
    rulings = rule_on(rules, found, force=args.force)
    if args.json:
        sys.stdout.write(json.dumps(_plain(found, rulings), indent=1, allow_nan=False) + "\n")
    elif args.markdown:
        sys.stdout.write(_markdown(found, rulings))
    else:
        Console(highlight=False).print(_render(found, rulings))
    if args.junit is not None:
        write_files({"junit": args.junit}, {"junit": to_junit(rulings)})
    results = {ruling.result for ruling in rulings}
    return next((EXIT[r] for r in ("fail", "undecided") if r in results), 0)


def _plain(found: Comparison, rulings: list[Ruling]) -> dict[str, Any]:
    def change(c: Change) -> dict[str, Any]:
        return {
            "metric": c.name,
            "load": c.load,
            "a": c.a,
            "b": c.b,
            "difference": c.difference,
            "difference_interval": c.interval,
            "relative": c.relative,
            "relative_interval": c.relative_interval,
            "higher_is_better": c.higher_is_better,
            "verdict": c.verdict,
        }

    return {
        "format": 1,
        "peak": [change(c) for c in found.peak],
        "levels": [change(c) for c in found.levels],
        "problems": found.problems,
        "notes": found.notes,
        "rules": [
            {"metric": r.rule.metric, "margin": r.rule.margin, "result": r.result, "why": r.why}
            for r in rulings
        ],
    }


_TITLES = {
    "goodput": "peak goodput/s",
    "tokens": "good tokens/s at the peak",
    "attainment": "good at the peak",
    "capacity_99": "load with 99 % good",
    "capacity_90": "load with 90 % good",
}
_STYLE = {"better": "green", "worse": "red"}


def _render(found: Comparison, rulings: list[Ruling]) -> RenderableType:
    sound = not found.problems
    parts: list[RenderableType] = [_table(found.peak, sound), Text()]
    if found.levels:
        parts += [
            Text("Goodput at each load that both measured", style="bold"),
            _table(found.levels, sound),
            Text(),
        ]
    parts += [Text(f"Not the same experiment: {p}.", style="bold yellow") for p in found.problems]
    parts += [Text(f"Note: {n}.") for n in found.notes]
    style = {"pass": "green", "fail": "bold red", "undecided": "bold yellow"}
    parts += [
        Text(
            f"{r.result.upper()}  {r.rule.metric}:{number(r.rule.margin * 100)}%  {r.why}",
            style=style[r.result],
        )
        for r in rulings
    ]
    return Group(*parts)


HEAD = ("", "A", "B", "change", "95 %", "verdict")


def _cells(c: Change, sound: bool) -> list[str]:
    """One row of the table, under `HEAD`."""
    ci = c.relative_interval
    load = f" at load {number(c.load)}" if c.load is not None else ""
    verdict: str = "noise unknown" if c.verdict == "unknown" and c.difference is not None else c.verdict
    return [
        _title(c) + load,
        _value(c, c.a),
        _value(c, c.b),
        ABSENT if c.relative is None else f"{c.relative:+.1%}",
        ABSENT if ci is None else f"{ci[0]:+.1%} to {ci[1]:+.1%}",
        verdict if sound else "not comparable",
    ]


def _known(changes: tuple[Change, ...]) -> list[Change]:
    return [c for c in changes if c.a is not None or c.b is not None]


def _table(changes: tuple[Change, ...], sound: bool) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column(HEAD[0])
    for name in HEAD[1:-1]:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column(HEAD[-1])
    for c in _known(changes):
        cells = _cells(c, sound)
        made.add_row(*(Text(text) for text in cells), style=_STYLE.get(cells[-1], ""))
    return made


def _markdown(found: Comparison, rulings: list[Ruling]) -> str:
    sound = not found.problems
    parts = [f"- **{r.result}** {cell(f'{r.rule.metric}: {r.why}')}\n" for r in rulings]
    parts += [f"> Not the same experiment: {cell(p)}.\n" for p in found.problems]
    parts += [
        table(HEAD, [_cells(c, sound) for c in _known(changes)]) for changes in (found.peak, found.levels)
    ]
    parts += [f"- {cell(n)}\n" for n in found.notes]
    return "\n".join(parts)


def _title(change: Change) -> str:
    if change.name == "goodput" and change.load is not None:
        return "goodput"
    which, _, q = change.name.partition("_")
    return _TITLES.get(change.name, f"{which.upper()} {q}")


def _value(change: Change, value: float | None) -> str:
    if change.name == "attainment":
        return percent(value)
    return seconds(value) if change.name.endswith(("_p50", "_p99")) else number(value)
