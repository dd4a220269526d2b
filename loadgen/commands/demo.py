"""``goodput-loadgen demo``: simulator (or a server of your own), sidecar before it, sweep through the
sidecar, report.

Everything that is started here runs in a process group of its own and is gone when the command ends, however
it ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from loadgen import options
from loadgen.arrivals import Arrivals
from loadgen.preflight import must_be_reachable
from loadgen.processes import Child, Interrupt, patiently
from loadgen.progress import output
from loadgen.results import Peak
from loadgen.search import PeakSearch, parse_levels
from loadgen.session import measure
from loadgen.simulator.model import find_profile, true_peak, true_point
from loadgen.simulator.profile import Profile

_START_LIMIT_S = 30.0
# The simulator ends by itself soon after the demo should have, should all else fail.
_SIMULATOR_LIFE_S = 900


def add_parser(subparsers: Any) -> None:
    """Add ``demo`` and its flags."""
    parser = subparsers.add_parser(
        "demo",
        help="the whole path on this machine: simulator, sidecar, sweep, report",
        description="Starts a simulated vLLM and the sidecar before it, sweeps through the sidecar and "
        "compares the peak it finds with the true one. With --attach, measures a server that already runs.",
    )
    parser.add_argument(
        "--attach", metavar="URL", help="put the sidecar before this server, start no simulator"
    )
    parser.add_argument("--profile", default="demo", help="of the simulator (default %(default)s)")
    parser.add_argument("--levels", default="4..64", help="as in sweep (default %(default)s)")
    parser.add_argument(
        "--max-seconds",
        type=options.seconds,
        default=130.0,
        metavar="S",
        help="start no level that would end after so long (default %(default)s)",
    )
    options.add_access(parser)
    options.add_workload(parser)
    options.add_measuring(parser, warmup_s=1.5, window_s=6.0)
    options.add_out(parser, "out/demo")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; statuses as of ``sweep``."""
    console = output()
    # No repeats and a coarser grid: satisfied after about seven levels, within the time a demo may take.
    search = PeakSearch(parse_levels(args.levels, whole=True), max_repeats=1, resolution=0.15)
    profile = None if args.attach else find_profile(args.profile, None)
    stated = not (
        args.workload or args.prompt_tokens or args.output_tokens or args.slo or args.slo_file
    )  # what the truth is stated for
    _fill_in(args, profile)
    with Interrupt() as stopped, ExitStack() as children:
        upstream = args.attach.rstrip("/") if args.attach else _simulator(args, children, stopped)
        if args.attach:
            patiently(lambda: must_be_reachable(upstream), stopped)
        url, args.admin_url = _sidecar(args, upstream, children, stopped)
        outcome = measure(args, url=url, search=search, arrivals=Arrivals(), stopped=stopped, console=console)
        if profile is not None and outcome.report.levels and stated:
            console.print("\n" + compared(profile, outcome.report.peak), highlight=False, markup=False)
        return outcome.status


def _fill_in(args: argparse.Namespace, profile: Profile | None) -> None:
    """Workload and SLO the profile's truth is stated for, unless the flags say otherwise."""
    if args.workload:
        return
    if profile is None:
        args.prompt_tokens = args.prompt_tokens or "uniform:32-160"
        args.output_tokens = args.output_tokens or "uniform:16-64"
        return
    prompt, output = profile.workload.prompt_tokens, profile.workload.output_tokens
    args.prompt_tokens = args.prompt_tokens or f"uniform:{prompt.low}-{prompt.high}"
    args.output_tokens = args.output_tokens or f"uniform:{output.low}-{output.high}"
    bounds = {"ttft": profile.slo.ttft_s, "tpot": profile.slo.tpot_s}
    if not args.slo_file:
        args.slo = args.slo or ",".join(
            f"{name}={bound:g}" for name, bound in bounds.items() if bound is not None
        )


def _simulator(args: argparse.Namespace, children: ExitStack, stopped: Callable[[], bool]) -> str:
    command = [sys.executable, "-m", "loadgen.cli", "simulate", "--port", "0", "--profile", args.profile]
    command += ["--seed", str(args.seed), "--max-seconds", str(_SIMULATOR_LIFE_S)]
    child = children.enter_context(Child("simulator", command))
    return child.address("simulator", limit_s=_START_LIMIT_S, stopped=stopped)


def _sidecar(
    args: argparse.Namespace, upstream: str, children: ExitStack, stopped: Callable[[], bool]
) -> tuple[str, str]:
    command = [sys.executable, "-m", "sidecar", "run", "--upstream", upstream]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    if args.slo:
        command += ["--slo", args.slo]
    elif args.slo_file:
        command += ["--slo-file", args.slo_file]
    child = children.enter_context(Child("sidecar", command))
    admin = child.address("admin", limit_s=_START_LIMIT_S, stopped=stopped)
    return child.address("proxy", limit_s=_START_LIMIT_S, stopped=stopped), admin


def compared(profile: Profile, peak: Peak) -> str:
    """How near the found peak comes to the true one, in one or two lines."""
    truth = true_peak(profile, profile.workload, profile.slo)
    text = f"the simulator's true peak: {truth.goodput_rps:.2f} good requests/s at {truth.load} in flight"
    if peak.load is None or peak.goodput_rps is None:
        return text + "; none was found"
    there = true_point(profile, profile.workload, profile.slo, round(peak.load))
    return (
        f"{text}\nfound: {peak.load:g} in flight, measured {peak.goodput_rps:.2f}/s; "
        f"the true goodput there is {there.goodput_rps:.2f}/s, "
        f"{there.goodput_rps / truth.goodput_rps:.1%} of the best"
    )
