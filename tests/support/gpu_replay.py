"""A made-up day of dcgm-exporter pages: power follows load, one GPU runs hot after noon, one driver reload.

Pages are of the exporter's form; the truth they were made from is kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi, sin

POD, NAMESPACE = "llama-0", "serving"
GPUS = 4
_FAMILIES = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_MAX_SM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge"),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge"),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter"),
    ("DCGM_FI_DEV_FB_USED", "gauge"),
    ("DCGM_FI_DEV_FB_FREE", "gauge"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge"),
)


def uuid(index: int) -> str:
    """UUID of a GPU of the day; the last one is another pod's."""
    return f"GPU-0000000{index}-0000-0000-0000-000000000000"


@dataclass(slots=True)
class GpuDay:
    """Ask for pages in time order. Seconds since midnight."""

    hot_from_s: float = 12 * 3600.0
    hot_index: int = 2
    reload_at_s: float = 18 * 3600.0
    xid_at_s: float = 20 * 3600.0
    true_joules: float = 0.0  # of the pod's GPUs, since the first page
    tokens: float = 0.0
    good_tokens: float = 0.0
    _energy_mj: list[float] = field(default_factory=lambda: [9.1e12 + i for i in range(GPUS + 1)])
    _hot_ns: list[float] = field(default_factory=lambda: [0.0] * (GPUS + 1))
    _last_s: float | None = None

    def load(self, at_s: float) -> float:
        """0.1 at night to 1 at two in the afternoon."""
        return 0.55 + 0.45 * sin(2 * pi * (at_s - 8 * 3600) / 86400)

    def watts(self, index: int, at_s: float) -> float:
        """Draw of one GPU."""
        full = 120 + 480 * self.load(at_s)
        return full * (0.7 if self.hot(index, at_s) else 1.0)

    def hot(self, index: int, at_s: float) -> bool:
        """Whether that GPU is held back by heat."""
        return index == self.hot_index and at_s >= self.hot_from_s

    def page(self, at_s: float) -> bytes:
        """The page at ``at_s``."""
        self._advance(at_s)
        rows: dict[str, list[str]] = {name: [] for name, _ in _FAMILIES}
        for i in range(GPUS + 1):
            owner = f',container="vllm",namespace="{NAMESPACE}",pod="{POD if i < GPUS else "other-0"}"'
            labels = (
                f'{{gpu="{i}",UUID="{uuid(i)}",pci_bus_id="00000000:{i:02X}:00.0",device="nvidia{i}",'
                f'modelName="NVIDIA H100 80GB HBM3",Hostname="node-1"{owner}}}'
            )
            hot = self.hot(i, at_s)
            values = {
                "DCGM_FI_DEV_SM_CLOCK": 1395 if hot else 1965,
                "DCGM_FI_DEV_MAX_SM_CLOCK": 1980,
                "DCGM_FI_DEV_GPU_TEMP": 87 if hot else 64,
                "DCGM_FI_DEV_POWER_USAGE": f"{self.watts(i, at_s):.6f}",
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": int(self._energy_mj[i]),
                "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "700.000000",
                "DCGM_FI_DEV_GPU_UTIL": 100,
                "DCGM_FI_DEV_XID_ERRORS": 31 if i == 1 and at_s >= self.xid_at_s else 0,
                "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 72 if hot else 0,
                "DCGM_FI_DEV_THERMAL_VIOLATION": int(self._hot_ns[i]),
                "DCGM_FI_DEV_FB_USED": 74000,
                "DCGM_FI_DEV_FB_FREE": 7000,
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": f"{0.15 * self.load(at_s):.6f}",
                "DCGM_FI_PROF_DRAM_ACTIVE": f"{0.8 * self.load(at_s):.6f}",
            }
            for name, value in values.items():
                rows[name].append(f"{name}{labels} {value}\n")
        return "".join(
            f"# HELP {name} x\n# TYPE {name} {kind}\n" + "".join(rows[name]) for name, kind in _FAMILIES
        ).encode()

    def _advance(self, at_s: float) -> None:
        before_s, self._last_s = self._last_s, at_s
        if before_s is None:
            return
        gap_s = at_s - before_s
        self.tokens += 2500 * self.load(at_s) * gap_s
        self.good_tokens += 2000 * self.load(at_s) * gap_s
        for i in range(GPUS + 1):
            joules = self.watts(i, at_s) * gap_s
            if before_s < self.reload_at_s <= at_s:
                self._energy_mj[i] = 0.0
            self._energy_mj[i] += joules * 1000
            self._hot_ns[i] += gap_s * 1e9 if self.hot(i, at_s) else 0.0
            if i < GPUS:
                self.true_joules += joules
