"""From badput and evidence to sentences."""

from __future__ import annotations

import pytest

from sidecar.derive.evidence import EngineWatch, Evidence
from sidecar.derive.why import Bounds, Scene, explain, headline
from sidecar.derive.windows import Counts, Slot, summarize
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.requests.slo import Bucket
from tests.support.finished import S, page


def scene(
    badput: dict[str, int],
    evidence: Evidence | None = None,
    *,
    ttft_s: float = 0.9,
    peak: float | None = None,
) -> Scene:
    slot = Slot(
        Counts(
            eligible=100,
            good=100 - sum(badput.values()),
            badput=badput,
            errors={"http": badput.get("error", 0)},
        )
    )
    from sidecar.derive.loghist import LogHistogram

    slot.latencies["ttft"] = LogHistogram()
    slot.latencies["ttft"].add(ttft_s * 1e9, 100)
    return Scene(summarize(slot, "5m", 60.0), evidence or Evidence(), Bounds(ttft_s=0.5, tpot_s=0.05), peak)


@pytest.mark.parametrize("bucket", list(Bucket))
def test_every_bucket_has_its_sentence(bucket: Bucket) -> None:
    (found,) = explain(scene({bucket.value: 25}))
    assert found.share == 0.25
    assert found.what.startswith("25 % of requests")
    assert found.sure in ("high", "medium", "low")
    assert found.sentence.endswith(".")


def test_the_costliest_comes_first_and_leads() -> None:
    scenery = scene({"stall": 5, "queue": 30})
    findings = explain(scenery)
    assert [f.bucket for f in findings] == ["queue", "stall"]
    assert headline(scenery.summary, findings).endswith("most is lost to queue: 30 %.")


def test_a_queue_that_is_seen_makes_sure_and_names_the_peak() -> None:
    (found,) = explain(
        scene({"queue": 30}, Evidence(running_mean=32, waiting_mean=8, waiting_max=12), peak=18)
    )
    assert found.sure == "high"
    assert "8 requests waited" in found.evidence
    assert "at most 18 requests in flight" in found.help


def test_a_full_kv_cache_behind_a_queue_asks_for_space() -> None:
    (found,) = explain(scene({"queue": 30}, Evidence(running_mean=9, waiting_mean=8, kv_usage_max=0.97)))
    assert "97 % full" in found.evidence
    assert found.help.startswith("more KV space")


def test_a_bound_that_an_idle_engine_misses_is_out_of_reach() -> None:
    idle = Evidence(running_mean=0.4, waiting_mean=0, waiting_max=0)
    (found,) = explain(scene({"prefill": 90}, idle))
    assert "no load meets this one" in found.help
    (busy,) = explain(scene({"prefill": 90}, Evidence(running_mean=12, waiting_mean=0, waiting_max=0)))
    assert "no load meets" not in busy.help


def test_nothing_bad_and_nothing_at_all() -> None:
    fine = scene({})
    assert explain(fine) == []
    assert headline(fine.summary, []).startswith("All 100 requests were good")
    empty = summarize(Slot(), "5m", 60.0)
    assert headline(empty, []).startswith("Nothing to judge")


def test_evidence_comes_from_the_window_only() -> None:
    watch = EngineWatch(5.0)
    for at_s, waiting, preemptions in ((0, 50, 0), (400, 2, 7), (405, 4, 9)):
        watch.add(
            at_s * S, map_page(parse(page(running=8, waiting=waiting, kv=0.5, preemptions=preemptions))), at_s
        )
    watch.add(410 * S, None, 410)
    seen = watch.evidence(410 * S)
    assert (seen.scrapes, seen.waiting_mean, seen.waiting_max, seen.kv_usage_max) == (2, 3.0, 4.0, 0.5)
    assert seen.preemptions == 2
    assert watch.evidence(2000 * S) == Evidence()
