from __future__ import annotations

import asyncio
import json
import time

import pytest

from sidecar.proxy.observe import Gate, Started, Watch
from sidecar.requests.records import Api, End, Outcome, RequestRecord

BODY = json.dumps({"model": "demo", "stream": True, "messages": []}).encode()
HEADERS = [("content-type", "text/event-stream")]


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: %s\n\n" % json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode()


def watch_on(gate: Gate, capture: int = 1000) -> Watch:
    return Watch(
        gate,
        Api.CHAT,
        target="/v1/chat/completions",
        request_class="gold",
        request_id="r-1",
        trace=None,
        capture=capture,
    )


async def play(watch: Watch, chunks: int) -> None:
    """A whole request; every other chunk is noted in the transfer coding, as the hot path does."""
    watch.note_request_bytes(BODY)
    watch.note_request_end(1_000)
    watch.note_head(200, HEADERS, 2_000)
    for number in range(chunks):
        data = event("t", "stop" if number == chunks - 1 else None)
        at = 10_000 * (number + 1)
        if number % 2:
            watch.notes += [b"%x\r\n%s\r\n" % (len(data), data), -at]
            if len(watch.notes) >= watch.enough:
                watch.later()
        else:
            watch.note_chunk(data, at)
        await asyncio.sleep(0)
    watch.note_chunk(b"data: [DONE]\n\n", 10_000 * chunks)
    watch.note_end(End.EOF, 10_000 * chunks + 1)
    await asyncio.sleep(0)


async def test_batches_lose_no_chunk_and_no_time() -> None:
    records: list[RequestRecord] = []
    gate = Gate(records.append)
    await play(watch_on(gate), 101)
    (record,) = records
    assert record.outcome is Outcome.COMPLETED
    assert (record.output_chunks, record.first_ns, record.last_ns) == (101, 10_000, 1_010_000)
    assert set(record.gaps_ns) == {10_000}
    assert (record.model, record.request_id, record.request_class) == ("demo", "r-1", "gold")
    assert record.path == "/v1/chat/completions"
    assert gate.dropped == {}


async def test_what_is_held_stays_small() -> None:
    gate = Gate(lambda record: None)
    watch = watch_on(gate)
    watch.note_request_end(0)
    watch.note_head(200, HEADERS, 1)
    longest = 0
    for number in range(2_000):
        watch.note_chunk(event("t"), number)
        longest = max(longest, len(watch.notes))
        await asyncio.sleep(0)
    assert longest <= 2 * 24


async def test_work_is_done_in_slices_and_all_of_it() -> None:
    records: list[RequestRecord] = []
    gate = Gate(lambda record: (time.sleep(0.001), records.append(record))[1])
    watches = [watch_on(gate) for _ in range(30)]
    for watch in watches:
        watch.note_request_end(0)
        watch.note_head(500, [], 1)
        watch.note_end(End.EOF, 2)
    await asyncio.sleep(0)
    assert 1 <= len(records) < 30  # others had their turn in between
    gate.behind = True
    await asyncio.sleep(0)
    assert len(records) == 30
    assert not gate.busy


async def test_only_the_beginning_of_a_request_is_kept() -> None:
    started: list[Started] = []
    gate = Gate(lambda record: None, started.append)
    watch = watch_on(gate, capture=10)
    for _ in range(5):
        watch.note_request_bytes(b"abcd")
    watch.note_request_end(5)
    await asyncio.sleep(0)
    assert started[0].body == b"abcdabcdab"
    assert started[0].start_ns == 5


async def test_the_first_failure_ends_the_observation_and_is_counted_once() -> None:
    records: list[RequestRecord] = []

    def broken(record: RequestRecord) -> None:
        raise RuntimeError("no")

    gate = Gate(broken)
    watch = watch_on(gate)
    await play(watch, 3)
    watch.note_chunk(b"x", 1)
    watch.note_end(End.EOF, 2)
    gate.run()
    assert gate.dropped == {"on_record": 1}
    assert records == []


async def test_a_client_that_leaves_before_the_request_is_complete() -> None:
    records: list[RequestRecord] = []
    watch = watch_on(Gate(records.append))
    watch.note_request_bytes(BODY[:9])
    watch.note_end(End.CLIENT_LEFT, 7)
    await asyncio.sleep(0)
    assert [(r.outcome, r.start_ns, r.end_ns) for r in records] == [(Outcome.CLIENT_LEFT, 7, 7)]


async def test_overload_sheds_and_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**12
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    records: list[RequestRecord] = []

    def slow(record: RequestRecord) -> None:
        nonlocal now
        now += 3 * 10**9
        records.append(record)

    gate = Gate(slow)
    await play(watch_on(gate), 1)
    assert not gate.open()
    await play(watch_on(gate), 1)
    assert gate.dropped == {"overload": 1}
    now += 11 * 10**9
    assert gate.open()
    await play(watch_on(gate), 1)
    assert len(records) == 2


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("piece", [7, 1_000, 200_000])
async def test_facts_of_a_body_that_is_too_large_to_keep(after: bool, piece: int) -> None:
    rest = {"model": "demo", "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    prompt = {"messages": [{"role": "user", "content": 'say "hi", ' * 8_000}]}
    body = json.dumps(prompt | rest if after else rest | prompt).encode()
    started: list[Started] = []
    gate = Gate(lambda record: None, started.append)
    watch = watch_on(gate, capture=50_000 if piece > 7 else len(body) - 20)
    for at in range(0, len(body), piece):
        watch.note_request_bytes(body[at : at + piece])
    watch.note_request_end(1_000)
    await asyncio.sleep(0)
    (one,) = started
    facts = one.facts
    assert (facts.model, facts.choices, facts.stream, facts.include_usage) == ("demo", 3, True, True)
    assert len(one.body) <= 100_000


async def test_a_body_is_let_go_while_the_engine_works() -> None:
    gate = Gate(lambda record: None)
    watch = watch_on(gate, capture=1 << 20)
    watch.note_request_bytes(BODY + b" " * 500_000)
    watch.note_request_end(1_000)
    await asyncio.sleep(0)
    kept = [getattr(watch, name) for name in watch.__slots__]
    assert max(len(value) for value in kept if isinstance(value, (bytes, bytearray))) == 0
