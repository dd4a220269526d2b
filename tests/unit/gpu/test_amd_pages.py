"""AMD exporter pages: prefix, microjoules, partitions, zeros that are no readings."""

import pytest

from sidecar.engine.exposition import parse
from sidecar.gpu.amd import read_amd
from sidecar.gpu.peaks import find_peak_of
from sidecar.gpu.reading import Pod, Sharing
from sidecar.gpu.throttle import throttle_shares
from tests.support.gpu_pages import FIXTURES, amd, expected

WANT = expected()["amd_mi300x_t0/t60"]


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("amd_*.txt")), ids=lambda p: p.stem)
def test_every_page_is_read(path):
    assert read_amd(parse(path.read_bytes())).gpus


def test_energy_is_in_microjoules_and_power_is_package_power():
    before, after = amd("amd_mi300x_t0"), amd("amd_mi300x_t60")
    for first, last in zip(before.gpus, after.gpus, strict=True):
        watts = (last.values["energy_joules_total"] - first.values["energy_joules_total"]) / 60
        assert watts == pytest.approx(WANT["watts_from_energy"][f"gpu {first.index}"])
        assert first.values["power_watts"] == pytest.approx(watts)


def test_identity_and_signals():
    gpu = amd("amd_mi300x_t0").gpus[0]
    assert gpu.vendor == "amd"
    assert gpu.pods == {Pod("serving", "ds-0")}
    assert gpu.sharing is Sharing.EXCLUSIVE
    assert gpu.values["sm_clock_hertz"] == 2.1e9
    assert gpu.values["memory_clock_hertz"] == 1.3e9
    assert gpu.values["tensor_active_ratio"] == pytest.approx(0.1125)
    assert gpu.values["temperature_celsius"] == 78
    assert gpu.values["memory_bandwidth_peak_bytes_per_s"] == 5.3e12
    assert gpu.values["nvlink_tx_bytes_total"] > 3 * 3.5e12
    peak = find_peak_of(gpu.model)
    assert peak is not None
    assert peak.key == "MI300X"


def test_power_cap_share_is_against_the_reference_counter():
    before, after = amd("amd_mi300x_t0"), amd("amd_mi300x_t60")
    for first, last in zip(before.gpus, after.gpus, strict=True):
        share = throttle_shares(first, last, 60.0)["power"]
        assert share == pytest.approx(WANT["ppt_share"][f"gpu {first.index}"])


def test_partitions_are_one_board():
    (gpu,) = amd("amd_mi300x_cpx").gpus
    assert gpu.values["power_watts"] == expected()["amd_mi300x_cpx.txt"]["board_watts"]
    assert gpu.sharing is Sharing.MIG
    assert len(gpu.parts) == 8
    assert gpu.parts[3].values["memory_used_bytes"] == 20003 * 1048576
    assert all("power_watts" not in part.values for part in gpu.parts[1:])


def test_zero_watts_is_no_reading():
    (gpu,) = amd("amd_public_apu").gpus
    assert "power_watts" not in gpu.values


def test_other_pages_say_so():
    reading = read_amd(parse(b"DCGM_FI_DEV_GPU_TEMP 1\n"))
    assert reading.gpus == ()
    assert "device-metrics-exporter" in reading.notes[0]
