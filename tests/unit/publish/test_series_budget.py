"""The page's own budget of series, adapters as labels, and what it says of the scrapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.derive.live import Live
from sidecar.engine.cardinality import count
from sidecar.engine.exposition import Page, parse
from sidecar.engine.scrape import ScrapeStats
from sidecar.publish.budget import FIRST_TO_GO
from sidecar.publish.catalog import BY_NAME
from sidecar.publish.exposition import render
from sidecar.publish.metrics import families
from sidecar.requests.slo import SloPolicy
from tests.support.finished import S, finished, snapshot

BUSY = Path(__file__).parents[2] / "fixtures" / "vllm" / "0.32.0" / "metrics_busy.txt"


def live_of(body: str, models: Iterable[str] = ("demo",)) -> Live:
    live = Live(SloPolicy(), 0)
    live.add_snapshot(snapshot(1, body.encode()), S, 1.0)
    for model in models:
        live.add_record(finished(end_s=2, model=model), 2 * S, 2.0)
    return live


def own_page(live: Live, **more: object) -> Page:
    return parse(render(families(live, 3 * S, **more), openmetrics=False))  # type: ignore[arg-type]


def values(page: Page, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(s.labels.values()): v for s, v in page.samples() if s.name == name}


def fleet(engines: int, models: int) -> str:
    """One real page's lines for many engines and models."""
    lines = [line for line in BUSY.read_text().splitlines() if line.startswith("vllm:")]
    return "".join(
        line.replace('engine="0"', f'engine="{e}"').replace("tiny-llama", f"model-{m}") + "\n"
        for e in range(engines)
        for m in range(models)
        for line in lines
    )


def test_the_page_counts_its_own_series_rightly() -> None:
    page = own_page(live_of(fleet(2, 1)))
    assert values(page, "goodput_series") == {(): len(page)} == {(): count(page).series}
    assert values(page, "goodput_series_budget") == {(): 10_000}
    assert values(page, "goodput_series_left_out") == {}


@pytest.mark.parametrize("budget", [400, 2_000, 3_500])
def test_above_the_budget_engine_histograms_go_first_and_goodput_stays(budget: int) -> None:
    live = live_of(fleet(12, 2))
    whole, page = own_page(live), own_page(live, max_series=budget)
    assert len(page) <= budget < len(whole)
    assert values(page, "goodput_series") == {(): len(page)}
    left_out = values(page, "goodput_series_left_out")
    for (family,), many in left_out.items():
        assert {one.family: one.series for one in count(whole).families}[family] == many
        assert not any(name.startswith(family) for name in page.by_name)
    assert ("goodput_engine_prefill_seconds",) in left_out
    for name in ("goodput_good_requests_total", "goodput_attainment_ratio", "goodput_engine_up"):
        assert values(page, name) == values(whole, name)


def test_what_may_be_left_out_exists() -> None:
    assert set(FIRST_TO_GO) <= set(BY_NAME)


def test_many_engines_and_models_are_bounded_as_pairs_and_nothing_is_lost_from_the_sums() -> None:
    live = live_of(fleet(20, 5))
    page = own_page(live, max_series=10**6)
    tokens = values(page, "goodput_engine_generation_tokens_total")
    assert len(tokens) == 65
    assert tokens["__other__", "__other__"] == 36 * 25634
    assert sum(tokens.values()) == 100 * 25634
    counts = values(page, "goodput_engine_ttft_seconds_count")
    assert len(counts) == 65
    assert sum(counts.values()) == 100 * 454


def lora(running: Iterable[str], waiting: Iterable[str] = ()) -> str:
    return (
        'vllm:num_requests_running{engine="0",model_name="zz-base"} 1\n'
        f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{",".join(running)}",'
        f'waiting_lora_adapters="{",".join(waiting)}"}} 1.76e9\n'
    )


def test_adapters_are_listed_by_state_up_to_the_bound_and_the_base_model_keeps_its_place() -> None:
    few = own_page(live_of(lora(["b", "a"], ["c"])))
    assert values(few, "goodput_engine_lora_adapters") == {
        ("a", "running"): 1,
        ("b", "running"): 1,
        ("c", "waiting"): 1,
    }
    live = live_of(lora(f"adapter-{i}" for i in range(200)), models=["zz-base"])
    for at_s in range(2, 6):  # others on every page
        body = lora(f"x{at_s}-{i}" for i in range(100))
        live.add_snapshot(snapshot(at_s, body.encode()), at_s * S, float(at_s))
    found = values(own_page(live), "goodput_engine_lora_adapters")
    assert found == {("__other__", "running"): 100}
    assert len(live.models.served) == 32
    assert ("zz-base", "default") in values(own_page(live), "goodput_good_requests_total")


def test_an_engine_without_adapters_has_no_such_series() -> None:
    assert "goodput_engine_lora_adapters" not in own_page(live_of(fleet(1, 1))).by_name


def test_the_scrapes_are_told() -> None:
    body = fleet(1, 1) + 'some_new_thing 1\nother_thing{a="b"} 2\nbroken{ 3\n'
    taken = replace(snapshot(1, body.encode()), skipped_lines=1)
    stats = ScrapeStats()
    stats.note(taken)
    live = Live(SloPolicy(), 0)
    live.add_snapshot(taken, S, 1.0)
    page = own_page(live, scrapes=stats)
    for name, value in (
        ("goodput_engine_up", 1),
        ("goodput_engine_scrapes_total", 1),
        ("goodput_engine_scrape_bytes", taken.bytes),
        ("goodput_engine_scrape_lines", taken.lines),
        ("goodput_engine_scrape_duration_seconds", taken.duration_s),
        ("goodput_engine_skipped_lines_total", 1),
        ("goodput_engine_unmapped_families", 2),
        ("goodput_engine_last_scrape_age_seconds", 2),
    ):
        assert values(page, name) == {(): value}, name
