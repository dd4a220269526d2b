"""The GPUs of this pod, when the settings name a source; else nothing is loaded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sidecar.config import Settings
from sidecar.derive.live import Live
from sidecar.errors import SettingsError
from sidecar.publish.exposition import Family

if TYPE_CHECKING:
    from sidecar.gpu.energy import Work
    from sidecar.gpu.incidents import Event
    from sidecar.gpu.logs import LogSender
    from sidecar.gpu.settings import GpuSettings

_log = logging.getLogger(__name__)


class Gpus:
    """Runs the watch and shows what it knows."""

    def __init__(self, settings: GpuSettings, live: Live, sender: LogSender | None) -> None:
        from sidecar.gpu.watch import GpuWatch

        self._live = live
        self._sender = sender
        self.watch = GpuWatch(settings, work=self._work, on_event=self._event)

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until ``stop`` is set."""
        try:
            await self.watch.run(stop)
        finally:
            if self._sender is not None:
                await asyncio.to_thread(self._sender.close)

    def count(self) -> int:
        """How many boards this pod was last seen to have."""
        return len({own.gpu.uuid for own in self.watch.state.owned.gpus})

    def families(self) -> list[Family]:
        """Their part of the metrics page now."""
        from sidecar.publish.gpu import gpu_families

        return gpu_families(self.watch, self._live, time.monotonic_ns())

    def status(self) -> dict[str, Any]:
        """Their part of the status now."""
        from sidecar.publish.gpu import gpu_status

        return gpu_status(self.watch, self._live, time.monotonic_ns())

    def _work(self) -> Work:
        from sidecar.gpu.energy import Work

        totals = [state.totals for state in self._live.sorted_classes()]
        running = self._running()
        engine = self._live.engine
        if engine is not None and engine.view is not None:
            self.watch.state.engines.add(engine.at_ns, engine.view)
        return Work(
            tokens=float(sum(one.output_tokens for one in totals)),
            good_tokens=float(sum(one.good_tokens for one in totals)),
            busy=None if running is None else running > 0,
        )

    def _running(self) -> float | None:
        view = self._live.engine.view if self._live.engine is not None else None
        return view.total("running") if view is not None else None

    def _event(self, event: Event) -> None:
        running = self._running()
        _log.warning(
            "%s %d (%s) on %s; advised: %s; containment: %s; %s requests were running",
            event.kind,
            event.code,
            event.advice.name,
            event.uuid or event.report.pci,
            event.advisory,
            event.advice.containment,
            "an unknown number of" if running is None else f"{running:g}",
        )
        if self._sender is not None:
            self._sender.put(event, time.time_ns(), running)


def gpus_of(settings: Settings, environ: Mapping[str, str], live: Live) -> Gpus | None:
    """The GPU part as the settings ask for it, or ``None``. Raises SettingsError naming the key."""
    if not any(
        (
            settings.gpu_dcgm,
            settings.gpu_amd,
            settings.gpu_nvml,
            settings.gpu_kernel_log,
            settings.gpu_fabric_log,
        )
    ):
        return None
    from sidecar.derive.economics import Prices
    from sidecar.gpu.ownership import identity_of
    from sidecar.gpu.peaks import DTYPES, canonical_dtype
    from sidecar.gpu.settings import GpuSettings, ModelCosts, logs_asked

    for key in ("pue", "server_power_factor"):
        if getattr(settings, key) < 1:
            raise SettingsError(f"{key}: must be at least 1, like 1.3, not {getattr(settings, key):g}")
    if canonical_dtype(settings.model_dtype) not in DTYPES:
        raise SettingsError(f"model_dtype: must be one of {', '.join(DTYPES)}, not {settings.model_dtype!r}")
    gpu_settings = GpuSettings(
        dcgm_url=settings.gpu_dcgm,
        amd_url=settings.gpu_amd,
        nvml=settings.gpu_nvml,
        kernel_log=settings.gpu_kernel_log,
        fabric_log=settings.gpu_fabric_log,
        interval_s=settings.gpu_interval_s,
        identity=identity_of(
            environ,
            gpus=settings.gpus,
            pod=settings.pod_name,
            namespace=settings.pod_namespace,
            shared=settings.gpus_shared,
        ),
        prices=Prices(
            usd_per_gpu_hour=settings.usd_per_gpu_hour or None,
            gpus=int(settings.gpu_count) or None,
            host_w=settings.host_watts,
            server_factor=settings.server_power_factor,
            pue=settings.pue,
        ),
        model=ModelCosts(
            params=settings.model_params,
            weight_bytes=settings.model_weight_bytes,
            kv_bytes_per_token=settings.model_kv_bytes_per_token,
            dtype=settings.model_dtype,
        ),
    )
    sender: LogSender | None = None
    if logs_asked(environ):
        # gRPC and protobuf cost memory, so they are only loaded where they are asked for.
        from sidecar.gpu.logs import log_sender_of

        sender = log_sender_of(environ)
    return Gpus(gpu_settings, live, sender)
