"""DistServe's view: TTFT and TPOT alone, per replica and per GPU, beside our own verdict."""

from __future__ import annotations

import pytest

from sidecar.derive.distserve import kept_rate
from sidecar.derive.live import Live
from sidecar.derive.windows import Counts
from sidecar.publish.exposition import render
from sidecar.publish.metrics import families
from sidecar.publish.status import status
from sidecar.requests.records import Outcome
from sidecar.requests.slo import SloClass, SloPolicy
from tests.support.finished import S, finished

SLO = SloClass(ttft_s=0.5, tpot_s=0.1, max_gap_s=0.3)


def live_with(slo: SloClass = SLO) -> Live:
    live = Live(SloPolicy(default=slo), started_ns=0)
    live.models.serve(frozenset({"demo"}))
    return live


@pytest.mark.parametrize(
    ("how", "ours", "theirs"),
    [
        ({}, 1, 1),
        # One long gap breaks our bound on gaps; their mean over the answer forgives it.
        ({"gaps_s": (0.02,) * 8 + (0.5,)}, 0, 1),
        ({"ttft_s": 0.6}, 0, 0),
        ({"gaps_s": (0.15,) * 9}, 0, 0),
        ({"gaps_s": ()}, 1, 1),  # one token has no TPOT
        ({"outcome": Outcome.ERROR}, 0, 0),
        ({"outcome": Outcome.REJECTED, "ttft_s": None, "status": 429}, 0, 0),
    ],
)
def test_a_request_counts_by_its_two_bounds(how: dict[str, object], ours: int, theirs: int) -> None:
    live = live_with()
    live.add_record(finished(**how), 10 * S, 10.0)  # type: ignore[arg-type]
    (state,) = live.sorted_classes()
    assert (state.totals.good, state.totals.distserve, state.totals.eligible) == (ours, theirs, 1)


def test_the_highest_rate_that_was_kept() -> None:
    def slot(ago_s: float, eligible: int, met: int) -> tuple[float, Counts]:
        return ago_s, Counts(eligible=eligible, distserve=met)

    slots = [
        slot(130.0, 900, 900),  # began before anyone watched
        slot(100.0, 60, 60),  # 2 a second, all of them
        slot(70.0, 120, 110),  # 4 a second, 92 %
        slot(40.0, 300, 200),  # 10 a second, 67 %
        slot(10.0, 90, 90),  # still running
    ]
    assert kept_rate(slots, 30, 0.9, watched_s=120.0) == 4.0
    assert kept_rate(slots, 30, 0.99, watched_s=120.0) == 2.0
    assert kept_rate(slots[3:4], 30, 0.9, watched_s=120.0) is None
    assert kept_rate([], 30, 0.9, watched_s=120.0) is None


def test_per_gpu_only_where_their_number_is_known() -> None:
    live = live_with()
    for _ in range(60):
        live.add_record(finished(end_s=40.0), 40 * S, 40.0)
    text = render(families(live, 65 * S), openmetrics=False).decode()
    assert 'goodput_distserve_requests_total{model="demo",class="default"} 60' in text
    kept = 'goodput_distserve_kept_requests_per_second{model="demo",class="default",share="0.99"'
    assert f'{kept},per="replica"}} 2' in text
    assert 'per="gpu"' not in text
    live.gpus = 4
    assert f'{kept},per="gpu"}} 0.5' in render(families(live, 65 * S), openmetrics=False).decode()
    (shown,) = status(live, 65 * S, 65.0)["classes"]
    assert shown["distserve"]["kept_rps"] == {"0.9": 2.0, "0.99": 2.0}
    assert shown["distserve"]["gpus"] == 4
    assert shown["distserve"]["rps"]["1m"] == pytest.approx(1.0, rel=0.1)


def test_without_both_bounds_there_is_no_such_view() -> None:
    live = live_with(SloClass(e2e_s=9.0))
    live.add_record(finished(), 10 * S, 10.0)
    assert "distserve" not in render(families(live, 65 * S), openmetrics=False).decode()
    assert status(live, 65 * S, 65.0)["classes"][0]["distserve"] is None


def test_a_served_model_has_its_counters_before_its_first_request() -> None:
    live = live_with()
    text = render(families(live, 1 * S), openmetrics=False).decode()
    for line in (
        'goodput_eligible_requests_total{model="demo",class="default"} 0',
        'goodput_good_requests_total{model="demo",class="default"} 0',
        'goodput_badput_requests_total{model="demo",class="default",bucket="queue"} 0',
    ):
        assert text.count(line + "\n") == 1
    assert "goodput_attainment_ratio" not in text
    for _ in range(3):
        live.add_record(finished(ttft_s=5.0), 10 * S, 10.0)
    text = render(families(live, 11 * S), openmetrics=False).decode()
    # A class that never had a good request still has the counter of them, at 0.
    assert text.count('goodput_eligible_requests_total{model="demo",class="default"} 3\n') == 1
    assert text.count('goodput_good_requests_total{model="demo",class="default"} 0\n') == 1
    assert text.count("goodput_eligible_requests_total{") == 1
