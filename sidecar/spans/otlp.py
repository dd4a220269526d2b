"""Spans as OTLP: protobuf for the wire, and the JSON form of the same message for files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from sidecar.spans.model import Event, Span

_INT64 = 2**63


def any_value(value: Any) -> AnyValue:
    """A Python value (text, bool, number, list, mapping) as OTLP's AnyValue."""
    made = AnyValue()
    if isinstance(value, bool):
        made.bool_value = value
    elif isinstance(value, int) and -_INT64 <= value < _INT64:
        made.int_value = value
    elif isinstance(value, int | float):
        made.double_value = float(value)
    elif isinstance(value, str):
        made.string_value = value.encode("utf-8", errors="replace").decode("utf-8")
    elif isinstance(value, bytes):
        made.bytes_value = value
    elif isinstance(value, Mapping):
        made.kvlist_value.values.extend(key_values(value))
    elif isinstance(value, list | tuple):
        made.array_value.values.extend(any_value(v) for v in value)
        made.array_value.SetInParent()
    return made


def python_value(value: AnyValue) -> Any:
    """The inverse of :func:`any_value`; ``None`` for an empty value."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [python_value(v) for v in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)


def key_values(values: Mapping[str, Any]) -> list[KeyValue]:
    """A mapping as OTLP attributes, in its order."""
    return [KeyValue(key=str(key), value=any_value(value)) for key, value in values.items()]


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """OTLP attributes as a mapping; of a doubled key the last one counts."""
    return {pair.key: python_value(pair.value) for pair in pairs}


def trace_request(spans: Sequence[Span], resource: Mapping[str, Any]) -> ExportTraceServiceRequest:
    """One export request; spans of the same resource, scope and schema share an entry."""
    request = ExportTraceServiceRequest()
    by_resource: dict[str, ResourceSpans] = {}
    scopes: dict[tuple[str, str, str, str], Any] = {}
    for span in spans:
        of = resource if span.resource is None else span.resource
        resource_key = json.dumps(dict(of), sort_keys=True, default=str)
        entry = by_resource.get(resource_key)
        if entry is None:
            entry = by_resource[resource_key] = request.resource_spans.add()
            entry.resource.attributes.extend(key_values(of))
        key = (resource_key, span.scope, span.scope_version, span.schema_url)
        scope = scopes.get(key)
        if scope is None:
            scope = scopes[key] = entry.scope_spans.add()
            scope.scope.name = span.scope
            scope.scope.version = span.scope_version
            scope.schema_url = span.schema_url
        scope.spans.append(_proto(span))
    return request


def logs_request(spans: Sequence[Span], resource: Mapping[str, Any]) -> ExportLogsServiceRequest | None:
    """The log records of the spans as one export request; ``None`` where there are none."""
    if not any(span.logs for span in spans):
        return None
    request = ExportLogsServiceRequest()
    entry = request.resource_logs.add()
    entry.resource.attributes.extend(key_values(resource))
    for span in spans:
        if not span.logs:
            continue
        scope = entry.scope_logs.add(schema_url=span.schema_url)
        scope.scope.name = span.scope
        for event in span.logs:
            scope.log_records.add(
                event_name=event.name,
                time_unix_nano=event.at_ns,
                observed_time_unix_nano=event.at_ns,
                severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
                attributes=key_values(event.attributes),
                trace_id=bytes.fromhex(span.trace_id),
                span_id=bytes.fromhex(span.span_id),
                flags=span.flags,
            )
    return request


def _proto(span: Span) -> ProtoSpan:
    made = ProtoSpan(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_span_id),
        trace_state=span.trace_state,
        name=span.name,
        kind=span.kind,  # type: ignore[arg-type]
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=key_values(span.attributes),
        flags=span.flags,
    )
    for event in span.events:
        made.events.add(name=event.name, time_unix_nano=event.at_ns, attributes=key_values(event.attributes))
    if span.error:
        made.status.code = Status.STATUS_CODE_ERROR
        made.status.message = span.error_message
    return made


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    """The spans of a received export request, as plain data."""
    found = []
    for entry in request.resource_spans:
        resource = attributes_of(entry.resource.attributes)
        for scope in entry.scope_spans:
            for span in scope.spans:
                found.append(
                    Span(
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_span_id=span.parent_span_id.hex(),
                        name=span.name,
                        kind=int(span.kind),
                        start_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                        attributes=attributes_of(span.attributes),
                        events=tuple(
                            Event(e.name, e.time_unix_nano, attributes_of(e.attributes)) for e in span.events
                        ),
                        error=span.status.code == Status.STATUS_CODE_ERROR,
                        error_message=span.status.message,
                        trace_state=span.trace_state,
                        flags=span.flags,
                        scope=scope.scope.name,
                        scope_version=scope.scope.version,
                        schema_url=scope.schema_url,
                        resource=resource,
                    )
                )
    return found


def as_json(spans: Sequence[Span], resource: Mapping[str, Any]) -> dict[str, Any]:
    """The same message in OTLP/JSON: ids in hex, 64-bit numbers as texts. One line of a JSON-lines file."""
    by_resource: dict[str, dict[str, Any]] = {}
    for span in spans:
        of = resource if span.resource is None else span.resource
        key = json.dumps(dict(of), sort_keys=True, default=str)
        entry = by_resource.setdefault(key, {"resource": {"attributes": _json_pairs(of)}, "scopeSpans": []})
        scope = {"name": span.scope, "version": span.scope_version}
        entry["scopeSpans"].append(
            {"scope": scope, "spans": [_json_span(span)], "schemaUrl": span.schema_url}
        )
    return {"resourceSpans": list(by_resource.values())}


def logs_json(span: Span, resource: Mapping[str, Any]) -> dict[str, Any]:
    """The span's log records in OTLP/JSON."""
    records = [
        {
            "timeUnixNano": str(event.at_ns),
            "observedTimeUnixNano": str(event.at_ns),
            "severityNumber": 9,
            "eventName": event.name,
            "attributes": _json_pairs(event.attributes),
            "traceId": span.trace_id,
            "spanId": span.span_id,
            "flags": span.flags,
        }
        for event in span.logs
    ]
    scope = {"scope": {"name": span.scope}, "logRecords": records, "schemaUrl": span.schema_url}
    return {"resourceLogs": [{"resource": {"attributes": _json_pairs(resource)}, "scopeLogs": [scope]}]}


def _json_span(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_span_id,
        "traceState": span.trace_state,
        "flags": span.flags,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _json_pairs(span.attributes),
        "events": [
            {"name": e.name, "timeUnixNano": str(e.at_ns), "attributes": _json_pairs(e.attributes)}
            for e in span.events
        ],
        "status": {"code": 2, "message": span.error_message} if span.error else {},
    }
    return {key: value for key, value in made.items() if value not in ("", [], {})}


def _json_pairs(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": str(key), "value": _json_value(value)} for key, value in values.items()]


def _json_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return {"intValue": str(value)}
    if isinstance(value, int | float):
        # JSON has no NaN: protobuf's JSON form writes such numbers as texts.
        return {"doubleValue": float(value) if math.isfinite(value) else str(float(value))}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _json_pairs(value)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_json_value(v) for v in value]}}
    if value is None:
        return {}
    return {"stringValue": str(value)}
