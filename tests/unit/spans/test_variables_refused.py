"""Wrong OTEL_* values end in one line that names the variable, before anything is sent."""

from __future__ import annotations

import pytest

from sidecar.errors import SettingsError
from sidecar.spans.settings import from_environment

HTTP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.example"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/not/there.pem"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", __file__),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b\r\nx: y"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%0d%0ax"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1e30"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0.5"),
    ],
)
def test_the_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name) as refused:
        from_environment({**HTTP, name: value})
    assert "\n" not in str(refused.value)
