"""Counters over time: the shared cases, the seed's reset series, and windows over mapped pages."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.engine.series import History, increase, increase_of
from tests.support.engine_cases import cases, close

SEED = json.loads((Path(__file__).parents[2] / "fixtures" / "seed" / "counters.json").read_text())
FIXTURES = Path(__file__).parents[2] / "fixtures" / "vllm"
S = 1_000_000_000


@pytest.mark.parametrize("case", cases("counter"))
def test_case(case):
    got = increase_of([(scrape["t"], scrape["series"]) for scrape in case["input"]["scrapes"]])
    assert close(got.value, case["expect"]["increase"])
    assert close(got.rate, case["expect"]["rate"])
    assert got.resets == case["expect"]["resets"]


@pytest.mark.parametrize("case", cases("counter"))
def test_case_through_the_history_of_pages(case):
    history = History(interval_s=1000, window_s=10_000)
    for scrape in case["input"]["scrapes"]:
        series = scrape["series"]
        at_ns = int(scrape["t"] * S) + 1
        history.add(at_ns, None if series is None else view_of(series))
    now_ns = int(case["input"]["scrapes"][-1]["t"] * S) + 1
    got = history.increase("generation_tokens", now_ns)
    if case["expect"]["increase"] is None:
        assert got is None
    else:
        assert close(got.value, case["expect"]["increase"])
        assert close(got.rate, case["expect"]["rate"])
        assert got.resets == case["expect"]["resets"]
        assert got.hidden_restart_possible


def test_the_seeds_reset_series():
    samples = [tuple(sample) for sample in SEED["reset_series"]["tokens"]]
    expect = SEED["reset_series"]["expect"]
    naive = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
    assert naive == pytest.approx(expect["naive_last_minus_first_tokens_per_s"], rel=1e-9)
    assert round(naive / 1e6, 1) == -7.3
    got = increase(samples)
    assert got.value == pytest.approx(expect["token_increase"], rel=1e-9)
    assert got.rate == pytest.approx(expect["tokens_per_s"], rel=1e-9)
    assert round(got.rate) == 2426
    assert got.resets == 1


def test_the_seeds_reset_series_through_pages():
    history = History(interval_s=15, window_s=600)
    for t, value in SEED["reset_series"]["tokens"]:
        history.add(int(t * S) + 1, view_of({"0": value}))
    assert round(history.rate("generation_tokens", 600 * S + 1)) == 2426


@pytest.mark.parametrize("vector", SEED["rate_vectors"], ids=lambda v: v["name"])
def test_rate_vectors(vector):
    got = increase([tuple(sample) for sample in vector["samples"]])
    assert close(got.value, vector["expect_increase"])
    if "expect_rate" in vector:
        assert close(got.rate, vector["expect_rate"])


def view_of(tokens: dict, *, start_s: float | None = None, created_s: float | None = None, more: str = ""):
    lines = [f'vllm:generation_tokens_total{{engine="{k}",model_name="m"}} {v}' for k, v in tokens.items()]
    if created_s is not None:
        lines += [
            f'vllm:generation_tokens_created{{engine="{k}",model_name="m"}} {created_s}' for k in tokens
        ]
    if start_s is not None:
        lines.append(f"process_start_time_seconds {start_s}")
    return map_page(parse(("\n".join(lines) + "\n" + more).encode()), "0.32.0")


def ttft(*buckets, engine: str = "0") -> str:
    return "".join(
        f'vllm:time_to_first_token_seconds_bucket{{engine="{engine}",le="{le}"}} {n}\n' for le, n in buckets
    )


def test_a_restart_that_the_values_hide_is_seen_by_the_start_time():
    hidden, seen = History(5), History(5)
    for at, value, start in ((1, 100, 1000.0), (2, 500, 2000.0)):
        hidden.add(at * S, view_of({"0": value}))
        seen.add(at * S, view_of({"0": value}, start_s=start))
    assert hidden.increase("generation_tokens", 2 * S).value == 400
    assert hidden.increase("generation_tokens", 2 * S).hidden_restart_possible
    got = seen.increase("generation_tokens", 2 * S)
    assert (got.value, got.resets, got.hidden_restart_possible) == (500, 1, False)
    assert (hidden.restarts, seen.restarts) == (0, 1)


def test_a_restart_that_the_values_hide_is_seen_by_created():
    history = History(5)
    history.add(1 * S, view_of({"0": 100}, created_s=1000.0))
    history.add(2 * S, view_of({"0": 500}, created_s=2000.0))
    assert history.increase("generation_tokens", 2 * S).value == 500


def test_a_start_time_that_moves_with_the_clock_is_no_restart():
    history = History(5)
    history.add(1 * S, view_of({"0": 100}, start_s=1000.0))
    history.add(2 * S, view_of({"0": 500}, start_s=1001.0))
    assert history.increase("generation_tokens", 2 * S).value == 400


def test_a_series_first_seen_gives_no_increase_unless_it_surely_began_since():
    lazy, born = History(5), History(5)
    lazy.add(1 * S, view_of({"0": 100}))
    lazy.add(2 * S, view_of({"0": 110, "1": 70}))
    assert lazy.increase("generation_tokens", 2 * S).value == 10
    born.add(1 * S, view_of({"0": 100}, created_s=1000.0), wall_s=2000.0)
    page = view_of(
        {"0": 110},
        created_s=1000.0,
        more=(
            'vllm:generation_tokens_total{engine="1",model_name="m"} 70\n'
            'vllm:generation_tokens_created{engine="1",model_name="m"} 2001\n'
        ),
    )
    born.add(2 * S, page, wall_s=2005.0)
    assert born.increase("generation_tokens", 2 * S).value == 80
    assert {k: v.value for k, v in born.increase_by("generation_tokens", "engine", 2 * S).items()} == {
        "0": 10,
        "1": 70,
    }


def test_what_is_older_than_two_intervals_is_absent_not_zero():
    history = History(interval_s=5)
    history.add(1 * S, view_of({"0": 1}, more='vllm:num_requests_running{engine="0"} 3\n'))
    history.add(6 * S, view_of({"0": 2}, more='vllm:num_requests_running{engine="0"} 4\n'))
    assert history.gauge("running", 16 * S).total == 4
    assert history.gauge("running", 16 * S + 1) is None
    assert history.rate("generation_tokens", 16 * S + 1) is None
    assert history.gauge("waiting", 6 * S) is None


def test_a_signal_that_left_the_page_is_absent():
    history = History(interval_s=5)
    history.add(1 * S, view_of({"0": 1}, more=ttft(("+Inf", 4))))
    history.add(2 * S, view_of({"0": 2}, more=ttft(("+Inf", 6))))
    assert history.histogram("ttft", 2 * S).count == 2
    history.add(3 * S, view_of({}, more="x 1\n"))
    assert history.rate("generation_tokens", 3 * S) is None
    assert history.histogram("ttft", 3 * S) is None


def test_a_window_holds_only_its_scrapes():
    history = History(interval_s=10, window_s=60)
    for i in range(20):
        history.add(i * 10 * S + 1, view_of({"0": i * i}))
    now_ns = 190 * S + 1
    assert history.increase("generation_tokens", now_ns, 30).value == 19**2 - 16**2
    assert history.increase("generation_tokens", now_ns, 30).elapsed_s == 30
    assert history.increase("generation_tokens", now_ns).elapsed_s == 60
    assert len(history._entries) <= 8


def test_histograms_are_windowed_and_reset_aware_by_series():
    history = History(interval_s=5)
    history.add(
        1 * S, view_of({}, more=ttft(("0.1", 10), ("+Inf", 20)) + ttft(("0.1", 1), ("+Inf", 1), engine="1"))
    )
    history.add(
        2 * S, view_of({}, more=ttft(("0.1", 2), ("+Inf", 3)) + ttft(("0.1", 4), ("+Inf", 8), engine="1"))
    )
    got = history.histogram("ttft", 2 * S)
    assert got.cumulative == (2 + 3, 3 + 7)


def test_buckets_that_changed_with_a_release_do_not_mix():
    history = History(interval_s=5)
    history.add(1 * S, view_of({}, more=ttft(("0.1", 10), ("10.0", 20), ("+Inf", 20))))
    history.add(2 * S, view_of({}, more=ttft(("0.1", 13), ("10.0", 26), ("+Inf", 26))))
    history.add(3 * S, view_of({}, more=ttft(("0.1", 5), ("2560.0", 9), ("+Inf", 9))))
    got = history.histogram("ttft", 3 * S)
    assert (got.edges, got.cumulative) == ((0.1, 2560.0, math.inf), (5, 9, 9))


def test_gauges_that_stand_still_without_tokens_are_suspect():
    history = History(interval_s=5)
    stuck = 'vllm:num_requests_running{engine="0"} 7\nvllm:kv_cache_usage_perc{engine="0"} 0.99\n'
    for i, tokens in enumerate((5, 9, 9, 9)):
        history.add((1 + 5 * i) * S, view_of({"0": tokens}, more=stuck))
    assert history.frozen_s(16 * S) == 10.0
    history.add(21 * S, view_of({"0": 11}, more=stuck))
    assert history.frozen_s(21 * S) == 0.0
    idle = History(interval_s=5)
    idle.add(1 * S, view_of({"0": 1}, more='vllm:num_requests_running{engine="0"} 0\n'))
    idle.add(6 * S, view_of({"0": 1}, more='vllm:num_requests_running{engine="0"} 0\n'))
    assert idle.frozen_s(6 * S) == 0.0


def test_the_recorded_restart():
    history = History(interval_s=15)
    for at, name in ((1, "metrics_idle"), (16, "metrics_busy"), (31, "metrics_after_restart")):
        history.add(at * S, map_page(parse((FIXTURES / "0.32.0" / f"{name}.txt").read_bytes()), "0.32.0"))
    after = history.latest
    got = history.increase("generation_tokens", 31 * S)
    assert got.value == 25634 + after.total("generation_tokens")
    assert got.resets == 1
    assert history.restarts == 1
    assert history.histogram("e2e", 31 * S).count == 410 + after.histogram("e2e").count


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=4))
def test_whatever_the_restarts_no_increase_is_lost_that_a_scrape_has_seen(lives):
    # Each life of the process counts from 0 by the given steps and is scraped after every step.
    samples, t = [(0.0, 0.0)], 0.0
    for life in lives:
        value = 0
        for step in life:
            value, t = value + step, t + 1.0
            samples.append((t, float(value)))
    got = increase(samples)
    truth = sum(sum(life) for life in lives)
    assert 0 <= got.value <= truth
    if got.resets == len(lives) - 1:  # every restart showed as a decrease
        assert got.value == truth


_scrape = st.one_of(st.none(), st.dictionaries(st.sampled_from("012"), st.integers(0, 40), max_size=3))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_scrape, min_size=1, max_size=8),
    st.dictionaries(st.sampled_from("012"), st.integers(0, 40), min_size=1),
)
def test_the_history_of_pages_agrees_with_the_plain_rule(scrapes, last):
    # Engines come and go, fall and rise, and whole scrapes fail: the running sums must give the same.
    scrapes = [*scrapes, last]
    history = History(interval_s=1000, window_s=10_000)
    for at_s, series in enumerate(scrapes, 1):
        history.add(at_s * S, None if series is None else view_of(series, more="x 1\n"))
    plain = increase_of(list(enumerate(scrapes, 1)))
    got = history.increase("generation_tokens", len(scrapes) * S)
    if plain.value is None:
        assert got is None
    else:
        assert (got.value, got.resets, got.elapsed_s) == (plain.value, plain.resets, plain.elapsed_s)
        by_engine = history.increase_by("generation_tokens", "engine", len(scrapes) * S)
        assert sum(one.value for one in by_engine.values()) == plain.value
