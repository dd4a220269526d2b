"""SGLang, TGI, Triton, trtllm-serve: recognised by name, mapped only where the signal is the same."""

import pytest

from sidecar.engine.catalog import catalogs
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page


def view_of(text: str):
    return map_page(parse(text.encode()))


def histogram(name: str, labels: str, met: int, count: int) -> str:
    head = f"{name}_bucket{{{labels}{',' if labels else ''}"
    buckets = f'{head}le="0.5"}} {met}\n{head}le="+Inf"}} {count}\n'
    return f"{buckets}{name}_sum{{{labels}}} 3.5\n{name}_count{{{labels}}} {count}\n"


def test_sglang():
    view = view_of(
        'sglang:num_running_reqs{dp_rank="0",model_name="m",tp_rank="0"} 3\n'
        'sglang:num_running_reqs{dp_rank="0",model_name="m",tp_rank="1"} 3\n'
        'sglang:num_running_reqs{dp_rank="1",model_name="m",tp_rank="0"} 4\n'
        'sglang:num_queue_reqs{model_name="m"} 2\nsglang:token_usage{model_name="m"} 0.28\n'
        'sglang:generation_tokens_total{model_name="m"} 70\nsglang:cache_hit_rate{model_name="m"} 0.25\n'
        + histogram("sglang:time_to_first_token_seconds", 'model_name="m",is_streaming="true"', 5, 8)
        + histogram("sglang:time_to_first_token_seconds", 'model_name="m",is_streaming="false"', 1, 2)
        + histogram("sglang:time_per_output_token_seconds", 'model_name="m"', 1, 2)
    )
    assert view.server == "sglang"
    assert view.total("running") == 7  # tensor-parallel ranks show copies, data-parallel ranks engines
    assert (view.total("waiting"), view.mean("kv_usage"), view.total("generation_tokens")) == (2, 0.28, 70)
    assert view.histogram("ttft").cumulative == (6, 10)
    assert view.prefix_hit_rate == 0.25
    assert "request_tpot" not in view.histograms
    assert view.unmapped == ("sglang:time_per_output_token_seconds",)
    assert view.engines == ("0", "1")


def test_tgi():
    view = view_of(
        "tgi_batch_current_size 4\ntgi_queue_size 1\ntgi_request_success 9\n"
        + histogram("tgi_request_duration", "", 3, 9)
        + histogram("tgi_request_mean_time_per_token_duration", "", 3, 9)
    )
    assert view.server == "tgi"
    assert (view.total("running"), view.total("waiting"), view.histogram("e2e").count) == (4, 1, 9)
    assert "request_tpot" not in view.histograms
    why = {m.signal: m.why for m in view.missing}
    assert "does not have it" in why["ttft"]
    assert "does not have it" in why["kv_usage"]


def test_triton_with_the_tensorrt_llm_backend():
    view = view_of(
        'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5\n'
        'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2\n'
        'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.5\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm"} 6239\n'
        'nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 9\n'
        'nv_inference_request_success{model="ensemble",version="1"} 10\n'
    )
    assert view.server == "triton"
    assert (view.total("running"), view.total("waiting"), view.mean("kv_usage")) == (5, 2, 0.5)
    assert view.total("kv_blocks") == 6239
    assert view.models == ("ensemble", "tensorrt_llm")


def test_trtllm_serve():
    labels = 'model_name="m",engine_type="trtllm"'
    view = view_of(
        f"trtllm_num_requests_running{{{labels}}} 2\ntrtllm_kv_cache_utilization{{{labels}}} 0.62\n"
        f'trtllm_request_success_total{{{labels},finished_reason="stop"}} 95\n'
        + histogram("trtllm_time_per_output_token_seconds", labels, 3, 9)
    )
    assert view.server == "trtllm"
    assert (view.total("running"), view.mean("kv_usage")) == (2, 0.62)
    assert view.success_by_reason == {"stop": 95}
    assert view.histogram("request_tpot").count == 9
    assert "return_perf_metrics" in {m.signal: m.why for m in view.missing}["ttft"]


@pytest.mark.parametrize("catalog", catalogs(), ids=lambda c: c.server)
def test_catalogues_agree_on_what_a_canonical_name_is(catalog):
    vllm = {spec.name: spec for spec in catalogs()[0].signals}
    assert len({spec.name for spec in catalog.signals}) == len(catalog.signals)
    for spec in catalog.signals:
        assert spec.meaning
        if spec.name in vllm:
            assert spec.kind == vllm[spec.name].kind
            assert spec.combine == vllm[spec.name].combine or not spec.names
        for name in spec.names:
            assert name.name.startswith(catalog.prefixes) or catalog.server == "vllm"


def test_a_label_that_nobody_foresaw_keeps_series_apart_and_the_sum_right():
    view = view_of(
        'vllm:num_requests_running{engine="0",model_name="m",priority="high"} 2\n'
        'vllm:num_requests_running{engine="0",model_name="m",priority="low"} 3\n'
    )
    assert view.total("running") == 5
    assert view.by("running", "priority") == {"high": 2, "low": 3}
    assert {notice.code for notice in view.notices} == {"new_label"}


def test_a_page_of_no_known_server_says_so():
    view = view_of("my_app_requests_total 4\n")
    assert (view.server, view.signals, view.unmapped) == ("", {}, ("my_app_requests_total",))
    assert {notice.code for notice in view.notices} == {"unknown_server"}
