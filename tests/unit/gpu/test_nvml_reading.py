"""NVML: absent without library or driver; each unanswered question is an absent value, not a failure."""

from types import SimpleNamespace

import pytest

from sidecar.gpu.collectors import CollectError, NvmlCollector
from sidecar.gpu.nvml import Nvml, NvmlMissing
from sidecar.gpu.reading import Sharing


class NVMLError(Exception):
    """As the library's."""


def refuse(*_):
    raise NVMLError("Not Supported")


class Metrics:
    """The library's structure for GPM."""

    def __init__(self):
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = None
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(98)]


def library(**changes):
    """The questions of nvidia-ml-py with the answers of one board; anything not here is not known to it."""
    answers = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "NVML_GPM_METRICS_GET_VERSION": 1,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "570.133.20",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda _: b"GPU-a",
        "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId=b"00000000:1B:00.0"),
        "nvmlDeviceGetMigMode": refuse,
        "nvmlDeviceGetPowerUsage": lambda _: 612400,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 9_100_000_000_123,
        "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda _, kind: 1980,
        "nvmlDeviceGetTemperature": lambda _, sensor: 64,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=100, memory=40),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=70 << 30, free=9 << 30, total=80 << 30),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 72,
        "nvmlDeviceGetPcieReplayCounter": lambda _: 3,
        "nvmlDeviceGetTotalEccErrors": lambda _, kind, counter: kind,
        "nvmlDeviceGetRemappedRows": refuse,
        "nvmlDeviceGetFieldValues": lambda _, ids: [
            SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=71))
        ],
        **changes,
    }
    return SimpleNamespace(**{name: answer for name, answer in answers.items() if answer is not None})


def test_a_board():
    (gpu,) = Nvml(library()).read().gpus
    assert (gpu.uuid, gpu.model, gpu.pci, gpu.driver) == (
        "GPU-a",
        "NVIDIA H100 80GB HBM3",
        "0000:1b:00.0",
        "570.133.20",
    )
    assert gpu.sharing is Sharing.UNKNOWN
    assert gpu.values["power_watts"] == pytest.approx(612.4)
    assert gpu.values["energy_joules_total"] == pytest.approx(9_100_000_000.123)
    assert gpu.values["clock_event_reasons"] == 72
    assert gpu.values["kernel_resident_ratio"] == 1.0
    assert gpu.values["memory_temperature_celsius"] == 71
    assert gpu.values["ecc_uncorrected_volatile_total"] == 1
    assert "row_remap_pending" not in gpu.values
    assert "tensor_active_ratio" not in gpu.values


def test_a_board_that_answers_nothing_but_its_name():
    silent = {
        name: refuse
        for name in vars(library())
        if name.startswith("nvmlDeviceGet") and name.split("Get")[1] not in ("Count", "HandleByIndex", "UUID")
    }
    (gpu,) = Nvml(library(**silent)).read().gpus
    assert gpu.uuid == "GPU-a"
    assert gpu.values == {}


def test_top_of_the_range_is_not_available():
    quiet = library(nvmlDeviceGetPowerUsage=lambda _: 0xFFFFFFFF, nvmlDeviceGetPcieReplayCounter=lambda _: -1)
    (gpu,) = Nvml(quiet).read().gpus
    assert "power_watts" not in gpu.values
    assert "pcie_replay_total" not in gpu.values


def test_a_board_cut_into_instances_is_mig():
    (gpu,) = Nvml(library(nvmlDeviceGetMigMode=lambda _: [1, 1])).read().gpus
    assert gpu.sharing is Sharing.MIG


def test_activity_comes_with_the_second_look():
    freed, samples = [], iter("abc")

    def get(wanted):
        for metric in wanted.metrics[: wanted.numMetrics]:
            metric.value = 12.5 if metric.metricId == 5 else 40.0
            metric.nvmlReturn = 3 if metric.metricId == 10 else 0
        return wanted

    nvml = Nvml(
        library(
            nvmlGpmQueryDeviceSupport=lambda _: SimpleNamespace(isSupportedDevice=1),
            nvmlGpmSampleAlloc=lambda: next(samples),
            nvmlGpmSampleGet=lambda _, sample: sample,
            nvmlGpmSampleFree=freed.append,
            c_nvmlGpmMetricsGet_t=Metrics,
            nvmlGpmMetricsGet=get,
        )
    )
    assert "tensor_active_ratio" not in nvml.read().gpus[0].values
    values = nvml.read().gpus[0].values
    assert values["tensor_active_ratio"] == 0.125
    assert values["sm_active_ratio"] == 0.4
    assert "dram_active_ratio" not in values  # this board does not answer it
    assert freed == ["a"]
    nvml.close()
    assert freed == ["a", "b"]


def test_a_driver_that_went_away_is_opened_anew():
    opened = []
    gone = library(nvmlInit=lambda: opened.append(1), nvmlDeviceGetCount=refuse)
    nvml = Nvml(gone)
    for _ in range(2):
        with pytest.raises(NvmlMissing, match="does not answer"):
            nvml.read()
    assert len(opened) == 2


async def test_without_library_or_driver_the_collector_says_so():
    # Whichever of the two this machine lacks.
    with pytest.raises(CollectError) as failed:
        await NvmlCollector(timeout_s=30.0).collect()
    assert failed.value.code in ("not_installed", "driver")


async def test_a_hanging_driver_is_waited_for_once():
    import threading

    release, calls = threading.Event(), []

    def hang():
        calls.append(1)
        release.wait(30)
        return 0

    collector = NvmlCollector(Nvml(library(nvmlDeviceGetCount=hang)), timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(CollectError, match="did not answer"):
            await collector.collect()
    assert len(calls) == 1
    release.set()
    collector.timeout_s = 30.0
    assert (await collector.collect()).gpus == ()
