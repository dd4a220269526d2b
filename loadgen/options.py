"""Flags that sweep, run and demo share, and what is made of them. Every mistake names its flag."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen.address import Target
from loadgen.arrivals import Arrivals, parse_arrivals
from loadgen.sweep import SweepSettings
from loadgen.workload.lengths import parse_lengths
from loadgen.workload.spec import Workload
from sidecar.errors import UserError
from sidecar.requests.slo import DEFAULT_SLO, parse_slo


def seconds(text: str) -> float:
    """A duration flag: a positive number of seconds, at most a day."""
    value = _number(text)
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text}: a positive number of seconds, at most 86400")
    return value


def seconds_or_zero(text: str) -> float:
    """A duration flag that may be 0."""
    return 0.0 if _number(text) == 0 else seconds(text)


def count(low: int, high: int) -> Callable[[str], int]:
    """A flag that takes a whole number between two limits."""

    def read(text: str) -> int:
        value = _number(text)
        if value % 1 or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: a whole number from {low} to {high}")
        return int(value)

    return read


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text}: not a number")
    return value


def add_server(parser: argparse.ArgumentParser) -> None:
    """Flags that say which server, and how to be let in."""
    parser.add_argument("--url", required=True, help="base URL of the server (or of the sidecar before it)")
    add_access(parser)


def add_access(parser: argparse.ArgumentParser) -> None:
    """Flags about the model and about being let in."""
    parser.add_argument("--model", default="auto", help="model to ask for (default: the first one served)")
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the API key (never the key)",
    )
    parser.add_argument("--insecure", action="store_true", help="do not check the server's TLS certificate")
    parser.add_argument("--ca-file", metavar="FILE", help="certificate authority to check it against")


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Flags about what is sent."""
    parser.add_argument(
        "--api", choices=("chat", "completions"), default="chat", help="which API (default %(default)s)"
    )
    parser.add_argument(
        "--prompt-tokens",
        default="128",
        metavar="LENGTHS",
        help="128, uniform:50-200, normal:128,20 or lognormal:128,0.5 (default %(default)s)",
    )
    parser.add_argument(
        "--output-tokens", default="64", metavar="LENGTHS", help="as --prompt-tokens (default %(default)s)"
    )
    parser.add_argument(
        "--shared-prefix-tokens",
        type=count(0, 100_000),
        default=0,
        metavar="N",
        help="let all prompts begin with the same N tokens (default 0: no two prompts begin alike)",
    )
    parser.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="do not send ignore_eos and min_tokens (servers other than vLLM may refuse them)",
    )
    parser.add_argument(
        "--body", metavar="JSON", help="more fields for each request, e.g. '{\"temperature\": 0}'"
    )
    parser.add_argument(
        "--seed", type=count(0, 2**31), default=0, help="of prompts, lengths and arrivals (default 0)"
    )


def add_measuring(parser: argparse.ArgumentParser, *, warmup_s: float, window_s: float) -> None:
    """Flags about how a level is measured."""
    parser.add_argument(
        "--slo",
        default="",
        metavar="BOUNDS",
        help="e.g. ttft=1,tpot=0.05,max_gap=1 in seconds (default: the default class)",
    )
    parser.add_argument(
        "--warmup-s",
        type=seconds_or_zero,
        default=warmup_s,
        metavar="S",
        help="unmeasured start (default %(default)s)",
    )
    parser.add_argument(
        "--window-s",
        type=seconds,
        default=window_s,
        metavar="S",
        help="measured window (default %(default)s)",
    )
    parser.add_argument(
        "--drain-s",
        type=seconds,
        default=30.0,
        metavar="S",
        help="wait at most so long for the window's requests (default %(default)s)",
    )
    parser.add_argument(
        "--timeout-s", type=seconds, default=600.0, metavar="S", help="of one request (default %(default)s)"
    )
    parser.add_argument(
        "--workers", type=count(1, 64), default=1, metavar="N", help="Locust processes (default %(default)s)"
    )
    parser.add_argument(
        "--max-in-flight",
        type=count(1, 100_000),
        metavar="N",
        help="ceiling of an open loop; a due request waits, and the wait counts",
    )


def add_out(parser: argparse.ArgumentParser, default: str) -> None:
    """Where the report goes."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(default),
        metavar="DIR",
        help="folder of the report (default %(default)s)",
    )


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload the flags describe."""
    extra: dict[str, Any] = {}
    if args.body:
        try:
            extra = json.loads(args.body)
        except ValueError as error:
            raise UserError(f"--body: not JSON ({error})") from None
        if not isinstance(extra, dict):
            raise UserError('--body: must be a JSON object, such as {"temperature": 0}')
    return Workload(
        api=args.api,
        prompt_tokens=parse_lengths(args.prompt_tokens, "--prompt-tokens"),
        output_tokens=parse_lengths(args.output_tokens, "--output-tokens"),
        ignore_eos=not args.no_ignore_eos,
        shared_prefix_tokens=args.shared_prefix_tokens,
        extra=extra,
    )


def target_of(args: argparse.Namespace, url: str) -> Target:
    """The server's address."""
    if args.ca_file and not Path(args.ca_file).is_file():
        raise UserError(f"--ca-file {args.ca_file}: no such file")
    return Target.of(url, verify=not args.insecure, ca_file=args.ca_file)


def api_key_of(args: argparse.Namespace) -> str:
    """The API key, from the environment only."""
    if not args.api_key_env:
        return ""
    key = os.environ.get(args.api_key_env, "")
    if not key:
        raise UserError(f"--api-key-env {args.api_key_env}: this environment variable is not set")
    return key


def settings_of(args: argparse.Namespace, url: str, arrivals: Arrivals) -> SweepSettings:
    """What every level shares."""
    return SweepSettings(
        url=url,
        slo=parse_slo(args.slo) if args.slo else DEFAULT_SLO,
        workload=workload_of(args),
        seed=args.seed,
        arrivals=arrivals,
        warmup_s=args.warmup_s,
        window_s=args.window_s,
        drain_limit_s=args.drain_s,
        max_s=getattr(args, "max_seconds", None),
        max_in_flight=args.max_in_flight,
    )


def arrivals_of(args: argparse.Namespace) -> Arrivals:
    """Closed loop unless arrivals are asked for."""
    return parse_arrivals(args.arrivals) if args.arrivals else Arrivals()
