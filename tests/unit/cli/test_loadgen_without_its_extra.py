"""`pip install .` brings the command goodput-loadgen without Locust and rich: it says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules[{name!r}] = None  # as if it were not installed
from loadgen.cli import main
sys.exit(main(["--version"]))
"""


@pytest.mark.parametrize("name", ["rich", "rich.console", "msgpack"])
def test_one_line_says_what_to_install(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install '.[loadgen]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_fault_of_our_own_is_not_taken_for_a_missing_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name="loadgen.peak")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "loadgen.peak" in done.stderr
    assert "pip install" not in done.stderr
