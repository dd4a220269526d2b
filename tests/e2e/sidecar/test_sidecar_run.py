"""The sidecar as a process before the simulator: what a user sees from the first second to SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sidecar.cli import main
from tests.support.sidecar_process import Running, sidecar_process, wait_for
from tests.support.simulated import simulate_process


@pytest.fixture(scope="module")
def simulator() -> Iterator[str]:
    with simulate_process("--profile", "fast", "--max-seconds", "300") as (_, url):
        yield url


@pytest.fixture(scope="module")
def model(simulator: str) -> str:
    name = httpx.get(simulator + "/v1/models", timeout=20, trust_env=False).json()["data"][0]["id"]
    assert isinstance(name, str)
    return name


@pytest.fixture(scope="module")
def sidecar(simulator: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    capacity = tmp_path_factory.mktemp("capacity") / "capacity.json"
    capacity.write_text(json.dumps({"format": 1, "peak_load_per_replica": 8, "target_saturation": 0.8}))
    with sidecar_process(
        simulator, "--slo", "ttft=10,tpot=5", "--capacity", str(capacity), "--scrape-interval-s", "0.5"
    ) as running:
        wait_for(lambda: running.get("/readyz").status_code == 200)
        yield running


def ask(base: str, model: str, *, tokens: int = 8, stream: bool = True, **headers: str) -> httpx.Response:
    body = {
        "model": model,
        "prompt": "one two three",
        "max_tokens": tokens,
        "stream": stream,
        "ignore_eos": True,
    }
    return httpx.post(base + "/v1/completions", json=body, headers=headers, timeout=60, trust_env=False)


def test_requests_pass_and_are_counted(sidecar: Running, model: str) -> None:
    before = sidecar.status()["overall"]["1h"]["eligible"]
    for _ in range(5):
        answer = ask(sidecar.proxy, model)
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("[DONE]")
    wait_for(lambda: sidecar.status()["overall"]["1h"]["eligible"] == before + 5)
    shown = sidecar.status()
    (one,) = [c for c in shown["classes"] if c["model"] == model]
    assert one["windows"]["1h"]["good"] == one["windows"]["1h"]["eligible"]
    assert one["windows"]["1h"]["attainment"] == 1.0
    assert one["windows"]["1h"]["latency"]["ttft"]["p99_s"] > 0
    assert shown["autoscale"]["saturation"] == shown["autoscale"]["in_flight"] / 8


def test_engine_and_sidecar_agree_on_tokens(sidecar: Running, simulator: str, model: str) -> None:
    label = f'{{model="{model}",class="default"}}'
    key = f"goodput_output_tokens_total{label}"
    before = sidecar.metrics()
    # The engine's own page: what the sidecar last scraped may be older than the requests before.
    page = httpx.get(simulator + "/metrics", timeout=20, trust_env=False).text
    (made,) = [line for line in page.splitlines() if line.startswith("vllm:generation_tokens_total{")]
    engine_before = float(made.split()[-1])
    ask(sidecar.proxy, model, tokens=20)
    engine = f'goodput_engine_generation_tokens_total{{engine="0",model="{model}"}}'
    wait_for(lambda: sidecar.metrics().get(key, 0) == before.get(key, 0) + 20)
    wait_for(lambda: sidecar.metrics()[engine] == engine_before + 20)


def test_the_page_in_openmetrics_is_strict(sidecar: Running, model: str) -> None:
    ask(sidecar.proxy, model)
    page = sidecar.get("/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in text_string_to_metric_families(page.text)}
    assert {"goodput_good_requests", "goodput_ttft_seconds", "goodput_engine_up"} <= names


def test_made_up_models_share_one_label(sidecar: Running, model: str) -> None:
    for i in range(20):
        assert ask(sidecar.proxy, f"typo-{i}").status_code == 404

    def models() -> set[str]:
        return {c["model"] for c in sidecar.status()["classes"]}

    wait_for(lambda: "__other__" in models())
    assert models() <= {model, "__other__"}


def test_admin_answers(sidecar: Running) -> None:
    assert sidecar.get("/healthz").text == "ok\n"
    found = sidecar.get("/autoscale")
    assert found.status_code == 200
    assert set(found.json()) >= {"saturation", "goodput_rps", "attainment", "waiting", "burn", "peak_load"}
    page = sidecar.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert sidecar.get("/nothing").status_code == 404


def test_events_come_without_being_asked_again(sidecar: Running) -> None:
    with httpx.stream("GET", sidecar.admin + "/events", timeout=30, trust_env=False) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        seen = []
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:])["watched_s"])
            if len(seen) == 2:
                break
    assert seen[1] > seen[0]


def test_sigterm_lets_a_stream_finish_and_exits_0(simulator: str, model: str) -> None:
    with sidecar_process(simulator, "--drain-s", "60") as running:
        answers: list[httpx.Response] = []
        asked = threading.Thread(target=lambda: answers.append(ask(running.proxy, model, tokens=600)))
        asked.start()
        wait_for(lambda: running.status()["proxy"]["in_flight"] == 1)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        asked.join(10)
        assert answers[0].text.rstrip().endswith("[DONE]")
        assert running.process.stderr is not None
        assert "Traceback" not in running.process.stderr.read()


def test_a_second_signal_ends_at_once() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        upstream = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with sidecar_process(upstream, "--drain-s", "600") as running:

            def hang() -> None:
                with pytest.raises(httpx.HTTPError):
                    ask(running.proxy, "m")

            asked = threading.Thread(target=hang)
            asked.start()
            wait_for(lambda: running.status()["proxy"]["in_flight"] == 1)
            running.process.send_signal(signal.SIGTERM)
            wait_for(lambda: running.get("/readyz").text == "draining\n")
            assert running.process.poll() is None
            assert running.end(signal.SIGTERM) == 128 + signal.SIGTERM
            asked.join(20)
            assert not asked.is_alive()


def test_an_upstream_that_is_not_there_is_said_and_survived() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nothing can connect
        upstream = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with sidecar_process(upstream, "--scrape-interval-s", "0.5") as running:
            wait_for(lambda: 'goodput_engine_down_reason{reason="connect"}' in running.metrics())
            ready = running.get("/readyz")
            assert ready.status_code == 503
            assert "no connection" in ready.text
            assert running.metrics()["goodput_engine_up"] == 0
            assert "goodput_saturation" not in running.metrics()
            scaled = running.get("/autoscale")
            assert (scaled.status_code, scaled.json()["saturation"]) == (503, None)
            assert running.get("/healthz").status_code == 200
            assert ask(running.proxy, "m").status_code == 502
            wait_for(lambda: running.status()["overall"]["1h"]["badput"].get("error") == 1)
            assert running.end() == 0


def test_an_upstream_that_comes_later_is_found(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with sidecar_process(f"http://127.0.0.1:{port}", "--scrape-interval-s", "0.5") as running:
        wait_for(lambda: running.get("/readyz").status_code == 503)
        command = [
            sys.executable,
            "-m",
            "loadgen.cli",
            "simulate",
            "--port",
            str(port),
            "--max-seconds",
            "60",
        ]
        late = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for(lambda: running.get("/readyz").status_code == 200, limit_s=60)
        finally:
            late.terminate()
            late.wait(20)


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        ([], {}, "upstream: say where vLLM is"),
        (["--upstream", "vllm:8000"], {}, "--upstream: must be a URL like"),
        (["--upstream", "http://127.0.0.1:1", "--listen", "8080"], {}, "--listen: must be HOST:PORT"),
        (["--upstream", "http://127.0.0.1:1", "--slo", "ttft=fast"], {}, "ttft"),
        (["--upstream", "http://127.0.0.1:1", "--capacity", "none.json"], {}, "none.json: cannot be read"),
        (["--upstream", "http://127.0.0.1:1"], {"GOODPUT_OBJECTIVE": "99"}, "environment GOODPUT_OBJECTIVE"),
        (["--config", "none.yaml"], {}, "none.yaml: cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    arguments: list[str],
    env: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # In this process, for each costs a start otherwise; the ports below are tried in processes of their own.
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GOODPUT_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["run", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("goodput-sidecar: error: ")
    assert said in line


def test_a_taken_port_is_named(simulator: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "sidecar", "run", "--upstream", simulator]
        held, free = f"127.0.0.1:{port}", "127.0.0.1:0"
        tried = {
            key: subprocess.Popen([*command, f"--{key}", held, f"--{other}", free], stderr=PIPE, text=True)
            for key, other in (("listen", "admin"), ("admin", "listen"))
        }
        for key, process in tried.items():
            _, said = process.communicate(timeout=90)
            assert process.returncode == 2
            (line,) = said.strip().splitlines()
            assert line.startswith(f"goodput-sidecar: error: {key}: cannot listen on {held}")
