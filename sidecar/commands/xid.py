"""``goodput-sidecar xid``: GPU and switch errors in a saved kernel or fabric manager log, with advice."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sidecar.errors import UserError
from sidecar.gpu.advice import words
from sidecar.gpu.incidents import Event, LogFindings, read_log
from sidecar.gpu.xid import Xid

_MAX_LINE = 64 * 1024


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "xid",
        help="read a kernel or fabric manager log: GPU errors, how far they reach, what is advised",
        description="Finds NVIDIA Xid and SXid reports in a log (dmesg, journal, syslog, /dev/kmsg records, "
        "fabric manager), joins the lines of one event and the events of one incident, and says what is "
        "advised first and what must be looked at beside it. It advises; it decides and does nothing.",
    )
    parser.add_argument("source", metavar="FILE", help="the log, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print JSON for tools")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the events; 0 also when there are some: what they mean is for the reader."""
    found = read_log(_lines(args.source))
    if args.json:
        sys.stdout.write(json.dumps(as_json(found), ensure_ascii=True) + "\n")
    else:
        sys.stdout.write("\n".join(render(found)) + "\n")
    return 0


def _lines(source: str) -> Iterator[str]:
    if source == "-":
        yield from (line.decode("utf-8", "replace") for line in iter(_reader(sys.stdin.buffer), b""))
        return
    try:
        with open(source, "rb") as file:
            yield from (line.decode("utf-8", "replace") for line in iter(_reader(file), b""))
    except OSError as error:
        raise UserError(f"{source}: cannot be read: {error.strerror}") from None


def _reader(file: Any) -> Any:
    # A log without line ends must not fill the memory.
    return lambda: file.readline(_MAX_LINE)


def as_json(found: LogFindings) -> dict[str, Any]:
    """The findings as JSON data."""
    return {
        "format": 1,
        "lines": found.lines,
        "refused_lines": found.refused,
        "driver": found.driver,
        "events": [_event(event) for event in found.events],
        "xids": {str(code): count for code, count in sorted(found.xids.items())},
        "sxids": {str(code): count for code, count in sorted(found.sxids.items())},
    }


def _event(event: Event) -> dict[str, Any]:
    report = event.report
    own: dict[str, Any] = {
        "kind": event.kind.lower(),
        "code": event.code,
        "name": event.advice.name,
        "pci": report.pci,
        "uuid": event.uuid,
        "lines": event.lines,
        "incident": event.incident,
        "cause_candidate": event.cause,
        "scope": list(event.advice.scope),
        "undetermined": event.advice.undetermined,
        "containment": event.advice.containment,
        "advisory": event.advisory,
        "advice": words(event.advisory),
        "look_beside": list(event.advice.look_beside),
        "in_catalogue": event.advice.known,
        "doubtful": event.advice.doubtful,
        "note": event.advice.note,
        "source": event.source,
        "message": report.message,
        "at_s": report.at.seconds if report.at else None,
        "clock": report.at.clock if report.at else None,
    }
    names = (
        ("pid", "process", "channel", "sm", "caused_by", "nvlink_link", "gpu_instance", "implied")
        if isinstance(report, Xid)
        else ("switch", "severity", "link")
    )
    own.update({name: getattr(report, name) for name in names})
    if isinstance(report, Xid):
        own["nvlink5"] = asdict(report.nvlink5) if report.nvlink5 else None
        own["recovery"] = asdict(report.recovery) if report.recovery else None
    return own


def render(found: LogFindings) -> list[str]:
    """The findings as lines for a person."""
    said: list[str] = []
    incident = 0
    for event in found.events:
        if event.incident != incident:
            incident = event.incident
            where = f"{event.uuid} ({event.report.pci})" if event.uuid else event.report.pci
            said += ["", f"{'Switch' if event.sxid else 'GPU'} {where}"]
        said += _render_event(event)
    head = f"{found.lines} lines, {len(found.events)} events"
    if found.driver:
        head += f", driver {found.driver}"
    if found.refused:
        head += f"; {found.refused} lines that the kernel did not write were refused"
    tail = [] if found.events else ["", "No Xid and no SXid. That does not say that results are right."]
    return [head, *said, *tail]


def _render_event(event: Event) -> list[str]:
    advice = event.advice
    text = f"  {event.kind} {event.code}: {advice.name}"
    if event.lines > 1:
        text += f" ({event.lines} lines)"
    if event.cause:
        text += " [first of its incident]"
    lines = [text]
    if advice.scope:
        scope = (
            "undetermined: " + " or ".join(advice.scope) if advice.undetermined else ", ".join(advice.scope)
        )
        lines.append(f"    scope {scope}; containment {advice.containment}")
    lines.append(
        f"    advised: {event.advisory} ({words(event.advisory)})" + ("; doubtful" if advice.doubtful else "")
    )
    report = event.report
    if isinstance(report, Xid):
        if report.process:
            lines.append(f"    process {report.process} ({report.pid})")
        if report.caused_by is not None:
            lines.append(f"    the driver names Xid {report.caused_by} as its cause")
        if report.recovery is not None:
            lines.append(f"    recovery action: {report.recovery.old_name} -> {report.recovery.new_name}")
        if report.nvlink5 is not None:
            one = report.nvlink5
            lines.append(f"    {one.unit} {one.severity}, link {one.link}, {one.cross_containment}")
    elif report.severity:
        lines.append(f"    {report.severity}, switch {report.switch}, link {report.link}")
    if advice.look_beside:
        lines.append("    look at: " + ", ".join(one.replace("_", " ") for one in advice.look_beside))
    if advice.note:
        lines.append(f"    {advice.note}")
    return lines
