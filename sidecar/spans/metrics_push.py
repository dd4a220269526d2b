"""Sends the metrics by OTLP now and then, from a thread of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from sidecar.spans.settings import OtlpSettings
from sidecar.spans.transport import Undelivered, make_transport


class MetricsPush:
    """``make`` builds the message; ``sent`` and ``dropped`` (by reason) count messages.

    The metrics are cumulative: a message that is lost costs resolution, not counts, so none is sent again.
    """

    def __init__(
        self, settings: OtlpSettings, make: Callable[[], ExportMetricsServiceRequest], interval_s: float
    ) -> None:
        self._transport = make_transport(settings, "metrics")
        self._make = make
        self._interval_s = interval_s
        self._stop = threading.Event()
        self.sent = 0
        self.dropped: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="metrics-push", daemon=True)
        self._thread.start()

    def close(self, limit_s: float = 5.0) -> None:
        """Send once more and end, within about ``limit_s`` seconds."""
        self._stop.set()
        self._thread.join(timeout=limit_s)
        if not self._thread.is_alive():
            self._transport.close()

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stop.wait(self._interval_s)
            try:
                self._transport.send(self._make().SerializeToString())
                self.sent += 1
            except Undelivered as failure:
                self.dropped["undelivered" if failure.again else "rejected"] += 1
            except Exception:
                self.dropped["error"] += 1
