"""``goodput-sidecar redact``: reads a text or request from stdin and shows what would leave the process."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sidecar.errors import UserError
from sidecar.redaction.engine import RedactionFailed, Redactor
from sidecar.redaction.filter import SIZE_LIMIT, ContentFilter, Level, cut
from sidecar.redaction.numbers import DEFAULT_REGIONS
from sidecar.redaction.patterns import EngineMissing, load_patterns
from sidecar.redaction.structure import Structure
from sidecar.requests.text import sound

_BODY_KEYS = ("messages", "prompt", "input")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "redact",
        help="show what would leave of a text or request body read from stdin",
        description="Reads stdin and prints what would leave the process at a content level. Request bodies "
        "(JSON with messages, prompt or input) keep their structure. Names and street addresses have no "
        "shape: patterns do not find them.",
    )
    parser.add_argument("--level", choices=[level.value for level in Level], default=Level.REDACT.value)
    parser.add_argument("--key-file", type=Path, help="file with the key for stable tokens, 16 bytes or more")
    parser.add_argument(
        "--regions", default=",".join(DEFAULT_REGIONS), help="national phone forms, e.g. US,GB,DE"
    )
    parser.add_argument("--deny-file", type=Path, help="words that must never leave, one a line")
    parser.add_argument("--patterns", type=Path, help="further patterns, in the form of the built-in file")
    parser.add_argument("--limit", type=int, help="cut the result to so many characters, after redaction")
    parser.add_argument("--counts", action="store_true", help="print how many of each kind on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the result; 0, or 1 where the text had to be dropped (the reason is on stderr)."""
    raw = sys.stdin.buffer.read()
    try:
        redactor = _redactor(args)
    except EngineMissing:
        raise UserError(
            "google-re2 is not installed: nothing can be redacted, so nothing would leave"
        ) from None
    level = Level(args.level)
    if level is Level.DROP:
        return 0
    try:
        text = raw.decode("utf-8")
        shown = sound(_shown(text, raw, level, redactor))
        if args.counts:
            _print_counts(redactor, text)
    except UnicodeDecodeError:
        print("dropped: undecodable", file=sys.stderr)
        return 1
    except RedactionFailed as failure:
        print(f"dropped: {failure.reason}", file=sys.stderr)
        return 1
    sys.stdout.write(cut(shown, args.limit) if args.limit else shown)
    sys.stdout.flush()
    return 0


def _print_counts(redactor: Redactor, text: str) -> None:
    counts: dict[str, int] = {}
    for hit in redactor.find(text):
        counts[hit.kind] = counts.get(hit.kind, 0) + 1
    print(" ".join(f"{kind}={n}" for kind, n in sorted(counts.items())) or "nothing found", file=sys.stderr)


def _shown(text: str, raw: bytes, level: Level, redactor: Redactor) -> str:
    parsed: Any = None
    if text.lstrip()[:1] in ("{", "["):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
    if isinstance(parsed, dict) and any(key in parsed for key in _BODY_KEYS):
        content = ContentFilter(level, lambda: redactor, size_limit=SIZE_LIMIT).request(raw)
        if content.failed is not None:
            raise RedactionFailed(content.failed)
        fields = {
            "gen_ai.system_instructions": content.system,
            "gen_ai.input.messages": content.messages,
            "gen_ai.tool.definitions": content.tools,
            "gen_ai.request.stop_sequences": content.stop,
            "user": content.user,
        }
        kept = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(kept, ensure_ascii=False, indent=2) + "\n"
    if level is Level.FULL:
        return text
    if level is Level.SHAPE:
        return json.dumps({"type": "text", "length": len(text)}) + "\n"
    if parsed is not None:
        return Structure(redactor).json_text(text) + "\n"
    return redactor.text(text)


def _redactor(args: argparse.Namespace) -> Redactor:
    key = _read(args.key_file).strip() if args.key_file else None
    deny = _read(args.deny_file).decode("utf-8", errors="replace").splitlines() if args.deny_file else []
    custom = load_patterns(args.patterns)[1] if args.patterns else ()
    regions = [r.strip().upper() for r in args.regions.split(",") if r.strip()]
    return Redactor(key=key, regions=regions, custom=custom, deny=deny)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None
