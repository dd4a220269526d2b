"""The sidecar's own page: strict parsers take it, labels stay bounded, nothing is NaN."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from sidecar.derive.autoscale import Capacity
from sidecar.derive.live import Live
from sidecar.engine.exposition import parse
from sidecar.publish.catalog import BY_NAME, METRICS
from sidecar.publish.exposition import Family, accepts_openmetrics, render
from sidecar.publish.metrics import ProcessView, ProxyView, families
from sidecar.requests.records import ErrorKind, Outcome
from sidecar.requests.slo import SloPolicy
from tests.support.finished import S, finished, page, snapshot

CASES = json.loads((Path(__file__).parents[2] / "cases" / "own_metrics.json").read_text("utf-8"))["cases"]


def both(found: list[Family]) -> list[list[Metric]]:
    text = render(found, openmetrics=False).decode()
    strict = render(found, openmetrics=True, created_s=1_700_000_000.5).decode()
    return [
        list(text_string_to_metric_families(text)),
        list(openmetrics_parser.text_string_to_metric_families(strict)),
    ]


def label_values(parsed: Iterable[Metric], label: str) -> set[str]:
    return {s.labels[label] for family in parsed for s in family.samples if label in s.labels}


def busy() -> Live:
    live = Live(SloPolicy(), 0, capacity=Capacity(16))
    for at_s in (1, 6):
        body = page(
            running=4, waiting=1, kv=0.3, preemptions=at_s, queue_s=(1, 2), ttft_s=(3, 4), tokens=at_s
        )
        live.add_snapshot(snapshot(at_s, body), at_s * S, at_s)
    live.add_record(finished(end_s=7, extra={"trace_id": "ab" * 16, "trace_flags": "01"}), 7 * S, 7.0)
    live.add_record(finished(end_s=7, outcome=Outcome.REJECTED, status=429, ttft_s=None), 7 * S, 7.0)
    live.add_record(
        finished(end_s=7, outcome=Outcome.ERROR, error_kind=ErrorKind.HTTP, status=500, ttft_s=None),
        7 * S,
        7.0,
    )
    return live


def busy_page() -> list[Family]:
    spans = Family("goodput_spans_dropped_total", "counter", "Its own words.")
    spans.add(1, reason="closed")
    convention = Family("gen_ai_some_seconds", "gauge", "Of a convention.")
    convention.add(0.5)
    proxy = ProxyView(3, 9, {"busy": 1}, {"reset": 2}, {"overload": 1})
    return families(
        busy(), 8 * S, proxy=proxy, process=ProcessView(1.5, 60_000_000, 1.7e9, 12), more=[spans, convention]
    )


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_published_cases(case: dict[str, Any]) -> None:
    given_, expect = case["input"], case["expect"]
    live = Live(SloPolicy(), 0)
    served = given_["served_models"]
    body = b"".join(page(model=model).replace(b"# TYPE", b"# _") for model in served)
    live.add_snapshot(snapshot(1, body), S, 1.0)
    for model in given_["requested_models"]:
        known = model in served
        live.add_record(
            finished(
                end_s=2,
                model=model,
                status=200 if known else 404,
                outcome=Outcome.COMPLETED if known else Outcome.ERROR,
                error_kind=None if known else ErrorKind.CLIENT,
                ttft_s=0.1 if known else None,
            ),
            2 * S,
            2.0,
        )
    for parsed in both(families(live, 3 * S)):
        models = label_values(parsed, "model")
        assert set(expect.get("label_values", [])) <= models
        assert set(expect.get("label_values_include", [])) <= models
        assert len(models) <= expect.get("model_label_values_max", 10**9)
        if expect.get("no_nan"):
            assert all(s.value == s.value for family in parsed for s in family.samples)


def test_a_busy_page_parses_strictly_and_carries_exemplars() -> None:
    _, strict = both(busy_page())
    exemplars = [s.exemplar for f in strict for s in f.samples if s.exemplar]
    assert {"trace_id": "ab" * 16} in [e.labels for e in exemplars]
    created = [s for f in strict for s in f.samples if s.name == "goodput_good_requests_created"]
    assert created[0].value == 1_700_000_000.5


def test_our_own_parser_reads_both_alike() -> None:
    found = busy_page()
    text = parse(render(found, openmetrics=False), content_type="text/plain; version=0.0.4")
    strict = parse(
        render(found, openmetrics=True), content_type="application/openmetrics-text; version=1.0.0"
    )
    assert text.skipped_count == strict.skipped_count == 0
    assert {s.key: v for s, v in text.samples()} == {s.key: v for s, v in strict.samples()}


def test_every_sample_has_the_labels_the_catalogue_says() -> None:
    for family in busy_page():
        if family.name.startswith("gen_ai_"):
            continue
        assert family.help == BY_NAME[family.name].help
        for labels, _ in family.samples:
            assert {name for name, _ in labels} <= set(BY_NAME[family.name].labels), family.name


def test_no_series_stands_twice() -> None:
    for family in busy_page():
        seen = [tuple(sorted(labels)) for labels, _ in family.samples]
        assert len(seen) == len(set(seen)), family.name


def test_counts_agree_with_each_other() -> None:
    rows = {}
    for family in both(busy_page())[0]:
        for sample in family.samples:
            rows.setdefault(sample.name, []).append(sample)
    eligible = sum(s.value for s in rows["goodput_eligible_requests_total"])
    good = sum(s.value for s in rows["goodput_good_requests_total"])
    bad = {s.labels["bucket"]: s.value for s in rows["goodput_badput_requests_total"]}
    assert (eligible, good, bad["rejected"], bad["error"]) == (3, 1, 1, 1)
    assert good + sum(bad.values()) == eligible


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert metric.kind in ("counter", "gauge", "histogram", "info")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert (metric.kind == "info") == metric.name.endswith("_info")
        assert metric.help.endswith(".")
        assert not any(word in metric.name for word in ("_ms", "_milli", "_percent", "_perc_"))
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.skipif(which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
def test_promtool_has_nothing_to_say() -> None:
    ran = subprocess.run(
        ["promtool", "check", "metrics"],
        input=render(busy_page(), openmetrics=False),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")


@given(st.text(max_size=30), st.floats(allow_nan=True))
@settings(max_examples=150, deadline=None)
def test_any_label_and_number_survives(value: str, figure: float) -> None:
    family = Family("goodput_saturation", "gauge", 'a "help" with \\ and\nnewline')
    family.add(figure, model=value)
    if figure != figure:
        assert render([family], openmetrics=False) == b""
        return
    value = value.encode("utf-8", "replace").decode()
    for parsed in both([family]):
        (sample,) = parsed[0].samples
        assert sample.labels["model"] == value
        assert sample.value == figure


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", True),
        ("text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x,text/plain", False),
    ],
)
def test_accept_chooses_the_format(accept: str, openmetrics: bool) -> None:
    assert accepts_openmetrics(accept) is openmetrics
