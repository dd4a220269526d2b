"""The convention's metrics, made of finished requests.

For Prometheus: classic histograms with the convention's edges and every SLO bound among them, so that the
share of requests within a bound is an exact ratio of buckets. For OTLP: exponential histograms.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from sidecar.derive.loghist import EdgeHistogram, with_edges
from sidecar.publish.exposition import Buckets, Family
from sidecar.requests.records import Outcome, RequestRecord
from sidecar.requests.slo import SloClass
from sidecar.spans.exphist import ExponentialHistogram
from sidecar.spans.genai import error_type, operation_name, time_to_first_chunk_ns
from sidecar.spans.otlp import key_values
from sidecar.spans.semconv import Convention

DURATION_EDGES_S = tuple(0.01 * 2**n for n in range(14))
TTFT_EDGES_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT_EDGES_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_MOST_SERIES = 256
_HELP = {
    "server_duration": "Time from the request's last byte to the end of its answer.",
    "server_ttft": "Time to the first output token, successful requests only.",
    "server_tpot": "(Duration - time to first token) / (output tokens - 1), successful requests only.",
    "client_duration": "Time from the request to the end of its answer, as its caller sees it.",
    "client_first_chunk": "Time to the first chunk of a stream.",
    "client_chunk": "Time between successive chunks of a stream.",
    "usage_input": "Input tokens, cached ones among them.",
    "usage_output": "Output tokens.",
    "usage_cache_read": "Input tokens that came from the prefix cache.",
    "usage_reasoning": "Output tokens that are reasoning.",
}
Key = tuple[str, str, str, str]  # metric key, operation, model, error type


@dataclass(slots=True)
class _Series:
    classic: EdgeHistogram
    exponential: ExponentialHistogram = field(default_factory=ExponentialHistogram)


class GenAiMetrics:
    """``observe`` each finished request; ``families`` for the page, ``request`` for OTLP. Thread-safe.

    Beyond 256 combinations of operation, model and error the model is ``_OTHER``: a caller can write any
    model's name. Pass models that may be shown.
    """

    def __init__(
        self,
        convention: Convention,
        slos: Sequence[SloClass],
        *,
        provider: str = "vllm",
        server: tuple[str, int] | None = None,
        started_unix_ns: int = 0,
    ) -> None:
        self._names = convention.metrics
        self._schema_url = convention.schema_url
        self._provider_name = convention.names["provider"]
        self._provider = provider
        self._server = server
        self._started_unix_ns = started_unix_ns
        duration = with_edges(DURATION_EDGES_S, (s.e2e_s for s in slos))
        gaps = with_edges(DURATION_EDGES_S, [b for s in slos for b in (s.itl_p99_s, s.max_gap_s, s.stall_s)])
        self._edges = {
            "server_duration": duration,
            "server_ttft": with_edges(TTFT_EDGES_S, (s.ttft_s for s in slos)),
            "server_tpot": with_edges(TPOT_EDGES_S, (s.tpot_s for s in slos)),
            "client_duration": duration,
            "client_first_chunk": with_edges(DURATION_EDGES_S, (s.ttft_s for s in slos)),
            "client_chunk": gaps,
        }
        self._series: dict[Key, _Series] = {}
        self._usage: dict[Key, int] = {}
        self._lock = threading.Lock()

    def observe(self, record: RequestRecord, model: str) -> None:
        """Count one request. ``model``: its name as it may be shown."""
        operation = operation_name(record.api)
        failure = error_type(record) or ""
        with self._lock:
            if len(self._series) + len(self._usage) > _MOST_SERIES * len(_HELP):
                model = "_OTHER"
            self._time("server_duration", operation, model, failure, record.e2e_ns)
            self._time("client_duration", operation, model, failure, record.e2e_ns)
            if (first_chunk_ns := time_to_first_chunk_ns(record)) is not None:
                self._time("client_first_chunk", operation, model, "", first_chunk_ns)
            for gap in record.gaps_ns:
                self._time("client_chunk", operation, model, "", gap)
            if record.outcome is Outcome.COMPLETED and record.ttft_ns is not None:
                self._time("server_ttft", operation, model, "", record.ttft_ns)
                tokens = record.output_tokens
                if tokens is not None and tokens > 1 and len(record.choices) <= 1:
                    self._time(
                        "server_tpot", operation, model, "", (record.e2e_ns - record.ttft_ns) / (tokens - 1)
                    )
            for key, tokens in (
                ("usage_input", record.prompt_tokens),
                ("usage_output", None if record.tokens_estimated else record.output_tokens),
                ("usage_cache_read", record.cached_tokens),
                ("usage_reasoning", record.reasoning_tokens),
            ):
                if key in self._names:
                    place = (key, operation, model, "")
                    # One addition for each request, of 0 where nothing was said: so the convention.
                    self._usage[place] = self._usage.get(place, 0) + (tokens or 0)

    def _time(self, key: str, operation: str, model: str, failure: str, value_ns: float) -> None:
        if key not in self._names:
            return
        place = (key, operation, model, failure)
        series = self._series.get(place)
        if series is None:
            series = self._series[place] = _Series(EdgeHistogram(self._edges[key]))
        series.classic.add(value_ns)
        series.exponential.add(value_ns / 1e9)

    def _attributes(self, place: Key) -> Iterator[tuple[str, str | int]]:
        _, operation, model, failure = place
        yield "gen_ai.operation.name", operation
        yield self._provider_name, self._provider
        if model:
            yield "gen_ai.request.model", model
        if self._server is not None:
            yield "server.address", self._server[0]
            yield "server.port", self._server[1]
        if failure:
            yield "error.type", failure
        if place[0].startswith("usage_"):
            # The proxy does not see how tokens are shared out over modalities.
            yield "gen_ai.token.modality", "unknown"

    def families(self) -> list[Family]:
        """For the metrics page: dots as underscores, units at the end."""
        with self._lock:
            found: dict[str, Family] = {}
            for place, series in sorted(self._series.items()):
                name = self._names[place[0]].replace(".", "_") + "_seconds"
                family = found.setdefault(place[0], Family(name, "histogram", _HELP[place[0]]))
                classic = series.classic
                buckets = Buckets(classic.edges_s, classic.cumulative(), classic.sum_s)
                family.samples.append((self._labels(place), buckets))
            for place, total in sorted(self._usage.items()):
                name = self._names[place[0]].replace(".", "_") + "_total"
                counter = found.setdefault(place[0], Family(name, "counter", _HELP[place[0]]))
                counter.samples.append((self._labels(place), total))
        return list(found.values())

    def _labels(self, place: Key) -> tuple[tuple[str, str], ...]:
        return tuple((name.replace(".", "_"), str(value)) for name, value in self._attributes(place))

    def request(self, now_unix_ns: int, resource: Mapping[str, Any]) -> ExportMetricsServiceRequest:
        """Everything so far as one OTLP message, cumulative."""
        made = ExportMetricsServiceRequest()
        entry = made.resource_metrics.add()
        entry.resource.attributes.extend(key_values(resource))
        scope = entry.scope_metrics.add(schema_url=self._schema_url)
        scope.scope.name = "goodput-sidecar"
        metrics: dict[str, Metric] = {}
        with self._lock:
            for place, series in sorted(self._series.items()):
                metric = metrics.get(place[0]) or self._metric(scope, place[0], "s")
                metrics[place[0]] = metric
                metric.exponential_histogram.aggregation_temporality = (
                    AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                )
                state = series.exponential
                point = metric.exponential_histogram.data_points.add(
                    attributes=key_values(dict(self._attributes(place))),
                    start_time_unix_nano=self._started_unix_ns,
                    time_unix_nano=now_unix_ns,
                    count=state.count,
                    sum=state.sum,
                    scale=state.scale,
                    zero_count=state.zeros,
                    min=state.min,
                    max=state.max,
                )
                point.positive.offset = state.offset
                point.positive.bucket_counts.extend(state.counts)
            for place, total in sorted(self._usage.items()):
                metric = metrics.get(place[0]) or self._metric(scope, place[0], "{token}")
                metrics[place[0]] = metric
                metric.sum.is_monotonic = True
                metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                metric.sum.data_points.add(
                    attributes=key_values(dict(self._attributes(place))),
                    start_time_unix_nano=self._started_unix_ns,
                    time_unix_nano=now_unix_ns,
                    as_int=total,
                )
        return made

    def _metric(self, scope: object, key: str, unit: str) -> Metric:
        metric: Metric = scope.metrics.add(  # type: ignore[attr-defined]
            name=self._names[key], unit=unit, description=_HELP[key]
        )
        return metric
