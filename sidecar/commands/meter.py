"""``goodput-sidecar meter``: measures and judges one captured response, for bug reports."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from sidecar.commands.slo_option import add_slo_option, policy_from
from sidecar.errors import UserError
from sidecar.requests.capture import Capture, guess_api, read_capture
from sidecar.requests.recordio import to_json, without_times
from sidecar.requests.records import Api, RequestRecord
from sidecar.requests.slo import SloClass, Verdict, judge
from sidecar.requests.stream import StreamMeter

_APIS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
_UNTIMED = (
    "ttft, tpot, gaps, e2e: the capture has no times; give JSON lines of "
    '{"at_s": seconds since start, "data": text} to have them',
    "slo: no bound can be held against a response without times",
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "meter",
        help="measure and judge one captured response",
        description="Reads a captured response and prints its record, the verdict and the badput bucket. The "
        "capture is the body as received (server-sent events or JSON), or JSON lines of "
        '{"at_s": SECONDS SINCE THE REQUEST, "data": TEXT} (or "data_b64"), which know their times; such '
        'lines may also carry "status", "headers" and, last, "end" (eof, reset, client_left, timeout).',
    )
    parser.add_argument("file", metavar="FILE", help="the capture; - for standard input")
    parser.add_argument("--api", choices=[str(api) for api in _APIS], help="default: told from the events")
    parser.add_argument("--choices", type=int, default=1, help="choices the request asked for (default 1)")
    parser.add_argument("--status", type=int, default=200, help="HTTP status of the answer (default 200)")
    parser.add_argument("--model", default="", help="the model, where the answer does not name it")
    add_slo_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON for tools")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints what was measured. Exit status 0 whatever the verdict."""
    if args.choices < 1:
        raise UserError(f"--choices {args.choices}: must be 1 or more")
    if not 100 <= args.status <= 599:
        raise UserError(f"--status {args.status}: is no HTTP status")
    policy = policy_from(args.slo)
    capture = read_capture(args.file)
    api = Api(args.api) if args.api else guess_api(capture)
    record = _measure(capture, api, args)
    slo = policy.class_for(record)
    if not capture.timed:
        record = without_times(record)
    verdict = judge(record, slo if capture.timed else SloClass(name=slo.name))
    cannot_tell = [] if capture.timed else list(_UNTIMED)
    if record.tokens_estimated:
        cannot_tell.append("output tokens: the server sent no usage; counted are the output chunks")
    told = {
        "api": str(api),
        "api_guessed": args.api is None,
        "record": to_json(record, timed=capture.timed),
        "slo": asdict(slo),
        "verdict": asdict(verdict),
        "bucket": verdict.bucket,
        "cannot_tell": cannot_tell,
    }
    if args.json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.write(_render(record, capture.timed, slo, verdict, told))
    return 0


def _measure(capture: Capture, api: Api, args: argparse.Namespace) -> RequestRecord:
    meter = StreamMeter(api, start_ns=0, choices=args.choices, model=args.model, stream=None)
    status = args.status if capture.status is None else capture.status
    first_ns = capture.pieces[0].at_ns if capture.pieces else 0
    meter.on_headers(status, capture.headers, min(first_ns, capture.end_ns))
    for piece in capture.pieces:
        meter.feed(piece.data, piece.at_ns)
    return meter.finish(capture.end, capture.end_ns)


def _render(record: RequestRecord, timed: bool, slo: SloClass, verdict: Verdict, told: dict[str, Any]) -> str:
    guessed = " (told from the events)" if told["api_guessed"] else ""
    estimated = " (estimated)" if record.tokens_estimated else ""
    outcome = str(record.outcome) + (f": {record.error}" if record.error else "")
    finishes = ", ".join(f"{choice.index}: {choice.finish_reason or 'none'}" for choice in record.choices)
    rows = [
        ("api", told["api"] + guessed),
        ("model", record.model or "not told"),
        ("outcome", outcome),
        ("streamed", "yes" if record.streamed else "no"),
        ("output chunks", str(record.output_chunks)),
        ("output tokens", _count(record.output_tokens) + estimated),
        ("prompt tokens", _count(record.prompt_tokens)),
        ("finish reasons", finishes or "none"),
    ]
    if timed:
        rows += [
            ("TTFT", _seconds(record.ttft_ns)),
            ("TPOT", _seconds(record.tpot_ns)),
            ("longest gap", _seconds(record.max_gap_ns)),
            ("E2E", _seconds(record.e2e_ns)),
        ]
    if record.retry_after_s is not None:
        rows.append(("retry after", f"{record.retry_after_s:g} s"))
    rows.append(("verdict", _verdict(verdict, slo)))
    lines = [f"{name:15} {value}" for name, value in rows]
    lines += [f"cannot tell     {text}" for text in told["cannot_tell"]]
    lines += [f"warning         {text}" for text in record.warnings]
    return "\n".join(lines) + "\n"


def _verdict(verdict: Verdict, slo: SloClass) -> str:
    by = f" by SLO class {slo.name}"
    missed = f" (missed: {', '.join(verdict.misses)})" if verdict.misses else ""
    if verdict.good:
        return f"good{by}"
    if verdict.eligible:
        return f"badput: {verdict.bucket}{missed}{by}"
    if verdict.bucket is not None:
        return f"not eligible: the client's own fault{by}"
    return ("not eligible: the client left in time" if verdict.judged else "unjudged: no bound applies") + by


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _seconds(value_ns: float | None) -> str:
    return "unknown" if value_ns is None else f"{value_ns / 1e9:.6g} s"
