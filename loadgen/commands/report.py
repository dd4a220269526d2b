"""``goodput-loadgen report RESULT.json``: show a sweep again, and write its files anew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from loadgen.report import write_all
from loadgen.report.jsonio import load
from loadgen.report.markdown import to_markdown
from loadgen.report.terminal import render


def add_parser(subparsers: Any) -> None:
    """Add ``report`` and its flags."""
    parser = subparsers.add_parser(
        "report",
        help="show a sweep's result again, and write report.html, .json and .csv with --out",
    )
    parser.add_argument("result", type=Path, metavar="RESULT.json", help="the report.json of a sweep")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the three files into this folder")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for a job summary")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    report = load(args.result)
    console = Console(highlight=False, stderr=args.markdown)
    if args.markdown:
        sys.stdout.write(to_markdown(report))
    else:
        console.print(render(report))
    if args.out is not None:
        for path in write_all(report, args.out).values():
            console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return 0
