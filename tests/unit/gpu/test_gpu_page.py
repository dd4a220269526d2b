"""The GPU part of the page and the status: no series twice, no number for what is not known."""

import json
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.derive.diagnosis import diagnose
from sidecar.derive.economics import Prices
from sidecar.derive.gpu_now import power_limit, signals_now, use_now
from sidecar.derive.live import Live
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.engine.scrape import EngineSnapshot
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.energy import Work
from sidecar.gpu.ownership import Identity
from sidecar.gpu.settings import GpuSettings, ModelCosts
from sidecar.gpu.watch import GpuWatch
from sidecar.gpu.xid import parse_line
from sidecar.publish.catalog import BY_NAME
from sidecar.publish.exposition import render
from sidecar.publish.gpu import gpu_families, gpu_status
from sidecar.publish.gpu_catalog import GPU_METRICS
from sidecar.publish.gpu_text import gpu_sentences
from sidecar.requests.slo import SloPolicy
from tests.support.gpu_pages import FIXTURES, amd, dcgm

S = 10**9
PAGES = sorted(path.stem for path in FIXTURES.glob("dcgm_*.txt")) + sorted(
    path.stem for path in FIXTURES.glob("amd_*.txt")
)


def watch_of(*pages, identity=None, **changes):
    tokens = [0.0]

    def work():
        tokens[0] += 60_000.0
        return Work(tokens[0], tokens[0] / 2, True)

    settings = GpuSettings(interval_s=60, identity=identity or Identity(all_gpus=True), **changes)
    watch = GpuWatch(settings, work=work, collectors=[])
    for at, page in enumerate(pages):
        reading = dcgm(page) if page.startswith("dcgm") else amd(page)
        watch.state.take(page.partition("_")[0], reading, at * 60 * S, 1_800_000_000 + at * 60)
    return watch


def live_of(*bodies):
    live = Live(policy=SloPolicy(), started_ns=0)
    for at, body in enumerate(bodies):
        view = map_page(parse(body.encode()))
        snapshot = EngineSnapshot(at * 60 * S, True, "", None, view, 0.01, wall_s=1_800_000_000 + at * 60)
        live.watch.interval_s = live.watch.history.interval_s = 60
        live.add_snapshot(snapshot, at * 60 * S, 1_800_000_000 + at * 60)
    return live


def page_of(watch, live, now_ns):
    text = render(gpu_families(watch, live, now_ns), openmetrics=False).decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.mark.parametrize("page", PAGES)
def test_every_fixture_gives_a_clean_page(page):
    watch = watch_of(page)
    live = live_of()
    samples = page_of(watch, live, 0)
    keys = Counter((s.name, tuple(sorted(s.labels.items()))) for s in samples)
    assert keys.most_common(1)[0][1] == 1
    assert all(s.name in BY_NAME for s in samples)
    assert not any(s.name.startswith("goodput_gpu") and "pod" in s.labels for s in samples)
    assert all(0 <= s.value <= 1 for s in samples if s.name.endswith(("active_ratio", "resident_ratio")))
    json.dumps(gpu_status(watch, live, 0), allow_nan=False)


def test_kernel_residency_says_what_it_is_and_is_used_nowhere():
    text = next(text for name, _, _, text in GPU_METRICS if name == "goodput_gpu_kernel_resident_ratio")
    assert "GPU_UTIL" in text
    assert "no load" in text
    names = {name for name, _, _, _ in GPU_METRICS}
    assert not any("utilisation" in name or "utilization" in name for name in names)


def test_a_mig_tenant_sees_its_instance_and_no_energy_of_its_own():
    identity = Identity(pod="chat-0", namespace="tenant-a")
    watch = watch_of("dcgm_mig", "dcgm_mig", identity=identity, prices=Prices(2.5))
    samples = page_of(watch, live_of(), 60 * S)
    instances = {s.labels["instance"] for s in samples if "instance" in s.labels}
    assert instances == {"2"}
    assert not any(s.name in ("goodput_power_watts", "goodput_tokens_per_joule") for s in samples)
    assert any(s.name == "goodput_usd_per_1m_tokens" for s in samples)
    status = gpu_status(watch, live_of(), 60 * S)
    assert status["energy"]["board_watts"] is None
    assert any("cannot be told apart" in note for note in status["notes"])
    assert any("not charged to this pod" in line for line in gpu_sentences(status))


def test_energy_of_the_whole_pod_from_two_pages():
    watch = watch_of(
        "dcgm_h100x8_t0",
        "dcgm_h100x8_t60",
        identity=Identity(pod="llama-70b-0"),
        prices=Prices(2.5, host_w=100.0, pue=1.2),
    )
    values = {(s.name, *sorted(s.labels.items())): s.value for s in page_of(watch, live_of(), 60 * S)}
    watts = values[("goodput_power_watts", ("scope", "boards"), ("window", "5m"))]
    assert watts == pytest.approx(2447.2)
    facility = values[("goodput_power_watts", ("scope", "facility"), ("window", "5m"))]
    assert facility == pytest.approx((2447.2 + 100) * 1.2)
    per_joule = values[("goodput_tokens_per_joule", ("scope", "boards"), ("window", "5m"))]
    assert per_joule == pytest.approx(1000 / 2447.2)
    cost = values[("goodput_usd_per_1m_tokens", ("basis", "as_used"), ("tokens", "good"), ("window", "5m"))]
    assert cost == pytest.approx(4 * 2.5 / (500 * 3600) * 1e6)


