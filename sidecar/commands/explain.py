"""``goodput-sidecar explain``: what costs the most goodput now, in sentences, from a running sidecar."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from sidecar.errors import UserError
from sidecar.publish.gpu_text import gpu_sentences

_DEFAULT_ADMIN = "http://127.0.0.1:9090"


def add_parser(subparsers: Any) -> None:
    """Add ``explain`` and its flags."""
    parser = subparsers.add_parser(
        "explain",
        help="say what costs the most goodput now, how sure that is, and what would help",
        description="Reads a running sidecar's admin address (or a saved /goodput.json) and says what hurts.",
    )
    parser.add_argument(
        "source",
        nargs="?",
        default=_DEFAULT_ADMIN,
        help=f"admin address, a file with a saved /goodput.json, or - for stdin (default: {_DEFAULT_ADMIN})",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    status = read(args.source)
    if args.json:
        found = [{"model": c["model"], "class": c["class"], **c["why"]} for c in status["classes"]]
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(sentences(status)))
    return 0


def read(source: str) -> dict[str, Any]:
    """The status of ``source``. Raises UserError with one line."""
    if source.startswith(("http://", "https://")):
        text = _fetch(source)
    elif source == "-":
        text = sys.stdin.read()
    else:
        try:
            with open(source, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from None
    try:
        status = json.loads(text)
        if status["format"] != 1:
            raise UserError(f"{source}: format {status['format']!r} is not one that this version reads (1)")
        status["classes"], status["engine"]["up"], status["autoscale"]["saturation"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{source}: is not a sidecar's /goodput.json") from None
    return status  # type: ignore[no-any-return]


def _fetch(url: str) -> str:
    import httpx

    address = url.rstrip("/").removesuffix("/goodput.json") + "/goodput.json"
    try:
        answer = httpx.get(address, timeout=10.0, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UserError(f"{address}: no answer ({error}); is the sidecar's admin address right?") from None
    if answer.status_code != 200:
        raise UserError(f"{address}: HTTP {answer.status_code}; is that a sidecar's admin address?")
    return answer.text


def sentences(status: dict[str, Any]) -> list[str]:
    """The explanation, a line or a few for each model and class."""
    said: list[str] = []
    engine = status["engine"]
    if not engine["up"]:
        said.append(f"The engine is not up: {engine['reason']}.")
    autoscale = status["autoscale"]
    if autoscale["saturation"] is not None:
        said.append(
            f"{autoscale['in_flight']:.3g} requests are in flight, "
            f"{100 * autoscale['saturation']:.3g} % of the measured peak ({autoscale['peak_load']:g})."
        )
    if not status["classes"]:
        said.append("Nothing to judge yet: no request has finished.")
    for one in status["classes"]:
        why = one["why"]
        said.append("")
        said.append(f"{one['model']}, class {one['class']}, last {why['window']}: {why['headline']}")
        for finding in why["findings"]:
            said.append(f"  {finding['bucket']}: {finding['what']}")
            said.append(f"    {finding['evidence']}. Confidence: {finding['sure']}.")
            said.append(f"    What would help: {finding['help']}")
        firing = [alert for alert in one["budget"]["alerts"] if alert["firing"]]
        if firing:
            pairs = ", ".join(f"{alert['long']} and {alert['short']}" for alert in firing)
            said.append(f"  The error budget burns too fast over {pairs}.")
    return said + gpu_sentences(status.get("gpu"))
