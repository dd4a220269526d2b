"""What goes wrong with Locust's own clients, runners and statistics, and does not here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from loadgen.report.jsonio import load
from loadgen.results import LevelResult
from tests.support.loadgen_runs import Interrupted, descendants, fake_llm, loadgen


def measured(tmp_path: Path, url: str, *flags: str) -> LevelResult:
    ran = loadgen("run", "--url", url, *flags, "--out", str(tmp_path))
    assert ran.status == 0, ran.out + ran.err
    (level,) = load(tmp_path / "report.json").levels
    return level


def test_a_small_first_token_is_seen_when_it_comes(tmp_path: Path) -> None:
    """Not with the thousandth byte, which here is never reached before the end."""
    with fake_llm("ok", "--ttft-s", "0.02", "--itl-s", "0.6") as url:
        level = measured(
            *(tmp_path, url, "--concurrency", "2", "--output-tokens", "3"),
            *("--warmup-s", "0", "--window-s", "2"),
        )
    assert level.ttft.p50_s is not None
    assert level.itl.p50_s is not None
    assert level.ttft.p50_s < 0.5 * level.itl.p50_s
    assert level.itl.min_s is not None
    assert level.itl.min_s >= 0.5


def test_arrivals_do_not_wait_for_answers(tmp_path: Path) -> None:
    """Locust's users are closed-loop; here all are due, and sent, before the first answer has begun."""
    with fake_llm("ok", "--ttft-s", "2.5", "--itl-s", "0.01") as url:
        level = measured(
            *(tmp_path, url, "--rate", "12", "--arrivals", "constant", "--output-tokens", "2"),
            *("--warmup-s", "0", "--window-s", "1.5"),
        )
    assert level.sent == level.completed == pytest.approx(18, abs=1)
    assert level.ttft.min_s is not None
    assert level.ttft.min_s >= 2.5


def test_no_level_is_skipped_however_short(tmp_path: Path) -> None:
    """A load shape that ticks once a second would miss steps of 0.4 s."""
    with fake_llm("ok", "--ttft-s", "0.01", "--itl-s", "0.005") as url:
        ran = loadgen(
            *("sweep", "--url", url, "--levels", "1,5,2,9", "--warmup-s", "0.1", "--window-s", "0.4"),
            *("--output-tokens", "3", "--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.out + ran.err
    report = load(tmp_path / "report.json")
    assert {level.load for level in report.levels} == {1, 2, 5, 9}
    assert all(level.sent > 0 for level in report.levels)


def test_a_lost_process_voids_its_level_and_the_sweep_goes_on(tmp_path: Path) -> None:
    sweep = ("--levels", "2,4", "--workers", "2", "--warmup-s", "0.5", "--window-s", "3")
    with (
        fake_llm("ok") as url,
        Interrupted("sweep", "--url", url, *sweep, "--output-tokens", "5", "--out", str(tmp_path)) as command,
    ):
        command.wait_for("level 1:")
        workers = [
            pid
            for pid in descendants(command.process.pid)
            if b"locust_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        rest, _ = command.process.communicate(timeout=90)
        assert command.process.returncode == 0, rest
    report = load(tmp_path / "report.json")
    lost = [level for level in report.levels if any(f.startswith("worker_lost") for f in level.flags)]
    assert [level.load for level in lost] == [2]
    assert not lost[0].valid
    assert {level.load for level in report.levels if level.valid} == {2, 4}, "the lost level was repeated"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    return both


def test_tls_is_checked_unless_told_otherwise(tmp_path: Path, certificate: Path) -> None:
    quick = ("--concurrency", "2", "--output-tokens", "3", "--warmup-s", "0.2", "--window-s", "0.8")
    with fake_llm("ok", "--cert", str(certificate)) as url:
        assert url.startswith("https://")
        refused = loadgen("run", "--url", url, *quick, "--out", str(tmp_path / "out"))
        assert refused.status == 2
        assert "certificate" in refused.err.lower()
        for flags in (("--insecure",), ("--ca-file", str(certificate.with_name("cert.pem")))):
            level = measured(tmp_path / "out", url, *quick, *flags)
            assert level.completed == level.sent > 2
