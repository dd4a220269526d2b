"""The command line ``goodput-loadgen``: finds the subcommand, turns user mistakes into one line and exit code
2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from loadgen import __version__
from sidecar.errors import UserError

try:
    from loadgen.commands import compare, demo, rehearse, report, simulate, sweep, target
    from loadgen.commands import run as run_command
    from loadgen.settings_file import with_settings
except ModuleNotFoundError as missing:
    # The sidecar alone was installed, and its wheel brings this command too.
    if missing.name is None or missing.name.partition(".")[0] in {"loadgen", "sidecar"}:
        raise
    print(
        f"goodput-loadgen: error: {missing.name} is not installed; the load generator needs "
        "pip install 'vllm-goodput[loadgen]' (in the source folder: pip install '.[loadgen]')",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

# One line for each command module. A module brings ``add_parser(subparsers)`` and sets ``run``.
COMMANDS: tuple[ModuleType, ...] = (demo, sweep, run_command, target, rehearse, report, compare, simulate)


def build_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    parser = argparse.ArgumentParser(
        prog="goodput-loadgen",
        description="Load for LLM servers, on Locust: finds where goodput peaks and what to do about it.",
    )
    parser.add_argument("--version", action="version", version=f"goodput-loadgen {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status; 2 for a mistake of the user, 130 after Ctrl-C."""
    try:
        parser = build_parser()
        args = parser.parse_args(with_settings(parser, sys.argv[1:] if argv is None else argv))
        status: int = args.run(args)
    except UserError as error:
        print(f"goodput-loadgen: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output (head, less) left: not an error, but nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
