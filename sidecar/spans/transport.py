"""Bytes of an OTLP message to a collector: HTTP or gRPC, synchronous, used by the worker thread only."""

from __future__ import annotations

import gzip
from typing import Protocol

import grpc
import httpx

from sidecar.spans.settings import OtlpSettings

_AGAIN_HTTP = frozenset({408, 429, 502, 503, 504})
_METHODS = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


class Undelivered(Exception):
    """The collector did not take a message. ``again``: it may later, after ``after_s`` if that is known."""

    def __init__(self, reason: str, *, again: bool, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.again = again
        self.after_s = after_s


class Transport(Protocol):
    """Sends serialized export requests."""

    def send(self, payload: bytes) -> None:
        """Deliver or raise Undelivered."""

    def close(self) -> None:
        """End the connection."""


class HttpTransport:
    """OTLP/HTTP with protobuf."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._url = settings.endpoint
        self._gzip = settings.compression == "gzip"
        headers = {"content-type": "application/x-protobuf", **settings.headers}
        if self._gzip:
            headers["content-encoding"] = "gzip"
        verify = settings.certificate if settings.certificate else True
        # trust_env off: a proxy variable meant for other programs must not carry spans out of the pod.
        self._client = httpx.Client(
            headers=headers,
            timeout=settings.timeout_s,
            verify=verify,
            trust_env=False,
            follow_redirects=False,
        )

    def send(self, payload: bytes) -> None:
        """POST; 408, 429, 502, 503, 504 and connection trouble may be tried again."""
        try:
            answer = self._client.post(self._url, content=gzip.compress(payload) if self._gzip else payload)
        except httpx.HTTPError as error:
            raise Undelivered(type(error).__name__, again=True) from None
        if answer.is_success:
            return
        raise Undelivered(
            f"HTTP {answer.status_code}",
            again=answer.status_code in _AGAIN_HTTP,
            after_s=_retry_after(answer),
        )

    def close(self) -> None:
        """Close the pool."""
        self._client.close()


def _retry_after(answer: httpx.Response) -> float | None:
    value = answer.headers.get("retry-after", "")
    return min(float(value), 30.0) if value.isdecimal() else None


class GrpcTransport:
    """OTLP/gRPC."""

    def __init__(self, settings: OtlpSettings, signal: str = "traces") -> None:
        compression = (
            grpc.Compression.Gzip if settings.compression == "gzip" else grpc.Compression.NoCompression
        )
        options = [("grpc.enable_http_proxy", 0)]
        if settings.insecure:
            self._channel = grpc.insecure_channel(settings.endpoint, options, compression)
        else:
            roots = None
            if settings.certificate:
                with open(settings.certificate, "rb") as file:
                    roots = file.read()
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.secure_channel(settings.endpoint, credentials, options, compression)
        self._timeout_s = settings.timeout_s
        self._metadata = tuple((key.lower(), value) for key, value in settings.headers.items())
        self._call = self._channel.unary_unary(_METHODS[signal])

    def send(self, payload: bytes) -> None:
        """One Export call; the codes OTLP names as retryable may be tried again."""
        try:
            self._call(payload, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            code = error.code()
            raise Undelivered(
                str(code.name),
                again=code
                in (
                    grpc.StatusCode.CANCELLED,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    grpc.StatusCode.ABORTED,
                    grpc.StatusCode.OUT_OF_RANGE,
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DATA_LOSS,
                ),
            ) from None

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def make_transport(settings: OtlpSettings, signal: str = "traces") -> Transport:
    """The transport for ``settings.protocol``."""
    if settings.protocol == "grpc":
        return GrpcTransport(settings, signal)
    return HttpTransport(settings)
