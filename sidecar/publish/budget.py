"""The budget of series on the sidecar's own page, whatever the engine sends. Pure.

Labels are bounded one by one where they are made. Their product is bounded here: a page above the budget
loses whole families, the most easily missed first, and says so. Goodput itself is never left out.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from sidecar.publish.exposition import Buckets, Family

SERIES, BUDGET, LEFT_OUT = "goodput_series", "goodput_series_budget", "goodput_series_left_out"

DEFAULT_MAX_SERIES = 10_000

# The engine publishes these itself, so a Prometheus can have them all the same.
FIRST_TO_GO = (
    "goodput_engine_prefill_seconds",
    "goodput_engine_queue_seconds",
    "goodput_engine_itl_seconds",
    "goodput_engine_e2e_seconds",
    "goodput_engine_tpot_seconds",
    "goodput_engine_ttft_seconds",
    "goodput_engine_lora_adapters",
    "goodput_engine_finished_requests_total",
    "goodput_engine_prefix_queries_total",
    "goodput_engine_prefix_hits_total",
    "goodput_engine_prompt_tokens_total",
    "goodput_engine_generation_tokens_total",
    "goodput_itl_seconds",
    "goodput_tpot_seconds",
    "goodput_e2e_seconds",
    "goodput_ttft_seconds",
)


def series_of(families: Iterable[Family]) -> int:
    """Time series of these families on a text page."""
    return sum(
        len(value.edges) + 2 + (value.sum is not None) if isinstance(value, Buckets) else 1
        for family in families
        for _, value in family.samples
    )


def keep_within(page: MutableMapping[str, Family], budget: int) -> None:
    """Leave families out until the page fits; then add what it holds, the budget, and what is missing."""
    total = series_of(page.values()) + 2
    for name in FIRST_TO_GO:
        many = series_of([page[name]]) if total > budget and name in page else 0
        if many:
            page[name].samples = []
            page[LEFT_OUT].add(many, family=name)
            total -= many - 1
    page[SERIES].add(total)
    page[BUDGET].add(budget)
