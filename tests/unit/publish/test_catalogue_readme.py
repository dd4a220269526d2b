"""The README's table is the catalogue's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.publish.catalog import BEGIN, END, METRICS, readme_table

ROOT = Path(__file__).parents[3]


def test_the_readme_holds_the_table_as_it_is_now() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    if BEGIN not in readme:
        pytest.skip(f"README.md has no {BEGIN} yet")
    shown = readme[readme.index(BEGIN) : readme.index(END) + len(END)] + "\n"
    assert shown == readme_table(), "put the table there with: python -m sidecar.publish.catalog README.md"


def test_the_table_is_put_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "sidecar.publish.catalog", str(page)], timeout=60, check=True, cwd=ROOT
        )
        assert page.read_text("utf-8") == f"before\n{readme_table()}after\n"


def test_the_command_prints_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sidecar.publish.catalog"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == readme_table()
    assert all(f"`{metric.name}`" in ran.stdout for metric in METRICS)
