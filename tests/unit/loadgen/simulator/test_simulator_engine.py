"""The engine: what must hold whatever is asked of it, and vLLM's scheduling rules one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.engine import Emission, Engine
from loadgen.simulator.model import step_cost
from loadgen.simulator.profile import Profile, Span, Workload, find_profile

BASE = replace(find_profile("fast"), workload=Workload(Span(1, 1), Span(1, 1)))


def profile(*, block_size: int = 4, kv_blocks: int = 16, max_batch: int = 4, budget: int = 16) -> Profile:
    return replace(
        BASE,
        block_size=block_size,
        kv_blocks=kv_blocks,
        max_batch=max_batch,
        max_batched_tokens=budget,
        max_model_len=block_size * kv_blocks,
    )


def submit(engine: Engine, prompt: int, output: int, now_ns: int = 0) -> int:
    return engine.submit(prompt_tokens=prompt, output_tokens=output, now_ns=now_ns)


def advance(engine: Engine, now_ns: int) -> tuple[int, list[Emission]]:
    step = engine.begin_step(now_ns)
    assert step is not None
    return now_ns + step.duration_ns, engine.end_step(now_ns + step.duration_ns)


def check_books(engine: Engine) -> None:
    profile = engine.profile
    held = sum(s.blocks for s in engine.running)
    assert held + engine.free_blocks == profile.kv_blocks
    assert all(s.blocks == 0 and s.computed == 0 for s in engine.waiting)
    assert all(s.blocks * profile.block_size >= s.computed + s.scheduled for s in engine.running)
    assert 0 <= engine.free_blocks <= profile.kv_blocks
    assert 0.0 <= engine.kv_usage <= 1.0
    assert len(engine.running) <= profile.max_batch
    assert engine.unfinished == len(engine.running) + len(engine.waiting)


Op = tuple[str, int, int, int]
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 50), st.integers(1, 14), st.integers(0, 4)),
        st.tuples(st.just("step"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("abort_in_step"), st.integers(0, 30), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ops=OPS, block_size=st.integers(1, 5), batch=st.integers(1, 5), budget=st.integers(1, 40))
def test_whatever_comes_the_books_balance_and_each_request_ends_once(
    ops: list[Op], block_size: int, batch: int, budget: int
) -> None:
    engine = Engine(
        profile(block_size=block_size, kv_blocks=-(-64 // block_size), max_batch=batch, budget=budget)
    )
    now_ns, wanted, seen, ended, aborted = 0, {}, {}, {}, set()

    def step(abort: int | None = None) -> None:
        nonlocal now_ns
        begun = engine.begin_step(now_ns)
        check_books(engine)
        if begun is None:
            wake_ns = engine.next_wake_ns()
            assert (wake_ns is not None and wake_ns > now_ns) or engine.unfinished == 0
            now_ns = wake_ns or now_ns
            return
        assert 1 <= begun.tokens <= budget
        assert begun.sequences <= batch
        if abort is not None:
            leave(abort)
            check_books(engine)
        now_ns += begun.duration_ns
        for emission in engine.end_step(now_ns):
            seen[emission.sequence_id] += 1
            assert emission.number == seen[emission.sequence_id]
            assert emission.sequence_id not in aborted
            assert emission.sequence_id not in ended
            if emission.finish_reason is not None:
                ended[emission.sequence_id] = emission.number
        check_books(engine)

    def leave(which: int) -> None:
        if wanted:
            sequence_id = sorted(wanted)[which % len(wanted)]
            engine.abort([sequence_id])
            if sequence_id not in ended:
                aborted.add(sequence_id)

    for kind, a, b, c in ops:
        if kind == "submit":
            sequence_id = engine.submit(
                prompt_tokens=a, output_tokens=b, now_ns=now_ns, stall_after=c, stall_ns=5_000_000 if c else 0
            )
            wanted[sequence_id], seen[sequence_id] = (a, b), 0
        elif kind == "step":
            step()
        elif kind == "abort":
            leave(a)
        else:
            step(abort=a)
        check_books(engine)
    for _ in range(20_000):
        if not engine.unfinished:
            break
        step()
    assert engine.unfinished == 0
    assert engine.free_blocks == engine.profile.kv_blocks
    assert set(ended) | aborted == set(wanted)
    assert not set(ended) & aborted
    assert all(tokens == wanted[sequence_id][1] for sequence_id, tokens in ended.items())
    stats = engine.stats
    assert stats.generation_tokens == sum(seen.values())
    assert stats.prompt_tokens == sum(wanted[s][0] for s, tokens in seen.items() if tokens)
    assert stats.success["length"] == len(ended)
    assert stats.success["abort"] == len(aborted)
    assert stats.ttft.count == sum(1 for tokens in seen.values() if tokens)
    assert stats.ttft.count + stats.itl.count == stats.generation_tokens
    assert stats.e2e.count == stats.tpot.count == len(ended)
    assert stats.iteration_tokens.total == stats.prompt_tokens + stats.generation_tokens
    assert stats.iteration_tokens.count == stats.steps


def test_a_step_lasts_what_the_roofline_says() -> None:
    engine = Engine(profile(budget=64, kv_blocks=64))
    submit(engine, 10, 3)
    submit(engine, 7, 3)
    step = engine.begin_step(0)
    assert step is not None
    assert (step.tokens, step.sequences) == (17, 2)
    expected = step_cost(engine.profile, tokens=17, kv_tokens=17, sequences=2).step_s
    assert step.duration_ns == round(expected * 1e9)
    engine.end_step(step.duration_ns)
    step = engine.begin_step(step.duration_ns)
    assert step is not None
    expected = step_cost(engine.profile, tokens=2, kv_tokens=19, sequences=2).step_s
    assert step.duration_ns == round(expected * 1e9)


def test_a_long_prompt_is_chunked_and_decoding_goes_on_meanwhile() -> None:
    engine = Engine(profile(budget=10, kv_blocks=32))
    first = submit(engine, 4, 8)
    now, emissions = advance(engine, 0)
    long = submit(engine, 25, 2, now)
    emitted = []
    while long not in (e.sequence_id for e in emissions):
        now, emissions = advance(engine, now)
        emitted.append([e.sequence_id for e in emissions])
    # 9 tokens of prompt a step beside the one that decodes: 9 + 9 + 7.
    assert emitted == [[first], [first], [first, long]]


def test_the_batch_limit_makes_the_rest_wait_in_order() -> None:
    engine = Engine(profile(max_batch=2))
    ids = [submit(engine, 2, n) for n in (3, 1, 1, 1)]
    now, emissions = advance(engine, 0)
    assert [e.sequence_id for e in emissions] == ids[:2]
    assert [s.id for s in engine.waiting] == ids[2:]
    now, emissions = advance(engine, now)
    assert [e.sequence_id for e in emissions] == [ids[0], ids[2]]


def test_a_full_cache_preempts_the_youngest_which_computes_again() -> None:
    engine = Engine(profile(block_size=4, kv_blocks=4, budget=64))
    old, young = submit(engine, 7, 8), submit(engine, 7, 4)
    now, emissions = advance(engine, 0)
    assert [e.number for e in emissions] == [1, 1]
    assert engine.kv_usage == 1.0
    now, emissions = advance(engine, now)  # the eighth token of each still fits its two blocks
    assert [e.sequence_id for e in emissions] == [old, young]
    now, emissions = advance(engine, now)
    assert [e.sequence_id for e in emissions] == [old]
    assert [s.id for s in engine.waiting] == [young]
    assert engine.stats.preemptions == 1
    finished = {}
    while engine.unfinished:
        now, emissions = advance(engine, now)
        finished |= {e.sequence_id: e.number for e in emissions if e.finish_reason}
    assert finished == {old: 8, young: 4}
    assert engine.stats.request_preemptions.total == engine.stats.preemptions
    assert engine.stats.prompt_tokens == 14  # once each, however often computed


def test_nobody_joins_in_a_step_that_preempted() -> None:
    engine = Engine(profile(block_size=4, kv_blocks=4, budget=64))
    old, young = submit(engine, 8, 8), submit(engine, 8, 8)
    now, _ = advance(engine, 0)
    small = submit(engine, 1, 1, now)
    now, emissions = advance(engine, now)
    assert [e.sequence_id for e in emissions] == [old]
    assert [s.id for s in engine.waiting] == [young, small]


def test_a_client_that_leaves_gives_back_its_blocks_at_once() -> None:
    engine = Engine(profile(max_batch=1))
    running, waiting = submit(engine, 9, 5), submit(engine, 60, 1)
    advance(engine, 0)
    assert engine.free_blocks == 16 - 3
    engine.abort([running, waiting, waiting, 99])
    assert (engine.free_blocks, engine.unfinished, engine.kv_usage) == (16, 0, 0.0)
    assert engine.begin_step(0) is None
    assert engine.stats.success["abort"] == 2


def test_an_injected_stall_holds_one_sequence_and_no_other() -> None:
    engine = Engine(profile(budget=64))
    stalled = engine.submit(prompt_tokens=2, output_tokens=4, now_ns=0, stall_after=2, stall_ns=10**9)
    other = submit(engine, 2, 4)
    now, times = 0, {stalled: [], other: []}
    while engine.unfinished:
        if (step := engine.begin_step(now)) is None:
            wake = engine.next_wake_ns()
            assert wake is not None
            now = wake
            continue
        now += step.duration_ns
        for emission in engine.end_step(now):
            times[emission.sequence_id].append(now)
    assert times[stalled][2] - times[stalled][1] >= 10**9
    assert times[other][-1] < times[stalled][2]
    assert engine.stats.itl.counts[-1] == 0
    assert engine.stats.itl.total * 1e9 == pytest.approx(
        times[stalled][-1] - times[stalled][0] + times[other][-1] - times[other][0]
    )


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (60, 5)])
def test_what_can_never_run_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError):
        submit(Engine(profile()), prompt, output)


def test_a_step_must_end_before_the_next() -> None:
    engine = Engine(profile())
    submit(engine, 1, 1)
    engine.begin_step(0)
    with pytest.raises(RuntimeError, match="has not ended"):
        engine.begin_step(0)
