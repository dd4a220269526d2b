"""The metrics page as an OTLP export request, for those who push. Pure.

The same families as on the page, so that both tell the same: counters become cumulative monotonic sums,
classic histograms explicit-bucket ones, info a gauge of 1. Names stay as they are without ``_total``; units
are told apart, and Prometheus' OTLP receiver puts the same names together again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2

from sidecar import __version__
from sidecar.publish.exposition import Buckets, Family, Labels

_UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
_CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE


def request(
    families: Iterable[Family], *, resource: Mapping[str, str], began_unix_ns: int, now_unix_ns: int
) -> ExportMetricsServiceRequest:
    """The message. ``began_unix_ns``: when the counters began."""
    message = ExportMetricsServiceRequest()
    one = message.resource_metrics.add()
    one.resource.attributes.extend(_attributes(tuple(resource.items())))
    scope = one.scope_metrics.add()
    scope.scope.name = "vllm-goodput"
    scope.scope.version = __version__
    for family in families:
        if family.samples:
            _metric(scope.metrics.add(), family, began_unix_ns, now_unix_ns)
    return message


def unit_of(name: str) -> str:
    """The UCUM unit that a Prometheus name tells; empty where it tells none."""
    base = name.removesuffix("_total")
    return next((unit for suffix, unit in _UNITS.items() if base.endswith(suffix)), "")


def _metric(metric: metrics_pb2.Metric, family: Family, began_ns: int, now_ns: int) -> None:
    metric.name = family.name.removesuffix("_total")
    metric.description = family.help
    metric.unit = unit_of(family.name)
    if family.kind == "counter":
        metric.sum.aggregation_temporality = _CUMULATIVE
        metric.sum.is_monotonic = True
    elif family.kind == "histogram":
        metric.histogram.aggregation_temporality = _CUMULATIVE
    for labels, value in family.samples:
        if isinstance(value, Buckets):
            _histogram(metric.histogram.data_points.add(), labels, value, began_ns, now_ns)
            continue
        points = metric.sum.data_points if family.kind == "counter" else metric.gauge.data_points
        point = points.add()
        point.attributes.extend(_attributes(labels))
        point.time_unix_nano = now_ns
        if family.kind == "counter":
            point.start_time_unix_nano = began_ns
        point.as_double = float(value)


def _histogram(
    point: metrics_pb2.HistogramDataPoint, labels: Labels, value: Buckets, began_ns: int, now_ns: int
) -> None:
    point.attributes.extend(_attributes(labels))
    point.start_time_unix_nano = began_ns
    point.time_unix_nano = now_ns
    point.explicit_bounds.extend(value.edges)
    below = 0
    for cumulative in value.cumulative:
        point.bucket_counts.append(int(cumulative) - below)
        below = int(cumulative)
    point.count = below
    if value.sum is not None:
        point.sum = value.sum
    for exemplar in value.exemplars.values():
        try:
            trace_id = bytes.fromhex(exemplar.trace_id)
        except ValueError:
            continue
        added = point.exemplars.add()
        added.trace_id = trace_id
        added.as_double = exemplar.value
        added.time_unix_nano = round(exemplar.wall_s * 1e9)


def _attributes(pairs: Labels) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in pairs]
