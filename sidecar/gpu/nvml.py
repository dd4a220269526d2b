"""GPUs as the driver's own library shows them, where no exporter runs: NVML through ``nvidia-ml-py``.

The library is an optional dependency. Each question is asked by itself: a board that does not answer one
still answers the others, and what is not answered is absent. Times and energy are the driver's; tensor and
DRAM activity come from GPM, on Hopper and newer, as means between two looks. Calls block: run them in a
thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sidecar.gpu.reading import Gpu, Reading, Sharing

_MIB = 1048576.0
_MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
# GPM metric id -> signal and factor.
_GPM = {
    2: ("sm_active_ratio", 0.01),
    3: ("sm_occupancy_ratio", 0.01),
    5: ("tensor_active_ratio", 0.01),
    10: ("dram_active_ratio", 0.01),
    20: ("pcie_tx_bytes_per_s", _MIB),
    21: ("pcie_rx_bytes_per_s", _MIB),
    60: ("nvlink_rx_bytes_per_s", _MIB),
    61: ("nvlink_tx_bytes_per_s", _MIB),
}


class NvmlMissing(Exception):
    """NVML cannot be used here; the message says why in one clause. ``code``: a short word for a label."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(slots=True)
class Nvml:
    """The library, opened at the first look. ``library`` stands in for the ``pynvml`` module."""

    library: Any = None
    _open: bool = False
    _driver: str = ""
    _samples: dict[str, Any] = field(default_factory=dict)  # UUID -> the GPM sample of the last look

    def read(self) -> Reading:
        """All boards that the driver shows. Raises NvmlMissing."""
        self._start()
        nvml = self.library
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self.close()  # after a driver reload the library must be opened anew
            raise NvmlMissing(f"the driver does not answer: {error}", "driver") from None
        gpus = [gpu for index in range(count) if (gpu := self._gpu(index)) is not None]
        return Reading(tuple(gpus), () if gpus else ("the driver shows no GPU",))

    def close(self) -> None:
        """Let go of the library."""
        if self._open:
            self._open = False
            for sample in self._samples.values():
                self._ask("nvmlGpmSampleFree", sample)
            self._samples.clear()
            self._ask("nvmlShutdown")

    def _start(self) -> None:
        if self._open:
            return
        if self.library is None:
            try:
                self.library = import_module("pynvml")
            except ImportError:
                raise NvmlMissing("nvidia-ml-py is not installed", "not_installed") from None
        try:
            self.library.nvmlInit()
        except self.library.NVMLError as error:
            raise NvmlMissing(f"no NVIDIA driver answers: {error}", "driver") from None
        self._open = True
        self._driver = _text(self._ask("nvmlSystemGetDriverVersion"))

    def _ask(self, question: str, *args: Any) -> Any:
        """The library's answer, or ``None``: not supported by this board, no right to ask, or a library (or
        driver) that is older than the question."""
        known = getattr(self.library, question, None)
        if known is None:
            return None
        try:
            return known(*args)
        except self.library.NVMLError:
            return None

    def _gpu(self, index: int) -> Gpu | None:
        ask = self._ask
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        uuid = _text(ask("nvmlDeviceGetUUID", handle)) if handle is not None else ""
        if not uuid:
            return None
        pci = ask("nvmlDeviceGetPciInfo", handle)
        bus = _text(getattr(pci, "busId", "")).lower()
        mig = ask("nvmlDeviceGetMigMode", handle)
        return Gpu(
            uuid=uuid,
            vendor="nvidia",
            index=str(index),
            model=_text(ask("nvmlDeviceGetName", handle)),
            pci=bus[4:] if bus.startswith("00000000:") else bus,
            driver=self._driver,
            values=self._values(handle, uuid),
            # NVML knows no pods, so who else is on a board cannot be seen from here.
            sharing=Sharing.MIG if mig and mig[0] == 1 else Sharing.UNKNOWN,
        )

    def _values(self, handle: Any, uuid: str) -> dict[str, float]:
        nvml, ask = self.library, self._ask
        utilisation = ask("nvmlDeviceGetUtilizationRates", handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        rows = ask("nvmlDeviceGetRemappedRows", handle) or (None,) * 4
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        found: dict[str, float | None] = {
            "power_watts": _scaled(ask("nvmlDeviceGetPowerUsage", handle), 0.001),
            "power_limit_watts": _scaled(ask("nvmlDeviceGetEnforcedPowerLimit", handle), 0.001),
            "energy_joules_total": _scaled(ask("nvmlDeviceGetTotalEnergyConsumption", handle), 0.001),
            "sm_clock_hertz": _scaled(ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM), 1e6),
            "memory_clock_hertz": _scaled(ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM), 1e6),
            "sm_clock_max_hertz": _scaled(ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM), 1e6),
            "temperature_celsius": _scaled(
                ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU), 1.0
            ),
            "memory_temperature_celsius": self._memory_temperature(handle),
            "kernel_resident_ratio": _scaled(getattr(utilisation, "gpu", None), 0.01),
            "memory_used_bytes": _scaled(getattr(memory, "used", None), 1.0),
            "memory_free_bytes": _scaled(getattr(memory, "free", None), 1.0),
            "memory_total_bytes": _scaled(getattr(memory, "total", None), 1.0),
            "clock_event_reasons": _scaled(reasons, 1.0),
            "pcie_replay_total": _scaled(ask("nvmlDeviceGetPcieReplayCounter", handle), 1.0),
            "ecc_corrected_volatile_total": self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected_volatile_total": self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "remapped_rows_correctable_total": _scaled(rows[0], 1.0),
            "remapped_rows_uncorrectable_total": _scaled(rows[1], 1.0),
            "row_remap_pending": _scaled(rows[2], 1.0),
            "row_remap_failed": _scaled(rows[3], 1.0),
        }
        found.update(self._activity(handle, uuid))
        return {signal: value for signal, value in found.items() if value is not None}

    def _ecc(self, handle: Any, kind: int) -> float | None:
        nvml = self.library
        return _scaled(self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, nvml.NVML_VOLATILE_ECC), 1.0)

    def _memory_temperature(self, handle: Any) -> float | None:
        answers = self._ask("nvmlDeviceGetFieldValues", handle, [_MEMORY_TEMPERATURE])
        if not answers or answers[0].nvmlReturn != 0:
            return None
        value = float(answers[0].value.uiVal)
        return value if 0 < value < 200 else None  # boards without the sensor answer 0

    def _activity(self, handle: Any, uuid: str) -> dict[str, float]:
        """GPM metrics between the last look and this one; empty at the first, and before Hopper."""
        nvml, ask = self.library, self._ask
        support = ask("nvmlGpmQueryDeviceSupport", handle)
        if not getattr(support, "isSupportedDevice", 0):
            return {}
        sample = ask("nvmlGpmSampleAlloc")
        if sample is None:
            return {}
        if ask("nvmlGpmSampleGet", handle, sample) is None:
            ask("nvmlGpmSampleFree", sample)
            return {}
        before = self._samples.get(uuid)
        self._samples[uuid] = sample
        if before is None:
            return {}
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.sample1, wanted.sample2 = before, sample
        wanted.numMetrics = len(_GPM)
        for at, metric in enumerate(_GPM):
            wanted.metrics[at].metricId = metric
        answered = ask("nvmlGpmMetricsGet", wanted)
        ask("nvmlGpmSampleFree", before)
        if answered is None:
            return {}
        found: dict[str, float] = {}
        for at, (signal, factor) in enumerate(_GPM.values()):
            metric = answered.metrics[at]
            if metric.nvmlReturn == 0 and 0 <= metric.value < 1e12:
                found[signal] = metric.value * factor
        return found


def _scaled(value: Any, factor: float) -> float | None:
    # The library uses the top of its unsigned types for "not available" in a few answers.
    if value is None or value < 0 or value in (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
        return None
    return float(value) * factor


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""
