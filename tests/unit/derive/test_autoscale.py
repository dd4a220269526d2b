"""The autoscaler's signal: the published cases, and the capacity file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sidecar.derive.autoscale import Capacity, Fleet, fleet, load_capacity, saturation, signal
from sidecar.derive.live import Live
from sidecar.errors import SettingsError
from sidecar.publish.catalog import METRICS
from sidecar.publish.exposition import render
from sidecar.publish.metrics import families
from sidecar.publish.status import status
from sidecar.requests.slo import SloPolicy
from tests.support.finished import S, page, snapshot

CASES = json.loads((Path(__file__).parents[2] / "cases" / "autoscale.json").read_text("utf-8"))["cases"]


def by_kind(*keys: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in CASES if all(key in case["input"] for key in keys)]


@pytest.mark.parametrize("case", by_kind("scrape"))
def test_one_replica(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    live = Live(SloPolicy(), 0, capacity=Capacity(given["peak_load_per_replica"]))
    now_s = 1000.0
    scrape = given["scrape"]
    if scrape["ok"]:
        body = page(running=scrape.get("running"), waiting=scrape.get("waiting"))
        live.add_snapshot(snapshot(now_s, body), round(now_s * S), now_s)
    else:
        seen_s = now_s - given["last_good_age_s"]
        live.add_snapshot(snapshot(seen_s, page(running=3)), round(seen_s * S), seen_s)
        live.add_snapshot(snapshot(now_s, None), round(now_s * S), now_s)
    found = live.autoscale(round(now_s * S), given.get("proxy_in_flight"))
    assert found.saturation == expect["saturation"]
    assert (found.reason == "") == (expect["saturation"] is not None)
    if "attainment" in expect:
        shown = status(live, round(now_s * S), now_s)
        assert shown["overall"]["1m"]["attainment"] is expect["attainment"]
        text = render(families(live, round(now_s * S)), openmetrics=False).decode()
        assert ("nan" in text.lower()) is expect["published_nan"]
        assert "goodput_attainment_ratio" not in text


@pytest.mark.parametrize("case", by_kind("replicas"))
def test_several_replicas(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    found = fleet([one["in_flight"] for one in given["replicas"]], given["peak_load_per_replica"])
    assert list(found.each) == expect["saturation_each"]
    assert found.mean == expect["saturation_mean"]
    assert found.in_flight_sum == expect["in_flight_sum"]
    if "replicas_needed" in expect:
        assert found.replicas_needed == expect["replicas_needed"]


@pytest.mark.parametrize("case", by_kind("published_names"))
def test_published_names(case: dict[str, Any]) -> None:
    for metric in METRICS:
        assert re.fullmatch(case["expect"]["name_regex"], metric.name)


def test_no_replica_reports() -> None:
    assert fleet([None, None], 10) == Fleet((None, None), None, None, None)


def test_proxy_counts_when_the_engine_is_gone_but_never_as_zero() -> None:
    gone: dict[str, Any] = {
        "engine_up": False,
        "engine_age_s": None,
        "running": None,
        "waiting": None,
        "stale_after_s": 15.0,
    }
    assert signal(Capacity(8), proxy_in_flight=4, **gone).saturation == 0.5
    idle = signal(Capacity(8), proxy_in_flight=0, **gone)
    assert idle.saturation is None
    assert "never seen" in idle.reason


def test_frozen_gauges_are_not_believed() -> None:
    live = Live(SloPolicy(), 0, capacity=Capacity(10))
    for at_s in (0, 5, 10, 15, 20, 25):
        live.add_snapshot(snapshot(at_s + 1, page(running=9, tokens=500)), (at_s + 1) * S, at_s)
    assert live.autoscale(26 * S, 0).saturation == 0.0
    assert live.autoscale(26 * S, 2).saturation == 0.9  # something is in flight: no proof that they froze


def test_without_a_capacity_file_the_reason_says_what_to_do() -> None:
    live = Live(SloPolicy(), 0)
    live.add_snapshot(snapshot(1, page(running=2, waiting=1)), S, 1)
    found = live.autoscale(S, 0)
    assert (found.saturation, found.in_flight) == (None, 3.0)
    assert "--capacity" in found.reason


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_a_peak_must_be_a_load(peak: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        saturation(1.0, peak)


def test_reads_what_the_load_generator_writes(tmp_path: Path) -> None:
    from loadgen.target import Wish, capacity_file, plan
    from tests.support.reports import sweep

    report = sweep()
    path = tmp_path / "capacity.json"
    path.write_text(capacity_file(report, plan(report, Wish(rate_rps=10))), "utf-8")
    capacity = load_capacity(path)
    assert capacity.peak_load == report.peak.load
    assert capacity.model == report.model


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"format": 2, "peak_load_per_replica": 3}', "format: must be 1, not 2"),
        ('{"format": 1}', "peak_load_per_replica: is missing"),
        ('{"format": 1, "peak_load_per_replica": 0}', "must be a number above 0, not 0"),
        ('{"format": 1, "peak_load_per_replica": true}', "must be a number above 0, not True"),
        ('{"format": 1, "peak_load_per_replica": NaN}', "must be a number above 0"),
        ('{"levels": [], "peak": {}}', "goodput-loadgen target"),
    ],
)
def test_a_wrong_capacity_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "capacity.json"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError) as error:
        load_capacity(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_a_missing_capacity_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_capacity(tmp_path / "none.json")
