"""Engines behind one server against each other: a slow rank stands out, restarts and idle ranks do not."""

import pytest

from sidecar.derive.engine_spread import EngineSpread
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page

S = 10**9


def page(ranks):
    """``ranks``: engine -> (gaps observed, their sum in seconds)."""
    lines = ["# TYPE vllm:inter_token_latency_seconds histogram\n"]
    for engine, (count, total) in ranks.items():
        labels = f'engine="{engine}",model_name="m"'
        lines += [
            f'vllm:inter_token_latency_seconds_bucket{{{labels},le="0.1"}} {count}\n',
            f'vllm:inter_token_latency_seconds_bucket{{{labels},le="+Inf"}} {count}\n',
            f"vllm:inter_token_latency_seconds_sum{{{labels}}} {total}\n",
            f"vllm:inter_token_latency_seconds_count{{{labels}}} {count}\n",
        ]
    return map_page(parse("".join(lines).encode()))


def spread_of(*pages):
    spread = EngineSpread()
    for at, ranks in enumerate(pages):
        spread.add(at * 15 * S, page(ranks))
    return spread.standings()


def test_a_slow_rank_stands_out():
    idle = dict.fromkeys("0123", (0, 0.0))
    found = spread_of(idle, {"0": (1000, 25.0), "1": (1000, 25.1), "2": (1000, 35.0), "3": (1000, 24.9)})
    assert [engine for engine, one in found["itl"].items() if one.outlier] == ["2"]
    assert found["itl"]["2"].ratio == pytest.approx(35 / 25.05)


def test_only_the_window_counts():
    before = {e: (10_000, 900.0 if e == "0" else 250.0) for e in "012"}
    after = {e: (n + 1000, total + 25.0) for e, (n, total) in before.items()}
    assert not any(one.outlier for one in spread_of(before, after)["itl"].values())


def test_a_rank_that_restarted_is_not_negative():
    before = dict.fromkeys("012", (10000, 250.0))
    after = {"0": (500, 12.5), "1": (11_000, 275.0), "2": (11_000, 275.0)}
    found = spread_of(before, after)["itl"]
    assert found["0"].value == pytest.approx(0.025)
    assert not found["0"].outlier


def test_idle_ranks_and_pairs_are_not_compared():
    idle = dict.fromkeys("012", (0, 0.0))
    assert spread_of(idle, {"0": (1000, 25.0), "1": (1000, 50.0), "2": (3, 9.0)}) == {}
    assert spread_of(idle) == {}


def test_the_same_view_twice_adds_nothing():
    spread = EngineSpread()
    ranks = dict.fromkeys("012", (1000, 25.0))
    spread.add(0, page(dict.fromkeys("012", (0, 0.0))))
    spread.add(15 * S, page(ranks))
    spread.add(15 * S, page(dict.fromkeys("012", (2000, 90.0))))
    assert spread.standings()["itl"]["0"].value == pytest.approx(0.025)


def test_engines_without_bound_are_bounded():
    spread = EngineSpread()
    spread.add(0, page({str(e): (0, 0.0) for e in range(500)}))
    assert len(spread._ranks) <= 128
