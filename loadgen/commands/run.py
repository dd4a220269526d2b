"""``goodput-loadgen run --url URL --concurrency 8``: measure one load, once."""

from __future__ import annotations

import argparse
from typing import Any

from loadgen import options
from loadgen.arrivals import Arrivals, parse_arrivals
from loadgen.processes import Interrupt
from loadgen.progress import output
from loadgen.search import Levels, PeakSearch
from loadgen.session import measure
from loadgen.workload.traces import read_trace
from sidecar.errors import UserError


def add_parser(subparsers: Any) -> None:
    """Add ``run`` and its flags."""
    parser = subparsers.add_parser(
        "run",
        help="measure one load",
        description="Measures a single level and writes the same report as a sweep.",
    )
    options.add_server(parser)
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument(
        "--concurrency", type=options.count(1, 100_000), metavar="N", help="closed loop: N requests in flight"
    )
    load.add_argument(
        "--speed", type=float, metavar="X", help="with --trace: X times as fast as it was recorded"
    )
    load.add_argument("--rate", type=float, metavar="R", help="open loop: R requests per second")
    parser.add_argument(
        "--arrivals", metavar="PROCESS", help="with --rate: constant, poisson or gamma:CV (default poisson)"
    )
    options.add_trace(parser)
    options.add_workload(parser)
    options.add_measuring(parser, warmup_s=5.0, window_s=30.0)
    options.add_out(parser, "out/run")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure the level; 0 when it was measured, 130 when interrupted, 1 when no request was completed."""
    if args.rate is not None or args.speed is not None:
        load, arrivals = _open_loop(args)
    elif args.trace:
        raise UserError("--trace: with --speed or --rate; --concurrency is a closed loop without a schedule")
    elif args.arrivals:
        raise UserError("--arrivals: only with --rate; --concurrency is a closed loop without a schedule")
    else:
        load, arrivals = float(args.concurrency), Arrivals()
    search = PeakSearch(Levels(low=load, high=load, fixed=(load,)), max_levels=1)
    with Interrupt() as stopped:
        return measure(
            args,
            url=args.url.rstrip("/"),
            search=search,
            arrivals=arrivals,
            stopped=stopped,
            console=output(),
        ).status


def _open_loop(args: argparse.Namespace) -> tuple[float, Arrivals]:
    """Requests per second, and when they are due."""
    if args.speed is not None:
        if not args.trace:
            raise UserError("--speed: only with --trace")
        if not 0 < args.speed <= 10_000:
            raise UserError(f"--speed {args.speed:g}: a positive number, at most 10000")
        rate = args.speed * read_trace(args.trace).rate_rps
    else:
        rate = args.rate
    if not 0 < rate <= 100_000:
        raise UserError(f"--rate {rate:g}: a positive number of requests per second, at most 100000")
    if args.trace:
        return rate, options.arrivals_of(args)
    return rate, parse_arrivals(args.arrivals or "poisson")
