"""Run every benchmark in this folder, one after the other; exit 1 when one broke or missed its target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    """Run ``bench_<name>.py`` for each name (all when none is given) in a process of its own."""
    here = Path(__file__).parent
    found = {path.stem.removeprefix("bench_"): path for path in sorted(here.glob("bench_*.py"))}
    unknown = [name for name in names if name not in found]
    if unknown:
        print(
            f"bench: no benchmark named {', '.join(unknown)}; there are: {', '.join(found)}", file=sys.stderr
        )
        return 2
    missed = []
    for name in names or found:
        print(f"\n== {name} ==", flush=True)
        # A process each: one benchmark's heap and patched modules must not colour the next one's figures.
        done = subprocess.run([sys.executable, "-m", f"tests.bench.bench_{name}"], cwd=here.parents[1])
        if done.returncode:
            missed.append(name)
    print(f"\nmissed a target or broke: {', '.join(missed)}" if missed else "\nall targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
