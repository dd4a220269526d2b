"""``goodput-loadgen sweep --url URL``: find the load at which goodput peaks."""

from __future__ import annotations

import argparse
from typing import Any

from loadgen import options
from loadgen.processes import Interrupt
from loadgen.progress import output
from loadgen.search import PeakSearch, parse_levels
from loadgen.session import measure


def add_parser(subparsers: Any) -> None:
    """Add ``sweep`` and its flags."""
    parser = subparsers.add_parser(
        "sweep",
        help="find the load at which goodput peaks",
        description="Measures goodput level by level, searches around the best one and writes a report.",
    )
    options.add_server(parser)
    parser.add_argument(
        "--levels",
        default="1..64",
        help="1..64 to search that range, 1,2,4 for exactly these (default %(default)s): requests in flight, "
        "or requests per second with --arrivals or --trace",
    )
    parser.add_argument(
        "--arrivals",
        metavar="PROCESS",
        help="open loop: constant, poisson or gamma:CV (default: closed loop, levels are requests in flight)",
    )
    parser.add_argument(
        "--max-seconds", type=options.seconds, metavar="S", help="start no level that would end after so long"
    )
    parser.add_argument(
        "--max-levels", type=options.count(1, 200), default=40, metavar="N", help="(default %(default)s)"
    )
    options.add_trace(parser)
    options.add_workload(parser)
    options.add_measuring(parser, warmup_s=3.0, window_s=8.0)
    options.add_out(parser, "out/sweep")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sweep; 0 when it ended by itself, 130 when interrupted, 1 when nothing could be measured."""
    arrivals = options.arrivals_of(args)
    whole = not arrivals.open_loop
    search = PeakSearch(parse_levels(args.levels, whole=whole), whole=whole, max_levels=args.max_levels)
    with Interrupt() as stopped:
        return measure(
            args,
            url=args.url.rstrip("/"),
            search=search,
            arrivals=arrivals,
            stopped=stopped,
            console=output(),
        ).status
