"""Streams that servers should not send and some do: what comes after the end, text cut apart, odd usage."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from typing import Any

import pytest

from sidecar.requests.encoding import inflater_for
from sidecar.requests.records import Api, End, ErrorKind, Outcome, RequestRecord
from sidecar.requests.slo import Bucket, SloClass, judge
from sidecar.requests.sse import SseParser
from sidecar.requests.stream import StreamMeter
from sidecar.requests.text import name_of, shown, sound

MS = 1_000_000
DONE = b"data: [DONE]\n\n"
EVENTS = [("content-type", "text/event-stream")]


def event(*choices: tuple[int, str, str | None], **rest: Any) -> bytes:
    """A chat event of (index, content, finish reason)s."""
    made = [{"index": i, "delta": {"content": text}, "finish_reason": end} for i, text, end in choices]
    return b"data: " + json.dumps({"choices": made, **rest}).encode() + b"\n\n"


def run(
    *pieces: bytes,
    api: Api = Api.CHAT,
    headers: list[tuple[str, str]] = EVENTS,
    end: End = End.EOF,
    **options: Any,
) -> RequestRecord:
    """Pieces a millisecond apart."""
    meter = StreamMeter(api, start_ns=0, **options)
    meter.on_headers(200, headers, 0)
    for count, piece in enumerate(pieces, 1):
        meter.feed(piece, count * MS)
    return meter.finish(end, len(pieces) * MS)


@pytest.mark.parametrize("end", [DONE, b"data: {broken\n\n", b'data: {"error": {"code": 500}}\n\n' + DONE])
def test_what_comes_after_the_end_does_not_count_however_it_is_cut(end: bytes) -> None:
    before = [event((0, "a", None)), event((0, "b", None))]
    rest = event((0, "c", None)) + event((0, "", "stop")) + end + event((0, "d", None)) * 2
    whole = run(*before, rest)
    bytewise = run(*before, *(rest[i : i + 1] for i in range(len(rest))))
    assert whole.output_chunks == bytewise.output_chunks == 3
    assert (whole.outcome, whole.error) == (bytewise.outcome, bytewise.error)


def test_an_error_event_need_not_be_json() -> None:
    record = run(event((0, "a", None)), b"event: error\ndata: worker died\n\n")
    assert (record.outcome, record.error_kind) == (Outcome.ERROR, ErrorKind.STREAM)


def test_usage_beside_several_choices_is_that_of_none_of_them() -> None:
    first = event((0, "a", None), (1, "b", None), usage={"prompt_tokens": 9, "completion_tokens": 2})
    second = event((0, "c", "stop"), (1, "d", "stop"), usage={"prompt_tokens": 9, "completion_tokens": 6})
    record = run(first, second, DONE, choices=2)
    assert record.outcome is Outcome.COMPLETED
    assert record.output_tokens == 6
    assert record.chunk_tokens is None
    assert [(choice.tokens, choice.tokens_estimated) for choice in record.choices] == [(3, True), (3, True)]


def test_prompt_tokens_do_not_shrink_to_what_is_left_out_at_the_end() -> None:
    def sent(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    begun = {"model": "m", "usage": {"input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 1}}
    record = run(
        sent("message_start", message=begun),
        sent("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
        sent(
            "message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": 0, "output_tokens": 7}
        ),
        sent("message_stop"),
        api=Api.MESSAGES,
    )
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (120, 100, 7)


def test_a_character_cut_into_two_deltas_is_whole_in_the_text() -> None:
    halves = [
        b'{"index":0,"delta":{"content":"\\ud83d"}}',
        b'{"index":0,"delta":{"content":"\\ude00 \\ud83d"}}',
    ]
    pieces = [b'data: {"choices":[' + half + b"]}\n\n" for half in halves]
    record = run(*pieces, event((0, "", "stop")), DONE, capture_chars=100)
    assert record.choices[0].text == "\U0001f600 \ufffd"


def test_names_can_be_written_anywhere() -> None:
    body = b'{"model":"\\ud800x","choices":[{"message":{"content":"a"},"finish_reason":"\\udfff"}]}'
    record = run(body, headers=[])
    assert (record.model, record.choices[0].finish_reason) == ("\ufffdx", "\ufffd")
    assert run(body, headers=[], model="\udc80" + "m" * 999).model == "\ufffd" + "m" * 255
    assert (name_of(5), name_of(None), sound("a\ud83d\ude00")) == ("", "", "a\U0001f600")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (10**4000, "a number of very many digits"),
        ("x" * 99, "'" + "x" * 56 + "..."),
        ("a\nb", "'a\\nb'"),
        ([1], "a list"),
        ({}, "an object"),
    ],
)
def test_a_wrong_value_is_shown_on_one_short_line(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_client_that_leaves_before_the_first_byte_waited_for_a_stream() -> None:
    record = run(headers=[], end=End.CLIENT_LEFT, stream=True)
    assert record.streamed
    meter = StreamMeter(Api.CHAT, start_ns=0, stream=True)
    meter.on_headers(200, [], 0)
    waited = meter.finish(End.CLIENT_LEFT, 3_000 * MS)
    assert judge(waited, SloClass(ttft_s=2.0)).bucket is Bucket.ABANDONED
    assert not run(headers=[], end=End.CLIENT_LEFT, stream=False).streamed


@pytest.mark.parametrize("rest", [b"", b"\0" * 600, b"no gzip at all"])
def test_gzip_of_several_members(rest: bytes) -> None:
    parts = [event((0, "a", None)), event((0, "b", None)), event((0, "", "stop")) + DONE]
    body = b"".join(map(gzip.compress, parts)) + rest
    headers = [*EVENTS, ("content-encoding", "gzip")]
    whole = run(body, headers=headers)
    bytewise = run(*(body[i : i + 1] for i in range(len(body))), headers=headers)
    for record in (whole, bytewise):
        assert (record.outcome, record.output_chunks) == (Outcome.COMPLETED, 2)


def test_many_small_gzip_members_cost_no_more_than_their_bytes() -> None:
    def cost_s(count: int) -> float:
        body = gzip.compress(b"") * count
        inflater, _ = inflater_for("gzip")
        assert inflater is not None
        begin = time.process_time()
        assert list(inflater.feed(body)) == []
        return time.process_time() - begin

    # 16 times the members: linear is 16, quadratic 256.
    small = min(cost_s(1_000) for _ in range(3))
    assert cost_s(16_000) < 80 * max(small, 2e-4)


@pytest.mark.parametrize("line", [b"data:\n", b"data\n", b"data: ab\n", b"event: x\n", b"id: 7\n"])
def test_lines_without_end_take_no_memory_without_end(line: bytes) -> None:
    parser = SseParser(100_000)
    tracemalloc.start()
    try:
        for _ in range(200):
            assert parser.feed(line * 1_000) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
    assert [found.oversize for found in parser.feed(b"\ndata: a\n\n")] in ([True, False], [False])
