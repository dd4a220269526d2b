from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.report import write_all
from loadgen.report.jsonio import load
from sidecar.errors import UserError
from tests.support import reports


def test_three_files_are_written_and_nothing_else(tmp_path: Path) -> None:
    paths = write_all(reports.sweep(), tmp_path / "new" / "folder")
    assert sorted(paths) == ["csv", "html", "json"]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [
        "report.csv",
        "report.html",
        "report.json",
    ]
    assert load(paths["json"]) == reports.sweep()


def test_writing_again_replaces(tmp_path: Path) -> None:
    write_all(reports.sweep(), tmp_path)
    write_all(reports.no_peak(), tmp_path)
    assert load(tmp_path / "report.json") == reports.no_peak()


def test_a_folder_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(UserError, match=r"out.*cannot be written"):
        write_all(reports.sweep(), tmp_path / "out")


FULL = """
import resource, signal, sys
from pathlib import Path
from loadgen.report import write_all
from sidecar.errors import UserError
from tests.support import reports
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
try:
    write_all(reports.no_peak() if sys.argv[2] == "small" else reports.sweep(), Path(sys.argv[1]))
except UserError as e:
    print(e)
    sys.exit(7)
"""


def test_a_full_disk_leaves_the_previous_files_whole(tmp_path: Path) -> None:
    # A file-size limit makes the kernel refuse the write half way, as a full disk does: report.json fits, the
    # page does not. None of the three may be touched.
    write_all(reports.not_bracketed(), tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), "large"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 7, ran.stderr
    assert "report.html" in ran.stdout
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
