"""Whose board it is, and whose joules: one tenant never pays for another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.gpu.energy import EnergyMeter, Work
from sidecar.gpu.ownership import Flapping, Identity, Owned, OwnGpu, identity_of, own_gpus
from sidecar.gpu.reading import Gpu, Pod, Reading, Sharing
from tests.support.gpu_pages import dcgm, expected

S = 10**9
H100 = expected()["dcgm_h100x8_t0/t60/t120_reset"]
POD1 = Identity(pod="llama-70b-1", namespace="serving")


def names(owned):
    return [(own.gpu.index, own.sharing.value, own.charged) for own in owned.gpus]


def test_by_pod_label():
    owned = own_gpus(dcgm("dcgm_h100x8_t0"), POD1)
    assert names(owned) == [(str(i), "exclusive", True) for i in range(4, 8)]
    assert owned.all_charged
    other = Identity(pod="llama-70b-1", namespace="elsewhere")
    assert own_gpus(dcgm("dcgm_h100x8_t0"), other).gpus == ()


def test_by_uuid_where_no_pod_is_named():
    reading = dcgm("dcgm_default_idle_l4")
    uuid = reading.gpus[0].uuid
    declared = own_gpus(reading, Identity(declared=frozenset({uuid})))
    assert names(declared) == [("0", "exclusive", True)]
    seen = own_gpus(reading, Identity(visible=frozenset({uuid})))
    assert names(seen) == [("0", "unknown", False)]
    assert "not charged" in seen.notes[0]


def test_nothing_is_guessed():
    owned = own_gpus(dcgm("dcgm_h100x8_t0"), Identity())
    assert owned.gpus == ()
    assert "not known" in owned.notes[0]
    unmapped = own_gpus(dcgm("dcgm_default_idle_l4"), Identity(pod="x"))
    assert "names no pods" in unmapped.notes[0]
    foreign = own_gpus(dcgm("dcgm_h100x8_t0"), Identity(pod="x"))
    assert "none of the exporter's GPUs" in foreign.notes[0]


def test_mig_instance_is_ours_and_its_board_is_not_charged():
    owned = own_gpus(dcgm("dcgm_mig"), Identity(pod="chat-0", namespace="tenant-a"))
    (own,) = owned.gpus
    assert (own.part.id, own.sharing, own.charged) == ("2", Sharing.MIG, False)
    assert own.values()["sm_active_ratio"] == own.part.values["sm_active_ratio"]
    assert "cannot be told apart" in owned.notes[0]
    whole = own_gpus(dcgm("dcgm_mig"), Identity(pod="big-0"))
    assert whole.all_charged


def test_attribution_of_the_mig_page():
    for pod, verdict in expected()["dcgm_mig.txt"]["attribution"].items():
        namespace, name = pod.split("/")
        owned = own_gpus(dcgm("dcgm_mig"), Identity(pod=name, namespace=namespace))
        assert owned.all_charged is (verdict == "exclusive")


def test_time_slices_are_shared():
    owned = own_gpus(dcgm("dcgm_timeslice_vgpu"), Identity(pod="gpu-pod-a"))
    assert names(owned) == [("0", "shared", False)]


def test_time_slices_that_the_page_hides_are_shared_when_the_user_says_so():
    one_page = dcgm("dcgm_timeslice_default")
    assert own_gpus(one_page, Identity(pod="gpu-pod-c")).all_charged  # the page looks exclusive
    told = own_gpus(one_page, Identity(pod="gpu-pod-c", shared=True))
    assert names(told) == [("0", "shared", False)]
    assert not own_gpus(one_page, Identity(all_gpus=True, shared=True)).all_charged


def test_a_label_that_jumps_between_pods_is_time_slicing():
    flapping = Flapping(window_ns=100 * S)
    base = dcgm("dcgm_timeslice_default").gpus[0]

    def look(pod, at):
        gpu = Gpu(base.uuid, "nvidia", pods=frozenset({Pod("default", pod)}), sharing=Sharing.EXCLUSIVE)
        return flapping.add(Reading((gpu,)), at * S).gpus[0].sharing

    assert look("c", 0) is Sharing.EXCLUSIVE  # one page cannot tell
    assert look("b", 15) is Sharing.EXCLUSIVE  # may be a new pod
    assert look("c", 30) is Sharing.SHARED
    assert look("b", 45) is Sharing.SHARED
    assert look("b", 300) is Sharing.EXCLUSIVE


def test_a_pod_that_replaces_another_is_not_sharing():
    flapping = Flapping(window_ns=1000 * S)
    for at, pod in ((0, "old"), (15, "old"), (30, "new"), (45, "new"), (60, "new")):
        gpu = Gpu("GPU-a", "nvidia", pods=frozenset({Pod("", pod)}), sharing=Sharing.EXCLUSIVE)
        assert flapping.add(Reading((gpu,)), at * S).gpus[0].sharing is Sharing.EXCLUSIVE


def test_identity_from_settings_and_environment():
    environ = {"NVIDIA_VISIBLE_DEVICES": "GPU-a,MIG-b,3", "POD_NAME": "p", "POD_NAMESPACE": "n"}
    found = identity_of(environ, gpus="", pod="", namespace="")
    assert (found.pod, found.namespace, found.visible) == ("p", "n", {"GPU-a", "MIG-b"})
    assert identity_of({}, gpus="all", pod="", namespace="").all_gpus
    assert identity_of(environ, gpus=" GPU-x , GPU-y", pod="q", namespace="").declared == {"GPU-x", "GPU-y"}
    assert identity_of({"NVIDIA_VISIBLE_DEVICES": "all"}, gpus="", pod="", namespace="").known is False


def owned_of(readings, charged=True):
    return Owned(
        tuple(
            OwnGpu(Gpu(uuid, "nvidia", values=values), None, Sharing.EXCLUSIVE, charged)
            for uuid, values in readings.items()
        )
    )


def joules(*pairs, **values):
    return {uuid: {"energy_joules_total": j, **values} for uuid, j in pairs}


def test_watts_of_both_pods_over_a_minute():
    for pod, watts in H100["pod_watts_t0_t60"].items():
        meter = EnergyMeter()
        identity = Identity(pod=pod.split("/")[1])
        for at, page in ((0, "t0"), (60, "t60")):
            meter.add(
                at * S, own_gpus(dcgm(f"dcgm_h100x8_{page}"), identity), Work(at * 100.0, at * 80.0, True)
            )
        used = meter.usage(60 * S, 60)
        assert used.watts == pytest.approx(watts, rel=1e-6)
        assert (used.tokens, used.good_tokens, used.occupancy) == (6000, 4800, 1.0)
        assert used.estimated is False


def test_watts_of_each_board_and_the_reset_one():
    for uuid, watts in H100["watts_t0_t60"].items():
        meter = EnergyMeter()
        identity = Identity(declared=frozenset({uuid}))
        for at, page in ((0, "t0"), (60, "t60"), (120, "t120_reset")):
            meter.add(at * S, own_gpus(dcgm(f"dcgm_h100x8_{page}"), identity), Work())
            if at == 60:
                assert meter.usage(60 * S, 60).watts == pytest.approx(watts, rel=1e-6)
        after = meter.usage(120 * S, 60)
        want = H100["watts_t60_t120_with_reset"].get(uuid, watts)
        assert after.watts == pytest.approx(want, rel=1e-3)
        assert meter.resets == (uuid in H100["energy_reset_between_60_and_120"])


def test_one_look_is_no_usage():
    meter = EnergyMeter()
    assert meter.usage(0, 60) is None
    meter.add(0, owned_of(joules(("a", 1.0))), Work())
    assert meter.usage(0, 60) is None


def test_a_later_pod_does_not_inherit_the_past():
    meter = EnergyMeter()
    meter.add(0, owned_of(joules(("a", 0.0)), charged=False), Work())
    meter.add(60 * S, owned_of(joules(("a", 60_000.0))), Work())  # ours from here on
    meter.add(120 * S, owned_of(joules(("a", 61_000.0))), Work())
    assert meter.joules == 1000.0
    assert meter.usage(120 * S, 300).joules is None  # the window holds time that was not ours alone
    assert meter.usage(120 * S, 60).joules == 1000.0


def test_a_shared_board_gives_no_joules():
    meter = EnergyMeter()
    for at in (0, 60):
        meter.add(at * S, owned_of(joules(("a", at * 10.0)), charged=False), Work(tokens=at))
    used = meter.usage(60 * S, 60)
    assert (used.joules, used.watts, used.tokens) == (None, None, 60)


def test_a_board_missing_from_a_look_is_not_forgotten():
    meter = EnergyMeter()
    meter.add(0, owned_of(joules(("a", 0.0), ("b", 0.0))), Work())
    meter.add(15 * S, owned_of(joules(("a", 10.0))), Work())
    meter.add(30 * S, owned_of(joules(("a", 20.0), ("b", 30.0))), Work())
    assert meter.joules == 50.0
    assert meter.usage(30 * S, 15).joules is None  # half of it belongs to the time before
    meter.add(45 * S, owned_of(joules(("a", 30.0), ("b", 40.0))), Work())
    assert meter.usage(45 * S, 15).joules == 20.0


def test_repeats_of_the_exporters_interval_add_nothing():
    meter = EnergyMeter()
    for at, value in ((0, 0), (15, 0), (30, 9000), (45, 9000), (60, 18000)):
        meter.add(at * S, owned_of(joules(("a", float(value)), power_watts=300.0)), Work())
    assert meter.usage(60 * S, 60).watts == 300.0
    assert meter.usage(60 * S, 60).estimated is False


def test_a_stuck_counter_falls_back_to_the_power_gauge_and_says_so():
    meter = EnergyMeter()
    for at in range(0, 601, 15):
        meter.add(at * S, owned_of(joules(("a", 5.0), power_watts=300.0)), Work())
    used = meter.usage(600 * S, 300)
    assert used.estimated
    assert used.watts == pytest.approx(300.0)


def test_power_only_boards_are_estimated():
    meter = EnergyMeter()
    for at in (0, 15, 30):
        meter.add(at * S, owned_of({"a": {"power_watts": 100.0}}), Work())
    used = meter.usage(30 * S, 60)
    assert (used.joules, used.estimated) == (3000.0, True)


def test_occupancy_is_the_share_of_time_at_work():
    meter = EnergyMeter()
    for at, busy in ((0, True), (10, True), (20, False), (30, False), (40, None), (50, True)):
        meter.add(at * S, owned_of(joules(("a", at * 1.0))), Work(busy=busy))
    assert meter.usage(50 * S, 100).occupancy == pytest.approx(0.5)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 700), st.floats(0, 1e7)), min_size=2, max_size=30))
def test_charged_energy_never_falls_and_never_exceeds_the_rule(steps):
    meter = EnergyMeter()
    at, before, allowed, last = 0, None, 0.0, 0.0
    for gap, value in steps:
        at += gap
        meter.add(at * S, owned_of(joules(("a", value))), Work())
        if before is not None:
            allowed += value - before if value >= before else value
        before = value
        assert meter.joules >= last
        assert meter.joules <= allowed * (1 + 1e-9) + 1e-9
        last = meter.joules


def test_memory_of_the_account_is_bounded():
    meter = EnergyMeter(window_s=300)
    for at in range(0, 86_400, 15):
        meter.add(at * S, owned_of(joules(("a", at * 2.0))), Work())
    assert len(meter._entries) <= 300 // 15 + 2
    assert meter.usage(86_385 * S, 300).watts == 2.0
