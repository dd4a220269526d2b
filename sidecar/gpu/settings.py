"""What the GPU part of a sidecar is told: sources, who this pod is, prices. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.derive.economics import Prices
from sidecar.errors import SettingsError
from sidecar.gpu.ownership import Identity


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """The model, for what vLLM does not count itself. 0: not given. Parameters, bytes, bytes per token."""

    params: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Empty or false: that source is off. ``interval_s``: between two looks of each source, seconds."""

    dcgm_url: str = ""
    amd_url: str = ""
    nvml: bool = False
    kernel_log: str = ""
    fabric_log: str = ""
    interval_s: float = 15.0
    identity: Identity = field(default_factory=Identity)
    prices: Prices = field(default_factory=Prices)
    model: ModelCosts = field(default_factory=ModelCosts)

    @property
    def asked(self) -> bool:
        """Whether any source is on."""
        return bool(self.dcgm_url or self.amd_url or self.nvml or self.kernel_log or self.fabric_log)


def logs_asked(environ: Mapping[str, str]) -> bool:
    """Whether the OTEL_* variables ask for log records. Raises SettingsError for an unknown exporter."""
    exporter = environ.get("OTEL_LOGS_EXPORTER", "")
    if exporter not in ("", "otlp", "none", "console"):
        raise SettingsError(f"OTEL_LOGS_EXPORTER: {exporter!r} is none of otlp, none")
    if exporter in ("none", "console") or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    asked = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return exporter == "otlp" or any(environ.get(name) for name in asked)
