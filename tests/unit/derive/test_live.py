"""The live picture: classes, labels, windows over all."""

from __future__ import annotations

import pytest

from sidecar.derive.live import Live
from sidecar.derive.names import OTHER, Bounded, ModelNames
from sidecar.models import names_in
from sidecar.requests.records import ErrorKind, Outcome
from sidecar.requests.slo import SloClass, SloPolicy
from tests.support.finished import S, finished, page, snapshot

FAST = SloClass(name="fast", ttft_s=0.1, tpot_s=0.03)
POLICY = SloPolicy(default=SloClass(ttft_s=0.5, tpot_s=0.05), classes=(FAST,))


def test_good_and_bad_add_up_over_models_and_classes() -> None:
    live = Live(POLICY, 0)
    for i in range(40):
        live.add_record(
            finished(
                end_s=30.0,
                ttft_s=0.05 if i % 4 else 0.9,
                model=f"m{i % 2}",
                request_class="fast" if i % 2 else "",
            ),
            30 * S,
            30.0,
        )
    assert set(live.classes) == {("m0", "default"), ("m1", "fast")}
    whole = live.overall("1m", 30 * S).counts
    assert (whole.eligible, whole.good, whole.badput) == (40, 30, {"prefill": 10})
    assert sum(counts.eligible for _, counts in live.chart(31 * S)) == 40
    assert live.overall("1m", 120 * S).counts.eligible == 0
    assert live.overall("1h", 120 * S).counts.eligible == 40


def test_the_clients_own_fault_is_counted_apart() -> None:
    live = Live(POLICY, 0)
    live.add_record(
        finished(outcome=Outcome.ERROR, error_kind=ErrorKind.CLIENT, status=404, ttft_s=None), 10 * S, 10.0
    )
    counts = live.overall("1m", 10 * S).counts
    assert (counts.eligible, counts.not_eligible, counts.errors) == (0, {"client_fault": 1}, {"client": 1})


def test_bounds_of_every_class_are_edges_of_every_class() -> None:
    live = Live(POLICY, 0)
    live.add_record(finished(), 10 * S, 10.0)
    (state,) = live.classes.values()
    assert {0.5, 0.1} <= set(state.histograms["ttft"].edges_s)
    assert {0.05, 0.03} <= set(state.histograms["tpot"].edges_s)


def test_many_models_and_classes_end_in_one_overflow() -> None:
    live = Live(POLICY, 0, max_models=100)
    for i in range(200):
        live.add_record(finished(model=f"m{i}"), 10 * S, 10.0)
    assert len(live.classes) == 65
    assert live.overall("1m", 10 * S).counts.eligible == 200


def test_served_names_decide_once_they_are_known() -> None:
    live = Live(POLICY, 0)
    live.add_snapshot(snapshot(1, page(model="demo")), S, 1.0)
    live.add_record(finished(model="demo"), 10 * S, 10.0)
    live.add_record(finished(model="made-up", status=404, outcome=Outcome.ERROR), 10 * S, 10.0)
    live.add_record(finished(model=""), 10 * S, 10.0)
    assert {model for model, _ in live.classes} == {"demo", OTHER}
    assert live.classes["demo", "default"].totals.eligible == 2


def test_unknown_names_only_count_when_the_server_answered() -> None:
    names = ModelNames(limit=2)
    assert names.label("typo", answered=False) == OTHER
    assert names.label("a", answered=True) == "a"
    assert names.label("b", answered=True) == "b"
    assert names.label("c", answered=True) == OTHER
    assert names.label("a", answered=False) == "a"


def test_adapters_join_what_is_served_up_to_the_limit() -> None:
    names = ModelNames(limit=3)
    names.serve(frozenset({"base"}))
    names.serve(frozenset({"lora-b", "lora-a", "lora-c"}))
    assert names.served == {"base", "lora-a", "lora-b"}
    assert names.label("lora-c", answered=True) == OTHER


@pytest.mark.parametrize(
    ("body", "models", "adapters"),
    [
        (b'{"data": [{"id": "a", "parent": null}, {"id": "b", "parent": "a"}]}', {"a"}, {"b"}),
        (b'{"data": [{"id": 5}, {}, "x", {"id": ""}]}', set(), set()),
        (b'{"data": 5}', set(), set()),
        (b"[]", set(), set()),
        (b"<html>", set(), set()),
    ],
)
def test_model_lists(body: bytes, models: set[str], adapters: set[str]) -> None:
    assert names_in(body) == (models, adapters)


def test_bounded_values_overflow() -> None:
    bounded = Bounded(2)
    assert [bounded.label(v) for v in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
