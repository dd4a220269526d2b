"""The page: strict form, vLLM's own names, types, labels and buckets, and the engine's true values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.simulator.engine import Engine
from loadgen.simulator.metrics import Histogram, render_page
from loadgen.simulator.profile import find_profile

DEMO = find_profile("demo")
# One page of a real vLLM 0.32, and the context length of the model it served.
REAL = Path(__file__).parents[3] / "fixtures/vllm/0.32.0/metrics_busy.txt"
REAL_MODEL_LEN = 2048


def run_some(engine: Engine) -> None:
    for prompt, output in ((100, 5), (3000, 2), (7, 1)):
        engine.submit(prompt_tokens=prompt, output_tokens=output, now_ns=0)
    now_ns = 0
    while (step := engine.begin_step(now_ns)) is not None:
        now_ns += step.duration_ns
        engine.end_step(now_ns)


def page_of(engine: Engine, **changes: Any) -> str:
    values: dict[str, Any] = {
        "running": 3,
        "waiting": 5,
        "deferred": 2,
        "kv_usage": 0.25,
        "started_wall_s": 1_700_000_000.5,
        "cpu_s": 1.5,
        "python_version": "3.11.0",
        "http_requests": {("/v1/completions", "POST", "2xx"): 3},
    }
    return render_page(engine.profile, engine.stats, **(values | changes))


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(page: dict[str, Any], family: str, sample: str | None = None, **labels: str) -> float:
    found = [
        s.value
        for s in page[family].samples
        if s.name == (sample or family) and all(s.labels.get(k) == v for k, v in labels.items())
    ]
    assert len(found) == 1
    return float(found[0])


def test_the_page_tells_what_the_engine_did() -> None:
    engine = Engine(DEMO)
    run_some(engine)
    page = families(page_of(engine))
    assert value(page, "vllm:num_requests_running") == 3
    assert value(page, "vllm:num_requests_waiting") == 5
    assert value(page, "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert value(page, "vllm:num_requests_waiting_by_reason", reason="deferred") == 2
    assert value(page, "vllm:kv_cache_usage_perc") == 0.25
    assert value(page, "vllm:prompt_tokens", "vllm:prompt_tokens_total") == 3107
    assert value(page, "vllm:generation_tokens", "vllm:generation_tokens_total") == 8
    assert value(page, "vllm:request_success", "vllm:request_success_total", finished_reason="length") == 3
    assert value(page, "vllm:request_success", "vllm:request_success_total", finished_reason="stop") == 0
    for family, count in (
        ("time_to_first_token_seconds", 3),
        ("inter_token_latency_seconds", 5),
        ("request_time_per_output_token_seconds", 3),
        ("e2e_request_latency_seconds", 3),
    ):
        assert value(page, f"vllm:{family}", f"vllm:{family}_count") == count
    assert value(page, "process_start_time_seconds") == 1_700_000_000.5
    assert value(page, "http_requests", "http_requests_total", handler="/v1/completions", status="2xx") == 3


def test_every_family_is_one_of_vllms_with_its_type_labels_and_buckets() -> None:
    profile = replace(DEMO, max_model_len=REAL_MODEL_LEN)
    engine = Engine(profile)
    ours, real = families(page_of(engine)), families(REAL.read_text())
    assert len(ours) > 30
    for name, family in ours.items():
        assert name in real, name
        assert family.type == real[name].type, name
        if name.startswith(("vllm:cache_config_info", "python_info", "http_")):
            continue  # one row that describes the machine; here it has fewer labels
        keys = {(s.name, tuple(sorted(k for k in s.labels))) for s in family.samples}
        assert keys == {(s.name, tuple(sorted(k for k in s.labels))) for s in real[name].samples}, name
        fixed = ("le", "source", "reason", "finished_reason")
        values = {tuple(s.labels.get(k) for k in fixed) for s in family.samples}
        assert values == {tuple(s.labels.get(k) for k in fixed) for s in real[name].samples}, name


def test_a_model_name_with_quotes_stays_one_label() -> None:
    name = 'a"b\\c\nd'
    page = families(page_of(Engine(replace(DEMO, model_name=name))))
    assert page["vllm:num_requests_running"].samples[0].labels == {"engine": "0", "model_name": name}


@pytest.mark.parametrize(
    ("observed", "counts"), [(1.0, [1, 0, 0]), (1.5, [0, 1, 0]), (2.0, [0, 1, 0]), (9, [0, 0, 1])]
)
def test_an_edge_belongs_to_its_bucket(observed: float, counts: list[int]) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(observed)
    assert (histogram.counts, histogram.total, histogram.count) == (counts, observed, 1)
