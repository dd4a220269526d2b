"""``goodput-sidecar gpus``: what a GPU exporter's page says, who shares what, which fields are missing."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from sidecar.engine.describe import table
from sidecar.engine.sources import parse_source, read_source
from sidecar.errors import UserError
from sidecar.gpu.amd import read_amd
from sidecar.gpu.coverage import gaps
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.fields import decode_reasons
from sidecar.gpu.reading import Gpu, Reading, Sharing


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "gpus",
        help="read a GPU exporter's page: boards, who shares them, what fields that are missing cost",
        description="Reads a page of dcgm-exporter or of AMD's device-metrics-exporter, each board once, and "
        "says which signals it lacks. A counter list to start from is configs/dcgm-counters.csv.",
    )
    parser.add_argument("source", metavar="URL|FILE")
    parser.add_argument("--json", action="store_true", help="print JSON for tools")
    parser.add_argument("--timeout-s", type=float, default=5.0, help="limit for the scrape (default 5)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the boards; raises UserError where the page has none."""
    page, _ = read_source(parse_source(args.source), args.timeout_s)
    reading = read_dcgm(page)
    if not reading.gpus and not reading.switch_errors:
        reading = read_amd(page)
    if not reading.gpus and not reading.switch_errors:
        raise UserError(
            f"{args.source}: no GPU of dcgm-exporter or AMD's device-metrics-exporter on this page"
        )
    if args.json:
        sys.stdout.write(json.dumps(as_json(reading), ensure_ascii=True) + "\n")
    else:
        sys.stdout.write(render(reading))
    return 0


def as_json(reading: Reading) -> dict[str, Any]:
    """The reading as JSON data."""
    return {
        "format": 1,
        "gpus": [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "vendor": gpu.vendor,
                "model": gpu.model,
                "sharing": gpu.sharing.value,
                "pods": [str(pod) for pod in sorted(gpu.pods)],
                "values": dict(gpu.values),
                "reasons": _reasons(gpu),
                "xid_counts": {str(code): n for code, n in sorted(gpu.xid_counts.items())},
                "parts": [
                    {
                        "id": part.id,
                        "profile": part.profile,
                        "pods": [str(pod) for pod in sorted(part.pods)],
                        "values": dict(part.values),
                    }
                    for part in gpu.parts
                ],
            }
            for gpu in reading.gpus
        ],
        "watts": sum(gpu.values.get("power_watts", 0.0) for gpu in reading.gpus),
        "switch_errors": [
            {"switch": e.switch, "link": e.link, "code": e.code, "fatal": e.fatal}
            for e in reading.switch_errors
        ],
        "missing": [{"signal": gap.signal, "field": gap.field, "cost": gap.cost} for gap in gaps(reading)],
    }


def render(reading: Reading) -> str:
    """The reading as text for a person."""
    rows = [["gpu", "model", "sharing", "pods", "power", "clock", "temp", "tensor", "dram", "held back by"]]
    rows += [_row(gpu) for gpu in reading.gpus]
    parts = [table(rows)]
    watts = [gpu.values["power_watts"] for gpu in reading.gpus if "power_watts" in gpu.values]
    if watts:
        parts.append(f"{len(reading.gpus)} boards draw {sum(watts):,.1f} W, each counted once")
    if any(gpu.sharing is Sharing.EXCLUSIVE for gpu in reading.gpus):
        parts.append(
            "exclusive: one pod is named; without the exporter's sharing option time slices look the same"
        )
    for error in reading.switch_errors:
        parts.append(f"switch {error.switch} link {error.link} shows SXid {error.code}")
    missing = gaps(reading)
    if missing:
        parts.append("\nmissing, and what that costs:")
        parts += [f"  {gap.field or gap.signal}: {gap.cost}" for gap in missing]
    return "\n".join(parts) + "\n"


def _row(gpu: Gpu) -> list[str]:
    values = gpu.values
    watts, limit = values.get("power_watts"), values.get("power_limit_watts")
    power = "" if watts is None else f"{watts:.0f} W" + (f" of {limit:.0f}" if limit else "")
    clock = values.get("sm_clock_hertz")
    pods = ", ".join(str(pod) for pod in sorted(gpu.pods))
    return [
        gpu.index or gpu.uuid,
        gpu.model,
        f"{gpu.sharing.value} ({len(gpu.parts)})" if gpu.parts else gpu.sharing.value,
        pods if len(pods) <= 40 else f"{len(gpu.pods)} pods",
        power,
        "" if clock is None else f"{clock / 1e6:.0f} MHz",
        _with(values.get("temperature_celsius"), "{:.0f} C"),
        _with(gpu.ratio("tensor_active_ratio"), "{:.0%}"),
        _with(gpu.ratio("dram_active_ratio"), "{:.0%}"),
        ", ".join(_reasons(gpu)),
    ]


def _with(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _reasons(gpu: Gpu) -> list[str]:
    bits = gpu.values.get("clock_event_reasons")
    return list(decode_reasons(int(bits))[0]) if bits is not None else []
