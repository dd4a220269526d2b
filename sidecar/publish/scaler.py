"""KEDA's external scaler (gRPC ``externalscaler.ExternalScaler``): the saturation signal for scaling.

Meant for ``metricType: Value``: the number is one replica's own. What is unknown answers UNAVAILABLE, never
0, so that KEDA's fallback acts. The messages are declared here, by KEDA's numbers, instead of generated code.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

from sidecar.derive.autoscale import Autoscale
from sidecar.errors import UserError

SERVICE = "externalscaler.ExternalScaler"
METRICS = ("saturation", "in_flight")
_DEFAULT_TARGET = 0.8
_WORKERS = 4
_MAX_STREAMS = 2  # each holds a worker for as long as KEDA listens
_STREAM_EVERY_S = 1.0
_ANSWER_WITHIN_S = 5.0

_FIELD = descriptor_pb2.FieldDescriptorProto
_Fields = tuple[tuple[str, int, int, str], ...]


def _messages() -> dict[str, type[Any]]:
    """The service's message classes, by name."""
    string, many = _FIELD.TYPE_STRING, _FIELD.TYPE_MESSAGE
    shapes: dict[str, _Fields] = {
        "ScaledObjectRef": (
            ("name", 1, string, ""),
            ("namespace", 2, string, ""),
            ("scalerMetadata", 3, many, "ScaledObjectRef.ScalerMetadataEntry"),
        ),
        "IsActiveResponse": (("result", 1, _FIELD.TYPE_BOOL, ""),),
        "MetricSpec": (
            ("metricName", 1, string, ""),
            ("targetSize", 2, _FIELD.TYPE_INT64, ""),
            ("targetSizeFloat", 3, _FIELD.TYPE_DOUBLE, ""),
        ),
        "GetMetricSpecResponse": (("metricSpecs", 1, many, "MetricSpec"),),
        "GetMetricsRequest": (
            ("scaledObjectRef", 1, many, "ScaledObjectRef"),
            ("metricName", 2, string, ""),
        ),
        "MetricValue": (
            ("metricName", 1, string, ""),
            ("metricValue", 2, _FIELD.TYPE_INT64, ""),
            ("metricValueFloat", 3, _FIELD.TYPE_DOUBLE, ""),
        ),
        "GetMetricsResponse": (("metricValues", 1, many, "MetricValue"),),
    }
    repeated = {"scalerMetadata", "metricSpecs", "metricValues"}
    file = descriptor_pb2.FileDescriptorProto(
        name="goodput/externalscaler.proto", package="externalscaler", syntax="proto3"
    )
    for name, shape in shapes.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in shape:
            added = message.field.add(name=field, number=number, type=kind)
            added.label = _FIELD.LABEL_REPEATED if field in repeated else _FIELD.LABEL_OPTIONAL
            if of:
                added.type_name = f".externalscaler.{of}"
    entry = file.message_type[0].nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    for number, field in enumerate(("key", "value"), 1):
        entry.field.add(name=field, number=number, type=string, label=_FIELD.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{name}"))
        for name in shapes
    }


