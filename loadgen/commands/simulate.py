"""``goodput-loadgen simulate``: a vLLM look-alike whose goodput curve is known."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from loadgen.simulator.faults import Faults, parse_faults
from loadgen.simulator.model import find_profile, profiles, true_curve, true_peak
from loadgen.simulator.profile import Profile
from loadgen.simulator.server import Simulator
from sidecar.errors import UserError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="run a vLLM look-alike on a roofline",
        description="Serve the OpenAI API and vLLM's /metrics from an engine whose true curve is known.",
    )
    parser.add_argument("--profile", default="demo", help=f"one of {', '.join(profiles())} (default: demo)")
    parser.add_argument("--profile-file", default=None, help="YAML file to take the profile from instead")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (default: 8000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of answer lengths, words and faults")
    parser.add_argument("--max-seconds", type=float, default=None, help="stop after this long")
    parser.add_argument(
        "--max-queued", type=int, default=None, help="answer 503 while this many requests wait"
    )
    parser.add_argument(
        "--fault",
        default="",
        metavar="KEY=VALUE,...",
        help="faults for all requests: error, reject, stall, drop, error_event as shares 0..1; retry_after_s,"
        " stall_s, stall_after, drop_after; the header x-sim-fault says the same for one request",
    )
    parser.add_argument("--curve", action="store_true", help="print the true goodput curve and stop")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    profile = find_profile(args.profile, args.profile_file)
    faults = parse_faults(args.fault)
    if not 0 <= args.port <= 65535:
        raise UserError(f"--port: expected 0..65535, got {args.port}")
    if args.max_seconds is not None and not args.max_seconds > 0:
        raise UserError(f"--max-seconds: expected more than 0, got {args.max_seconds:g}")
    if args.max_queued is not None and args.max_queued < 0:
        raise UserError(f"--max-queued: expected 0 or more, got {args.max_queued}")
    if args.curve:
        print(curve_table(profile))
        return 0
    # Imported here: it is not there on every platform, and the rest of this module does not need it.
    if sys.platform == "win32":
        return asyncio.run(_serve(profile, faults, args))
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(profile, faults, args))


async def _serve(profile: Profile, faults: Faults, args: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    simulator = Simulator(
        profile, seed=args.seed, host=args.host, port=args.port, faults=faults, max_queued=args.max_queued
    )
    await simulator.start()
    print(f"simulator listening on {simulator.url}", flush=True)
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(simulator.failed.wait())]
    try:
        await asyncio.wait(waits, timeout=args.max_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
        await simulator.close()
    if (failure := simulator.failure) is not None:
        print(f"goodput-loadgen: error: the simulated engine failed: {failure!r}", file=sys.stderr)
        return 1
    return 0


def curve_table(profile: Profile) -> str:
    """The true closed-loop curve for the profile's own workload and SLO, as text."""
    workload, slo = profile.workload, profile.slo
    peak = true_peak(profile, workload, slo)
    levels = sorted({1, 2, 4, 8, 12, 16, 24, 32, 48, peak.load, profile.max_batch, 2 * profile.max_batch})
    bounds = ", ".join(
        f"{key} {value:g}" for key in slo.__slots__ if (value := getattr(slo, key)) is not None
    )
    prompt, output = workload.prompt_tokens, workload.output_tokens
    lines = [
        f"profile {profile.name}: prompt {prompt.low}-{prompt.high}, output {output.low}-{output.high} "
        f"tokens; {bounds}",
        f"{'load':>5} {'ttft ms':>9} {'tpot ms':>8} {'req/s':>7} {'attained':>9} {'goodput':>8}",
    ]
    for point in true_curve(profile, workload, slo, levels):
        mark = "  <- peak" if point.load == peak.load else ""
        mark += "  (KV cache full: at most this throughput)" if point.kv_limited else ""
        lines.append(
            f"{point.load:>5} {point.ttft_s * 1e3:>9.1f} {point.tpot_s * 1e3:>8.2f} "
            f"{point.throughput_rps:>7.2f} {point.attainment:>9.3f} {point.goodput_rps:>8.2f}{mark}"
        )
    return "\n".join(lines)
