"""Events as log records: what they carry, retries, and loss that is counted."""

import threading
import time

import pytest

from sidecar.errors import SettingsError
from sidecar.gpu.incidents import read_log
from sidecar.gpu.logs import LogSender, log_record, log_sender_of
from sidecar.spans.otlp import attributes_of, python_value
from sidecar.spans.transport import Undelivered
from tests.support.gpu_pages import FIXTURES
from tests.support.otlp_tap import OtlpTap

EVENTS = read_log((FIXTURES / "kmsg_samples.txt").read_text("utf-8").splitlines()).events


class Scripted:
    """A transport that fails as told, then takes all."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.taken = []
        self.closed = False

    def send(self, payload):
        if self.failures:
            raise self.failures.pop(0)
        self.taken.append(payload)

    def close(self):
        self.closed = True


def until(condition, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: f"{e.kind}-{e.code}")
def test_every_event_becomes_a_record(event):
    record = log_record(event, 123)
    attributes = attributes_of(record.attributes)
    kind = event.kind.lower()
    assert attributes[f"gpu.{kind}.code"] == event.code
    assert attributes["gpu.error.advisory"] == event.advisory
    assert record.event_name == f"gpu.{kind}"
    assert record.severity_text in ("INFO", "WARN", "ERROR", "FATAL")
    assert python_value(record.body).startswith(f"{event.kind} {event.code}: ")
    assert "" not in attributes.values()
    assert "gpu.error.requests_running" not in attributes
    running = attributes_of(log_record(event, 123, 7.0).attributes)
    assert running["gpu.error.requests_running"] == 7


def test_trouble_that_may_pass_is_tried_again():
    transport = Scripted(Undelivered("busy", again=True), Undelivered("busy", again=True, after_s=0.0))
    sender = LogSender(transport, {"service.name": "x"}, retry_s=0.01)
    sender.put(EVENTS[0], 1)
    until(lambda: sender.sent == 1)
    sender.close()
    assert (len(transport.taken), transport.closed, sender.dropped) == (1, True, 0)


@pytest.mark.parametrize("failure", [Undelivered("no", again=False), RuntimeError("bug")])
def test_what_cannot_be_sent_is_counted(failure):
    sender = LogSender(Scripted(failure), {}, retry_s=0.01)
    sender.put(EVENTS[0], 1)
    sender.put(EVENTS[1], 2)
    until(lambda: sender.sent == 1)
    assert sender.dropped == 1
    sender.close()


def test_a_full_queue_never_blocks():
    release = threading.Event()

    class Slow(Scripted):
        def send(self, payload):
            release.wait(30)

    sender = LogSender(Slow(), {})
    for _ in range(400):
        sender.put(EVENTS[0], 1)
    assert sender.dropped >= 400 - 256 - 1
    release.set()
    sender.close(20)


def test_asked_for_by_the_standard_variables():
    assert log_sender_of({}) is None
    assert log_sender_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:1", "OTEL_LOGS_EXPORTER": "none"}) is None
    assert log_sender_of({"OTEL_LOGS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}) is None
    with pytest.raises(SettingsError, match="OTEL_LOGS_EXPORTER"):
        log_sender_of({"OTEL_LOGS_EXPORTER": "zipkin"})


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_to_a_collector_over_both_protocols(protocol):
    with OtlpTap() as tap:
        port = tap.grpc_port if protocol == "grpc" else tap.http_port
        sender = log_sender_of(
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_RESOURCE_ATTRIBUTES": "host.name=node-1",
            }
        )
        sender.put(EVENTS[0], 42)
        until(lambda: bool(tap.logs))
        sender.close()
    (entry,) = tap.logs[0].resource_logs
    resource = attributes_of(entry.resource.attributes)
    assert resource["service.name"] == "vllm"
    assert resource["host.name"] == "node-1"
    assert resource["telemetry.sdk.name"] == "goodput-sidecar"
    assert resource["service.instance.id"]  # two pods' records must not look like one's
    assert entry.scope_logs[0].log_records[0].time_unix_nano == 42
