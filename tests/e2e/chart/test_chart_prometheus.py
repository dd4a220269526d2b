"""A real Prometheus scrapes a real sidecar: the autoscaler's queries give what the sidecar says."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loadgen import manifests
from loadgen.manifests import Place
from loadgen.target import Wish, capacity_file, plan
from tests.support import reports

PROMETHEUS = shutil.which("prometheus")
BIN = Path(sys.executable).parent
LIMIT_S = 60.0

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH (Debian: prometheus)")


def until(value: Callable[[], Any], what: str) -> Any:
    """Wait for something that is not ``None``, but not for ever."""
    end = time.monotonic() + LIMIT_S
    while (found := value()) is None:
        assert time.monotonic() < end, f"{what}: not within {LIMIT_S:.0f} s"
        time.sleep(0.2)
    return found


class Stack:
    """Simulator, sidecar with a capacity file, and Prometheus scraping it as a pod of a Deployment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        simulator = self._start([BIN / "goodput-loadgen", "simulate", "--port", "0", "--max-seconds", "300"])
        self.engine_url = self._url(simulator, r"simulator listening on (\S+)")
        report = reports.sweep()
        capacity = folder / "capacity.json"
        capacity.write_text(capacity_file(report, plan(report, Wish(30.0))))
        sidecar = self._start(
            [
                *(BIN / "goodput-sidecar", "run", "--upstream", self.engine_url, "--capacity", capacity),
                *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--slo", "ttft=60,tpot=60"),
                *("--scrape-interval-s", "0.5"),
            ]
        )
        self.proxy_url = self._url(sidecar, r"proxy listening on (\S+)")
        self.admin_url = self._url(sidecar, r"admin listening on (\S+)")
        self.prometheus_url = self._prometheus()

    def _start(self, command: list[Any]) -> int:
        number = len(self._started)
        with (self._folder / f"log-{number}").open("wb") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)
        self._started.append(process)
        return number

    def _url(self, number: int, pattern: str) -> str:
        def found() -> str | None:
            match = re.search(pattern, (self._folder / f"log-{number}").read_text())
            return match.group(1) if match else None

        url: str = until(found, pattern)
        return url

    def _prometheus(self) -> str:
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {
                    "job_name": "sidecar",
                    "static_configs": [
                        {
                            "targets": [self.admin_url.removeprefix("http://")],
                            "labels": {"namespace": "serving", "pod": "llama-7d9-abc"},
                        }
                    ],
                }
            ],
        }
        (self._folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self._start(
            [
                PROMETHEUS,
                f"--config.file={self._folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
        )
        return f"http://127.0.0.1:{port}"

    def ask(self, query: str) -> list[dict[str, Any]] | None:
        """The series that answer a query now; ``None`` while Prometheus does not answer."""
        try:
            answer = httpx.get(f"{self.prometheus_url}/api/v1/query", params={"query": query}, timeout=10)
        except httpx.HTTPError:
            return None
        if answer.status_code == 503:  # it listens before it is ready
            return None
        body = answer.json()
        assert body["status"] == "success", body
        found: list[dict[str, Any]] = body["data"]["result"]
        return found

    def close(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("stack"))
    try:
        yield made
    finally:
        made.close()


def test_the_query_of_the_scaled_object_is_the_sidecars_own_signal(stack: Stack) -> None:
    report = reports.sweep()
    place = Place("llama", "serving", stack.prometheus_url)
    trigger = yaml.safe_load(manifests.keda(plan(report, Wish(30.0)), place))["spec"]["triggers"][0][
        "metadata"
    ]
    (series,) = until(lambda: stack.ask(trigger["query"]) or None, "the signal in Prometheus")
    assert series["metric"] == {}  # more than one series would be an error to KEDA
    assert float(series["value"][1]) == 0.0  # idle is a true zero
    assert httpx.get(f"{stack.admin_url}/autoscale").json()["saturation"] == 0.0


def test_a_gap_answers_nothing_instead_of_zero(stack: Stack) -> None:
    place = Place("another", "serving")
    until(lambda: stack.ask(manifests.saturation_query(Place("llama", "serving"))) or None, "the signal")
    assert stack.ask(manifests.saturation_query(place)) == []


def test_the_adapters_rule_finds_the_series_and_one_value_a_pod(stack: Stack) -> None:
    (rule,) = yaml.safe_load(manifests.adapter_rule())["rules"]["custom"]
    until(lambda: stack.ask(rule["seriesQuery"]) or None, "the adapter's series")
    query = (
        rule["metricsQuery"]
        .replace("<<.Series>>", manifests.METRIC)
        .replace("<<.LabelMatchers>>", 'namespace="serving",pod=~"llama-7d9-abc"')
        .replace("<<.GroupBy>>", "pod")
    )
    (series,) = until(lambda: stack.ask(query) or None, "the adapter's value")
    assert series["metric"] == {"pod": "llama-7d9-abc"}
