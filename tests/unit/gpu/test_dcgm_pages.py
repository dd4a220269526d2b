"""Every dcgm-exporter page of the fixtures, and the traps in them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.exposition import parse
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.fields import causes, dcgm_fields, decode_reasons
from sidecar.gpu.reading import Pod, Sharing, pci_address
from sidecar.gpu.throttle import throttle_shares
from tests.support.engine_cases import cases
from tests.support.gpu_pages import FIXTURES, dcgm, expected, page_bytes

H100 = expected()["dcgm_h100x8_t0/t60/t120_reset"]


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("dcgm_*.txt")), ids=lambda p: p.stem)
def test_every_page_is_read(path):
    page = parse(path.read_bytes())
    reading = read_dcgm(page)
    assert page.skipped_count == 0
    assert reading.gpus or reading.switch_errors
    assert reading.notes == ()
    for gpu in reading.gpus:
        for values in (gpu.values, *(part.values for part in gpu.parts)):
            assert all(math.isfinite(value) for value in values.values())


@pytest.mark.parametrize("case", cases("dcgm"))
def test_case(case):
    reading = read_dcgm(parse(case["input"]["body"].encode()))
    by_name = dcgm_fields().by_name
    expect = case["expect"]
    for name in expect.get("absent", ()):
        assert by_name[name].signal not in reading.gpus[0].values
    for name, value in expect.get("values", {}).items():
        assert reading.gpus[0].values[by_name[name].signal] == pytest.approx(value)
    if "power_total_w" in expect:
        assert sum(g.values["power_watts"] for g in reading.gpus) == pytest.approx(expect["power_total_w"])


def test_h100_pods_and_power():
    reading = dcgm("dcgm_h100x8_t0")
    assert len(reading.gpus) == H100["gpus"]
    assert [gpu.index for gpu in reading.gpus] == [str(i) for i in range(8)]
    for pod, uuids in H100["pods"].items():
        assert [str(p) for uuid in uuids for p in reading.by_uuid()[uuid].pods] == [pod] * 4
    assert {gpu.sharing for gpu in reading.gpus} == {Sharing.EXCLUSIVE}
    for gpu in reading.gpus:
        assert gpu.values["kernel_resident_ratio"] == 1.0
        assert gpu.values["last_xid"] == 0
        assert gpu.node == "gpu-node-07"
        assert pci_address(gpu.pci) == gpu.pci.partition(".")[0]


def test_h100_throttled_gpu_by_counter_and_by_bits():
    uuid = H100["outlier"]["uuid"]
    before, after = dcgm("dcgm_h100x8_t0").by_uuid()[uuid], dcgm("dcgm_h100x8_t60").by_uuid()[uuid]
    names, throttled = decode_reasons(int(after.values["clock_event_reasons"]))
    assert names == ("hw_slowdown", "hw_thermal_slowdown")
    assert throttled is True
    assert causes(72) == ("thermal",)
    shares = throttle_shares(before, after, 60.0)
    assert shares["thermal"] == pytest.approx(H100["outlier"]["thermal_share_t0_t60"])


def test_a_rate_typed_counter_is_a_gauge():
    page = parse(page_bytes("dcgm_h100x8_t0"))
    assert page.type_of("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL") == "counter"
    assert dcgm_fields().by_name["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"].kind == "gauge"


def test_absent_is_not_zero():
    for gpu in dcgm("dcgm_default_idle_l4").gpus:
        assert gpu.sharing is Sharing.UNKNOWN
        for signal in ("memory_temperature_celsius", "last_xid", "sm_active_ratio", "tensor_active_ratio"):
            assert signal not in gpu.values


def test_mig_counts_the_board_once():
    want = expected()["dcgm_mig.txt"]
    reading = dcgm("dcgm_mig")
    watts = {gpu.uuid: gpu.values["power_watts"] for gpu in reading.gpus}
    assert watts == pytest.approx(want["board_watts"])
    assert sum(watts.values()) == pytest.approx(want["node_watts"])
    split, whole = reading.gpus
    assert (split.sharing, whole.sharing) == (Sharing.MIG, Sharing.EXCLUSIVE)
    assert [part.id for part in split.parts] == ["2", "9", "10", "11"]
    assert split.parts[1].values["sm_active_ratio"] == pytest.approx(1.031)
    assert split.parts[3].pods == frozenset()
    assert "kernel_resident_ratio" not in split.values
    assert "sm_active_ratio" not in split.values  # an instance's own figure is not the board's


def test_a_ratio_above_one_is_clamped_only_as_a_ratio():
    body = b'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a"} 1.031\n'
    gpu = read_dcgm(parse(body)).gpus[0]
    assert gpu.values["sm_active_ratio"] == 1.031
    assert gpu.ratio("sm_active_ratio") == 1.0
    assert gpu.ratio("dram_active_ratio") is None


def test_time_slicing_replicas_repeat_the_board():
    want = expected()["dcgm_timeslice_vgpu.txt"]
    (gpu,) = dcgm("dcgm_timeslice_vgpu").gpus
    assert gpu.sharing is Sharing.SHARED
    assert gpu.values["power_watts"] == pytest.approx(want["watts"][gpu.uuid])
    assert gpu.values["kernel_resident_ratio"] == pytest.approx(want["gpu_util_device"] / 100)
    by_pod = {pod.name: round(values["kernel_resident_ratio"] * 100) for pod, values in gpu.by_pod.items()}
    assert by_pod == want["gpu_util_by_pod"]


def test_empty_pod_labels_are_no_pods():
    for name in ("dcgm_old_2x_empty_pods", "dcgm_public_empty_pods", "dcgm_old_namespace_1x"):
        for gpu in dcgm(name).gpus:
            assert gpu.pods == frozenset()
            assert gpu.sharing is Sharing.UNKNOWN


def test_old_namespace_means_the_same():
    gpu = dcgm("dcgm_old_namespace_1x").gpus[0]
    assert gpu.values["power_watts"] == pytest.approx(302.206)
    assert gpu.values["kernel_resident_ratio"] == pytest.approx(0.44)
    assert dcgm("dcgm_public_old_namespace").gpus[0].values["energy_joules_total"] == pytest.approx(
        55491669.881
    )


def test_sentinels_by_field_type():
    by_name = dcgm_fields().by_name
    short = {name.split("_FI_DEV_")[-1].split("_FI_PROF_")[-1]: one for name, one in by_name.items()}
    boards = dcgm("dcgm_sentinels").by_uuid()
    for uuid, fields in expected()["dcgm_sentinels.txt"]["expect"].items():
        for name, raw in fields.items():
            got = boards[uuid].values.get(short[name].signal)
            assert got == (None if raw is None else pytest.approx(raw * short[name].scale)), (uuid, name)


@pytest.mark.parametrize(
    ("text", "name", "expect"),
    [
        ("9223372036854775794", "DCGM_FI_DEV_MEMORY_TEMP", None),
        ("9.223372036854776e+18", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", None),
        ("2147483634", "DCGM_FI_DEV_GPU_TEMP", None),
        ("2147483634", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 2147483.634),
        ("140737488355330.000000", "DCGM_FI_DEV_POWER_USAGE", None),
        ("140737488355330", "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", 140737488355330.0),
        ("NaN", "DCGM_FI_PROF_SM_ACTIVE", None),
        ("-Inf", "DCGM_FI_PROF_SM_ACTIVE", None),
        ("0.000000", "DCGM_FI_PROF_SM_ACTIVE", 0.0),
        ("-12", "DCGM_FI_DEV_GPU_TEMP", -12.0),
    ],
)
def test_sentinel_vectors(text, name, expect):
    got = dcgm_fields().by_name[name].value(float(text))
    assert got == (None if expect is None else pytest.approx(expect))


def test_new_names_dra_and_lower_case_hostname():
    reading = dcgm("dcgm_new_names_dra")
    used, free = reading.gpus
    assert used.node == "b200-03"
    assert used.pods == {Pod("serving", "qwen-0")}
    assert free.pods == frozenset()
    assert used.values["power_watts"] == 841.25
    assert used.values["power_limit_watts"] == 1000.0
    assert used.values["kernel_resident_ratio"] == 1.0  # 0 to 100 on the page, whatever its name says
    assert free.values["sm_active_ratio"] == 0.79


def test_read_back_from_prometheus():
    first, second = dcgm("dcgm_prometheus_exported").gpus
    assert first.pods == {Pod("default", "chat-0")}
    assert second.pods == frozenset()


def test_xid_gauge_window_and_recovery_action():
    boards = dcgm("dcgm_xid").by_uuid()
    for uuid, want in expected()["dcgm_xid.txt"]["expect"].items():
        gpu = boards[uuid]
        assert gpu.values["last_xid"] == want["last_xid"]
        assert gpu.xid_counts == {int(code): n for code, n in want["window_counts"].items()}
        if "recovery_action" in want:
            assert gpu.values["row_remap_pending"] == want["row_remap_pending"]
            action = dcgm_fields().recovery_actions[int(gpu.values["recovery_action"])]
            assert action == want["recovery_action"]


def test_links_add_up_to_a_gpu_and_switches_stand_apart():
    reading = dcgm("dcgm_links")
    lines = [
        x for x in page_bytes("dcgm_links").decode().splitlines() if x.startswith("DCGM_FI_DEV_NVLINK_COUNT")
    ]
    rx = sum(float(x.rsplit(" ", 1)[1]) for x in lines if "COUNT_RX_BYTES{" in x and 'gpu="0"' in x)
    assert reading.gpus[0].values["nvlink_rx_bytes_total"] == rx > 0
    assert [(e.switch, e.link, e.code, e.fatal) for e in reading.switch_errors] == [
        ("nvswitch0", "30", 20034, True)
    ]


def test_clock_events_of_the_window():
    gpu = dcgm("dcgm_public_clock_events").gpus[0]
    assert gpu.clock_events["sw_thermal"] == 1


def test_leaked_sentinel_and_blanks_after_commas():
    gpu = dcgm("dcgm_public_readme").gpus[0]
    assert gpu.values["sm_clock_hertz"] == 139e6
    assert "memory_temperature_celsius" not in gpu.values


def test_other_pages_say_so():
    reading = read_dcgm(parse(b"vllm:num_requests_running 1\n"))
    assert reading.gpus == ()
    assert "dcgm-exporter" in reading.notes[0]


@pytest.mark.parametrize(
    ("bits", "names", "throttled"),
    [
        (0, (), False),
        (1, ("gpu_idle",), False),
        (2, ("applications_clocks_setting",), False),
        (4, ("sw_power_cap",), True),
        (72, ("hw_slowdown", "hw_thermal_slowdown"), True),
        (96, ("sw_thermal_slowdown", "hw_thermal_slowdown"), True),
        (136, ("hw_slowdown", "hw_power_brake_slowdown"), True),
        (2048, ("unknown_bit_11",), None),
    ],
)
def test_reasons(bits, names, throttled):
    assert decode_reasons(bits) == (names, throttled)


def test_causes():
    assert causes(8) == ("hardware",)
    assert causes(136) == ("power",)
    assert causes(3) == ()


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0, max_value=2**63), st.sampled_from(sorted(dcgm_fields().by_name)))
def test_no_mark_becomes_a_reading(number, name):
    one = dcgm_fields().by_name[name]
    value = one.value(float(number))
    if number >= 2**62:
        assert value is None
    if value is not None:
        assert value >= 0


@settings(max_examples=40, deadline=None)
@given(st.permutations(page_bytes("dcgm_mig").decode().splitlines(keepends=True)))
def test_the_order_of_series_does_not_matter(lines):
    reading = read_dcgm(parse("".join(x for x in lines if not x.startswith("#")).encode()))
    assert sum(g.values["power_watts"] for g in reading.gpus) == pytest.approx(992.314)
    assert [g.sharing for g in reading.gpus] == [Sharing.MIG, Sharing.EXCLUSIVE]
