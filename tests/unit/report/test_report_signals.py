from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadgen.report.curve import points
from loadgen.report.html import to_html
from loadgen.report.signals import Signal, rank
from loadgen.results import SweepReport
from tests.support import reports


def ranked(report: SweepReport) -> dict[str, Signal]:
    return {s.name: s for s in rank(points(report))}


def with_engine(make: Any) -> SweepReport:
    base = reports.sweep()
    return replace(base, levels=tuple(replace(x, engine=make(x.load)) for x in base.levels))


def test_what_follows_the_load_leads() -> None:
    found = ranked(reports.sweep())
    assert found["requests in flight"].verdict == "leads"
    assert found["requests in flight"].rises == 1.0
    assert found["engine: running requests"].verdict == "leads"
    assert found["engine: waiting requests"].verdict == "lags"  # it rises, but only far beyond the fall
    assert rank(points(reports.sweep()))[0].verdict == "leads"


def test_a_queue_that_forms_only_at_the_fall_lags() -> None:
    found = ranked(with_engine(lambda load: {"waiting": 50.0 if load >= 20 else 0.0}))
    assert found["engine: waiting requests"].verdict == "lags"
    assert (
        rank(points(with_engine(lambda load: {"waiting": 50.0 if load >= 20 else 0.0})))[-1].verdict == "lags"
    )


def test_a_signal_that_is_full_before_the_fall_is_blunt() -> None:
    assert (
        ranked(with_engine(lambda load: {"kv_usage": min(1.0, load / 4)}))["engine: KV cache use"].verdict
        == "blunt"
    )


def test_a_signal_missing_somewhere_or_always_zero_is_no_candidate() -> None:
    found = ranked(with_engine(lambda load: {"waiting": 0.0} | ({"running": load} if load > 2 else {})))
    assert not {"engine: waiting requests", "engine: running requests"} & found.keys()


def test_without_a_fall_nothing_is_ranked() -> None:
    assert rank(points(reports.not_bracketed())) == []
    assert rank(points(reports.no_peak())) == []
    assert rank([]) == []


def test_the_page_advises_and_says_which_lag() -> None:
    page = to_html(with_engine(lambda load: {"waiting": 50.0 if load >= 20 else 0.0}))
    assert "What an autoscaler should follow" in page
    assert "lags: nothing to see until goodput has fallen" in page
    assert "What an autoscaler should follow" not in to_html(reports.not_bracketed())


def test_signals_kept_as_means_and_increases_are_found() -> None:
    found = ranked(
        with_engine(lambda load: {"running_mean": load, "running_max": 99.0, "queue_mean_s": 0.01 * load})
    )
    assert found["engine: running requests"].verdict == "leads"
    assert found["engine: queue time"].verdict == "leads"
    assert len(found) == 6
