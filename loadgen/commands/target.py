"""``goodput-loadgen target REPORT.json --rate R``: replicas, HPA, KEDA, capacity file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen import manifests
from loadgen.manifests import Place
from loadgen.report import write_files
from loadgen.report.jsonio import load
from loadgen.report.text import ABSENT, number, percent
from loadgen.target import Plan, Wish, capacity_file, nearest_rank, plan, read_rates
from sidecar.errors import UserError

FORMATS = ("text", "json", "capacity", "configmap", "hpa", "adapter", "keda")


def add_parser(subparsers: Any) -> None:
    """Add ``target`` and its flags."""
    parser = subparsers.add_parser(
        "target",
        help="turn a measured peak into replica counts and autoscaler objects",
        description="Replicas for a request rate, and what an autoscaler should hold, from a sweep's report.",
    )
    parser.add_argument("report", type=Path, metavar="REPORT.json")
    demand = parser.add_mutually_exclusive_group(required=True)
    demand.add_argument(
        "--rate", type=float, metavar="R", help="requests per second that all replicas must take"
    )
    demand.add_argument(
        "--rates", type=Path, metavar="FILE", help="a series of rates, one a line or the last column of a CSV"
    )
    parser.add_argument(
        "--percentile",
        type=float,
        default=99.0,
        metavar="P",
        help="of --rates, plan for this one (default 99)",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to print (default text)")
    parser.add_argument(
        "--use-share",
        type=float,
        default=0.8,
        metavar="S",
        help="share of a replica's peak to plan with (default 0.8)",
    )
    parser.add_argument(
        "--at",
        type=float,
        metavar="SHARE",
        help="plan for the load that keeps this share good (0.99) instead of the peak",
    )
    parser.add_argument(
        "--spare", type=int, default=0, metavar="N", help="replicas that may fail (default 0)"
    )
    parser.add_argument(
        "--min", type=int, default=1, metavar="N", dest="min_replicas", help="least replicas (default 1)"
    )
    parser.add_argument(
        "--max", type=int, metavar="N", dest="max_replicas", help="most replicas (default twice the need)"
    )
    parser.add_argument("--usd-per-hour", type=float, metavar="X", help="price of one replica, for the cost")
    parser.add_argument("--name", default="vllm", help="Deployment to scale (default vllm)")
    parser.add_argument("--namespace", default="default", help="its namespace (default default)")
    parser.add_argument(
        "--prometheus", metavar="URL", default=manifests.PROMETHEUS, help="for KEDA's prometheus trigger"
    )
    parser.add_argument(
        "--trigger", choices=("prometheus", "metrics-api"), default="prometheus", help="KEDA's source"
    )
    parser.add_argument("--service", default="", help="Service of the sidecars, for the metrics-api trigger")
    parser.add_argument(
        "--cold-start-s",
        type=float,
        default=120.0,
        metavar="S",
        help="from a new pod to serving (default 120)",
    )
    parser.add_argument("--force", action="store_true", help="plan although the report gives cause for doubt")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of printing")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    _check(args)
    report = load(args.report)
    wish = Wish(
        rate_rps=_rate(args),
        use_share=args.use_share,
        at=args.at,
        spare=args.spare,
        min_replicas=args.min_replicas,
        max_replicas=args.max_replicas,
        usd_per_replica_hour=args.usd_per_hour,
    )
    made = plan(report, wish, force=args.force)
    place = Place(args.name, args.namespace, args.prometheus, args.service, args.cold_start_s)
    capacity = capacity_file(report, made)
    texts: dict[str, Callable[[], str]] = {
        "text": lambda: _text(made),
        "json": lambda: json.dumps(dataclasses.asdict(made), indent=1, allow_nan=False) + "\n",
        "capacity": lambda: capacity,
        "configmap": lambda: manifests.config_map(capacity, place),
        "hpa": lambda: manifests.hpa(made, place),
        "adapter": manifests.adapter_rule,
        "keda": lambda: manifests.keda(made, place, args.trigger),
    }
    text = texts[args.format]()
    if args.out is None:
        sys.stdout.write(text)
    else:
        write_files({"out": args.out}, {"out": text})
    if args.format != "text":
        for note in (*made.notes, *made.forced):
            print(f"goodput-loadgen: note: {note}", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse numbers that make no sense, naming the flag."""
    for flag, value, least, most in (
        ("--rate", args.rate, 0.0, math.inf),
        ("--use-share", args.use_share, 1e-6, 1.0),
        ("--at", args.at, 1e-6, 1.0),
        ("--percentile", args.percentile, 1e-6, 100.0),
        ("--usd-per-hour", args.usd_per_hour, 0.0, math.inf),
        ("--spare", args.spare, 0, 10_000),
        ("--min", args.min_replicas, 1, 100_000),
        ("--max", args.max_replicas, 1, 100_000),
    ):
        if value is not None and not (math.isfinite(value) and least <= value <= most):
            bounds = f"{least:g} or more" if math.isinf(most) else f"between {least:g} and {most:g}"
            raise UserError(f"{flag} {value:g}: must be {bounds}")


def _rate(args: argparse.Namespace) -> float:
    if args.rate is not None:
        return float(args.rate)
    try:
        text = args.rates.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(
            f"{args.rates}: cannot be read ({getattr(e, 'strerror', None) or 'not UTF-8'})"
        ) from None
    return nearest_rank(read_rates(text, str(args.rates)), args.percentile / 100)


def _text(made: Plan) -> str:
    money = ABSENT if made.usd_per_hour is None else f"${number(made.usd_per_hour)}"
    tokens = (
        "" if (t := made.usd_per_million_good_tokens) is None else f", ${number(t)} per million good tokens"
    )
    lines = [
        f"replicas             {made.replicas}  (scale between {made.min_replicas} and {made.max_replicas})",
        f"rate                 {number(made.rate_rps)} requests/s",
        f"one replica          {number(made.measured_rps)} good requests/s at its {made.basis}, "
        f"at least {number(made.measured_low_rps)}",
        f"planned with         {number(made.planned_rps)} requests/s each ({percent(made.use_share)} of that)"
        + (f"; {made.spare} may fail" if made.spare else ""),
        f"autoscaler target    saturation {number(made.target_saturation)} of "
        f"{number(made.peak_load_per_replica)} requests in flight per replica",
        f"expected             {percent(made.expected_attainment)} good, "
        f"{number(made.expected_goodput_rps)} good requests/s",
    ]
    if made.usd_per_hour is not None:
        lines.append(f"cost                 {money} per hour{tokens}")
    lines += [f"note: {note}" for note in made.notes]
    lines += [f"forced although {doubt}" for doubt in made.forced]
    return "\n".join(lines) + "\n"
