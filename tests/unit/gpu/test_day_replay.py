"""A day of DCGM pages through a fake clock: energy, cost, the hot GPU, one Xid, bounded memory."""

import pytest

from sidecar.derive.economics import Prices
from sidecar.derive.gpu_now import slow, straggler_text
from sidecar.engine.exposition import Parser
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.energy import Work
from sidecar.gpu.ownership import Identity
from sidecar.gpu.settings import GpuSettings
from sidecar.gpu.watch import GpuState
from sidecar.publish.gpu import economics_now
from tests.support.gpu_replay import NAMESPACE, POD, GpuDay, uuid

S = 10**9
EVERY_S = 30
MIDNIGHT_S = 1_800_000_000 - 1_800_000_000 % 86400  # Unix time of a midnight, UTC


def replay(until_s, from_s=0, kernel_log=False):
    day = GpuDay()
    settings = GpuSettings(
        dcgm_url="http://127.0.0.1:9400",
        interval_s=EVERY_S,
        identity=Identity(pod=POD, namespace=NAMESPACE),
        prices=Prices(usd_per_gpu_hour=2.5, host_w=400.0, pue=1.3),
    )
    state = GpuState(settings, lambda: Work(day.tokens, day.good_tokens, True))
    state.kernel_log_watched = kernel_log
    parser, events = Parser(), []
    for at_s in range(from_s, until_s + 1, EVERY_S):
        reading = read_dcgm(parser.parse(day.page(at_s)))
        events += state.take("dcgm", reading, at_s * S, MIDNIGHT_S + at_s)
    return day, state, events


@pytest.fixture(scope="module")
def whole_day():
    return replay(86_400)


def test_energy_of_the_pod_over_a_reload_and_without_the_other_tenant(whole_day):
    day, state, _ = whole_day
    # The reload loses nothing here: the counter restarts at the page's own increase.
    assert state.energy.joules == pytest.approx(day.true_joules, rel=1e-6)
    assert state.energy.resets == 4
    assert len(state.owned.gpus) == 4
    assert uuid(4) not in {own.gpu.uuid for own in state.owned.gpus}


def test_cost_and_tokens_per_joule_of_the_last_hour(whole_day):
    day, state, _ = whole_day
    found = economics_now(state, 86_400 * S, 3600)
    watts = sum(day.watts(i, 86_400 - 1800) for i in range(4))
    assert found.board_w == pytest.approx(watts, rel=0.02)
    assert found.facility_w == pytest.approx((found.board_w + 400) * 1.3)
    assert found.good_tokens_per_joule == pytest.approx(0.8 * found.tokens_per_joule)
    assert found.usd_per_million == pytest.approx(4 * 2.5 / (found.tokens_per_s * 3600) * 1e6)
    assert found.usd_per_million_good == pytest.approx(found.usd_per_million / 0.8)


def test_the_hot_gpu_is_named_with_its_time_and_reason(whole_day):
    _, state, _ = whole_day
    worst = slow(state.stragglers)
    assert straggler_text(worst) == "GPU 2 runs at 71 % of its peers' clock since 12:00 UTC, reason: thermal"
    assert state.throttle(uuid(2))["thermal"] == pytest.approx(1.0)
    assert state.throttle(uuid(1))["thermal"] == 0.0


def test_before_noon_nobody_stands_out():
    _, state, _ = replay(12 * 3600 - EVERY_S, from_s=11 * 3600)
    assert state.stragglers == []


def test_a_sticky_xid_is_one_event(whole_day):
    _, state, events = whole_day
    assert [(e.code, e.uuid, e.source) for e in events] == [(31, uuid(1), "dcgm")]
    assert state.incidents.xids == {31: 1}


def test_an_old_xid_at_the_start_is_no_event():
    _, state, events = replay(21 * 3600 + 600, from_s=21 * 3600)
    assert events == []
    assert state.incidents.xids == {}


def test_the_kernel_log_comes_first():
    _, _, events = replay(20 * 3600 + 600, from_s=19 * 3600, kernel_log=True)
    assert events == []


def test_memory_is_bounded(whole_day):
    _, state, _ = whole_day
    assert len(state.energy._entries) <= 3600 // EVERY_S + 2
    assert all(len(kept) <= 120 // EVERY_S + 2 for kept in state._history.values())
    assert len(state._history) == 4


def test_stale_sources_show_nothing(whole_day):
    _, state, _ = whole_day
    assert len(state.gpus(86_400 * S)) == 4
    assert state.gpus((86_400 + 4 * EVERY_S) * S) == []
