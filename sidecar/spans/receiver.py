"""An OTLP endpoint for vLLM's spans: gRPC and HTTP/protobuf, gzip, on the loopback by default."""

from __future__ import annotations

import asyncio
import gzip
import io
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import grpc
from aiohttp import web
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from sidecar.errors import SettingsError, UserError
from sidecar.spans.intake import Intake
from sidecar.spans.otlp import spans_of

_LARGEST = 16 << 20  # bytes of one message, unpacked
_MOST_SPANS = 8192  # of one message; exporters send 512 unless told otherwise
_QUIET_S = 120.0
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """Where to listen; ``None`` for a port turns that protocol off, 0 takes any free port."""

    host: str = "127.0.0.1"
    grpc_port: int | None = 4317
    http_port: int | None = 4318

    def __post_init__(self) -> None:
        for key in ("grpc_port", "http_port"):
            port = getattr(self, key)
            if port is not None and not 0 <= port <= 65535:
                raise SettingsError(f"{key}: {port} is not a port (0 to 65535)")


class OtlpReceiver:
    """Listens and hands every decoded batch to the intake, on a worker thread of its own.

    ``refused`` counts messages by reason: malformed, too_large, media_type, encoding, error; and under
    ``ids`` spans without a right trace and span id.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        intake: Intake,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.intake = intake
        self.refused: Counter[str] = Counter()
        self.grpc_port: int | None = None
        self.http_port: int | None = None
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="otlp-in")
        self._grpc: grpc.Server | None = None
        self._runner: web.AppRunner | None = None
        self._ticker: asyncio.Task[None] | None = None

    @property
    def quiet(self) -> bool:
        """True where nothing has come for two minutes from the start: vLLM may not be sending."""
        return not self.intake.counts["received"] and self._clock_s() - self._began_s > _QUIET_S

    async def start(self) -> None:
        """Listen. Raises UserError if an address cannot be had."""
        if self.settings.grpc_port is not None:
            self._start_grpc(self.settings.grpc_port)
        if self.settings.http_port is not None:
            await self._start_http(self.settings.http_port)
        self._ticker = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Stop listening; what is kept back is passed on as it is."""
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        if self._grpc is not None:
            stopped = self._grpc.stop(grace=0.5)
            await asyncio.to_thread(stopped.wait, 2.0)
        if self._runner is not None:
            await self._runner.cleanup()
        await asyncio.to_thread(self.intake.tick, float("inf"))
        self._workers.shutdown(wait=False)

    def take(self, payload: bytes) -> None:
        """One serialized export request. Raises DecodeError for none, OverflowError for too many spans."""
        request = ExportTraceServiceRequest()
        request.ParseFromString(payload)
        if sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans) > _MOST_SPANS:
            raise OverflowError
        spans = spans_of(request)
        # A collector refuses a whole batch for one span with such ids, and ours with it.
        right = [span for span in spans if _is_id(span.trace_id, 32) and _is_id(span.span_id, 16)]
        self.refused["ids"] += len(spans) - len(right)
        self.intake.take(right, self._clock_s())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                # In a thread: whoever converts many spans holds the intake, and the loop serves requests.
                await asyncio.to_thread(self.intake.tick, self._clock_s())
            except Exception:
                self.refused["error"] += 1

    def _start_grpc(self, port: int) -> None:
        options = [("grpc.max_receive_message_length", _LARGEST), ("grpc.so_reuseport", 0)]
        server = grpc.server(self._workers, options=options, maximum_concurrent_rpcs=64)
        export = grpc.unary_unary_rpc_method_handler(
            self._export, response_serializer=ExportTraceServiceResponse.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": export}),))
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise UserError(f"OTLP receiver: cannot listen on {host}:{port} (gRPC)")
        self.grpc_port = bound
        server.start()
        self._grpc = server

    def _export(self, payload: bytes, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        try:
            self.take(payload)
        except OverflowError:
            self.refused["too_large"] += 1
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {_MOST_SPANS} spans")
        except DecodeError:
            self.refused["malformed"] += 1
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not an export request")
        except Exception:  # the sender could do nothing about it, and its text could hold content
            self.refused["error"] += 1
        return ExportTraceServiceResponse()

    async def _start_http(self, port: int) -> None:
        # The body is unpacked here, not by the server: only so its unpacked size is limited.
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_post("/v1/traces", self._post)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, auto_decompress=False)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.settings.host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            self._runner = None
            reason = error.strerror or type(error).__name__
            raise UserError(
                f"OTLP receiver: cannot listen on {self.settings.host}:{port}: {reason}"
            ) from None
        self.http_port = int(self._runner.addresses[0][1])

    async def _post(self, request: web.Request) -> web.Response:
        if request.content_type != "application/x-protobuf":
            self.refused["media_type"] += 1
            return web.Response(status=415, text="wants application/x-protobuf")
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip", ""):
            self.refused["encoding"] += 1
            return web.Response(status=415, text="wants gzip or no content encoding")
        try:
            raw = await request.read()
            payload = await asyncio.to_thread(unpacked, raw, _LARGEST) if encoding == "gzip" else raw
            await asyncio.get_running_loop().run_in_executor(self._workers, self.take, payload)
        except (web.HTTPRequestEntityTooLarge, OverflowError):
            self.refused["too_large"] += 1
            return web.Response(status=413)
        except (DecodeError, OSError, EOFError, zlib.error):
            self.refused["malformed"] += 1
            return web.Response(status=400, text="not an export request")
        except Exception:
            self.refused["error"] += 1
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and text.strip("0") != ""


def unpacked(data: bytes, most: int) -> bytes:
    """gzip undone. Raises OverflowError beyond ``most`` bytes; OSError, EOFError, zlib.error for no gzip."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        plain = file.read(most + 1)
    if len(plain) > most:
        raise OverflowError
    return plain
