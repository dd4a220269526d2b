"""The command line ``goodput-sidecar``: finds the command; a user's mistake is one line and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from sidecar import __version__
from sidecar.commands import check, derive, explain, gpus, judge, map, meter, redact, run, xid
from sidecar.errors import UserError

# One line for each command module. A module brings ``add_parser(subparsers)`` and sets ``run``.
COMMANDS: tuple[ModuleType, ...] = (
    run,
    check,
    map,
    explain,
    meter,
    judge,
    redact,
    gpus,
    xid,
    derive,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    parser = argparse.ArgumentParser(
        prog="goodput-sidecar",
        description="Goodput for vLLM: measures every request against its SLO and says what costs goodput.",
    )
    parser.add_argument("--version", action="version", version=f"goodput-sidecar {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status; 2 for a mistake of the user, 130 after Ctrl-C."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
    except UserError as error:
        print(f"goodput-sidecar: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output (head, less) left: not an error, but nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    raise SystemExit(main())
