"""What the engine's counters say about one request, and waiting for them where they decide."""

from __future__ import annotations

from sidecar.derive.attribution import Attribution
from sidecar.derive.judging import Judging
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.requests.slo import Bucket, SloClass
from tests.support.finished import S, finished, page

SLO = SloClass(ttft_s=0.5, tpot_s=0.05, max_gap_s=1.0, stall_s=0.5)


def scrapes(*pages: tuple[float, bytes]) -> Attribution:
    found = Attribution()
    for at_s, body in pages:
        found.add(round(at_s * S), map_page(parse(body)))
    return found


def test_a_rise_between_the_scrapes_around_a_request_counts() -> None:
    record = finished(end_s=10.0)
    around = scrapes((9, page(preemptions=3)), (11, page(preemptions=4)))
    assert around.attribute(record).preemptions_rose
    before = scrapes((8, page(preemptions=3)), (9, page(preemptions=4)), (11, page(preemptions=4)))
    assert not before.attribute(record).preemptions_rose
    after = scrapes((9, page(preemptions=4)), (11, page(preemptions=4)), (12, page(preemptions=9)))
    assert not after.attribute(record).preemptions_rose


def test_a_restart_is_no_preemption_but_what_follows_it_is() -> None:
    record = finished(end_s=10.0)
    restarted = scrapes((9, page(preemptions=50)), (11, page(preemptions=0)))
    assert not restarted.attribute(record).preemptions_rose
    assert scrapes((9, page(preemptions=50)), (11, page(preemptions=2))).attribute(record).preemptions_rose


def test_waiting_share_of_the_engine_gives_the_queue_part() -> None:
    record = finished(end_s=10.0, ttft_s=1.0)
    found = scrapes(
        (8, page(queue_s=(5.0, 10), prefill_s=(5.0, 10))), (11, page(queue_s=(11.0, 20), prefill_s=(7.0, 20)))
    ).attribute(record)
    assert found.queue_ns == 750_000_000  # 6 of 8 seconds


def test_without_the_histogram_an_empty_queue_means_no_waiting() -> None:
    record = finished(end_s=10.0, ttft_s=1.0)
    assert scrapes((8, page(waiting=0)), (11, page(waiting=0))).attribute(record).queue_ns == 0
    assert scrapes((8, page(waiting=0)), (11, page(waiting=2))).attribute(record).queue_ns is None
    assert scrapes((8, page(waiting=None)), (11, page(waiting=None))).attribute(record).queue_ns is None


def test_one_scrape_tells_nothing() -> None:
    record = finished(end_s=10.0)
    assert scrapes((11, page(preemptions=9))).attribute(record) == record
    assert Attribution().attribute(record) == record


def test_a_page_on_its_way_while_the_request_ended_does_not_tell() -> None:
    # Made before the request was counted, perhaps: on a slow machine a page takes long.
    record = finished(end_s=10.0, ttft_s=1.0)
    found = scrapes((8, page(queue_s=(5.0, 10), prefill_s=(5.0, 10))))
    on_its_way = map_page(parse(page(queue_s=(5.0, 10), prefill_s=(7.0, 12))))
    found.add(round(10.4 * S), on_its_way, duration_s=0.5)
    assert not found.covers(record)
    after = map_page(parse(page(queue_s=(13.0, 20), prefill_s=(7.0, 20))))
    found.add(12 * S, after, duration_s=0.5)
    assert found.covers(record)
    assert found.attribute(record).queue_ns == 800_000_000  # 8 of 10 seconds, not 0 of 2


def test_good_requests_are_judged_at_once() -> None:
    judging = Judging(lambda _: SLO, scrapes((9, page())))
    judged = judging.take(finished(), 10 * S)
    assert judged is not None
    assert judged[2].good


def test_a_stall_waits_for_the_scrape_that_tells_its_cause() -> None:
    for preemptions, bucket in ((0, Bucket.STALL), (1, Bucket.PREEMPTION)):
        attribution = scrapes((8, page()))
        judging = Judging(lambda _: SLO, attribution)
        assert judging.take(finished(gaps_s=(0.02, 2.0, 0.02)), 10 * S) is None
        assert judging.settle(11 * S) == []
        attribution.add(11 * S, map_page(parse(page(preemptions=preemptions))))
        ((_, _, verdict),) = judging.settle(11 * S)
        assert verdict.bucket is bucket
        assert judging.held == 0


def test_a_late_first_token_waits_and_gives_up_waiting() -> None:
    judging = Judging(lambda _: SLO, scrapes((8, page())))
    assert judging.take(finished(ttft_s=0.9), 10 * S) is None
    assert judging.held == 1
    ((_, _, verdict),) = judging.settle(13 * S)  # no scrape came: what is known decides
    assert verdict.bucket is Bucket.PREFILL


def test_without_any_scrape_nothing_is_held() -> None:
    judging = Judging(lambda _: SLO, Attribution())
    judged = judging.take(finished(gaps_s=(0.02, 2.0)), 10 * S)
    assert judged is not None
    assert judged[2].bucket is Bucket.STALL