def test_the_power_limit_says_where_it_is_from():
    own = {o.gpu.model: o for o in watch_of("dcgm_default_idle_l4").state.owned.gpus}
    assert power_limit(own["NVIDIA L4"]) == (72, "datasheet")
    enforced = watch_of("dcgm_new_names_dra").state.owned.gpus[0]
    assert power_limit(enforced) == (1000.0, "enforced")


def test_profiling_that_stops_is_said():
    watch = watch_of("dcgm_h100x8_t0")
    assert watch.state.notes(0) == []
    lines = (FIXTURES / "dcgm_h100x8_t60.txt").read_text().splitlines(keepends=True)
    reading = read_dcgm(parse("".join(x for x in lines if "_PROF_" not in x).encode()))
    watch.state.take("dcgm", reading, 60 * S, 1_800_000_060)
    assert any("no longer measured" in note for note in watch.state.notes(60 * S))


ENGINE = """vllm:num_requests_running{{engine="0",model_name="m"}} 8
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.4
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:generation_tokens_total{{engine="0",model_name="m"}} {made}
vllm:num_preemptions_total{{engine="0",model_name="m"}} 0
"""
COUNTED = """vllm:estimated_flops_per_gpu_total{{engine="{engine}",model_name="m"}} {flops}
vllm:estimated_read_bytes_per_gpu_total{{engine="{engine}",model_name="m"}} {read}
vllm:estimated_write_bytes_per_gpu_total{{engine="{engine}",model_name="m"}} {write}
"""


def use_of(first, last, model=None, page="dcgm_h100x8_t0", identity=None):
    live = live_of(first, last)
    watch = watch_of(page, identity=identity)
    return use_now(live.watch, list(watch.state.owned.gpus), model or ModelCosts(), 60 * S, 300)


def test_mfu_from_the_engines_own_counters():
    base = ENGINE.format(prompt=0, made=0)
    first = base + COUNTED.format(engine=0, flops=0, read=0, write=0)
    last = base + COUNTED.format(engine=0, flops=60 * 98.94e12, read=60 * 1.5e12, write=60 * 0.175e12)
    use = use_of(first, last)
    assert use.mfu.value == pytest.approx(0.1)
    assert use.mfu.against == "H100-SXM bf16 dense 989.4 TFLOPS"
    assert use.mbu.value == pytest.approx(0.5)
    assert not use.mfu.estimated


def test_engines_of_data_parallel_replicas_are_averaged_not_added():
    base = ENGINE.format(prompt=0, made=0)
    first = base + "".join(COUNTED.format(engine=e, flops=0, read=0, write=0) for e in range(2))
    last = base + "".join(
        COUNTED.format(engine=e, flops=60 * 98.94e12 * (1 + e), read=60e12, write=0) for e in range(2)
    )
    assert use_of(first, last).mfu.value == pytest.approx(0.15)


def test_counters_that_never_count_are_no_zero_and_parameters_stand_in():
    zeros = COUNTED.format(engine=0, flops=0.0, read=0.0, write=0.0)
    first = ENGINE.format(prompt=0, made=0) + zeros
    last = ENGINE.format(prompt=6000, made=60 * 4000) + zeros
    assert use_of(first, last).mfu is None
    use = use_of(first, last, ModelCosts(params=8.03e9), identity=Identity(pod="llama-70b-0"))
    assert use.mfu.estimated
    assert use.mfu.value == pytest.approx(4100 * 2 * 8.03e9 / (4 * 989.4e12))


def test_no_peak_is_guessed():
    base = ENGINE.format(prompt=0, made=0)
    assert "none is guessed" in use_of(base, base, page="dcgm_sentinels").why_not
    mig = use_of(base, base, page="dcgm_mig", identity=Identity(pod="chat-0"))
    assert "instance" in mig.why_not
    assert mig.mfu is None


def test_signals_for_the_diagnosis():
    identity = Identity(pod="llama-70b-1")
    watch = watch_of("dcgm_h100x8_t0", "dcgm_h100x8_t60", identity=identity)
    live = live_of(ENGINE.format(prompt=0, made=0), ENGINE.format(prompt=60, made=6000))
    use = use_now(live.watch, list(watch.state.owned.gpus), ModelCosts(), 60 * S, 300)
    seen = signals_now(watch.state, live.watch, use, 60 * S, 300)
    assert dict(seen.throttled)["thermal"] == pytest.approx(0.9667, abs=1e-3)
    assert seen.straggler.startswith("GPU 5 runs at 60 % of its peers' clock since ")
    assert (seen.running, seen.kv_usage, seen.preemptions) == (8, 0.4, 0)
    assert seen.prompt_share == pytest.approx(60 / 6060)
    assert [one.name for one in diagnose(seen)][:2] == ["straggler", "clocks_below_boost"]


def test_an_event_stands_beside_memory_repair_and_the_drivers_word():
    watch = watch_of("dcgm_xid")
    watch.state.log_event(parse_line("NVRM: Xid (PCI:0000:1b:00): 94, pid=7, name=x, Contained"), 1.0)
    (event,) = gpu_status(watch, live_of(), 0)["events"]
    assert event["gpu"] == "GPU-8979b645-6bed-2307-b0b2-01b573053c67"
    assert event["beside"]["row_remap_pending"] == 1
    assert event["beside"]["recovery_action"] == "drain_and_reset"
    assert event["beside"]["ecc_uncorrected"] is None
    assert "row remap pending" in "".join(gpu_sentences(gpu_status(watch, live_of(), 0)))


def test_nothing_watched_says_nothing():
    assert gpu_sentences(None) == []
