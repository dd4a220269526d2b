"""What an outsider finds: nothing to change on the admin port, no secret anywhere."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.sidecar_process import Running, sidecar_process, wait_for
from tests.support.simulated import simulate_process

ROOT = Path(__file__).parents[3]
CANARIES = ("engine-canary-1", "otlp-canary-2", "client-canary-3", "prompt-canary-4", "load-canary-5")
PATHS = (
    "/",
    "/metrics",
    "/healthz",
    "/readyz",
    "/autoscale",
    "/goodput.json",
    "/events",
    "/nothing",
    "/-/reload",
)


@pytest.fixture(scope="module")
def simulator() -> Iterator[str]:
    with simulate_process("--profile", "fast", "--max-seconds", "200") as (_, url):
        yield url


@pytest.fixture(scope="module")
def sidecar(simulator: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    spans = tmp_path_factory.mktemp("spans") / "spans.jsonl"
    env = {
        "GOODPUT_ENGINE_TOKEN": CANARIES[0],
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {CANARIES[1]}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    with sidecar_process(
        simulator, "--scrape-interval-s", "0.5", "--spans-file", str(spans), "--content", "redact", env=env
    ) as running:
        wait_for(lambda: running.get("/readyz").status_code == 200)
        body = {
            "model": "fast-tiny",
            "messages": [
                {"role": "user", "content": f"my key is sk-{CANARIES[3]}-abcdefghijklmnopqrstuvwxyz0123"}
            ],
            "max_tokens": 4,
        }
        headers = {
            "Authorization": f"Bearer {CANARIES[2]}",
            "x-api-key": CANARIES[2],
            "Cookie": f"s={CANARIES[2]}",
        }
        url = f"{running.proxy}/v1/chat/completions?key={CANARIES[2]}"
        answer = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
        assert answer.status_code == 200
        wait_for(lambda: spans.stat().st_size > 0)
        yield running, spans


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
def test_the_admin_port_takes_nothing(sidecar: tuple[Running, Path], method: str) -> None:
    running, _ = sidecar
    before = running.status()["overall"]["1h"]
    address = urlsplit(running.admin)
    for path in PATHS:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        connection.request(method, path, body=b'{"upstream": "http://elsewhere"}')
        assert connection.getresponse().status in (404, 405), (method, path)
        connection.close()
    after = running.status()["overall"]["1h"]
    assert (after["eligible"], after["good"]) == (before["eligible"], before["good"])


def test_an_endless_body_to_the_admin_port_is_not_kept(sidecar: tuple[Running, Path]) -> None:
    running, _ = sidecar
    address = urlsplit(running.admin)

    def resident() -> int:
        return int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    before = resident()
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    connection.putrequest("POST", "/metrics")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    try:
        for _ in range(64):
            connection.send(b"x" * 2**20)
    except OSError:
        pass  # it does not want them
    finally:
        connection.close()
    assert resident() - before < 32 * 2**20
    assert running.get("/healthz").status_code == 200


def test_no_secret_is_shown_anywhere(sidecar: tuple[Running, Path]) -> None:
    running, spans = sidecar
    shown = {path: running.get(path).text for path in PATHS if path != "/events"}
    shown["spans"] = spans.read_text("utf-8")
    shown["command line"] = Path(f"/proc/{running.process.pid}/cmdline").read_text()
    help_env = os.environ | {"GOODPUT_ENGINE_TOKEN": CANARIES[0]}
    shown["help"] = subprocess.run(
        [sys.executable, "-m", "sidecar", "run", "--help"],
        capture_output=True,
        text=True,
        env=help_env,
        cwd=ROOT,
        timeout=60,
        check=True,
    ).stdout
    assert "--engine-token-file" in shown["help"]
    assert "--engine-token " not in shown["help"]
    assert running.end() == 0
    assert running.process.stderr is not None
    shown["log"] = running.process.stderr.read()
    for where, text in shown.items():
        for canary in CANARIES:
            assert canary not in text, where


def test_a_wrong_token_is_told_without_it(simulator: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sidecar", "run", "--upstream", simulator, "--engine-token", CANARIES[0]],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 2
    assert CANARIES[0] not in ran.stderr


def test_the_load_generator_keeps_its_key(simulator: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "loadgen.cli", "sweep", "--url", simulator, "--levels", "1,2"),
            *("--api-key-env", "SOME_KEY", "--warmup-s", "0.2", "--window-s", "1", "--output-tokens", "4"),
            *("--prompt-tokens", "16", "--out", str(out)),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env=os.environ | {"SOME_KEY": CANARIES[4]},
    )  # fmt: skip
    try:
        lines: set[str] = set()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None:
            for pid in (str(process.pid), *_read(children).split()):
                lines.add(_read(Path(f"/proc/{pid}/cmdline")))
            time.sleep(0.05)
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.returncode == 0, said[-2000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(20)
        if process.stdout is not None:
            process.stdout.close()
    assert any("locust_main" in line for line in lines), "the Locust process was seen"
    assert not any(CANARIES[4] in line for line in lines)
    assert CANARIES[4] not in said
    files = list(out.iterdir())
    assert files
    for path in files:
        assert CANARIES[4] not in path.read_text("utf-8"), path.name
    assert json.loads((out / "report.json").read_text("utf-8"))["levels"]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
