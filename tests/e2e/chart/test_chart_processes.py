"""What the chart renders, started as the kubelet would: commands, ports, probes and the order of things.

The simulator stands in for vLLM, a folder for each mounted ConfigMap, 127.0.0.1 for the pod and the Service.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadgen.report.jsonio import load
from tests.support.chart import CHART, HOW, Doc, of_kind, programs, render

BIN = Path(sys.executable).parent
LIMIT_S = 60.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def until(true: Callable[[], bool], what: str) -> None:
    """Wait, but not for ever."""
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, f"{what}: not within {LIMIT_S:.0f} s"
        time.sleep(0.1)


def asked(probe: Doc) -> bool:
    """One HTTP probe of the kubelet."""
    get = probe["httpGet"]
    try:
        return 200 <= httpx.get(f"http://127.0.0.1:{get['port']}{get['path']}", timeout=5).status_code < 400
    except httpx.HTTPError:
        return False


class Pod:
    """The rendered pod on this machine."""

    def __init__(self, docs: list[Doc], folder: Path) -> None:
        self.docs = docs
        self.folder = folder
        self.spec = of_kind(docs, "Deployment")["spec"]["template"]["spec"]
        self.sidecar = self.spec["initContainers"][0]
        self.vllm = self.spec["containers"][0]
        self.proxy_url = f"http://127.0.0.1:{of_kind(docs, 'Service')['spec']['ports'][0]['targetPort']}"
        self.admin_url = f"http://127.0.0.1:{of_kind(docs, 'Service')['spec']['ports'][1]['targetPort']}"
        self._started: list[subprocess.Popen[bytes]] = []

    def mounted(self, container: Doc) -> list[str]:
        """Command and arguments, with paths into mounted ConfigMaps turned into real ones."""
        words = [*container["command"], *container["args"]]
        volumes = {v["name"]: v for v in self.spec["volumes"]}
        for mount in container["volumeMounts"]:
            source = volumes[mount["name"]].get("configMap")
            if source is None:
                continue
            (config,) = [
                d for d in self.docs if d["kind"] == "ConfigMap" and d["metadata"]["name"] == source["name"]
            ]
            there = self.folder / mount["name"]
            there.mkdir()
            for item in source["items"]:
                (there / item["path"]).write_text(config["data"][item["key"]])
            words = [w.replace(mount["mountPath"], str(there)) for w in words]
        return [str(BIN / words[0]), *words[1:]]

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """A process whose output is kept for the case that the test fails."""
        with (self.folder / f"log-{len(self._started)}").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._started.append(process)
        return process

    def start_sidecar(self) -> subprocess.Popen[bytes]:
        """The init container, until its startup probe holds: only then the kubelet goes on."""
        process = self.start(self.mounted(self.sidecar))
        until(lambda: asked(self.sidecar["startupProbe"]), "the sidecar's startup probe")
        return process

    def start_vllm(self) -> subprocess.Popen[bytes]:
        """The simulator on vLLM's port, until vLLM's startup probe holds."""
        (port,) = [a.partition("=")[2] for a in self.vllm["args"] if a.startswith("--port=")]
        command = [str(BIN / "goodput-loadgen"), "simulate", "--port", port, "--max-seconds", "300"]
        process = self.start(command)
        until(lambda: asked(self.vllm["startupProbe"]), "vLLM's startup probe")
        return process

    def close(self) -> None:
        """End what the test left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=30)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    helms = programs("helm")
    if not helms:
        pytest.skip(HOW)
    proxy, admin, vllm = free_ports(3)
    docs = render(
        helms[-1],
        "--values",
        CHART / "ci" / "keda-values.yaml",
        "--set",
        f"sidecar.listenHost=127.0.0.1,sidecar.port={proxy},sidecar.adminPort={admin},vllm.port={vllm}",
        "--set",
        f"service.port={proxy},vllm.preStopSleepSeconds=1,sidecar.scrapeIntervalSeconds=0.5",
        "--set",
        "sidecar.slo=ttft=60\\,tpot=60,loadTest.enabled=true,loadTest.levels=1\\,2",
        "--set-json",
        'loadTest.extraArgs=["--warmup-s=0.5","--window-s=2","--output-tokens=8","--prompt-tokens=16"]',
    )
    made = Pod(docs, tmp_path)
    try:
        yield made
    finally:
        made.close()
        for log in sorted(tmp_path.glob("log-*")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def stream(url: str, answers: list[str]) -> None:
    body: dict[str, Any] = {
        "model": "demo-1b",
        "messages": [{"role": "user", "content": "Say something."}],
        "stream": True,
        "max_tokens": 40,
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=LIMIT_S) as response:
        answers.append(f"{response.status_code} " + "".join(response.iter_text()))


def counted(url: str, name: str) -> float:
    """The sum over a counter's series on the sidecar's page."""
    page = httpx.get(f"{url}/metrics", timeout=10).text
    return sum(float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(name + "{"))


def test_the_pod_starts_serves_and_stops_in_the_kubelets_order(pod: Pod) -> None:
    sidecar = pod.start_sidecar()  # without vLLM: its probe must not wait for it
    assert not asked(pod.sidecar["readinessProbe"])
    vllm = pod.start_vllm()
    until(lambda: asked(pod.sidecar["readinessProbe"]), "the sidecar's readiness probe")
    until(lambda: httpx.get(f"{pod.admin_url}/autoscale").status_code == 200, "the autoscale signal")
    trigger = of_kind(pod.docs, "ScaledObject")["spec"]["triggers"][0]["metadata"]
    signal_now = httpx.get(f"{pod.admin_url}/autoscale").json()
    assert signal_now[trigger["valueLocation"]] == 0.0

    answers: list[str] = []
    clients = [threading.Thread(target=stream, args=(pod.proxy_url, answers)) for _ in range(4)]
    for client in clients:
        client.start()
    # The end begins under load: preStop first; a late request is still taken; vLLM finishes what runs.
    hook = subprocess.Popen(pod.vllm["lifecycle"]["preStop"]["exec"]["command"])
    stream(pod.proxy_url, answers)
    for client in clients:
        client.join(LIMIT_S)
    assert hook.wait(LIMIT_S) == 0
    vllm.send_signal(signal.SIGTERM)
    vllm.wait(LIMIT_S)
    assert len(answers) == 5
    assert all(a.startswith("200 ") and a.endswith("data: [DONE]\n\n") for a in answers), answers

    assert sidecar.poll() is None  # it outlives vLLM, and nothing that it measured is lost
    assert asked(pod.sidecar["livenessProbe"])
    assert counted(pod.admin_url, "goodput_good_requests_total") == 5
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(pod.spec["terminationGracePeriodSeconds"]) == 0


def test_the_rendered_sweep_gives_the_capacity_that_the_chart_takes(pod: Pod, tmp_path: Path) -> None:
    pod.start_sidecar()
    pod.start_vllm()
    until(lambda: asked(pod.sidecar["readinessProbe"]), "the sidecar's readiness probe")
    (sweep,) = of_kind(pod.docs, "Job")["spec"]["template"]["spec"]["containers"]
    service = of_kind(pod.docs, "Service")["metadata"]["name"]
    results = tmp_path / "results"
    words = [
        w.replace(f"//{service}:", "//127.0.0.1:").replace("=/results", f"={results}")
        for w in (*sweep["command"], *sweep["args"])
    ]
    ran = subprocess.run(
        [str(BIN / words[0]), *words[1:]], capture_output=True, text=True, timeout=110, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = load(results / "report.json")
    assert {level.load for level in report.levels} == {1.0, 2.0}
    made = subprocess.run(
        [
            str(BIN / "goodput-loadgen"),
            "target",
            str(results / "report.json"),
            "--rate=5",
            "--format=capacity",
            "--force",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    capacity = json.loads(made.stdout)
    docs = render(programs("helm")[-1], "--set-json", f"sidecar.capacity={made.stdout}")
    mounted = json.loads(of_kind(docs, "ConfigMap")["data"]["capacity.json"])
    assert mounted["peak_load_per_replica"] == capacity["peak_load_per_replica"] == report.peak.load
