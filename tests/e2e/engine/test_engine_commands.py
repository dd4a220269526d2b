"""``map`` and ``check`` as a user runs them: a process, files and a live engine's URL."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.metrics_server import MetricsServer, answer

ROOT = Path(__file__).parents[3]
VLLM = ROOT / "tests" / "fixtures" / "vllm"
BUSY = VLLM / "0.32.0" / "metrics_busy.txt"
MAIN = "import sys; from sidecar.cli import main; sys.exit(main())"


def run(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=60,
        check=False,
    )


@pytest.fixture
def engine() -> Iterator[str]:
    """An engine that makes 100 tokens from one scrape to the next, in a thread of its own."""
    series = 'process_start_time_seconds 5.0\nvllm:generation_tokens_total{engine="0",model_name="m"}'
    pages = [f"{series} {n}\n".encode() for n in (1000, 1100, 1200)]
    version = answer(b'{"version":"0.32.0"}', content_type="application/json")
    server = MetricsServer({"/metrics": [answer(page) for page in pages], "/version": [version]})
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(done.wait, 100)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server.url
    done.set()
    thread.join(10)


def test_map_a_url(engine):
    done = run("map", engine)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"vllm 0.32.0 (V1 engine)")
    assert b"generation_tokens" in done.stdout


def test_map_scrapes_of_a_url_give_a_rate(engine):
    done = run("map", engine, "--scrapes", 3, "--every-s", 0.2, "--json")
    told = json.loads(done.stdout)
    assert told["signals"]["generation_tokens"]["rate"] == pytest.approx(200 / told["window_s"])
    assert not told["hidden_restart_possible"]


def test_map_stdin_and_check_a_file():
    done = run("map", "-", stdin=BUSY.read_bytes())
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"25634" in done.stdout
    done = run("check", BUSY, "--budget", 400)
    assert done.returncode == 1
    assert b"warning: 494 series break the budget of 400" in done.stdout


@pytest.mark.parametrize(
    "command", [("map", "gone.txt"), ("check", "gone.txt"), ("map", "http://127.0.0.1:1/")]
)
def test_a_mistake_is_one_line_and_exit_code_2(command):
    done = run(*command)
    assert done.returncode == 2
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"goodput-sidecar: error: {command[1]}: ")
