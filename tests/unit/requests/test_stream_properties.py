"""What holds of the meter for any stream: no cut matters, no garbage raises, cost and memory are bounded."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.requests.records import Api, End, ErrorKind, Outcome, RequestRecord
from sidecar.requests.stream import StreamMeter
from sidecar.requests.tracks import MAX_TIMES, SPILL
from tests.support.streams import Made, chat_streams, cut

EVENTS = [("content-type", "text/event-stream")]
GENERATING = (Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES)


def measure(
    pieces: Iterable[bytes],
    *,
    api: Api = Api.CHAT,
    headers: list[tuple[str, str]] = EVENTS,
    end: End = End.EOF,
    capture: int = 1 << 20,
) -> RequestRecord:
    meter = StreamMeter(api, start_ns=0, capture_chars=capture)
    meter.on_headers(200, headers, 10)
    for piece in pieces:
        meter.feed(piece, 1_000)
    return meter.finish(end, 2_000)


def by_event(body: bytes) -> list[bytes]:
    """One read for each event, as most servers send them."""
    parts = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
    return [part + b"\n\n" for part in parts[:-1]]


@settings(max_examples=40, deadline=None)
@given(st.data(), chat_streams())
def test_every_cut_gives_the_identical_record(data: st.DataObject, made: Made) -> None:
    whole = measure([made.body])
    assert measure(data.draw(cut(made.body))) == whole
    assert measure(by_event(made.body)) == whole


@pytest.mark.parametrize("lead", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b" \r\n\n", b"\n\xef\xbb\xbf "])
def test_what_stands_before_the_first_event_may_be_cut_too(lead: bytes) -> None:
    body = lead + chunk("a")
    for place in range(len(lead) + 1):
        record = measure([body[:place], body[place:]])
        assert record == measure([body])
        assert record.output_chunks == 1


@settings(max_examples=40, deadline=None)
@given(chat_streams())
def test_the_record_is_the_truth_of_the_stream(made: Made) -> None:
    record = measure(by_event(made.body))
    assert record.output_chunks == made.chunks
    assert {c.index: c.text for c in record.choices if c.text} == made.text
    assert {c.index: c.finish_reason for c in record.choices} == made.finishes
    assert record.outcome is (Outcome.COMPLETED if made.done else Outcome.ERROR)
    assert record.error_kind is (None if made.done else ErrorKind.INCOMPLETE)
    if made.tokens is not None:
        assert (record.output_tokens, record.tokens_estimated) == (made.tokens, False)
    else:
        assert (record.output_tokens, record.tokens_estimated) == (made.chunks, True)
    assert sum(c.tokens or 0 for c in record.choices) == record.output_tokens


@settings(max_examples=30, deadline=None)
@given(st.data(), chat_streams(), st.integers(0, 1 << 16), st.integers(0, 255))
def test_a_damaged_stream_gives_the_same_record_however_cut(
    data: st.DataObject, made: Made, place: int, byte: int
) -> None:
    body = bytearray(made.body)
    body[place % len(body)] = byte
    damaged = bytes(body)
    whole = measure([damaged])
    assert measure(data.draw(cut(damaged))) == whole
    assert whole.outcome is Outcome.COMPLETED or whole.error


@settings(max_examples=20, deadline=None)
@given(st.data(), chat_streams(), st.sampled_from(("gzip", "deflate", "raw deflate")))
def test_a_compressed_stream_gives_the_record_of_the_plain_one(
    data: st.DataObject, made: Made, form: str
) -> None:
    packed = {
        "gzip": gzip.compress(made.body, mtime=0),
        "deflate": zlib.compress(made.body),
        "raw deflate": zlib.compressobj(wbits=-15).compress(b""),
    }[form]
    if form == "raw deflate":
        raw = zlib.compressobj(wbits=-15)
        packed = raw.compress(made.body) + raw.flush()
    headers = [*EVENTS, ("Content-Encoding", form.split()[-1])]
    assert measure(data.draw(cut(packed)), headers=headers) == measure([made.body])


GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from((b"data: ", b"data:", b"{", b"}", b"[", b'"', b"\n", b"\r", b"null", b"1e999", b":"))
    ).map(b"".join),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ("choices", "delta", "index", "usage", "content", "type", "response", "message")
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(lambda value: f"data: {json.dumps(value)}\n\n".encode()),
)


@settings(max_examples=100, deadline=None)
@example([b"data: " + b"[" * 100_000 + b"\n\n"], Api.CHAT, "", End.EOF)
@example([b'data: {"choices":[{"index":1' + b"0" * 5_000 + b"}]}\n\n"], Api.CHAT, "", End.EOF)
@given(
    st.lists(GARBAGE, max_size=5),
    st.sampled_from(GENERATING),
    st.sampled_from(("", "gzip", "deflate", "br", "identity")),
    st.sampled_from(End),
)
def test_garbage_never_raises_and_leaves_a_reason(
    pieces: list[bytes], api: Api, encoding: str, end: End
) -> None:
    record = measure(pieces, api=api, headers=[*EVENTS, ("content-encoding", encoding)], end=end)
    assert record.outcome in (Outcome.ERROR, Outcome.CLIENT_LEFT) or not record.error
    if record.outcome is Outcome.ERROR:
        assert record.error
        assert record.error_kind is not None
    assert record.end_ns == 2_000
    assert all(gap >= 0 for gap in record.gaps_ns)


@pytest.mark.parametrize(
    "body",
    [
        b"data: {not json}\n\n",
        b"data: 17\n\n",
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [3]}\n\n',
        b'data: {"choices": [{"index": "x"}]}\n\n',
        b'data: {"choices": [{"index": -1}]}\n\n',
        b'data: {"choices": [{"index": 99999999}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": []}]}\n\n',
        b"\x00\x01\x02 nothing that looks like events\n\n",
        b"<html><body>Bad gateway</body></html>",
    ],
)
def test_garbage_is_malformed_with_a_reason_in_our_words(body: bytes) -> None:
    record = measure([body])
    assert (record.outcome, record.error_kind) == (Outcome.ERROR, ErrorKind.MALFORMED)
    assert record.error
    assert "gateway" not in record.error


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-5_000, 5_000), min_size=1, max_size=30))
def test_a_clock_that_jumps_gives_no_negative_time(times: list[int]) -> None:
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(200, EVENTS, times[0])
    for i, at_ns in enumerate(times):
        choice = {0: b"0", 1: b"1"}[i % 2]
        meter.feed(b'data: {"choices":[{"index":' + choice + b',"delta":{"content":"a"}}]}\n\n', at_ns)
    record = meter.finish(End.RESET, min(times))
    assert record.output_chunks == len(times)
    assert record.ttft_ns is not None
    assert record.last_ns is not None
    assert 0 <= record.ttft_ns <= record.last_ns <= record.e2e_ns
    assert all(gap >= 0 for gap in (*record.gaps_ns, *record.stream_gaps_ns))


def chunk(text: str) -> bytes:
    choice = '{"index":0,"delta":{"content":"' + text + '"},"logprobs":null,"finish_reason":null}'
    return ('data: {"id":"chatcmpl-1","model":"demo","choices":[' + choice + "]}\n\n").encode()


def cost_s(body: bytes, step: int) -> float:
    """The least CPU time of three to feed a body in pieces."""
    best = float("inf")
    for _ in range(3):
        begin = time.thread_time()
        measure((body[i : i + step] for i in range(0, len(body), step)), capture=0)
        best = min(best, time.thread_time() - begin)
    return best


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    "kind",
    ["events in one line", "one endless line", "many data lines", "blank lines", "escapes", "open json"],
)
def test_cost_is_linear_in_the_bytes(kind: str, step: int) -> None:
    def body(size: int) -> bytes:
        made = {
            "events in one line": chunk("a") * (size // 90),
            "one endless line": b"data: " + b"x" * size,
            "many data lines": b"data: x\n" * (size // 8),
            "blank lines": b"\n" * size,
            "escapes": chunk("a") + chunk("\\\\" * (size // 2)),
            "open json": b'data: {"a":' * (size // 11),
        }
        return made[kind]

    small, large = (2_000, 32_000) if step == 1 else (60_000, 960_000)
    # 16 times the bytes: linear is 16, quadratic 256. Between them there is room for a slow machine.
    assert cost_s(body(large), step) < 80 * max(cost_s(body(small), step), 2e-4)


@pytest.mark.parametrize("start", [b"data: ", b": ", b"event: ", b'{"a": "', b"data: {}\ndata: "])
def test_memory_of_a_body_that_never_ends_is_bounded(start: bytes) -> None:
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(200, [], 0)
    piece = b"x" * 65_536
    meter.feed(start, 1)
    tracemalloc.start()
    try:
        for _ in range(400):  # 26 MB
            meter.feed(piece, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 7_000_000
    assert meter.finish(End.RESET, 3).outcome is not Outcome.REJECTED


def test_an_event_too_large_is_passed_over_and_the_stream_goes_on() -> None:
    large = b"data: " + b"x" * 3_000_000 + b"\n\n"
    record = measure([chunk("a"), large[:1_000_000], large[1_000_000:], chunk("b")], end=End.RESET)
    assert record.output_chunks == 2
    assert any("too large" in warning for warning in record.warnings)


def test_text_is_kept_only_when_asked_and_to_its_limit() -> None:
    pieces = [chunk("abc")] * 10
    assert measure(pieces, capture=0).choices[0].text is None
    assert measure(pieces, capture=7).choices[0].text == "abcabca"


def test_a_stream_of_more_chunks_than_are_kept() -> None:
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(200, EVENTS, 0)
    event = chunk("a")
    at_ns = 0
    count = MAX_TIMES + 3_000
    for i in range(count):
        at_ns += 1_000 if i != count - 1_000 else 5_000_000
        meter.feed(event, at_ns)
    record = meter.finish(End.RESET, at_ns)
    assert record.output_chunks == meter.output_chunks == count
    assert len(record.gaps_ns) <= MAX_TIMES
    assert record.max_gap_ns == 5_000_000
    assert record.last_ns == at_ns
    assert any(warning.startswith("gaps:") for warning in record.warnings)


def test_many_choices_share_the_room_of_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.requests.tracks.MAX_TIMES", 4 * SPILL)
    events = [chunk("a").replace(b'"index":0', b'"index":%d' % i) for i in range(3)]
    record = measure(events * 4_000, end=End.RESET)
    assert record.output_chunks == 12_000
    # The shared room, what each choice has not moved there yet, and the longest gap of the rest.
    assert len(record.gaps_ns) <= 4 * SPILL + 3 * SPILL + 3
    assert any(warning.startswith("gaps:") for warning in record.warnings)


def test_a_choice_nobody_asked_for_is_malformed() -> None:
    event = chunk("a").replace(b'"index":0', b'"index":300')
    assert measure([event], end=End.RESET).error_kind is ErrorKind.MALFORMED
    meter = StreamMeter(Api.CHAT, start_ns=0, choices=301)
    meter.on_headers(200, EVENTS, 0)
    meter.feed(event, 1)
    assert meter.finish(End.RESET, 2).error_kind is ErrorKind.RESET