class Scaler:
    """The gRPC server. ``read`` gives the signal; it is called on ``loop``, where the live picture lives."""

    def __init__(
        self,
        read: Callable[[], Autoscale],
        loop: asyncio.AbstractEventLoop,
        *,
        target_saturation: float | None,
        peak_load: float | None,
    ) -> None:
        self._read = read
        self._loop = loop
        self._target = target_saturation or _DEFAULT_TARGET
        self._peak_load = peak_load
        self._messages = _messages()
        self._streams = threading.Semaphore(_MAX_STREAMS)
        self._closing = threading.Event()
        self._server: Any = None
        self.port = 0

    def start(self, host: str, port: int) -> None:
        """Listen. Raises UserError if the address cannot be had."""
        server = grpc.server(
            ThreadPoolExecutor(_WORKERS, thread_name_prefix="scaler"), options=[("grpc.so_reuseport", 0)]
        )
        unary = {
            "IsActive": (self._is_active, "ScaledObjectRef", "IsActiveResponse"),
            "GetMetricSpec": (self._get_metric_spec, "ScaledObjectRef", "GetMetricSpecResponse"),
            "GetMetrics": (self._get_metrics, "GetMetricsRequest", "GetMetricsResponse"),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                handle,
                request_deserializer=self._messages[asked].FromString,
                response_serializer=self._messages[answered].SerializeToString,
            )
            for name, (handle, asked, answered) in unary.items()
        }
        handlers["StreamIsActive"] = grpc.unary_stream_rpc_method_handler(
            self._stream_is_active,
            request_deserializer=self._messages["ScaledObjectRef"].FromString,
            response_serializer=self._messages["IsActiveResponse"].SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            self.port = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise UserError(f"scaler: cannot listen on {host}:{port}")
        server.start()
        self._server = server

    def close(self) -> None:
        """Stop listening. Blocks for a second at most."""
        self._closing.set()
        if self._server is not None:
            self._server.stop(grace=0.5).wait(1.0)

    def _signal(self, context: Any) -> Autoscale:
        async def on_loop() -> Autoscale:
            return self._read()

        try:
            return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(_ANSWER_WITHIN_S)
        except Exception:
            _refuse(context, grpc.StatusCode.UNAVAILABLE, "the sidecar is busy or stopping")

    def _value(self, reference: Any, context: Any) -> float:
        metric = reference.scalerMetadata.get("metric", METRICS[0])
        if metric not in METRICS:
            _refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, f"metadata metric: one of {', '.join(METRICS)}"
            )
        found = self._signal(context)
        value = found.saturation if metric == "saturation" else found.in_flight
        if value is None:
            _refuse(context, grpc.StatusCode.UNAVAILABLE, found.reason)
        return value

    def _targets(self, reference: Any, context: Any) -> float:
        text = reference.scalerMetadata.get("target", "")
        if text:
            try:
                target = float(text)
            except ValueError:
                target = 0.0
            if not (math.isfinite(target) and target > 0):
                _refuse(
                    context, grpc.StatusCode.INVALID_ARGUMENT, "metadata target: must be a number above 0"
                )
            return target
        if reference.scalerMetadata.get("metric", METRICS[0]) == "saturation":
            return self._target
        if self._peak_load is None:
            _refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, "metadata target: needed without a capacity file"
            )
        return self._peak_load * self._target

    def _is_active(self, reference: Any, context: Any) -> Any:
        return self._messages["IsActiveResponse"](result=self._value(reference, context) > 0)

    def _stream_is_active(self, reference: Any, context: Any) -> Iterator[Any]:
        if not self._streams.acquire(blocking=False):
            _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams; poll IsActive instead")
        try:
            last: bool | None = None
            while context.is_active() and not self._closing.is_set():
                active = self._value(reference, context) > 0
                if active is not last:
                    last = active
                    yield self._messages["IsActiveResponse"](result=active)
                self._closing.wait(_STREAM_EVERY_S)
        finally:
            self._streams.release()

    def _get_metric_spec(self, reference: Any, context: Any) -> Any:
        name = f"goodput-{reference.scalerMetadata.get('metric', METRICS[0])}"
        target = self._targets(reference, context)
        # KEDA takes the float when it is above 0, older releases only know the whole number.
        spec = self._messages["MetricSpec"](
            metricName=name, targetSize=math.ceil(target), targetSizeFloat=target
        )
        return self._messages["GetMetricSpecResponse"](metricSpecs=[spec])

    def _get_metrics(self, request: Any, context: Any) -> Any:
        value = self._value(request.scaledObjectRef, context)
        found = self._messages["MetricValue"](
            metricName=request.metricName, metricValue=math.ceil(value), metricValueFloat=value
        )
        return self._messages["GetMetricsResponse"](metricValues=[found])


def _refuse(context: Any, code: Any, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort raises")
