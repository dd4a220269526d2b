"""Who sends: the resource attributes of all that leaves by OTLP, found by the OpenTelemetry SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar import __version__


def described(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """``attributes`` on top of what the SDK finds: the standard variables, the detectors that
    OTEL_EXPERIMENTAL_RESOURCE_DETECTORS names, and one ``service.instance.id`` for this process, without
    which the cumulative metrics of two pods would be one series.
    """
    # The SDK costs memory, so it is only loaded where something is sent.
    from opentelemetry.sdk.resources import Resource

    found = dict(Resource.create(dict(attributes)).attributes)
    # Spans and metrics are built and sent by our own code, so the SDK is not named as their source.
    found.pop("telemetry.sdk.language", None)
    return found | {"telemetry.sdk.name": "goodput-sidecar", "telemetry.sdk.version": __version__}
