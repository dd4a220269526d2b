"""Who sends is said alike for spans and metrics, and apart for each process."""

from __future__ import annotations

import subprocess
import sys

from sidecar.publish.push import resource_of
from sidecar.publish.resource import described
from sidecar.spans import recorder
from sidecar.spans.settings import from_environment

ENVIRON = {"OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=p%201,service.name=other", "OTEL_SERVICE_NAME": "mine"}


def test_spans_and_metrics_say_the_same() -> None:
    of_metrics = resource_of(ENVIRON)
    assert of_metrics == recorder.resource_of(from_environment(ENVIRON))
    assert of_metrics["k8s.pod.name"] == "p 1"
    assert of_metrics["service.name"] == "mine"
    assert of_metrics["telemetry.sdk.name"] == "goodput-sidecar"


def test_two_processes_are_told_apart() -> None:
    code = "from sidecar.publish.resource import described; print(described({})['service.instance.id'])"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert other.stdout.strip() not in ("", described({})["service.instance.id"])
    assert described({"service.instance.id": "set"})["service.instance.id"] == "set"
