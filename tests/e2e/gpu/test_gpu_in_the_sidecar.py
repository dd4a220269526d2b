"""The GPU part of a running sidecar: exporter, kernel log and collector behind real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.publish.gpu_catalog import GPU_METRICS
from sidecar.spans.otlp import attributes_of, python_value
from tests.support.exporter import exporter
from tests.support.gpu_replay import NAMESPACE, POD, GpuDay, uuid
from tests.support.otlp_tap import OtlpTap
from tests.support.page_shot import browsed
from tests.support.screenshot import chromium
from tests.support.sidecar_process import Running, sidecar_process, wait_for
from tests.support.simulated import simulate_process

SETTINGS = {
    "GOODPUT_GPU_INTERVAL_S": "0.3",
    "GOODPUT_POD_NAME": POD,
    "GOODPUT_POD_NAMESPACE": NAMESPACE,
    "GOODPUT_USD_PER_GPU_HOUR": "2.5",
    "GOODPUT_HOST_WATTS": "400",
    "GOODPUT_PUE": "1.3",
    "GOODPUT_MODEL_PARAMS": "8.03e9",
    "GOODPUT_MODEL_WEIGHT_BYTES": "16.06e9",
    "GOODPUT_MODEL_KV_BYTES_PER_TOKEN": "131072",
}


class Hardware:
    """The made-up day, an hour after noon, at sixty times its speed."""

    def __init__(self) -> None:
        self.day = GpuDay()
        self.began = time.monotonic()
        self.day.page(12 * 3600 - 60)

    def page(self) -> bytes:
        return self.day.page(13 * 3600 + 60 * (time.monotonic() - self.began))


@pytest.fixture(scope="module")
def simulator() -> Iterator[str]:
    with simulate_process("--profile", "fast", "--max-seconds", "300") as (_, url):
        yield url


@pytest.fixture(scope="module")
def tap() -> Iterator[OtlpTap]:
    with OtlpTap() as found:
        yield found


@pytest.fixture(scope="module")
def kernel_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "kern.log"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def sidecar(simulator: str, tap: OtlpTap, kernel_log: Path) -> Iterator[Running]:
    hardware = Hardware()
    with (
        exporter(hardware.page) as served,
        sidecar_process(
            simulator,
            "--slo",
            "ttft=10,tpot=5",
            "--scrape-interval-s",
            "1",
            "--gpu-dcgm",
            served.url,
            "--gpu-amd",
            "http://127.0.0.1:1",
            "--gpu-kernel-log",
            str(kernel_log),
            env=SETTINGS
            | {
                "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"http://127.0.0.1:{tap.http_port}/v1/logs",
                "OTEL_RESOURCE_ATTRIBUTES": "k8s.node.name=node-1",
            },
        ) as running,
    ):
        wait_for(lambda: running.get("/readyz").status_code == 200)
        model = httpx.get(simulator + "/v1/models", timeout=20, trust_env=False).json()["data"][0]["id"]
        wait_for(lambda: len(running.status()["gpu"]["gpus"]) == 4)
        for _ in range(4):
            body = {"model": model, "prompt": "one two three", "max_tokens": 20, "stream": True}
            httpx.post(running.proxy + "/v1/completions", json=body, timeout=60, trust_env=False)
        wait_for(lambda: (running.status()["gpu"]["energy"] or {}).get("tokens_per_joule"))
        yield running


def test_the_page_is_strict_and_holds_the_pods_gpus_only(sidecar: Running) -> None:
    text = sidecar.get("/metrics").text
    known = {name for name, _, _, _ in GPU_METRICS}
    labels = {name: set(names) for name, _, names, _ in GPU_METRICS}
    boards: set[str] = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("goodput_gpu") and "gpu" in sample.labels:
                boards.add(sample.labels["gpu"])
            if sample.name in known:
                assert set(sample.labels) <= labels[sample.name], sample
    assert boards == {uuid(i) for i in range(4)}
    assert POD not in text
    assert NAMESPACE not in text


def test_signals_energy_and_cost(sidecar: Running) -> None:
    found = sidecar.metrics()
    gpu = f'gpu="{uuid(0)}"'
    assert found[f"goodput_gpu_kernel_resident_ratio{{{gpu}}}"] == 1
    assert 0 < found[f"goodput_gpu_power_ratio{{{gpu}}}"] < 1
    assert found[f'goodput_gpu_power_limit_watts{{{gpu},origin="enforced"}}'] == 700
    boards = found['goodput_power_watts{window="5m",scope="boards"}']
    assert found['goodput_power_watts{window="5m",scope="facility"}'] == pytest.approx((boards + 400) * 1.3)
    assert found['goodput_tokens_per_joule{window="5m",scope="boards"}'] > 0
    assert found['goodput_usd_per_1m_tokens{window="5m",tokens="good",basis="as_used"}'] > 0
    assert found['goodput_gpu_source_up{source="dcgm"}'] == 1
    assert found['goodput_gpu_source_up{source="amd"}'] == 0
    assert found['goodput_gpu_xid_watched{source="kernel_log"}'] == 1


def test_the_hot_gpu_stands_out(sidecar: Running) -> None:
    found = sidecar.metrics()
    score = found[f'goodput_gpu_outlier_score{{gpu="{uuid(2)}",signal="sm_clock"}}']
    assert score < -5
    status = sidecar.status()["gpu"]
    assert status["straggler"].startswith("GPU 2 runs at 71 % of its peers' clock since ")
    assert status["straggler"].endswith("reason: thermal")
    assert {one["name"] for one in status["diagnosis"]} >= {"straggler", "clocks_below_boost"}


def test_every_ratio_names_its_peak(sidecar: Running) -> None:
    def names() -> list[str]:
        return [name for name in sidecar.metrics() if name.startswith(("goodput_mfu", "goodput_mbu"))]

    seen: list[str] = []

    def found() -> bool:
        seen[:] = names()
        return bool(seen)

    wait_for(found)
    for name in seen:
        assert 'peak="H100-SXM ' in name
        assert "dense" in name or "GB/s" in name


def test_an_xid_is_counted_explained_and_sent(sidecar: Running, kernel_log: Path, tap: OtlpTap) -> None:
    with kernel_log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:01:00): 94, pid=7, name=python3, Contained: SM (0x1). RST: No\n" * 3)
        file.write("NVRM: Xid (PCI:0000:04:00): 95, pid=8, name=x, another pod's board\n")
    wait_for(lambda: bool(tap.logs))
    wait_for(lambda: sidecar.status()["gpu"]["events"] != [])
    (event,) = sidecar.status()["gpu"]["events"]
    assert (event["code"], event["gpu"], event["advisory"]) == (94, uuid(1), "restart_app")
    found = sidecar.metrics()
    labels = 'code="94",advisory="restart_app",scope="gpu",containment="contained"'
    assert found[f"goodput_gpu_xid_events_total{{{labels}}}"] == 1
    (entry,) = tap.logs[0].resource_logs
    assert attributes_of(entry.resource.attributes)["k8s.node.name"] == "node-1"
    (record,) = entry.scope_logs[0].log_records
    attributes = attributes_of(record.attributes)
    assert attributes["gpu.xid.code"] == 94
    assert attributes["gpu.error.containment"] == "contained"
    assert attributes["hw.parent"] == uuid(1)
    assert "Contained" in python_value(record.body)
    assert POD not in json.dumps(attributes)
    # An Xid is an input to a decision, never the decision.
    assert sidecar.get("/readyz").status_code == 200


def test_explain_says_it_in_the_terminal(sidecar: Running) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sidecar", "explain", sidecar.admin],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "GPU 2 runs at 71 % of its peers' clock since" in ran.stdout
    assert "source amd gives nothing: nobody listens there." in ran.stdout
    assert "A million tokens cost $" in ran.stdout
    assert "To tell: " in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu-dcgm", "nonsense"], "--gpu-dcgm"),
        (["--gpu-nvml", "perhaps"], "--gpu-nvml"),
        (["--gpu-nvml", "true", "--pue", "0.5"], "pue"),
        (["--gpu-nvml", "true", "--usd-per-gpu-hour", "-1"], "--usd-per-gpu-hour"),
        (["--gpu-nvml", "true", "--model-dtype", "fp3"], "model_dtype"),
    ],
)
def test_mistakes_name_their_key(arguments: list[str], words: str) -> None:
    ran = subprocess.run(
        [
            sys.executable, "-m", "sidecar", "run", "--upstream", "http://127.0.0.1:1",
            "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={k: v for k, v in os.environ.items() if not k.startswith("GOODPUT_")},
    )  # fmt: skip
    assert ran.returncode == 2
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.skipif(chromium() is None, reason="chromium (Debian package chromium) is not installed")
def test_the_status_page_shows_the_gpus(sidecar: Running) -> None:
    async def look() -> None:
        for width in (1200, 390):
            async with browsed(sidecar.admin + "/", width=width, height=900, dark=width < 400) as page:
                await page.until("document.querySelectorAll('#gpu-table tbody tr').length === 4")
                shown = await page.js("document.getElementById('gpus').innerText")
                assert "GPU 2 runs at 71 % of its peers' clock since" in shown
                assert "hw_thermal" not in shown
                assert "thermal" in shown
                assert "exclusive" in shown
                assert "Source amd gives nothing: nobody listens there." in shown
                # Absent for a moment whenever a scrape of the engine is late.
                await page.until("document.getElementById('gpus').innerText.includes('of H100-SXM bf16')")
                assert await page.js("document.documentElement.scrollWidth <= innerWidth")
                bad = [
                    e for e in page.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
                ]
                assert bad == []
                out = os.environ.get("GOODPUT_SCREENSHOTS")
                if out:
                    (Path(out) / f"gpus-{width}.png").write_bytes(await page.shoot())

    asyncio.run(look())
