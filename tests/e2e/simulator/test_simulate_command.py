"""``goodput-loadgen simulate`` as a process: it starts, serves, stops, and says what is wrong."""

from __future__ import annotations

import signal
import socket
import subprocess
from importlib import resources
from pathlib import Path

import httpx
import pytest

from tests.support.simulated import SIMULATE, simulate_process


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SIMULATE, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    with simulate_process("--profile", "fast", "--seed", "3") as (process, url):
        body = {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=20, trust_env=False).json()
        assert answer["usage"] == {
            "prompt_tokens": 3,
            "total_tokens": 7,
            "completion_tokens": 4,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_it_stops_by_itself_even_with_a_stream_open() -> None:
    with simulate_process("--profile", "fast", "--max-seconds", "1.5") as (process, url):
        body = {"prompt": "a", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20, trust_env=False) as answer:
            assert answer.status_code == 200
            assert process.wait(30) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""


def test_curve_prints_the_truth_and_its_peak() -> None:
    done = simulate("--curve")
    assert done.returncode == 0
    assert "ttft_s 1, tpot_s 0.05" in done.stdout
    (peak,) = [line for line in done.stdout.splitlines() if "<- peak" in line]
    assert 12 <= int(peak.split()[0]) <= 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--profile", "nope"], "unknown profile 'nope'; built in: demo"),
        (["--fault", "boom=1"], "--fault: 'boom=1' is not key=value"),
        (["--port", "70000"], "--port: expected 0..65535, got 70000"),
        (["--max-seconds", "0"], "--max-seconds: expected more than 0"),
        (["--max-queued", "-1"], "--max-queued: expected 0 or more"),
        (["--profile-file", "/nowhere/x.yaml"], "/nowhere/x.yaml: cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    done = simulate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("goodput-loadgen: error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line_too() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = simulate("--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1:" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    text = resources.files("loadgen.simulator").joinpath("profiles.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("\ndemo:", "\nmine:").replace("demo-1b", "my-model"))
    with simulate_process("--profile-file", str(path), "--profile", "mine") as (_, url):
        models = httpx.get(f"{url}/v1/models", timeout=20, trust_env=False).json()["data"]
        assert [m["id"] for m in models] == ["my-model"]
