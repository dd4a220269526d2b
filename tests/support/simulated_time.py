"""Levels measured in simulated time: the simulator's engine under the generator's rules, without sockets."""

from __future__ import annotations

import random
from heapq import heapify, heappop, heappush
from itertools import count

from loadgen.arrivals import arrival_times
from loadgen.plan import ClientHealth, LevelPlan, Measured
from loadgen.simulator.engine import Engine
from loadgen.simulator.profile import Profile
from sidecar.requests.records import Api, ChoiceRecord, Outcome, RequestRecord


def run_level(profile: Profile, plan: LevelPlan, *, seed: int) -> Measured:
    """One level as the Locust processes would bring it back; times count from its start.

    Users start spread over the warm-up's first second; the load goes on until the window's requests have
    ended, as it does in the real generator.
    """
    rng = random.Random(seed)
    engine = Engine(profile)
    window = plan.window_ns
    due: list[tuple[int, int]] = []
    order = count()
    if plan.arrivals.open_loop:
        arrivals = arrival_times(plan.arrivals, plan.load, seed=seed)
        upcoming = round(next(arrivals) * 1e9)
    else:
        spread = min(1.0, plan.warmup_s / 2)
        due = [(round(rng.uniform(0, spread) * 1e9), next(order)) for _ in range(round(plan.load))]
        heapify(due)
    begun: dict[int, tuple[int, int, int]] = {}  # id -> (start, prompt, output)
    first: dict[int, int] = {}
    records: list[RequestRecord] = []
    pending = 0
    now = 0
    limit = window[1] + round(plan.drain_limit_s * 1e9)

    def submit(at_ns: int) -> None:
        nonlocal pending
        prompt = rng.randint(profile.workload.prompt_tokens.low, profile.workload.prompt_tokens.high)
        output = rng.randint(profile.workload.output_tokens.low, profile.workload.output_tokens.high)
        one = engine.submit(prompt_tokens=prompt, output_tokens=output, now_ns=at_ns)
        begun[one] = (at_ns, prompt, output)
        pending += window[0] <= at_ns < window[1]

    while now < limit and (now < window[1] or pending):
        while plan.arrivals.open_loop and upcoming <= now:
            submit(upcoming)
            upcoming = round(next(arrivals) * 1e9)
        while due and due[0][0] <= now:
            submit(heappop(due)[0])
        step = engine.begin_step(now)
        if step is None:
            now = upcoming if plan.arrivals.open_loop else due[0][0]
            continue
        now += step.duration_ns
        for emission in engine.end_step(now):
            one = emission.sequence_id
            first.setdefault(one, now)
            if emission.finish_reason is None:
                continue
            start, prompt, output = begun.pop(one)
            records.append(_record(start, first.pop(one), now, prompt, output, plan.arrivals.open_loop))
            pending -= window[0] <= start < window[1]
            if not plan.arrivals.open_loop:
                heappush(due, (now, next(order)))
    for start, _, _ in begun.values():
        records.append(_unfinished(start, now, plan.arrivals.open_loop))
    return Measured(tuple(records), "", (now - window[1]) / 1e9, ClientHealth(0.1, 0.0, "kernel"))


def _record(start: int, first: int, end: int, prompt: int, output: int, open_loop: bool) -> RequestRecord:
    return RequestRecord(
        api=Api.CHAT,
        model="simulated",
        streamed=True,
        start_ns=start,
        end_ns=end,
        outcome=Outcome.COMPLETED,
        status=200,
        first_ns=first,
        last_ns=end,
        output_chunks=output,
        output_tokens=output,
        prompt_tokens=prompt,
        choices=(ChoiceRecord(0, output, first, end, output, False, "length"),),
        scheduled_ns=start if open_loop else None,
        sent_ns=start,
    )


def _unfinished(start: int, end: int, open_loop: bool) -> RequestRecord:
    return RequestRecord(
        api=Api.CHAT,
        model="simulated",
        streamed=True,
        start_ns=start,
        end_ns=end,
        outcome=Outcome.CLIENT_LEFT,
        scheduled_ns=start if open_loop else None,
        sent_ns=start,
    )
