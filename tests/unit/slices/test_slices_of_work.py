"""Long work leaves the event loop to others, and a page built meanwhile still adds up."""

from __future__ import annotations

import asyncio
import time

from sidecar.derive.live import Live
from sidecar.publish.exposition import render_in_steps
from sidecar.publish.metrics import families_in_steps
from sidecar.publish.status import status_in_steps
from sidecar.requests.slo import SloPolicy
from sidecar.slices import Shared, Steps, at_once, in_slices
from tests.support.finished import S, finished


def work(steps: int, each_s: float) -> Steps[int]:
    for _ in range(steps):
        end_s = time.monotonic() + each_s
        while time.monotonic() < end_s:
            pass
        yield
    return steps


def test_others_have_their_turns_between_slices() -> None:
    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(other())
        assert await in_slices(work(40, 0.001), slice_s=0.002) == 40
        task.cancel()
        return turns

    # 40 ms of work in slices of 2 ms: at least a slice is cut after each second step.
    assert asyncio.run(main()) >= 10
    assert at_once(work(3, 0.0)) == 3


def test_who_asks_meanwhile_shares_the_computation() -> None:
    async def main() -> list[bytes]:
        made = 0
        shared = Shared()

        async def make() -> bytes:
            nonlocal made
            made += 1
            await asyncio.sleep(0.01)
            return b"%d" % made

        left = asyncio.create_task(shared.get(make))
        others = [asyncio.create_task(shared.get(make)) for _ in range(3)]
        await asyncio.sleep(0)
        left.cancel()  # a scraper that gives up does not take it from the others
        found = list(await asyncio.gather(*others))
        return [*found, await shared.get(make)]

    assert asyncio.run(main()) == [b"1", b"1", b"1", b"2"]


def test_requests_that_end_while_a_page_is_built_leave_each_class_adding_up() -> None:
    live = Live(policy=SloPolicy(), started_ns=0, max_models=64)
    names = frozenset(f"m{i}" for i in range(20))
    live.models.serve(names)

    def end_one(name: str) -> None:
        live.add_record(finished(model=name), 2 * S, 2.0)

    for name in sorted(names):
        end_one(name)
    building = families_in_steps(live, 3 * S)
    steps = 0
    try:
        while True:
            next(building)
            steps += 1
            for name in sorted(names):
                end_one(name)
            end_one("m-new")
    except StopIteration as done:
        page = {family.name: family for family in done.value}
    assert steps >= 20
    eligible = dict(page["goodput_eligible_requests_total"].samples)
    good = dict(page["goodput_good_requests_total"].samples)
    bad: dict[object, float] = {}
    for labels, value in page["goodput_badput_requests_total"].samples:
        bad[labels[:2]] = bad.get(labels[:2], 0) + float(value)  # type: ignore[arg-type]
    for labels, value in eligible.items():
        assert value == good[labels] + bad[labels]  # type: ignore[operator]
    # The page and the status are many small steps, not a few long ones.
    assert sum(1 for _ in render_in_steps(page.values(), openmetrics=True)) > 500
    assert sum(1 for _ in status_in_steps(live, 3 * S, 3.0)) > 100
