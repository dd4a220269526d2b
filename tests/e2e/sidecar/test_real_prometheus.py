"""A real Prometheus scrapes the running sidecar: rules load, every query of the dashboard has an answer."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import httpx
import pytest
import yaml

from tests.support.sidecar_process import Running, sidecar_process, wait_for
from tests.support.simulated import simulate_process

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "configs" / "grafana" / "goodput.json").read_text("utf-8"))
QUERIES = [(p["title"], t["expr"]) for p in DASHBOARD["panels"] for t in p["targets"]]

needs_prometheus = pytest.mark.skipif(
    which("prometheus") is None, reason="prometheus (Debian package prometheus) is not installed"
)


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus with the shipped configuration, pointed at one sidecar; its URL."""
    settings = yaml.safe_load((ROOT / "configs" / "prometheus" / "prometheus.yaml").read_text("utf-8"))
    # Rules over days each second would take the processor from everything else.
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "3s"}
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    (folder / "rules.yaml").write_bytes((ROOT / "configs" / "prometheus" / "rules.yaml").read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={folder / 'prometheus.yaml'}"),
                *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"),
                "--enable-feature=exemplar-storage",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def query(url: str, expression: str) -> list[Any]:
    """An instant query's result; fails with Prometheus' words for a wrong one."""
    answer = httpx.get(
        url + "/api/v1/query", params={"query": expression}, timeout=30, trust_env=False
    ).json()
    assert answer["status"] == "success", (expression, answer)
    found: list[Any] = answer["data"]["result"]
    return found


def answered(url: str, expression: str, limit_s: float = 30.0) -> list[Any]:
    """The query's result once there is one."""
    end_s = time.monotonic() + limit_s
    while not (found := query(url, expression)):
        assert time.monotonic() < end_s, f"no answer: {expression}"
        time.sleep(0.3)
    return found


def traffic(sidecar: Running, count: int) -> None:
    with httpx.Client(base_url=sidecar.proxy, timeout=60, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": "a b c", "max_tokens": 6, "stream": True, "ignore_eos": True}
        for i in range(count):
            headers = {"x-sim-fault": "error=1"} if i % 8 == 7 else {}
            client.post("/v1/completions", json=body, headers=headers)


@needs_prometheus
def test_every_panel_has_an_answer(tmp_path: Path) -> None:
    capacity = tmp_path / "capacity.json"
    capacity.write_text('{"format": 1, "peak_load_per_replica": 16}', "utf-8")
    with (
        simulate_process("--profile", "fast", "--max-seconds", "300") as (_, url),
        sidecar_process(
            url,
            *("--scrape-interval-s", "1", "--capacity", str(capacity)),
            *("--slo", "ttft=9,tpot=5,max_gap=9,e2e=60"),
        ) as sidecar,
        prometheus(tmp_path, sidecar.admin.removeprefix("http://")) as prom,
    ):
        wait_for(lambda: sidecar.get("/readyz").status_code == 200)
        traffic(sidecar, 1)  # a counter's first value must be seen before it rises
        wait_for(lambda: _ready(prom), limit_s=60)
        wait_for(lambda: query(prom, "goodput_eligible_requests_total") != [], limit_s=60)
        traffic(sidecar, 32)
        wait_for(lambda: query(prom, "sum(goodput_eligible_requests_total) >= 33") != [], limit_s=60)
        for title, expression in QUERIES:
            expression = re.sub(r'=~"\$\w+"', '=~".*"', expression).replace("$__rate_interval", "1m")
            values = [float(one["value"][1]) for one in answered(prom, expression)]
            assert all(value == value for value in values), (title, expression, values)
        (up,) = query(prom, 'up{job="goodput-sidecar"}')
        assert up["value"][1] == "1"
        wait_for(lambda: query(prom, "goodput:attainment:ratio_rate5m") != [])
        types = httpx.get(prom + "/api/v1/metadata", timeout=30, trust_env=False).json()["data"]
        assert types["goodput_ttft_seconds"][0]["type"] == "histogram"
        states = httpx.get(prom + "/api/v1/rules", timeout=30, trust_env=False).json()["data"]["groups"]
        assert {rule["health"] for group in states for rule in group["rules"]} <= {"ok", "unknown"}


def _ready(url: str) -> bool:
    try:
        return httpx.get(url + "/-/ready", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_dashboard_is_what_its_script_makes() -> None:
    script = ROOT / "configs" / "grafana" / "build_dashboard.py"
    spec = importlib.util.spec_from_file_location("build_dashboard", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.text() == script.with_name("goodput.json").read_text("utf-8"), f"run: python {script.name}"


def test_the_dashboard_keeps_the_linters_rules() -> None:
    assert DASHBOARD["editable"] is False
    assert DASHBOARD["templating"]["list"][0]["name"] == "datasource"
    assert len({p["title"] for p in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            for span in re.findall(r"rate\([^()]*\[([^\]]*)\]\)", target["expr"]):
                assert span == "$__rate_interval"
            for counter in re.findall(r"\w+_total", target["expr"]):
                assert f"rate({counter}" in target["expr"], panel["title"]
