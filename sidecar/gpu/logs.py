"""GPU events as OpenTelemetry log records, sent by a thread of their own. Lossy by design: bounded, counted.

A record carries what the line and the catalogue say, and nothing of a job or a request: an Xid belongs to a
board, and who used it then is for the reader to join by time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from sidecar import __version__
from sidecar.gpu.incidents import Event
from sidecar.gpu.settings import logs_asked
from sidecar.gpu.xid import Xid
from sidecar.publish.push import resource_of
from sidecar.spans.otlp import any_value, key_values
from sidecar.spans.settings import otlp_settings
from sidecar.spans.transport import Transport, Undelivered, make_transport

_log = logging.getLogger(__name__)

_QUEUE = 256
_TRIES = 3
_MAX_TEXT = 1024

_SEVERITY = {
    "unknown": (SeverityNumber.SEVERITY_NUMBER_WARN, "WARN"),
    "informational": (SeverityNumber.SEVERITY_NUMBER_INFO, "INFO"),
    "restart_app": (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR"),
    "check_fabric": (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR"),
    "reset_gpu": (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR"),
    "drain_and_diagnose": (SeverityNumber.SEVERITY_NUMBER_FATAL, "FATAL"),
}


def log_record(event: Event, wall_ns: int, running: float | None = None) -> LogRecord:
    """One event as a log record, seen at ``wall_ns`` (Unix) while ``running`` requests were at work: how many
    answers an uncontained error makes suspect."""
    report, advice = event.report, event.advice
    number, text = _SEVERITY[event.advisory]
    attributes: dict[str, Any] = {
        f"gpu.{event.kind.lower()}.code": event.code,
        f"gpu.{event.kind.lower()}.name": advice.name,
        "gpu.error.source": event.source,
        "gpu.error.scope": list(advice.scope),
        "gpu.error.containment": advice.containment,
        "gpu.error.advisory": event.advisory,
        "gpu.error.look_beside": list(advice.look_beside),
        "gpu.error.cause_candidate": event.cause,
        "gpu.error.incident": event.incident,
        "hw.parent": event.uuid or "",
        "gpu.pci.address": report.pci,
    }
    if running is not None:
        attributes["gpu.error.requests_running"] = int(running)
    if isinstance(report, Xid):
        attributes["process.executable.name"] = report.process or ""
        attributes["process.pid"] = report.pid if report.pid is not None else ""
        if report.recovery is not None:
            attributes["gpu.recovery_action"] = report.recovery.new_name
    else:
        attributes["gpu.sxid.severity"] = report.severity or ""
        attributes["gpu.switch.index"] = report.switch if report.switch is not None else ""
        attributes["gpu.switch.link"] = report.link if report.link is not None else ""
    kept = {key: value for key, value in attributes.items() if value != ""}
    body = f"{event.kind} {event.code}: {advice.name}"
    if report.message:
        body += f" ({report.message[:_MAX_TEXT]})"
    return LogRecord(
        time_unix_nano=wall_ns,
        observed_time_unix_nano=wall_ns,
        severity_number=number,
        severity_text=text,
        body=any_value(body),
        attributes=key_values(kept),
        event_name=f"gpu.{event.kind.lower()}",
    )


class LogSender:
    """Takes events from the event loop and sends them from a thread. ``dropped`` counts what was lost."""

    def __init__(self, transport: Transport, resource: Mapping[str, str], *, retry_s: float = 1.0) -> None:
        self._transport = transport
        self._resource = dict(resource)
        self._retry_s = retry_s
        self._waiting: queue.Queue[LogRecord | None] = queue.Queue(_QUEUE)
        self._closing = threading.Event()
        self.sent = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="gpu-logs", daemon=True)
        self._thread.start()

    def put(self, event: Event, wall_ns: int, running: float | None = None) -> None:
        """Queue one event; never blocks."""
        try:
            self._waiting.put_nowait(log_record(event, wall_ns, running))
        except queue.Full:
            self.dropped += 1

    def close(self, limit_s: float = 3.0) -> None:
        """Send what waits, for at most ``limit_s``. Blocks."""
        self._closing.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            pass  # the thread ends when it sees that it should
        self._thread.join(limit_s)
        if not self._thread.is_alive():
            self._transport.close()

    def _run(self) -> None:
        while True:
            record = self._waiting.get()
            if record is None:
                return
            self._send(record)

    def _send(self, record: LogRecord) -> None:
        request = ExportLogsServiceRequest()
        entry = request.resource_logs.add()
        entry.resource.attributes.extend(key_values(self._resource))
        scope = entry.scope_logs.add()
        scope.scope.name, scope.scope.version = "vllm-goodput", __version__
        scope.log_records.append(record)
        payload = request.SerializeToString()
        for tried in range(_TRIES):
            try:
                self._transport.send(payload)
                self.sent += 1
                return
            except Undelivered as error:
                if not error.again or tried == _TRIES - 1 or self._closing.is_set():
                    _log.warning("a GPU event could not be sent: %s", error)
                    break
                time.sleep(error.after_s if error.after_s is not None else self._retry_s * 2**tried)
            except Exception:
                _log.exception("a GPU event could not be sent")
                break
        self.dropped += 1


def log_sender_of(environ: Mapping[str, str]) -> LogSender | None:
    """A sender where the OTEL_* variables ask for logs, else ``None``. Raises SettingsError."""
    if not logs_asked(environ):
        return None
    return LogSender(make_transport(otlp_settings(environ, "logs"), "logs"), resource_of(environ))
