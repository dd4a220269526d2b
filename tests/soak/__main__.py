"""``python -m tests.soak [--short] [--minutes N]``: run the suite, print its table.

Exit status 1 if anything does not hold."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.soak.run import soak


def main(argv: list[str]) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--short", action="store_true", help="20 s of held load, 500 idle connections")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long load is held (default: 30)")
    parser.add_argument("--only", default="", help="only faults whose name holds one of these, with commas")
    args = parser.parse_args(argv)
    minutes, idle, hold_s = (0.3, 500, 1.0) if args.short else (args.minutes, 10_000, 5.0)
    lines, held = asyncio.run(soak(minutes=minutes, idle=idle, hold_s=hold_s, only=args.only))
    wrong = [line.what for line in lines if line.wrong] + ([held.wrong] if held and held.wrong else [])
    print(f"does not hold: {', '.join(wrong)}" if wrong else "everything holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
