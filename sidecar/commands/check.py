"""``goodput-sidecar check``: how many series a metrics page costs, before the budget breaks."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from sidecar.engine.cardinality import Cardinality, count
from sidecar.engine.describe import table
from sidecar.engine.exposition import Page
from sidecar.engine.sources import parse_source, read_source
from sidecar.errors import UserError
from sidecar.publish.budget import BUDGET


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "check",
        help="count a metrics page's series by family and warn before a budget breaks",
        description="Counts the time series of a page (the engine's or the sidecar's own) by metric family "
        "and names labels without bound. Exit status 1 when the budget is broken.",
    )
    parser.add_argument("source", metavar="URL|FILE")
    parser.add_argument(
        "--budget",
        type=int,
        help="series the page may have, warns from 80 %% of it; the sidecar's own page states its own",
    )
    parser.add_argument("--top", type=int, default=20, help="largest families to show (default 20, 0: all)")
    parser.add_argument("--json", action="store_true", help="print JSON for tools")
    parser.add_argument("--timeout-s", type=float, default=5.0, help="limit for the scrape (default 5)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the count; 1 when it is above the budget, else 0."""
    if args.budget is not None and args.budget <= 0:
        raise UserError(f"--budget {args.budget}: must be above 0")
    page, _ = read_source(parse_source(args.source), args.timeout_s)
    budget = args.budget if args.budget is not None else _own_budget(page)
    found = count(page, budget)
    if args.json:
        sys.stdout.write(json.dumps({**asdict(found), "budget": budget}, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(_render(found, args.top))
    return 1 if budget is not None and found.series > budget else 0


def _own_budget(page: Page) -> int | None:
    """The budget that a sidecar's own page states."""
    rows = page.by_name.get(BUDGET, ())
    return next((int(page.values[i]) for i in rows if 0 < page.values[i] < 1e9), None)


def _render(found: Cardinality, top: int) -> str:
    shown = found.families[:top] if top > 0 else found.families
    rows = [["family", "type", "series", "share", "labels (values)"]]
    for one in shown:
        labels = ", ".join(f"{label} ({many})" for label, many in one.labels)
        rows.append([one.family, one.kind, str(one.series), f"{one.series / found.series:.1%}", labels])
    parts = [table(rows)]
    rest = found.families[len(shown) :]
    if rest:
        parts.append(f"and {len(rest)} more families with {sum(one.series for one in rest)} series")
    parts.append(f"{found.series} series in {len(found.families)} families")
    parts += [f"warning: {warning}" for warning in found.warnings]
    return "\n".join(parts) + "\n"
