"""``goodput-sidecar map``: what an engine's metrics page says, in canonical words, whatever its version."""

from __future__ import annotations

import argparse
import json
import sys
import time

from sidecar.engine.bounds import GoodputBounds, goodput_bounds, goodput_of
from sidecar.engine.describe import describe, describe_bounds, render
from sidecar.engine.mapping import map_page
from sidecar.engine.series import History
from sidecar.engine.sources import Source, parse_source, read_source
from sidecar.engine.view import EngineView
from sidecar.errors import UserError
from sidecar.requests.judge import SloClass
from sidecar.requests.slo_file import parse_slo


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "map",
        help="show what a metrics page says in canonical words",
        description="Reads metrics pages from URLs, files or - (stdin) and prints every canonical signal, "
        "the name it was found under, its value, what will break with the next releases, what is missing "
        "and which setting brings it. Several pages of one engine, as FILE@SECONDS each, give rates and "
        "quantiles over their time; so do --scrapes of one URL.",
    )
    parser.add_argument("sources", nargs="+", metavar="URL|FILE[@SECONDS]")
    parser.add_argument("--json", action="store_true", help="print JSON for tools")
    parser.add_argument("--all", action="store_true", help="also show signals that are 0")
    parser.add_argument("--engine-version", help="the engine's version; asked from /version for a URL")
    parser.add_argument("--slo", help="bound goodput against this SLO, e.g. ttft=0.5,tpot=0.05")
    parser.add_argument("--scrapes", type=int, default=1, help="how often to scrape one URL (default 1)")
    parser.add_argument("--every-s", type=float, default=5.0, help="seconds between them (default 5)")
    parser.add_argument("--timeout-s", type=float, default=5.0, help="limit for each scrape (default 5)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the mapping; 0. Raises UserError for a source that gives no whole page."""
    slo = parse_slo(args.slo) if args.slo else None
    sources = [parse_source(text) for text in args.sources]
    views = _views(sources, args)
    view = views[-1][1]
    history = _history(views) if len(views) > 1 else None
    now_ns = views[-1][0]
    told = describe(view, history, now_ns)
    told["window_s"] = history.elapsed_s(now_ns) if history else None
    told["resets"] = history.resets(now_ns) if history else 0
    if slo is not None:
        told["goodput"] = describe_bounds(_bounds(view, history, now_ns, slo))
    text = (
        json.dumps(told, ensure_ascii=False, allow_nan=False) + "\n"
        if args.json
        else render(told, everything=args.all)
    )
    sys.stdout.write(text)
    return 0


def _views(sources: list[Source], args: argparse.Namespace) -> list[tuple[int, EngineView]]:
    if args.scrapes < 1:
        raise UserError(f"--scrapes {args.scrapes}: must be at least 1")
    if args.scrapes > 1:
        return _scrapes(sources, args)
    if len(sources) > 1:
        timeless = [source.text for source in sources if source.at_s is None]
        if timeless:
            raise UserError(f"{timeless[0]}: several pages need their times: write FILE@SECONDS for each")
        sources = sorted(sources, key=lambda source: source.at_s or 0.0)
    views: list[tuple[int, EngineView]] = []
    for source in sources:
        page, version = read_source(source, args.timeout_s)
        at_ns = round((source.at_s or 0.0) * 1e9)
        if views and views[-1][0] == at_ns:
            raise UserError(f"{source.text}: two pages of the same time")
        views.append((at_ns, map_page(page, args.engine_version or version)))
    return views


def _scrapes(sources: list[Source], args: argparse.Namespace) -> list[tuple[int, EngineView]]:
    if len(sources) != 1 or not sources[0].is_url:
        raise UserError("--scrapes needs exactly one URL")
    if not 0 < args.every_s <= 86_400 or args.scrapes > 10_000:
        raise UserError("--every-s must be above 0 and at most 86400, --scrapes at most 10000")
    views: list[tuple[int, EngineView]] = []
    due = time.monotonic()
    for left in range(args.scrapes, 0, -1):
        page, version = read_source(sources[0], args.timeout_s)
        views.append((time.monotonic_ns(), map_page(page, args.engine_version or version)))
        due += args.every_s
        if left > 1:
            time.sleep(max(0.0, due - time.monotonic()))
    return views


def _history(views: list[tuple[int, EngineView]]) -> History:
    whole_s = (views[-1][0] - views[0][0]) / 1e9
    # Nothing is stale in a list of pages that a person named, so one "interval" is all of their time.
    history = History(interval_s=whole_s, window_s=whole_s)
    shift_ns = 1 - min(0, views[0][0])
    for at_ns, view in views:
        history.add(at_ns + shift_ns, view)
    # Answers are asked for at the last page's own time.
    views[-1] = (views[-1][0] + shift_ns, views[-1][1])
    return history


def _bounds(view: EngineView, history: History | None, now_ns: int, slo: SloClass) -> GoodputBounds | None:
    if history is not None:
        return goodput_of(history, slo, now_ns)
    histograms = {name: one.merged for name, one in view.histograms.items()}
    return goodput_bounds(histograms, slo, success_by_reason=view.success_by_reason)
