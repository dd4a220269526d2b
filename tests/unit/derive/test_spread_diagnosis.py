"""Stragglers among peers, and causes that the evidence supports."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.derive.diagnosis import Signals, diagnose, memory_pressure, sentences
from sidecar.derive.spread import OutlierWatch, standings, straggler_sentence
from tests.support.gpu_pages import dcgm, expected, seed_vectors

OUTLIER = expected()["dcgm_h100x8_t0/t60/t120_reset"]["outlier"]["uuid"]


def signal(name, page="dcgm_h100x8_t60", pod=None):
    gpus = dcgm(page).gpus
    return {g.uuid: g.values[name] for g in gpus if pod is None or pod in map(str, g.pods)}


@pytest.mark.parametrize("pod", [None, "serving/llama-70b-1"])
@pytest.mark.parametrize("name", ["sm_clock_hertz", "power_watts", "temperature_celsius"])
def test_the_throttled_gpu_stands_out(name, pod):
    found = standings(signal(name, pod=pod))
    assert [uuid for uuid, one in found.items() if one.outlier] == [OUTLIER]


def test_the_median_of_the_page():
    one = standings(signal("sm_clock_hertz"))[OUTLIER]
    assert (one.value, one.median) == (1185e6, 1972.5e6)


def test_kernel_residency_and_sm_active_do_not_show_it():
    for name in ("kernel_resident_ratio", "sm_active_ratio"):
        assert not standings(signal(name))[OUTLIER].outlier


def test_the_other_pod_has_no_outlier():
    assert not any(s.outlier for s in standings(signal("sm_clock_hertz", pod="serving/llama-70b-0")).values())


def test_two_cannot_be_told_apart_and_zeros_have_no_scale():
    assert standings({"a": 1.0, "b": 2.0}) == {}
    assert standings({"a": 0.0, "b": 0.0, "c": 0.0}) == {}


def test_one_clock_step_is_no_outlier():
    assert not any(
        s.outlier for s in standings({"a": 1980.0, "b": 1980.0, "c": 1980.0, "d": 1965.0}).values()
    )


def test_since_when():
    watch = OutlierWatch()
    bad = standings({"a": 100.0, "b": 100.0, "c": 71.0})
    good = standings({"a": 100.0, "b": 100.0, "c": 99.0})
    assert watch.update("clock", bad, 10.0) == {"c": 10.0}
    assert watch.update("clock", bad, 20.0) == {"c": 10.0}
    assert watch.update("power", bad, 25.0) == {"c": 25.0}
    assert watch.update("clock", good, 30.0) == {}
    assert watch.update("clock", bad, 40.0) == {"c": 40.0}


def test_the_sentence():
    said = straggler_sentence("GPU 3", 0.71, "clock", "14:02", ("thermal",))
    assert said == "GPU 3 runs at 71 % of its peers' clock since 14:02, reason: thermal"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e3, 1e9), min_size=3, max_size=16),
    st.floats(1e-3, 1e3),
)
def test_units_do_not_matter(values, factor):
    plain = standings({str(i): v for i, v in enumerate(values)})
    scaled = standings({str(i): v * factor for i, v in enumerate(values)})
    for key, one in plain.items():
        assert scaled[key].score == pytest.approx(one.score, rel=1e-6, abs=1e-6)
        assert (one.score > 0) == (one.value > one.median)


def names(**seen):
    return [one.name for one in diagnose(Signals(**seen))]


def test_low_mfu_low_power_low_tensor_is_memory_or_launch():
    low = {"power_ratio": 0.33, "tensor_active": 0.03, "mfu": 0.01, "running": 4.0}
    assert names(**low) == ["memory_or_launch_bound"]
    assert names(**low, dram_active=0.7) == ["memory_bound"]
    assert names(**low, dram_active=0.05) == ["launch_bound"]
    assert names(**low, mbu=0.8) == ["memory_bound"]


def test_much_power_and_little_model_work():
    busy = {"power_ratio": 0.9, "mfu": 0.02, "running": 8.0}
    assert names(**busy) == ["power_without_model_work"]
    assert names(**busy, dram_active=0.8) == []  # decode: power goes into moving bytes


def test_low_tensor_activity_alone_is_no_alarm():
    assert names(tensor_active=0.08, power_ratio=0.8, dram_active=0.7, running=30.0, mfu=0.06) == []


def test_clocks_below_boost():
    assert names(throttled=(("thermal", 0.97),), clock_ratio=0.6, running=3.0) == ["clocks_below_boost"]
    assert names(throttled=(("power", 0.9),), clock_ratio=0.97, running=3.0) == []
    assert names(throttled=(("power", 0.9),), clock_ratio=0.7, running=3.0) == ["clocks_below_boost"]
    assert names(clock_ratio=0.6, running=3.0) == ["clocks_low_without_reason"]
    assert names(clock_ratio=0.1, running=0.0) == []  # idle clocks are low, and that is right


def test_kv_full_with_preemptions_and_queue_with_idle_kv():
    assert names(kv_usage=0.99, preemptions=7.0, waiting=5.0) == ["kv_cache_full"]
    assert names(kv_usage=0.3, preemptions=0.0, waiting=5.0) == ["queue_with_idle_kv"]
    assert names(kv_usage=0.99, preemptions=0.0, waiting=5.0) == []
    assert names(waiting=5.0) == []  # without the cache nothing is claimed


def test_prefill_bound():
    assert names(prompt_share=0.95, tensor_active=0.6, running=5.0) == ["prefill_bound"]


def test_device_memory_is_not_pressure():
    fact = next(f for f in seed_vectors()["seed_facts"] if "stop treating device memory" in f["fact"])
    at = fact["vector"]
    seen = Signals(
        memory_used_ratio=at["fb_used_share"],
        kv_usage=at["kv_usage"],
        waiting=at["waiting"],
        running=0.0,
        preemptions=at["preemptions_delta"],
    )
    assert memory_pressure(seen) is at["pressure"]
    assert [one.name for one in diagnose(seen)] == ["idle_with_full_memory"]
    assert memory_pressure(Signals(memory_used_ratio=0.99)) is None
    assert memory_pressure(Signals(kv_usage=0.97)) is True


def test_blind_is_said():
    assert names(profiling=False, running=2.0, power_ratio=0.8) == ["profiling_missing"]


def test_every_finding_says_how_to_tell():
    found = diagnose(
        Signals(
            straggler="GPU 5 runs at 60 % of its peers' clock since 14:02, reason: thermal",
            throttled=(("thermal", 0.97),),
            preemptions=3.0,
            power_ratio=0.3,
            tensor_active=0.05,
            running=4.0,
            profiling=False,
        )
    )
    assert [one.name for one in found][:2] == ["straggler", "clocks_below_boost"]
    for one, said in zip(found, sentences(found), strict=True):
        assert one.evidence
        assert "To tell: " in said
        assert one.tell_apart in said
