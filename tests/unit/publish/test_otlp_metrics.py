"""The page and the pushed message tell the same."""

from __future__ import annotations

from typing import Any

from sidecar.publish.exposition import Buckets, Family
from sidecar.publish.otlp_metrics import request, unit_of


def sent(*families: Family) -> list[Any]:
    message = request(families, resource={"service.name": "vllm"}, began_unix_ns=5, now_unix_ns=9)
    again = type(message)()
    again.ParseFromString(message.SerializeToString())
    (resource,) = again.resource_metrics
    assert resource.resource.attributes[0].value.string_value == "vllm"
    (scope,) = resource.scope_metrics
    return list(scope.metrics)


def test_counters_are_cumulative_sums() -> None:
    family = Family("goodput_good_requests_total", "counter", "Good.")
    family.add(3, model="m")
    (metric,) = sent(family)
    assert (metric.name, metric.sum.is_monotonic, metric.sum.aggregation_temporality) == (
        "goodput_good_requests",
        True,
        2,
    )
    (point,) = metric.sum.data_points
    assert (point.as_double, point.start_time_unix_nano, point.time_unix_nano) == (3.0, 5, 9)
    assert {a.key: a.value.string_value for a in point.attributes} == {"model": "m"}


def test_buckets_are_counted_one_by_one() -> None:
    family = Family("goodput_ttft_seconds", "histogram", "TTFT.")
    family.add(Buckets((0.1, 1.0), (2, 5, 6), 3.5))
    (metric,) = sent(family)
    (point,) = metric.histogram.data_points
    assert metric.unit == "s"
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert (list(point.bucket_counts), point.count, point.sum) == ([2, 3, 1], 6, 3.5)


def test_what_is_absent_is_not_sent() -> None:
    family = Family("goodput_saturation", "gauge", "Saturation.")
    family.add(None)
    assert sent(family) == []


def test_units_come_from_the_names() -> None:
    assert [
        unit_of(name) for name in ("a_seconds", "a_seconds_total", "a_bytes", "a_ratio", "a_requests")
    ] == [
        "s",
        "s",
        "By",
        "1",
        "",
    ]
