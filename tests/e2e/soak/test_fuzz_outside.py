"""Whatever comes from outside is taken or refused in a word: nothing else is raised, nothing hangs.

Each input is a real one, broken. What the single parsers promise is tested beside them; here the broken input
goes all the way that it goes in the product.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from loadgen.commands.rehearse import read_traffic
from loadgen.compare import compare
from loadgen.report.csvio import to_csv
from loadgen.report.html import to_html
from loadgen.report.jsonio import from_json, to_json
from loadgen.report.terminal import render as to_terminal
from loadgen.simulator.profile import parse_profiles
from loadgen.target import Wish, capacity_file, plan, read_rates
from sidecar.config import load_settings
from sidecar.derive.autoscale import load_capacity
from sidecar.derive.live import Live
from sidecar.engine.exposition import PageError, parse
from sidecar.engine.mapping import map_page
from sidecar.engine.scrape import EngineSnapshot
from sidecar.errors import UserError
from sidecar.gpu.amd import read_amd
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.xid import parse_line
from sidecar.models import names_in
from sidecar.publish.exposition import render
from sidecar.publish.metrics import families
from sidecar.publish.status import status
from sidecar.redaction.patterns import load_patterns
from sidecar.requests.capture import parse_capture
from sidecar.requests.recordio import NotARecord
from sidecar.requests.recordio import from_json as record_from_json
from sidecar.requests.recordio import to_json as record_to_json
from sidecar.requests.records import Api, End
from sidecar.requests.slo import SloPolicy, judge, load_slo
from sidecar.requests.stream import StreamMeter
from tests.support.finished import finished
from tests.support.mutations import as_text, broken_bytes, broken_json
from tests.support.reports import awkward, no_peak, sweep

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures"
BOUNDED = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
S = 1_000_000_000
PAGES = [path.read_bytes()[:6000] for path in sorted((FIXTURES / "vllm").glob("*/metrics_*.txt"))]
GPU_PAGES = [
    path.read_bytes()[:6000] for path in sorted((FIXTURES / "gpu").glob("*_*.txt")) if "kmsg" not in path.name
]
STREAMS = [path.read_bytes() for path in sorted((FIXTURES / "vllm").glob("*/sse/*")) if path.is_file()]
KMSG = [
    line.encode() for line in (FIXTURES / "gpu" / "kmsg_samples.txt").read_text("utf-8").splitlines() if line
]
CAPTURE = b'{"at_s": 0.1, "data": "data: x"}\n{"at_s": 0.2, "data_b64": "AAAA"}\n{"end": "eof"}\n'
CAPACITY = {"format": 1, "peak_load_per_replica": 8, "target_saturation": 0.8, "peak_goodput_rps": 3.5}
SETTINGS = b"upstream: http://a:1\nlisten: '127.0.0.1:1'\nobjective: 0.9\n"
REPORTS = [json.loads(to_json(report)) for report in (sweep(), no_peak(), awkward())]


def told(error: Exception, begins: str = "") -> None:
    """A word on what is wrong, and not a page of it."""
    message = str(error)
    assert message.startswith(begins)
    assert 0 < len(message) < 2000


@BOUNDED
@given(st.lists(broken_bytes(PAGES), min_size=1, max_size=3), st.sampled_from(("", "gzip", "deflate")))
def test_engine_pages_to_our_own_page(pages: list[bytes], encoding: str) -> None:
    live = Live(SloPolicy(), 0)
    for number, body in enumerate(pages, 1):
        try:
            found = parse(body, content_encoding=encoding)
        except PageError as error:
            told(error)
            continue
        snapshot = EngineSnapshot(number * 5 * S, True, "", None, map_page(found), 0.01)
        live.add_snapshot(snapshot, number * 5 * S, float(number))
        live.add_record(finished(end_s=5.0 * number), number * 5 * S, float(number))
    now_ns = len(pages) * 5 * S + 1
    for openmetrics in (False, True):
        page = render(families(live, now_ns), openmetrics=openmetrics, created_s=1.0)
        page.decode("utf-8")
    json.dumps(status(live, now_ns, 1.0), allow_nan=False)


@BOUNDED
@given(broken_bytes(GPU_PAGES))
def test_gpu_pages(body: bytes) -> None:
    try:
        page = parse(body)
    except PageError:
        return
    for reading in (read_dcgm(page), read_amd(page)):
        assert reading is not None


@BOUNDED
@given(broken_bytes(KMSG), st.booleans())
def test_kernel_lines(line: bytes, many: bool) -> None:
    text = line.decode("utf-8", "replace")
    parse_line(text * 200 if many else text)


@BOUNDED
@given(broken_bytes(STREAMS), st.sampled_from(list(Api)), st.integers(1, 5000), st.sampled_from(list(End)))
def test_streams_from_bytes_to_verdict(body: bytes, api: Api, size: int, end: End) -> None:
    meter = StreamMeter(api, start_ns=0, capture_chars=1000)
    meter.on_headers(200, [("content-type", "text/event-stream")], 1)
    for at in range(0, len(body), size):
        meter.feed(body[at : at + size], at + 2)
    record = meter.finish(end, len(body) + 3)
    verdict = judge(record, SloPolicy().class_for(record))
    assert verdict.good <= verdict.eligible
    live = Live(SloPolicy(), 0)
    live.add_record(record, len(body) + 3, 1.0)
    json.dumps(status(live, len(body) + 4, 1.0), allow_nan=False)
    again, _ = record_from_json(json.loads(json.dumps(record_to_json(record))))
    assert again.outcome is record.outcome


@BOUNDED
@given(broken_json([record_to_json(finished())]))
def test_records(value: Any) -> None:
    try:
        record, _ = record_from_json(value)
    except NotARecord as error:
        told(error)
        return
    judge(record, SloPolicy().class_for(record))


@BOUNDED
@given(
    broken_bytes(
        [
            b'{"at_s": 0.1, "data": "data: x"}\n{"at_s": 0.2, "data_b64": "AAAA"}\n{"end": "eof"}\n',
            *STREAMS[:2],
        ]
    )
)
def test_captures(data: bytes) -> None:
    if not data.strip():
        return
    try:
        parse_capture(data, "capture")
    except UserError as error:
        told(error, "capture")


@BOUNDED
@given(broken_json(REPORTS))
def test_reports_all_the_way(value: Any) -> None:
    try:
        report = from_json(as_text(value), "r.json")
    except UserError as error:
        told(error, "r.json")
        return
    to_html(report)
    to_csv(report)
    to_json(report)
    Console(file=io.StringIO(), width=100).print(to_terminal(report))
    for use in (
        lambda: compare(report, sweep()),
        lambda: capacity_file(report, plan(report, Wish(3.0), force=True)),
    ):
        try:
            use()
        except UserError as error:
            told(error)


def text(path: Path) -> str:
    return path.read_text("utf-8", "replace")


FILES: dict[str, tuple[Callable[[Path], Any], list[bytes]]] = {
    "slo": (
        load_slo,
        [(ROOT / "configs" / "slo.yaml").read_bytes(), b"default: a\nclasses:\n  a: {ttft_s: 1}\n"],
    ),
    "settings": (
        lambda path: load_settings({}, file=path, environ={}),
        [
            (ROOT / "configs" / "sidecar.yaml").read_bytes(),
            b"upstream: http://a:1\nlisten: '127.0.0.1:1'\nobjective: 0.9\n",
        ],
    ),
    "capacity": (
        load_capacity,
        [json.dumps(CAPACITY).encode()],
    ),
    "patterns": (
        load_patterns,
        [b"version: 1\npatterns:\n  - {id: a, kind: email, pattern: 'a+b', group: 0}\n"],
    ),
    "profiles": (
        lambda path: parse_profiles(text(path), where="profiles"),
        [(ROOT / "loadgen" / "simulator" / "profiles.yaml").read_bytes()[:1500]],
    ),
    "traffic": (
        lambda path: read_traffic(path.read_text("utf-8", "replace"), "t"),
        [b"s,r\n0,1\n60,2.5\n120,0\n"],
    ),
    "rates": (
        lambda path: read_rates(path.read_text("utf-8", "replace"), "t"),
        [b"1.5\n2\n3\n", b"0,1\n60,2\n"],
    ),
    "models": (
        lambda path: names_in(path.read_bytes()),
        [b'{"data": [{"id": "a"}, {"id": "b", "parent": "a"}]}'],
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_files(kind: str, tmp_path: Path) -> None:
    read, seeds = FILES[kind]
    path = tmp_path / "input"

    @BOUNDED
    @given(broken_bytes(seeds))
    def broken(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except UserError as error:
            told(error)

    broken()


@BOUNDED
@given(st.data())
def test_otlp_payloads(data: st.DataObject) -> None:
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from sidecar.spans.otlp import spans_of
    from sidecar.spans.vllm import is_request, record_of

    seeds = [_payload(ParseDict, ExportTraceServiceRequest)]
    payload = data.draw(broken_bytes(seeds))
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(payload)
    except DecodeError:
        return
    for span in spans_of(request):
        if is_request(span):
            record_of(span)


def _payload(parse_dict: Any, request: Any) -> bytes:
    span = {
        "traceId": "q" * 22 + "==",
        "spanId": "q" * 11 + "=",
        "name": "llm_request",
        "kind": 2,
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000001000000000",
        "attributes": [
            {"key": "gen_ai.request.id", "value": {"stringValue": "cmpl-1"}},
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "12"}},
            {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.2}},
            {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 1.0}},
        ],
    }
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span, span]}]}]}
    return bytes(parse_dict(body, request()).SerializeToString())
