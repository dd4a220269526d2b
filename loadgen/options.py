"""Flags that sweep, run and demo share, and what is made of them. Every mistake names its flag."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.address import Target
from loadgen.arrivals import Arrivals, parse_arrivals
from loadgen.steady import SHORTEST_S
from loadgen.sweep import SweepSettings
from loadgen.workload.datasets import read_prompts
from loadgen.workload.lengths import parse_lengths
from loadgen.workload.mix import Mix
from loadgen.workload.recipes import Recipe, load_recipe, recipe_names
from loadgen.workload.traces import read_trace, sample_names
from sidecar.errors import UserError
from sidecar.requests.slo import DEFAULT_SLO, SloPolicy, load_slo, parse_slo


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
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        help="the sidecar's admin address, where --url is its proxy: its books are compared after each level",
    )
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


def add_trace(parser: argparse.ArgumentParser) -> None:
    """The flag that replays a trace."""
    parser.add_argument(
        "--trace",
        metavar="FILE|NAME",
        help="replay a trace in the format of Azure LLM inference, BurstGPT or Mooncake, or a generated "
        f"sample ({', '.join(sample_names())}); it brings times and lengths, starts over at its end, and is "
        "squeezed or stretched to the load",
    )


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Flags about what is sent."""
    parser.add_argument(
        "--workload",
        metavar="FILE|NAME",
        help=f"classes of requests from a file, or {', '.join(recipe_names())}; the flags below then change "
        "every class of it",
    )
    parser.add_argument("--api", choices=("chat", "completions"), help="which API (default chat)")
    parser.add_argument(
        "--prompt-tokens",
        metavar="LENGTHS",
        help="128, uniform:50-200, normal:128,20, lognormal:128,0.5 or file:PATH with one length a line "
        "(default 128)",
    )
    parser.add_argument("--output-tokens", metavar="LENGTHS", help="as --prompt-tokens (default 64)")
    parser.add_argument(
        "--shared-prefix-tokens",
        type=count(0, 100_000),
        metavar="N",
        help="let prompts begin with the same N tokens (default 0: no two prompts begin alike)",
    )
    parser.add_argument(
        "--shared-prefix-share",
        type=share,
        metavar="S",
        help="share of the prompts that do (default 1)",
    )
    parser.add_argument(
        "--shared-prefix-groups",
        type=count(1, 1000),
        metavar="N",
        help="how many different shared prefixes there are (default 1)",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="send these prompts: JSON lines with prompt or messages, or ShareGPT's conversations",
    )
    parser.add_argument(
        "--token-ids",
        action="store_true",
        help="send prompts as token ids, exactly as long as drawn (with --api completions)",
    )
    parser.add_argument(
        "--turns", metavar="LENGTHS", help="hold conversations of so many turns, as 4 or uniform:2-6"
    )
    parser.add_argument(
        "--think-s",
        type=seconds_or_zero,
        metavar="S",
        help="mean pause of the user between turns, exponential (default 0)",
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
        help="e.g. ttft=1,tpot=0.05,max_gap=1 in seconds (default: the workload's own bounds)",
    )
    parser.add_argument(
        "--slo-file", metavar="FILE", help="bounds for each class (as configs/slo.yaml), found by its name"
    )
    parser.add_argument(
        "--warmup-s",
        type=seconds_or_zero,
        default=warmup_s,
        metavar="S",
        help="unmeasured start (default %(default)s)",
    )
    parser.add_argument(
        "--warmup-max-s",
        type=seconds_or_zero,
        metavar="S",
        help="go on warming up until throughput and TTFT are steady, at most so long (default: four times "
        f"--warmup-s where that is {SHORTEST_S:g} s or more; 0: do not)",
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
    """Where the results go, and where settings come from."""
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="also write every request's record, one JSON object a line",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="take up the report in --out: its levels are not measured again (same settings only)",
    )
    parser.add_argument(
        "--settings",
        metavar="FILE",
        help="YAML file whose keys are these flags, e.g. 'window-s: 20'; flags given here win",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(default),
        metavar="DIR",
        help="folder of the report (default %(default)s)",
    )


def share(text: str) -> float:
    """A flag that takes a share from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: a share from 0 to 1")
    return value


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The workload of the file, where there is one, with what the flags change in each of its classes."""
    recipe = load_recipe(args.workload) if args.workload else Recipe(Mix())
    changes: dict[str, Any] = {
        name: value
        for name, value in (
            ("api", args.api),
            ("shared_prefix_tokens", args.shared_prefix_tokens),
            ("shared_share", args.shared_prefix_share),
            ("shared_groups", args.shared_prefix_groups),
            ("prompts", args.prompts),
            ("token_ids", args.token_ids or None),
            ("think_s", args.think_s),
        )
        if value is not None
    }
    for name in ("prompt_tokens", "output_tokens", "turns"):
        if text := getattr(args, name):
            changes[name] = parse_lengths(text, f"--{name.replace('_', '-')}")
    if args.no_ignore_eos:
        changes["ignore_eos"] = False
    extra: dict[str, Any] = {}
    if args.body:
        try:
            extra = json.loads(args.body)
        except (ValueError, RecursionError) as error:
            raise UserError(f"--body: not JSON ({error})") from None
        if not isinstance(extra, dict):
            raise UserError('--body: must be a JSON object, such as {"temperature": 0}')
    classes = tuple(replace(w, **changes, extra=w.extra | extra) for w in recipe.mix.classes)
    for workload in classes:
        if workload.prompts:
            read_prompts(workload.prompts)  # a mistake in it should be told before anything is asked
    return replace(recipe, mix=replace(recipe.mix, classes=classes))


def policy_of(args: argparse.Namespace, recipe: Recipe) -> SloPolicy:
    """By which bounds each class is judged: the flags', else the workload's own, else the default class."""
    if args.slo and args.slo_file:
        raise UserError("--slo and --slo-file: give one of them")
    if args.slo_file:
        return load_slo(args.slo_file)
    if args.slo:
        slo = parse_slo(args.slo)
        return SloPolicy(slo, (slo,))
    default = recipe.slos[0] if len(recipe.mix.classes) == 1 and recipe.slos else DEFAULT_SLO
    return SloPolicy(default, recipe.slos)


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
    recipe = recipe_of(args)
    trace = getattr(args, "trace", None)
    return SweepSettings(
        url=url,
        slo=policy_of(args, recipe),
        mix=recipe.mix,
        seed=args.seed,
        arrivals=arrivals,
        warmup_s=args.warmup_s,
        window_s=args.window_s,
        drain_limit_s=args.drain_s,
        max_s=getattr(args, "max_seconds", None),
        max_in_flight=args.max_in_flight,
        warmup_max_s=4 * args.warmup_s if args.warmup_max_s is None else args.warmup_max_s or None,
        trace=read_trace(trace) if trace else None,
    )


def arrivals_of(args: argparse.Namespace) -> Arrivals:
    """Closed loop unless arrivals, or a trace's, are asked for."""
    if args.trace and args.arrivals:
        raise UserError("--trace and --arrivals: give one of them; a trace has its own arrivals")
    if args.trace:
        return Arrivals("replay")
    return parse_arrivals(args.arrivals) if args.arrivals else Arrivals()
