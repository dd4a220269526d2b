"""``goodput-loadgen rehearse REPORT.json``: a day of traffic against the target, in simulated time."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.rehearsal import Line, Outcome, Policy, Series, rehearse, replica_of, synthetic_day
from loadgen.report.curve import Point, kind_of, points
from loadgen.report.jsonio import load
from loadgen.report.text import number, percent
from loadgen.target import Wish, plan
from sidecar.errors import UserError

# What people usually scale on, and to what. GPU utilisation is not among them: a sweep does not record it.
USUAL = (
    ("waiting", "waiting requests", 5.0),
    ("running", "running requests", None),
    ("kv_usage", "KV cache use", 0.8),
)


def add_parser(subparsers: Any) -> None:
    """Add ``rehearse`` and its flags."""
    parser = subparsers.add_parser(
        "rehearse",
        help="play a day of traffic against the autoscaler's target, in simulated time",
        description="Goodput lost, replica-hours and flapping under Kubernetes' scaling rules and cold "
        "starts, for saturation and for the signals usually scaled on. A fluid model of the measured curve.",
    )
    parser.add_argument("report", type=Path, metavar="REPORT.json")
    traffic = parser.add_mutually_exclusive_group(required=True)
    traffic.add_argument("--day", type=float, metavar="R", help="a synthetic day whose peak is R requests/s")
    traffic.add_argument(
        "--traffic", type=Path, metavar="FILE", help="CSV of second,rate; the rate holds until the next"
    )
    parser.add_argument(
        "--use-share", type=float, default=0.8, metavar="S", help="as in target (default 0.8)"
    )
    parser.add_argument("--min", type=int, default=1, metavar="N", dest="min_replicas", help="(default 1)")
    parser.add_argument(
        "--max", type=int, metavar="N", dest="max_replicas", help="(default twice the need at the peak)"
    )
    parser.add_argument("--cold-start-s", type=float, default=120.0, metavar="S", help="(default 120)")
    parser.add_argument("--force", action="store_true", help="as in target")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if not math.isfinite(args.cold_start_s) or not 0 <= args.cold_start_s <= 3600:
        raise UserError(f"--cold-start-s {args.cold_start_s:g}: 0 to 3600 seconds are expected")
    if not 0 < args.use_share <= 1:
        raise UserError(f"--use-share {args.use_share:g}: must be above 0 and at most 1")
    if args.min_replicas < 1:
        raise UserError(f"--min {args.min_replicas}: must be 1 or more")
    report = load(args.report)
    traffic = _traffic(args)
    most = max(rate for _, rate in traffic)
    made = plan(
        report,
        Wish(most, use_share=args.use_share, min_replicas=args.min_replicas, max_replicas=args.max_replicas),
        force=args.force,
    )
    closed = kind_of(report) == "concurrency"

    def in_flight(point: Point) -> float | None:
        return point.load if closed else point.mean(lambda level: level.in_flight_mean)

    replica = replica_of(points(report), in_flight)
    if replica is None:
        raise UserError(f"{args.report}: fewer than two levels count; there is no curve to rehearse with")
    policy = Policy(
        min_replicas=made.min_replicas,
        max_replicas=made.max_replicas,
        cold_start_s=args.cold_start_s,
        up_period_s=max(15.0, args.cold_start_s),
        down_window_s=max(300.0, 2 * args.cold_start_s),
    )
    start = math.ceil(traffic[0][1] / made.planned_rps)
    highest = replica.served.points[-1][0]
    own = Line(((0.0, 0.0), (highest * 1e6, highest * 1e6 / made.peak_load_per_replica)))
    rows = [("saturation (goodput peak)", made.target_saturation, own)]
    for key, name, usual in USUAL:
        if (line := replica.signals.get(key)) is not None:
            target = usual if usual is not None else 0.8 * max(v for _, v in line.points)
            rows.append((name, target, line))
    results = [
        (name, target, rehearse(replica, line, target, policy, traffic, start)) for name, target, line in rows
    ]
    console = Console(highlight=False)
    console.print(_table(results))
    if len(rows) == 1:
        console.print("The sweep recorded no engine signals: nothing to compare saturation with.")
    return 0


def _table(results: list[tuple[str, float, Outcome]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scaled on")
    for name in ("target", "good", "requests\nlost", "replica-\nhours", "most\nreplicas", "turns"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, target, outcome in results:
        cells = [
            name,
            number(target),
            percent(outcome.good_share),
            number(outcome.lost),
            number(outcome.replica_hours),
            str(outcome.most_replicas),
            str(outcome.turns),
        ]
        table.add_row(*(Text(c) for c in cells))
    return table


def _traffic(args: argparse.Namespace) -> Series:
    if args.day is not None:
        if not math.isfinite(args.day) or args.day <= 0:
            raise UserError(f"--day {args.day:g}: must be more than 0 requests per second")
        return synthetic_day(args.day)
    try:
        text = args.traffic.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(
            f"{args.traffic}: cannot be read ({getattr(e, 'strerror', None) or 'not UTF-8'})"
        ) from None
    return read_traffic(text, str(args.traffic))


def read_traffic(text: str, source: str) -> Series:
    """``second,rate`` lines, a header line allowed. Raises `UserError` naming the line."""
    found: list[tuple[float, float]] = []
    for n, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            second, rate = (float(cell) for cell in line.split(","))
        except ValueError:
            if n == 1:
                continue
            raise UserError(f"{source}: line {n}: expected second,rate, found {line[:40]!r}") from None
        if not (math.isfinite(second) and math.isfinite(rate) and rate >= 0):
            raise UserError(f"{source}: line {n}: second and rate must be numbers, the rate 0 or more")
        if found and second <= found[-1][0]:
            raise UserError(f"{source}: line {n}: the seconds must rise")
        found.append((second, rate))
    if len(found) < 2 or max(rate for _, rate in found) <= 0:
        raise UserError(f"{source}: at least two lines of second,rate with some traffic are expected")
    if found[-1][0] - found[0][0] > 31 * 86400:
        raise UserError(f"{source}: more than 31 days; is the first column in seconds?")
    return found
