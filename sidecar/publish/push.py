"""Pushes the metrics page by OTLP, when the standard OTEL_* variables ask for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sidecar.errors import SettingsError
from sidecar.publish.exposition import Family
from sidecar.publish.resource import described
from sidecar.slices import Steps, in_slices

if TYPE_CHECKING:
    from sidecar.spans.transport import Transport

_DEFAULT_INTERVAL_MS = 60_000.0


class MetricsPusher:
    """``families`` is called on the event loop, in steps; the message is made and sent in a thread.

    A lost message costs resolution, not counts, for all sums are cumulative: none is sent twice. ``sent`` and
    ``lost`` (by reason) count messages.
    """

    def __init__(
        self,
        transport: Transport,
        families: Callable[[], Steps[list[Family]]],
        *,
        resource: Mapping[str, str],
        began_wall_s: float,
        interval_s: float,
    ) -> None:
        self._transport = transport
        self._families = families
        self._resource = resource
        self._began_unix_ns = round(began_wall_s * 1e9)
        self._interval_s = interval_s
        self.sent = 0
        self.lost: Counter[str] = Counter()

    async def run(self, stop: asyncio.Event) -> None:
        """Send every interval until ``stop``, and once more then."""
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), self._interval_s)
            except TimeoutError:
                await self._send()
        await self._send()
        self._transport.close()

    async def _send(self) -> None:
        from sidecar.publish.otlp_metrics import request
        from sidecar.spans.transport import Undelivered

        try:
            now_ns = time.time_ns()
            found = await in_slices(self._families())

            def send() -> None:
                message = request(
                    found, resource=self._resource, began_unix_ns=self._began_unix_ns, now_unix_ns=now_ns
                )
                self._transport.send(message.SerializeToString())

            await asyncio.to_thread(send)
            self.sent += 1
        except Undelivered:
            self.lost["undelivered"] += 1
        except Exception:
            self.lost["error"] += 1


def pusher_of(
    environ: Mapping[str, str], families: Callable[[], Steps[list[Family]]], *, began_wall_s: float
) -> MetricsPusher | None:
    """The pusher that OTEL_METRICS_EXPORTER=otlp or the metrics' own endpoint asks for, or ``None``.

    Raises SettingsError naming the variable.
    """
    if not push_asked(environ):
        return None
    # gRPC and protobuf cost memory, so they are only loaded where they are asked for.
    from sidecar.spans.settings import otlp_settings
    from sidecar.spans.transport import make_transport

    return MetricsPusher(
        make_transport(otlp_settings(environ, "metrics"), "metrics"),
        families,
        resource=resource_of(environ),
        began_wall_s=began_wall_s,
        interval_s=push_interval_s(environ),
    )


def push_asked(environ: Mapping[str, str]) -> bool:
    """Whether metrics are to be pushed. Raises SettingsError for an unknown exporter."""
    exporter = environ.get("OTEL_METRICS_EXPORTER", "")
    if exporter not in ("", "otlp", "none"):
        raise SettingsError(f"OTEL_METRICS_EXPORTER: {exporter!r} is none of otlp, none")
    if exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return exporter == "otlp" or bool(environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"))


def push_interval_s(environ: Mapping[str, str]) -> float:
    """Seconds between two pushes. Raises SettingsError for what is no number above 0."""
    text = environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    try:
        interval_ms = float(text) if text else _DEFAULT_INTERVAL_MS
    except ValueError:
        interval_ms = 0.0
    if not 0 < interval_ms < 1e9:
        raise SettingsError(f"OTEL_METRIC_EXPORT_INTERVAL: must be milliseconds above 0, not {text!r}")
    return interval_ms / 1000


def resource_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Resource attributes from the standard variables; ``service.name`` is ``vllm`` where none is given."""
    pairs = (pair.partition("=") for pair in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    found = {key.strip(): unquote(value.strip()) for key, sign, value in pairs if sign and key.strip()}
    told = {"service.name": "vllm"} | found | _named(environ.get("OTEL_SERVICE_NAME", ""))
    return {key: str(value) for key, value in described(told).items()}


def _named(name: str) -> dict[str, str]:
    return {"service.name": name} if name else {}
