"""One measuring session from flags to report: preflight, Locust processes, levels, files, terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from loadgen import options
from loadgen.arrivals import Arrivals
from loadgen.engine_watch import EngineWatch
from loadgen.ledgers import Ledgers, check_admin
from loadgen.locust_pool import LoadFailed, LocustPool
from loadgen.orders import Setup
from loadgen.plan import LevelPlan, Measured
from loadgen.preflight import Preflight, Server
from loadgen.processes import patiently
from loadgen.progress import Display
from loadgen.records_file import RecordsFile
from loadgen.report import write_all
from loadgen.report.jsonio import load
from loadgen.report.terminal import render
from loadgen.results import LevelResult, SweepReport
from loadgen.search import PeakSearch
from loadgen.sweep import Sweep
from loadgen.workload.mix import Mix
from loadgen.workload.prompts import Calibration
from loadgen.workload.spec import PATHS, RequestMaker
from sidecar.errors import UserError
from sidecar.requests.records import Api

PROBE_TOKENS = 8  # enough for a server that breaks its answers off to show it
INTERRUPTED = 130
FAILED = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended: the report of what was measured, and the exit status."""

    report: SweepReport
    status: int


def measure(
    args: argparse.Namespace,
    *,
    url: str,
    search: PeakSearch,
    arrivals: Arrivals,
    stopped: Callable[[], bool],
    console: Console,
) -> Outcome:
    """Measure what the search asks for and write the report after every level.

    Raises `UserError` before any load for a server or flag that is not fit. After that, whatever happens, the
    report of what was measured is written and the Locust processes are gone.
    """
    settings = options.settings_of(args, url, arrivals)
    target = options.target_of(args, url)
    api_key = options.api_key_of(args)
    first = settings.mix.classes[0]
    _must_go_together(settings.mix, arrivals)
    api = Api(first.api)
    _must_be_writable(args)
    prober = RequestMaker(
        replace(first, token_ids=False), model="", seed=settings.seed, calibration=Calibration(), head=b""
    )
    preflight = Preflight(url, api_key=api_key, verify=args.ca_file or not args.insecure)
    probe = prober.body("Say something.", PROBE_TOKENS)
    if args.admin_url:
        patiently(lambda: check_admin(args.admin_url), stopped)
    needs_ids = any(workload.token_ids for workload in settings.mix.classes)
    server = patiently(
        lambda: preflight.check(
            model=args.model, api=first.api, path=PATHS[api], probe=probe, token_ids=needs_ids
        ),
        stopped,
    )
    if settings.trace is None:  # a trace brings its own lengths, and is cut to fit
        _must_fit(settings.mix, server)
    setup = Setup(
        target=target,
        mix=settings.mix,
        model=server.model,
        seed=settings.seed,
        calibration=server.calibration,
        workers=args.workers,
        timeout_s=args.timeout_s,
        trace=settings.trace.source if settings.trace else "",
        context_tokens=server.max_model_len,
        api_key=api_key,
    )
    console.print(f"{server.name} at {url}, model {server.model}", highlight=False, markup=False)
    sweep = Sweep(settings, search, server, stopped=stopped)
    if args.resume and (args.out / "report.json").exists():
        sweep.resume(load(args.out / "report.json"))
    records = RecordsFile(args.records, append=args.resume) if args.records else None
    status = 0
    with Display(console, sweep.remaining_s) as display:
        try:
            with LocustPool(setup, stopped=stopped) as pool:
                watch = EngineWatch(url)
                ledgers = Ledgers(url, args.admin_url or "")

                def run_level(plan: LevelPlan) -> Measured:
                    display.begin(plan)
                    ledgers.open()
                    measured = pool.run_level(plan, display.tick, on_phase=watch.phase)
                    if records is not None:
                        took_s = plan.warmup_s if measured.warmup_s is None else measured.warmup_s
                        records.write(replace(plan, warmup_s=took_s), measured.records, settings.slo)
                    engine, findings = watch.take()
                    return replace(
                        measured,
                        engine=engine,
                        findings=(*measured.findings, *findings),
                        books=None if measured.cut_ns is not None else ledgers.close(measured.records),
                    )

                def on_level(level: LevelResult) -> None:
                    display.end(level)
                    # A disk that is full for now must not end the measuring; the last write tells of it.
                    with contextlib.suppress(UserError):
                        write_all(sweep.report(), args.out)

                sweep.run(run_level, on_level)
        except LoadFailed as failure:
            sweep.fail(str(failure))
            status = FAILED
    report = sweep.report()
    if stopped():
        status = INTERRUPTED
    # Shown first: where the files cannot be written, the result is at least on the screen.
    console.print()
    console.print(render(report))
    files = write_all(report, args.out)
    if booked := books_line(report.levels):
        console.print(booked, highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nreport: {files['html']}", highlight=False, markup=False, soft_wrap=True)
    if status == 0 and not any(level.completed for level in report.levels):
        status = FAILED
    return Outcome(report, status)


def books_line(levels: Sequence[LevelResult]) -> str:
    """One line on whether the books of client, sidecar and engine agree; empty where there is only one."""
    compared = [level for level in levels if len(level.books) > 1]
    if not compared:
        return ""
    who = max((list(level.books) for level in compared), key=len)
    agree = sum(not any(flag.startswith("unaccounted") for flag in level.flags) for level in compared)
    return (
        f"Books of {', '.join(who[:-1])} and {who[-1]}: all requests and tokens accounted for in {agree} of "
        f"{len(compared)} levels"
    )


def _must_be_writable(args: argparse.Namespace) -> None:
    """Find out before the load, not after it, that the report cannot be written."""
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        probe = args.out / ".writable"
        probe.write_text(json.dumps({}))
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--out {args.out}: cannot be written ({error.strerror}); choose another folder"
        ) from None


def _must_fit(mix: Mix, server: Server) -> None:
    """Refuse a workload that the server cannot take: too long for its context, or a model it does not
    have.
    """
    for workload in mix.classes:
        named = f"workload class {workload.name}: " if workload.name else ""
        tokens = workload.prompt_tokens.mean + workload.output_tokens.mean
        if server.max_model_len is not None and tokens > server.max_model_len:
            raise UserError(
                f"{named}--prompt-tokens {workload.prompt_tokens} with --output-tokens "
                f"{workload.output_tokens}: on average {tokens:.0f} tokens, but the model's context is "
                f"{server.max_model_len}"
            )
        if workload.model and workload.model not in server.models:
            raise UserError(
                f"{named}model {workload.model} is not served; there are {', '.join(server.models)}"
            )


def _must_go_together(mix: Mix, arrivals: Arrivals) -> None:
    """Refuse what no request can be: token ids in a chat, conversations without one or on a schedule."""
    for workload in mix.classes:
        named = f"workload class {workload.name}: " if workload.name else ""
        if workload.token_ids and workload.api != "completions":
            raise UserError(f"{named}--token-ids: only with --api completions; a chat takes text")
        if workload.token_ids and (workload.prompts or workload.turns is not None):
            raise UserError(f"{named}--token-ids: not with --prompts or --turns, which are text")
        if workload.turns is not None and workload.api != "chat":
            raise UserError(f"{named}--turns: only with --api chat")
        if workload.turns is not None and arrivals.open_loop:
            raise UserError(
                f"{named}--turns: conversations need a closed loop (a turn is due when its user has "
                "thought), not --arrivals, --rate or --trace"
            )
