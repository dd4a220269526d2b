"""Exact goodput against the bounds of the engine's histograms."""

from __future__ import annotations

import pytest

from sidecar.derive.selfcheck import SelfCheck, attainment_bounds
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.engine.series import History
from sidecar.requests.slo import SloClass
from tests.support.finished import S

SLO = SloClass(ttft_s=0.5)


def engine(count: int, within: int) -> bytes:
    where = 'engine="0",model_name="demo"'
    return (
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        f'vllm:time_to_first_token_seconds_bucket{{{where},le="0.5"}} {within}\n'
        f'vllm:time_to_first_token_seconds_bucket{{{where},le="+Inf"}} {count}\n'
        f"vllm:time_to_first_token_seconds_sum{{{where}}} {count}\n"
        f"vllm:time_to_first_token_seconds_count{{{where}}} {count}\n"
        "# TYPE vllm:request_success_total counter\n"
        f'vllm:request_success_total{{{where},finished_reason="stop"}} {count}\n'
    ).encode()


@pytest.mark.parametrize(("good", "inside", "outside"), [(80, 1, 0), (30, 0, 1)])
def test_once_a_minute_the_counts_are_held_against_each_other(good: int, inside: int, outside: int) -> None:
    check, history = SelfCheck(), History(5.0)
    for step in range(13):
        at_s, share = step * 5, step / 12
        history.add(at_s * S, map_page(parse(engine(round(100 * share), round(80 * share)))), at_s)
        check.at_scrape(
            at_s * S, history, SLO, good=round(good * share), finished=round(100 * share), in_flight=0
        )
    assert (check.outcomes.inside, check.outcomes.outside) == (inside, outside)
    found = attainment_bounds(history, SLO, 60 * S)
    assert found is not None
    assert found.share_low == found.share_high == 0.8


def test_several_classes_cannot_be_compared() -> None:
    check, history = SelfCheck(), History(5.0)
    for at_s in (0, 60):
        check.at_scrape(at_s * S, history, None, good=at_s, finished=at_s, in_flight=0)
    assert (check.outcomes.not_comparable, check.outcomes.outside) == (1, 0)
