"""The watch against real sockets and files: each source fails on its own and comes back."""

import asyncio
import gzip
import threading
import time

import pytest

from sidecar.gpu.amd import read_amd
from sidecar.gpu.collectors import CollectError, PageCollector
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.ownership import Identity
from sidecar.gpu.settings import GpuSettings
from sidecar.gpu.watch import GpuWatch
from tests.support.exporter import exporter
from tests.support.gpu_pages import page_bytes

XID = "NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=7, name=python3, something {n}\n"


async def until(condition, limit_s=30.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.02)


@pytest.fixture
def h100():
    with exporter(lambda: page_bytes("dcgm_h100x8_t0")) as served:
        yield served


def settings(**changes):
    return GpuSettings(**{"interval_s": 0.2, "identity": Identity(pod="llama-70b-1"), **changes})


async def test_a_page_is_fetched(h100):
    reading = await PageCollector("dcgm", h100.url, read_dcgm, 10.0).collect()
    assert len(reading.gpus) == 8
    again = await PageCollector("dcgm", h100.url + "/metrics/", read_dcgm, 10.0).collect()
    assert len(again.gpus) == 8


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        (lambda e: setattr(e, "status", 503), "status"),
        (lambda e: setattr(e, "cut", True), "read"),
        (lambda e: setattr(e, "page", lambda: b"<html>login</html>\n"), "not_metrics"),
        (lambda e: setattr(e, "page", lambda: b"vllm:num_requests_running 1\n"), "no_gpu"),
        (lambda e: setattr(e, "page", lambda: page_bytes("dcgm_h100x8_t0")[:-30]), "cut"),
    ],
)
async def test_each_failure_has_its_word(h100, break_it, code):
    break_it(h100)
    with pytest.raises(CollectError) as failed:
        await PageCollector("dcgm", h100.url, read_dcgm, 10.0).collect()
    assert failed.value.code == code


async def test_nobody_there_and_a_hanging_exporter(h100):
    with pytest.raises(CollectError) as failed:
        await PageCollector("amd", "http://127.0.0.1:1", read_amd, 5.0).collect()
    assert failed.value.code == "connect"
    h100.hang = threading.Event()
    with pytest.raises(CollectError) as failed:
        await PageCollector("dcgm", h100.url, read_dcgm, 0.2).collect()
    assert failed.value.code == "timeout"
    h100.hang.set()


async def test_one_broken_source_leaves_the_others_alone(h100):
    watch = GpuWatch(settings(dcgm_url=h100.url, amd_url="http://127.0.0.1:1", nvml=True))
    stop = asyncio.Event()
    running = asyncio.create_task(watch.run(stop))
    sources = watch.sources
    await until(lambda: all(one.looks >= 2 for one in sources.values()))
    assert sources["dcgm"].success is True
    assert sources["amd"].success is False
    assert sources["amd"].failures["connect"] >= 2
    assert sources["nvml"].success is False
    assert len(watch.state.owned.gpus) == 4

    h100.status = 500
    await until(lambda: sources["dcgm"].success is False)
    await until(lambda: watch.state.gpus(time.monotonic_ns()) == [])
    h100.status = 200
    await until(lambda: sources["dcgm"].success is True)
    assert len(watch.state.gpus(time.monotonic_ns())) == 4
    stop.set()
    await asyncio.wait_for(running, 20)


async def test_the_kernel_log_becomes_events_of_this_pods_boards(h100, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text("NVRM: Xid (PCI:0000:c3:00): 79, old, before the start\n")
    heard = []
    watch = GpuWatch(settings(dcgm_url=h100.url, kernel_log=str(log)), on_event=heard.append)
    stop = asyncio.Event()
    running = asyncio.create_task(watch.run(stop))
    await until(lambda: watch.sources["kernel_log"].success and watch.sources["dcgm"].success)
    assert watch.state.kernel_log_watched
    with log.open("a") as file:
        file.write(XID.format(bus="c3", code=94, n=1))  # GPU 5, ours
        file.write(XID.format(bus="1b", code=95, n=1))  # GPU 0, the other pod's
        file.write("app[3]: NVRM: Xid (PCI:0000:c3:00): 95, quoted\n")
        file.write("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n")
        for _ in range(1000):
            file.write(XID.format(bus="c3", code=94, n=1))
    await until(lambda: watch.state.incidents.repeats >= 1000)
    assert [(e.kind, e.code) for e in heard] == [("Xid", 94), ("SXid", 20034)]
    assert heard[0].uuid == "GPU-64df617e-a99e-8158-3837-c7c14d48ec25"
    assert heard[0].lines == 1001
    assert watch.state.foreign_events == 1
    assert any("not this pod's" in note for note in watch.state.notes(time.monotonic_ns()))
    stop.set()
    await asyncio.wait_for(running, 20)
    assert not watch.state.kernel_log_watched


async def test_a_log_that_may_not_be_read_says_that_xids_are_not_watched(tmp_path):
    watch = GpuWatch(settings(kernel_log=str(tmp_path / "none"), fabric_log=str(tmp_path)))
    stop = asyncio.Event()
    running = asyncio.create_task(watch.run(stop))
    await until(lambda: watch.sources["kernel_log"].success is False)
    await until(lambda: watch.sources["fabric_log"].success is False)
    assert "cannot be read" in watch.sources["kernel_log"].reason
    assert not watch.state.kernel_log_watched
    stop.set()
    await asyncio.wait_for(running, 20)


async def test_a_listener_that_fails_stops_nothing(h100, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text("")

    def fail(event):
        raise RuntimeError("listener")

    watch = GpuWatch(settings(dcgm_url=h100.url, kernel_log=str(log)), on_event=fail)
    stop = asyncio.Event()
    running = asyncio.create_task(watch.run(stop))
    await until(lambda: watch.sources["kernel_log"].success)
    with log.open("a") as file:
        file.write(XID.format(bus="c3", code=43, n=1) + XID.format(bus="d1", code=31, n=2))
    await until(lambda: watch.state.incidents.xids == {43: 1, 31: 1})
    assert watch.sources["kernel_log"].success
    stop.set()
    await asyncio.wait_for(running, 20)


async def test_a_compressed_page():
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = gzip.compress(page_bytes("amd_mi300x_t0"))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        reading = await PageCollector("amd", f"http://127.0.0.1:{port}", read_amd, 10.0).collect()
    assert [gpu.values["power_watts"] for gpu in reading.gpus] == [655, 648]
