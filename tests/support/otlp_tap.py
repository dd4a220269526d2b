"""A collector for tests: receives OTLP spans over gRPC and HTTP through real sockets and keeps them."""

from __future__ import annotations

import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from sidecar.spans.model import Span
from sidecar.spans.otlp import spans_of


class OtlpTap(trace_service_pb2_grpc.TraceServiceServicer):
    """Use as a context manager. ``status``: HTTP answers in order, then 200. ``delay_s``: before each."""

    def __init__(self, *, status: list[int] | None = None, delay_s: float = 0.0) -> None:
        self.logs: list[logs_service_pb2.ExportLogsServiceRequest] = []
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self._status = list(status or [])
        self._delay_s = delay_s
        self._changed = threading.Condition()

    def __enter__(self) -> OtlpTap:
        self._grpc = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._grpc)
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(self), self._grpc)
        self.grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        tap = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                headers = {k.lower(): v for k, v in self.headers.items()}
                answers = {"/v1/traces": tap._http, "/v1/logs": tap._http_logs}
                status = answers[self.path](raw, headers) if self.path in answers else 404
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http_server.daemon_threads = True
        self.http_port = self._http_server.server_address[1]
        threading.Thread(target=self._http_server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._grpc.stop(grace=None).wait(5)
        self._http_server.shutdown()
        self._http_server.server_close()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        time.sleep(self._delay_s)
        self._keep(request, {k.lower(): str(v) for k, v in context.invocation_metadata()})
        return trace_service_pb2.ExportTraceServiceResponse()

    def _http(self, raw: bytes, headers: dict[str, str]) -> int:
        time.sleep(self._delay_s)
        if self._status and (status := self._status.pop(0)) != 200:
            return status
        plain = gzip.decompress(raw) if headers.get("content-encoding") == "gzip" else raw
        request = trace_service_pb2.ExportTraceServiceRequest()
        request.ParseFromString(plain)
        self._keep(request, headers)
        return 200

    def _http_logs(self, raw: bytes, headers: dict[str, str]) -> int:
        plain = gzip.decompress(raw) if headers.get("content-encoding") == "gzip" else raw
        request = logs_service_pb2.ExportLogsServiceRequest()
        request.ParseFromString(plain)
        self.keep_logs(request)
        return 200

    def keep_logs(self, request: logs_service_pb2.ExportLogsServiceRequest) -> None:
        """Keep log records."""
        with self._changed:
            self.logs.append(request)
            self.raw.append(request.SerializeToString())
            self._changed.notify_all()

    def _keep(self, request: trace_service_pb2.ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        with self._changed:
            self.requests.append(request)
            self.raw.append(request.SerializeToString())
            self.headers.append(headers)
            self._changed.notify_all()

    @property
    def spans(self) -> list[Span]:
        """All spans so far."""
        return [span for request in list(self.requests) for span in spans_of(request)]

    def wait(self, count: int, limit_s: float = 20.0) -> list[Span]:
        """The spans once there are ``count`` of them; fails after ``limit_s`` seconds."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.spans) >= count, limit_s), len(self.spans)
        return self.spans


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, tap: OtlpTap) -> None:
        self._tap = tap

    def Export(
        self, request: logs_service_pb2.ExportLogsServiceRequest, context: grpc.ServicerContext
    ) -> logs_service_pb2.ExportLogsServiceResponse:
        self._tap.keep_logs(request)
        return logs_service_pb2.ExportLogsServiceResponse()
