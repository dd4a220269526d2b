"""Pages to canonical signals: the shared cases, the recorded pages, and the known traps one by one."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.catalog import parse_version, vllm_catalog
from sidecar.engine.describe import describe, render
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.engine.view import SeriesId
from tests.support.engine_cases import body_of, cases, close

VLLM = Path(__file__).parents[2] / "fixtures" / "vllm"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def view_of(text: str, version: str | None = None, content_type: str = "text/plain"):
    return map_page(parse(text.encode(), content_type=content_type), version)


def codes(view) -> set[str]:
    return {notice.code for notice in view.notices}


def check_value(view, name: str, want: dict) -> None:
    if name == "lora_max":
        assert view.lora_max == want["total"]
    elif name.startswith("lora_"):
        assert getattr(view, name) == frozenset(want["names"])
    elif name == "prefix_hit_rate":
        assert close(view.prefix_hit_rate, want["total"])
    elif "count" in want:
        histogram = view.histogram(name)
        assert close(histogram.count, want["count"])
        assert close(histogram.sum, want["sum"])
    else:
        signal = view.get(name)
        for reading in ("total", "mean", "max"):
            if reading in want:
                assert close(getattr(signal, reading), want[reading])
        if "one_of" in want:
            assert signal.total in want["one_of"]
            assert signal.total not in want["never"]
        for key, value in want.get("series", {}).items():
            engine, model = key.split("|")
            assert close(signal.series[SeriesId(engine, model)], value)
        if "by_reason" in want:
            assert view.success_by_reason == want["by_reason"]


@pytest.mark.parametrize("case", cases("mapping"))
def test_case(case):
    view = map_page(parse(body_of(case["input"])), case["input"].get("vllm_version"))
    for name, want in case["expect"].get("values", {}).items():
        check_value(view, name, want)
    for name in case["expect"].get("absent", ()):
        assert name not in view.signals
        assert name not in view.histograms
    if "warns" in case["expect"]:
        assert any(case["expect"]["warns"] in notice.code + notice.text for notice in view.notices)


@pytest.mark.parametrize(
    "path", sorted(VLLM.glob("*/metrics*.txt")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_a_recorded_page_is_mapped_whole(path):
    version = json.loads((path.parent / "version.json").read_text())["version"]
    page = parse(path.read_bytes())
    view = map_page(page, version)
    assert (view.server, view.generation, view.engines, view.models) == (
        "vllm",
        "v1",
        ("0",),
        ("tiny-llama",),
    )
    assert view.unmapped == ()
    assert view.start_time_s == page.values[page.by_name["process_start_time_seconds"][0]]
    assert view.restarts_visible
    # 0.10.2 has no per-request TPOT yet; 0.10.2's idle page has not seen an HTTP request.
    assert {m.signal for m in view.missing} == ({"request_tpot"} if version == "0.10.2" else set())
    for spec in vllm_catalog().signals:
        for name in spec.names:
            on_page = name.name in page.by_name or name.name + "_bucket" in page.by_name
            if on_page and spec.combine != "state" and not name.select:
                assert spec.name in view.signals or spec.name in view.histograms, name.name
    for signal in view.signals.values():
        assert all(math.isfinite(value) for value in signal.series.values())


def test_the_busy_page_gives_the_numbers_that_stand_on_it():
    view = map_page(parse((VLLM / "0.32.0" / "metrics_busy.txt").read_bytes()), "0.32.0")
    assert view.total("generation_tokens") == 25634
    assert view.total("prompt_tokens") == 48049
    assert view.success_by_reason == {"stop": 0, "length": 410, "abort": 0, "error": 0, "repetition": 0}
    assert view.histogram("e2e").count == 410
    assert view.get("generation_tokens").created_s[SeriesId("0", "tiny-llama")] == 1.796066192284441e09
    assert view.cache_config["block_size"].isdigit()
    assert view.sleeping == frozenset()


# The known traps, one by one.


def test_trap_v0_and_v1_pages_of_one_release_differ_and_the_page_decides():
    v0 = view_of(
        'vllm:num_requests_running{model_name="m"} 1\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n',
        "0.9.2",
    )
    v1 = view_of(
        'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
        'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n',
        "0.9.2",
    )
    assert (v0.generation, v1.generation) == ("v0", "v1")
    assert v0.mean("kv_usage") == v1.mean("kv_usage") == 0.5
    assert v0.get("kv_usage").found == "vllm:gpu_cache_usage_perc"
    assert v1.get("kv_usage").found == "vllm:kv_cache_usage_perc"


@pytest.mark.parametrize("version", ["0.1.dev20904+g1a2b3c", "dev", "unknown", "", None])
def test_trap_a_development_build_is_mapped_by_what_its_page_holds(version):
    body = (VLLM / "0.32.0" / "metrics_busy.txt").read_bytes()
    assert map_page(parse(body), version).signals == map_page(parse(body), "0.32.0").signals
    if version:
        assert "no_version" in codes(map_page(parse(body), version))


@pytest.mark.parametrize("version", ["0.10.2", "0.11.2", None])
def test_trap_two_names_of_one_histogram_are_taken_once(version):
    body = "".join(
        f'vllm:{name}_bucket{{engine="0",le="{le}",model_name="m"}} {n}\n'
        for name in ("time_per_output_token_seconds", "inter_token_latency_seconds")
        for le, n in (("0.01", 3), ("+Inf", 5))
    )
    view = view_of(body, version)
    assert view.histogram("itl").cumulative == (3, 5)
    assert view.histograms["itl"].found == "vllm:inter_token_latency_seconds"
    assert "request_tpot" not in view.histograms
    assert "deprecated" in codes(view)


@pytest.mark.parametrize(
    ("version", "unit"),
    [("0.7.3", "blocks"), ("0.8.5.post1", "blocks"), ("0.9.0", "tokens"), ("0.1.dev5", "blocks or tokens")],
)
def test_trap_prefix_cache_counters_counted_blocks_then_tokens_under_one_name(version, unit):
    view = view_of('vllm:gpu_prefix_cache_queries_total{model_name="m"} 4\n', version)
    assert view.get("prefix_queries").unit == unit


def test_trap_the_total_that_is_a_histogram_is_never_a_counter():
    view = map_page(parse((VLLM / "0.32.0" / "metrics_busy.txt").read_bytes()), "0.32.0")
    assert "iteration_tokens" in view.histograms
    assert "iteration_tokens" not in view.signals


def test_trap_success_holds_aborts_and_errors():
    view = view_of(
        "".join(
            f'vllm:request_success_total{{engine="0",finished_reason="{r}",model_name="m"}} {n}\n'
            for r, n in (("stop", 5), ("abort", 3), ("error", 2))
        )
    )
    assert view.success_by_reason == {"stop": 5, "abort": 3, "error": 2}
    assert any(
        c.text.startswith("holds aborts")
        for s in vllm_catalog().signals
        if s.name == "success"
        for c in s.caveats
    )


def test_trap_one_engine_per_process_copy_is_neither_summed_nor_averaged():
    view = view_of(
        'vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="11"} 0.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="12"} 0.8\n',
        "0.10.2",
    )
    assert view.mean("kv_usage") == view.max("kv_usage") == 0.8
    assert "per_process" in codes(view)
    assert not view.restarts_visible


def test_trap_the_rust_front_end_speaks_openmetrics_only_and_lacks_families():
    text = (
        "# TYPE vllm:generation_tokens counter\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 7\n'
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="0.1"} 1\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="+Inf"} 2\n# EOF\n'
    )
    view = view_of(text, "0.32.0", OPENMETRICS)
    assert view.total("generation_tokens") == 7
    assert view.histogram("ttft").count == 2
    assert {"rust_frontend"} <= codes(view)
    assert not view.restarts_visible
    assert "running" in {m.signal for m in view.missing}


def test_trap_a_lazy_series_is_absent_and_not_zero():
    view = view_of('vllm:num_requests_running{model_name="m"} 0\n', "0.6.3")
    assert view.total("running") == 0
    assert view.total("success") is None
    assert view.success_by_reason is None
    assert view.histogram("ttft") is None
    why = {m.signal: m.why for m in view.missing}
    assert "first observation" in why["success"]


def test_trap_adapter_sets_never_become_series():
    text = "".join(
        f'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="a{i}",waiting_lora_adapters=""}} {i}\n'
        for i in range(50)
    )
    view = view_of(text)
    assert view.lora_running == {"a49"}
    assert view.lora_waiting == frozenset()
    assert "lora_info" not in view.signals


def test_trap_summed_adapter_times_are_said_to_be_a_guess():
    view = view_of(
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters=""} 7.2e9\n'
    )
    assert "lora_times_summed" in codes(view)


def test_trap_nan_and_infinite_values_are_no_values():
    view = view_of(
        'vllm:num_requests_running{engine="0",model_name="m"} NaN\n'
        'vllm:generation_tokens_total{engine="0",model_name="m"} +Inf\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    )
    assert "running" not in view.signals
    assert "generation_tokens" not in view.signals
    assert view.mean("kv_usage") == 0.5
    assert "nan" in codes(view)


def test_trap_prefix_caching_off_in_v0_is_minus_one_and_no_rate():
    assert view_of('vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1\n', "0.6.3").prefix_hit_rate is None


def test_trap_no_queries_give_no_hit_rate():
    view = view_of(
        'vllm:prefix_cache_queries_total{engine="0"} 0\nvllm:prefix_cache_hits_total{engine="0"} 0\n',
        "0.32.0",
    )
    assert view.prefix_hit_rate is None


def test_trap_created_series_are_never_data():
    view = view_of(
        'vllm:num_preemptions_total{engine="0"} 2\nvllm:num_preemptions_created{engine="0"} 1.7e9\n'
    )
    assert view.total("preemptions") == 2
    assert view.unmapped == ()
    assert view.restarts_visible


def test_trap_old_and_new_offload_names_are_not_added():
    text = (
        'vllm:kv_offload_total_bytes_total{engine="0",model_name="m",transfer_type="CPU_to_GPU"} 10\n'
        'vllm:kv_offload_total_bytes_total{engine="0",model_name="m",transfer_type="GPU_to_CPU"} 30\n'
    )
    old = view_of(text, "0.20.0")
    assert (old.total("kv_offload_load_bytes"), old.total("kv_offload_store_bytes")) == (10, 30)
    both = view_of(text + 'vllm:kv_offload_load_bytes_total{engine="0",model_name="m"} 10\n', "0.24.0")
    assert both.total("kv_offload_load_bytes") == 10


def test_trap_a_histogram_without_its_inf_bucket_is_half_a_histogram():
    view = view_of('vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 4\n')
    assert "ttft" not in view.histograms
    assert "incomplete_histogram" in codes(view)


def test_trap_engines_with_other_edges_are_merged_on_the_common_ones():
    view = view_of(
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 1\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 2\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 3\n'
        'vllm:time_to_first_token_seconds_bucket{engine="1",le="0.2"} 5\n'
        'vllm:time_to_first_token_seconds_bucket{engine="1",le="0.5"} 6\n'
        'vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 7\n'
    )
    merged = view.histogram("ttft")
    assert (merged.edges, merged.cumulative) == ((0.5, math.inf), (8, 10))


def test_trap_data_parallel_before_0_10_shows_the_last_engine_only():
    text = 'vllm:num_requests_running{engine="3",model_name="m"} 1\n'
    assert "engines_lost" in codes(view_of(text, "0.9.1"))
    assert "engines_lost" not in codes(view_of(text, "0.10.0"))
    assert "engines_lost" not in codes(view_of(text.replace("3", "0"), "0.9.1"))


def test_trap_several_api_servers_hide_restarts():
    many = "".join(f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {i}\n' for i in range(4))
    view = view_of(many + 'vllm:generation_tokens_total{engine="0",model_name="m"} 4\n', "0.32.0")
    assert view.engines == ("0", "1", "2", "3")
    assert not view.restarts_visible


def test_trap_names_that_ray_respelled_are_read_as_vllms():
    view = view_of('ray_vllm_num_requests_running{engine="0",model_name="m",ReplicaId="r"} 3\nother 1\n')
    assert (view.server, view.total("running")) == ("vllm", 3)
    assert view.get("running").found == "ray_vllm_num_requests_running"
    assert view.unmapped == ("other",)


def test_a_sleeping_engine_says_so():
    view = view_of(
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0\n'
        'vllm:engine_sleep_state{engine="1",sleep_state="awake"} 1\n'
        'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_running{engine="1"} 0\n'
    )
    assert view.sleeping == {"0"}


def test_an_unknown_family_is_passed_by_and_counted():
    view = view_of(
        'vllm:num_requests_running{engine="0"} 1\nvllm:brand_new_total 4\nlmcache:hits 1\npython_info 1\n'
    )
    assert view.unmapped == ("lmcache:hits", "vllm:brand_new_total")


def test_a_release_newer_than_the_catalogue_gets_the_newest_names_and_a_notice():
    view = map_page(parse((VLLM / "0.32.0" / "metrics_busy.txt").read_bytes()), "0.40.1")
    assert "newer_than_catalog" in codes(view)
    assert view.total("generation_tokens") == 25634


def test_log_stats_off_names_the_flag():
    view = view_of("process_cpu_seconds_total 3\nhttp_requests_total 1\n", "0.32.0")
    assert view.server == ""
    assert any("--disable-log-stats" in notice.text for notice in view.notices)
    assert "--disable-log-stats" in view.missing[0].why


def test_a_hidden_name_comes_with_the_flag_that_brings_it():
    # 0.8.3 hides the old engine's hit-rate gauge; the flag takes exactly the minor release before.
    text = 'vllm:num_requests_running{model_name="m"} 0\n'
    by_a_setting = {m.signal: m.why for m in view_of(text, "0.8.5").by_a_setting}
    assert by_a_setting["prefix_hit_rate_gauge"] == "hidden: start with --show-hidden-metrics-for-version=0.7"
    assert view_of(text, "0.6.3").by_a_setting == ()


def test_what_a_flag_would_bring_is_told():
    view = map_page(parse((VLLM / "0.32.0" / "metrics_busy.txt").read_bytes()), "0.32.0")
    by_a_setting = {m.signal: m.why for m in view.by_a_setting}
    assert by_a_setting["kv_block_lifetime_seconds"] == "needs: --kv-cache-metrics"
    assert "--enable-mfu-metrics" in by_a_setting["flops_per_gpu"]


def test_a_core_signal_that_the_release_has_and_the_page_lacks_is_said_to_be_odd():
    view = view_of('vllm:num_requests_running{engine="0"} 0\n', "0.12.0")
    why = {m.signal: m.why for m in view.missing}
    assert "should be on the page" in why["kv_usage"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0, 0, 0)),
        ("v0.8.5.post1", (0, 8, 5, 0, 1)),
        ("0.10.1.1", (0, 10, 1, 1, 0)),
        ("0.11.1rc6.dev3+gabc", (0, 11, 1, 0, 0)),
        ("0.1.dev20904+gabc", None),
        ("main", None),
        (None, None),
    ],
)
def test_versions(text, version):
    assert parse_version(text) == version


_names = st.sampled_from(
    [
        n.name + s
        for spec in vllm_catalog().signals
        for n in spec.names
        for s in ("", "_bucket", "_sum", "_created")
    ]
)
_lines = st.lists(
    st.tuples(
        _names,
        st.dictionaries(
            st.sampled_from(["engine", "model_name", "le", "pid", "reason"]),
            st.sampled_from(["0", "1", "x", "+Inf"]),
        ),
        st.one_of(st.floats(-1e300, 1e300), st.sampled_from([math.nan, math.inf, -math.inf])),
    ),
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@given(_lines, st.sampled_from([None, "0.6.3", "0.10.2", "0.32.0", "0.1.dev1"]))
def test_whatever_stands_on_a_page_mapping_gives_finite_values_and_never_raises(lines, version):
    text = "".join(
        f"{name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels.items())}}} {value!r}\n"
        for name, labels, value in lines
    )
    view = view_of(text, version)
    for signal in view.signals.values():
        assert signal.series
        assert all(math.isfinite(value) for value in signal.series.values())
    for histogram in view.histograms.values():
        merged = histogram.merged
        assert list(merged.cumulative) == sorted(merged.cumulative)
        assert all(math.isfinite(value) for value in merged.cumulative)


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_running{engine="0"} 1e308\nvllm:num_requests_running{engine="1"} 1e308\n',
        'vllm:generation_tokens_total{engine="0"} 1.7e308\nvllm:num_requests_running{engine="0"} -1e300\n',
        "".join(f'vllm:time_to_first_token_seconds_bucket{{le="{le}"}} 9\n' for le in ("-Inf", "+Inf")),
        'vllm:request_params_n_bucket{le="+Inf"} 1e308\nvllm:request_params_n_sum 1e308\n',
        'vllm:lora_requests_info{max_lora="\u00b2",running_lora_adapters=",a,, "} 1\n',
        'vllm:lora_requests_info{max_lora="' + "9" * 5000 + '",running_lora_adapters="a"} 1\n',
        'vllm:num_requests_running{engine="\\n\\"x",model_name="' + "m" * 50_000 + '"} 1\n',
    ],
)
def test_no_value_or_label_of_a_page_breaks_the_mapping_or_its_json(text):
    view = view_of(text, "0.32.0")
    told = describe(view)
    json.dumps(told, allow_nan=False)
    assert render(told, everything=True)
    assert all(math.isfinite(signal.total) for signal in view.signals.values())
    assert view.lora_max is None
