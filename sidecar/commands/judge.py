"""``goodput-sidecar judge``: goodput, attainment and badput of many recorded requests."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.commands.slo_option import add_slo_option, policy_from
from sidecar.errors import UserError
from sidecar.requests.recordio import NotARecord, from_json
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import SloClass, Tally, judge

_MAX_LINE_BYTES = 64 * 1024 * 1024


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "judge",
        help="goodput, attainment and badput of many recorded requests",
        description="Reads records, one JSON object a line as `meter --json` prints them (whole, or only "
        "what stands under its key record), judges each by its SLO class and prints the sums.",
    )
    parser.add_argument("file", metavar="RECORDS.jsonl", help="the records; - for standard input")
    add_slo_option(parser)
    parser.add_argument(
        "--window-s",
        type=float,
        help="seconds that the requests were gathered over (default: first start to last end)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON for tools")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the sums. Exit status 0 whatever they are."""
    if args.window_s is not None and not 0 < args.window_s < float("inf"):
        raise UserError(f"--window-s {args.window_s}: must be seconds above 0")
    policy = policy_from(args.slo)
    total = Tally()
    classes: dict[str, Tally] = {}
    start_ns: int | None = None
    end_ns: int | None = None
    untimed = 0
    for record, timed in _records(args.file):
        slo = policy.class_for(record)
        verdict = judge(record, slo if timed else SloClass(name=slo.name))
        total.add(record, verdict)
        classes.setdefault(slo.name, Tally()).add(record, verdict)
        if timed:
            start_ns = record.start_ns if start_ns is None else min(start_ns, record.start_ns)
            end_ns = record.end_ns if end_ns is None else max(end_ns, record.end_ns)
        else:
            untimed += 1
    window_s: float | None = args.window_s
    if window_s is None and start_ns is not None and end_ns is not None and end_ns > start_ns:
        window_s = (end_ns - start_ns) / 1e9
    told = {
        "window_s": window_s,
        **_sums(total, window_s),
        "classes": {name: _sums(tally, window_s) for name, tally in sorted(classes.items())},
        "without_times": untimed,
    }
    if args.json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.write(_render(told))
    return 0


def _records(name: str) -> Iterator[tuple[RequestRecord, bool]]:
    where = "standard input" if name == "-" else name
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), 1):
                if len(line) > _MAX_LINE_BYTES:
                    raise UserError(f"{where}:{number}: is longer than 64 MiB; no record is")
                if line.strip():
                    yield _record(line, f"{where}:{number}")
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror or error}") from error


def _record(line: bytes, at: str) -> tuple[RequestRecord, bool]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(
            f"{at}: is not JSON; each line should be a record as `meter --json` prints it"
        ) from None
    if isinstance(value, dict) and isinstance(value.get("record"), dict):
        value = value["record"]
    try:
        return from_json(value)
    except NotARecord as error:
        raise UserError(f"{at}: is no record: {error}") from None


def _sums(tally: Tally, window_s: float | None) -> dict[str, Any]:
    return {
        "requests": tally.requests,
        "completed": tally.completed,
        "eligible": tally.eligible,
        "good": tally.good,
        "badput": {str(bucket): count for bucket, count in sorted(tally.badput.items())},
        "not_eligible": dict(sorted(tally.not_eligible.items())),
        "errors": {str(kind): count for kind, count in sorted(tally.errors.items())},
        "misses": dict(sorted(tally.misses.items())),
        "attainment": tally.attainment,
        "goodput_rps": None if window_s is None else tally.goodput_rps(window_s),
        "token_goodput_tps": None if window_s is None else tally.token_goodput_tps(window_s),
        "output_tokens": tally.output_tokens,
        "good_tokens": tally.good_tokens,
        "tokens_estimated": tally.tokens_estimated,
    }


def _render(told: dict[str, Any]) -> str:
    window = told["window_s"]
    lines = []
    for name, sums in (("all", told), *told["classes"].items()):
        if name != "all" and len(told["classes"]) < 2:
            continue
        attainment = (
            "absent (nothing eligible)" if sums["attainment"] is None else f"{sums['attainment']:.2%}"
        )
        rate = (
            "unknown (no times)" if sums["goodput_rps"] is None else f"{sums['goodput_rps']:.4g} requests/s"
        )
        lines += [
            f"{name}: {sums['requests']} requests, {sums['eligible']} eligible, {sums['good']} good",
            f"  goodput      {rate}" + ("" if window is None else f" over {window:.6g} s"),
            f"  attainment   {attainment}",
            f"  badput       {_counts(sums['badput'])}",
            f"  not eligible {_counts(sums['not_eligible'])}",
        ]
    if told["without_times"]:
        lines.append(f"{told['without_times']} records have no times: no bound could be held against them")
    return "\n".join(lines) + "\n"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
