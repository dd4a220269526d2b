"""The meter, point by point: what is output, what usage means, how streams end."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from sidecar.requests.records import Api, End, ErrorKind, Outcome, RequestRecord
from sidecar.requests.stream import StreamMeter

EVENTS = [("Content-Type", "text/event-stream")]
MS = 1_000_000


def sse(*events: Any, end: str = "\n") -> bytes:
    return b"".join(
        ("data: " + (event if isinstance(event, str) else json.dumps(event)) + end + end).encode()
        for event in events
    )


def delta(fields: dict[str, Any], finish: str | None = None, index: int = 0, **rest: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish}], **rest}


def run(
    *pieces: bytes,
    api: Api = Api.CHAT,
    status: int = 200,
    headers: list[tuple[str, str]] = EVENTS,
    end: End = End.EOF,
    **options: Any,
) -> RequestRecord:
    """Pieces a millisecond apart."""
    meter = StreamMeter(api, start_ns=0, **options)
    meter.on_headers(status, headers, 0)
    at_ns = 0
    for piece in pieces:
        at_ns += MS
        meter.feed(piece, at_ns)
    return meter.finish(end, at_ns)


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"content": "a"}, 1),
        ({"content": ""}, 0),
        ({"content": None}, 0),
        ({"role": "assistant"}, 0),
        ({"content": [{"type": "text", "text": "a"}]}, 1),
        ({"reasoning": "a"}, 1),
        ({"reasoning_content": "a"}, 1),
        ({"reasoning": "", "reasoning_content": ""}, 0),
        ({"refusal": "no"}, 1),
        ({"tool_calls": []}, 0),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, 0),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, 1),
        ({"tool_calls": [{"index": 0, "custom": {"input": "x"}}]}, 1),
        ({"function_call": {"arguments": "{"}}, 1),
        ({"function_call": {}}, 0),
        ({"audio": {"id": "a"}}, 0),
        ({"audio": {"data": "UklG"}}, 1),
        ({"audio": {"transcript": "hi"}}, 1),
        ({}, 0),
        (None, 0),
    ],
)
def test_what_counts_as_output_in_a_chat_delta(fields: Any, output: int) -> None:
    assert run(sse(delta(fields))).output_chunks == output


@pytest.mark.parametrize(
    ("event", "output"),
    [
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, 0),
        ({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f", "input": {}}}, 1),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, 1),
        ({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a"}}, 1),
        ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}, 1),
        ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}, 0),
        ({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}}, 0),
        ({"type": "ping"}, 0),
        ({"type": "something_new", "text": "a"}, 0),
    ],
)
def test_what_counts_as_output_in_a_messages_event(event: dict[str, Any], output: int) -> None:
    assert run(sse(event), api=Api.MESSAGES).output_chunks == output


@pytest.mark.parametrize(
    ("event", "output"),
    [
        ({"type": "response.output_text.delta", "delta": "a"}, 1),
        ({"type": "response.output_text.delta", "delta": ""}, 0),
        ({"type": "response.reasoning_text.delta", "delta": "a"}, 1),
        ({"type": "response.function_call_arguments.delta", "delta": "{"}, 1),
        ({"type": "response.refusal.delta", "delta": "no"}, 1),
        ({"type": "response.output_text.done", "text": "a"}, 0),
        ({"type": "response.output_item.added", "item": {"type": "message"}}, 0),
        ({"type": "something.delta", "delta": "a"}, 0),
    ],
)
def test_what_counts_as_output_in_a_responses_event(event: dict[str, Any], output: int) -> None:
    assert run(sse(event), api=Api.RESPONSES).output_chunks == output


def test_the_first_answer_is_not_the_first_thought() -> None:
    record = run(sse(delta({"reasoning": "hm"})), sse(delta({"content": "a"})))
    assert (record.first_ns, record.first_answer_ns) == (MS, 2 * MS)


def test_tokens_of_several_choices_are_shared_out_by_chunks() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 10}}
    pieces = [sse(delta({"content": "a"}, index=i)) for i in (0, 1, 1)]
    record = run(*pieces, sse(usage), choices=2)
    assert [(c.tokens, c.tokens_estimated) for c in record.choices] == [(3, True), (7, True)]
    assert (record.output_tokens, record.tokens_estimated) == (10, False)


def test_continuous_usage_of_several_choices_is_exact() -> None:
    def told(index: int, tokens: int) -> bytes:
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": tokens + 3}
        return sse(delta({"content": "a"}, index=index, usage=usage))

    total = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}}
    pieces = [told(0, 1), told(1, 4), told(0, 3), told(1, 6)]
    for record in (run(*pieces, sse(total), choices=2), run(*pieces, choices=2)):
        assert [(c.tokens, c.tokens_estimated) for c in record.choices] == [(3, False), (6, False)]
        assert record.chunk_tokens == (1, 4, 2, 2)
        assert record.output_tokens == 9
        assert record.token_gaps_ns == ((2 * MS / 2, 2), (2 * MS / 2, 2))


def test_the_worst_choice_is_the_requests_tpot() -> None:
    def at(index: int) -> bytes:
        return sse(delta({"content": "a"}, index=index))

    record = run(at(0), at(0), at(1), at(0), at(0), at(1), choices=2)
    assert [choice.tpot_ns for choice in record.choices] == [pytest.approx(4 / 3 * MS), 3 * MS]
    assert record.tpot_ns == 3 * MS
    assert record.gaps_ns == (MS, 2 * MS, MS, 3 * MS)
    assert record.stream_gaps_ns == (MS,) * 5


def test_details_of_usage_are_kept() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 2, "accepted_prediction_tokens": 3},
    }
    record = run(sse(delta({"content": "a"}), {"choices": [], "usage": usage}))
    assert (record.cached_tokens, record.reasoning_tokens, record.accepted_tokens) == (64, 2, 3)


def test_prompt_tokens_of_the_messages_form_include_the_cached_ones() -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 5,
        "output_tokens": 1,
    }
    record = run(sse({"type": "message_start", "message": {"usage": usage}}), api=Api.MESSAGES)
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (79, 64, 0)
    assert record.tokens_estimated  # the start's output_tokens is no count of the answer


@pytest.mark.parametrize("wrong", [-1, True, "5", 1.5, None, 10**30])
def test_a_count_that_is_none_is_unknown(wrong: Any) -> None:
    event = {"choices": [], "usage": {"prompt_tokens": wrong, "completion_tokens": wrong}}
    record = run(sse(delta({"content": "a"}), event))
    assert record.prompt_tokens is None
    assert (record.output_tokens, record.tokens_estimated) == (1, True)


DONE = "[DONE]"
ONE = delta({"content": "a"})


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "content_filter", "repetition"])
def test_finish_reasons_that_complete(finish: str) -> None:
    record = run(sse(ONE, delta({}, finish), DONE))
    assert record.outcome is Outcome.COMPLETED
    assert record.choices[0].finish_reason == finish


@pytest.mark.parametrize(
    ("events", "end", "outcome", "kind"),
    [
        ([ONE, delta({}, "error"), DONE], End.EOF, Outcome.ERROR, ErrorKind.STREAM),
        ([ONE, delta({}, "abort"), DONE], End.EOF, Outcome.ERROR, ErrorKind.STREAM),
        ([ONE, DONE], End.EOF, Outcome.ERROR, ErrorKind.INCOMPLETE),
        ([ONE, delta({}, "stop")], End.EOF, Outcome.ERROR, ErrorKind.INCOMPLETE),
        ([ONE, {"error": {"message": "x"}}], End.EOF, Outcome.ERROR, ErrorKind.STREAM),
        ([ONE, {"object": "error", "message": "x"}, DONE], End.EOF, Outcome.ERROR, ErrorKind.STREAM),
        ([ONE, {"error": None, **delta({}, "stop")}, DONE], End.EOF, Outcome.COMPLETED, None),
        ([ONE], End.RESET, Outcome.ERROR, ErrorKind.RESET),
        ([ONE], End.TIMEOUT, Outcome.ERROR, ErrorKind.TIMEOUT),
        ([ONE], End.CLIENT_LEFT, Outcome.CLIENT_LEFT, None),
        ([ONE, delta({}, "stop"), DONE], End.CLIENT_LEFT, Outcome.COMPLETED, None),
        ([ONE, delta({}, "stop"), DONE], End.RESET, Outcome.COMPLETED, None),
        ([ONE, delta({}, "stop"), DONE, "after the end"], End.EOF, Outcome.COMPLETED, None),
        ([], End.EOF, Outcome.ERROR, ErrorKind.INCOMPLETE),
        ([], End.CLIENT_LEFT, Outcome.CLIENT_LEFT, None),
    ],
)
def test_how_a_stream_ends(events: list[Any], end: End, outcome: Outcome, kind: ErrorKind | None) -> None:
    record = run(sse(*events), end=end)
    assert (record.outcome, record.error_kind) == (outcome, kind)
    assert bool(record.error) is (outcome is Outcome.ERROR)


def test_the_last_event_may_lack_its_line_ends() -> None:
    assert run(sse(ONE, delta({}, "stop")) + b"data: [DONE]").outcome is Outcome.COMPLETED


def test_a_finish_reason_is_needed_of_every_choice_asked_for() -> None:
    assert run(sse(ONE, delta({}, "stop"), DONE), choices=2).error == "1 of 2 choices came"


@pytest.mark.parametrize(
    ("status", "outcome", "kind"),
    [
        (400, Outcome.ERROR, ErrorKind.CLIENT),
        (404, Outcome.ERROR, ErrorKind.CLIENT),
        (408, Outcome.ERROR, ErrorKind.HTTP),
        (429, Outcome.REJECTED, None),
        (500, Outcome.ERROR, ErrorKind.HTTP),
        (503, Outcome.REJECTED, None),
        (302, Outcome.ERROR, ErrorKind.HTTP),
    ],
)
@pytest.mark.parametrize("body", [b'{"error": {"message": "private"}}', b"private", b"<html>private</html>"])
def test_statuses_decide_whatever_the_body(
    status: int, outcome: Outcome, kind: ErrorKind | None, body: bytes
) -> None:
    record = run(body, status=status, headers=[])
    assert (record.outcome, record.error_kind, record.error) == (outcome, kind, f"HTTP {status}")
    assert record.first_ns is None
    assert record.output_tokens is None


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("7", None, 7.0),
        (" 7 ", None, 7.0),
        ("Tue, 01 Dec 2026 10:00:30 GMT", "Tue, 01 Dec 2026 10:00:00 GMT", 30.0),
        ("Tue, 01 Dec 2026 09:00:00 GMT", "Tue, 01 Dec 2026 10:00:00 GMT", 0.0),
        ("Tue, 01 Dec 2026 10:00:30 GMT", None, None),
        ("Tuesday, 01-Dec-26 10:00:30 GMT", "Tue, 01 Dec 2026 10:00:00 GMT", 30.0),
        ("Tue Dec  1 10:00:30 2026", "Tue, 01 Dec 2026 10:00:00 GMT", 30.0),
        ("Tue, 01 Dec 2026 10:00:30 -0000", "Tue, 01 Dec 2026 10:00:00 GMT", 30.0),
        ("1.5", None, 1.5),
        ("1e3", None, None),
        ("soon", "Tue, 01 Dec 2026 10:00:00 GMT", None),
        ("-5", None, None),
        ("٣", None, None),
        ("9" * 40, None, None),
    ],
)
def test_retry_after(value: str, date: str | None, seconds: float | None) -> None:
    headers = [("Retry-After", value)] + ([("Date", date)] if date else [])
    assert run(status=429, headers=headers).retry_after_s == seconds


@pytest.mark.parametrize(
    ("end", "outcome", "kind"),
    [
        (End.CONNECT, Outcome.ERROR, ErrorKind.CONNECT),
        (End.TIMEOUT, Outcome.ERROR, ErrorKind.TIMEOUT),
        (End.RESET, Outcome.ERROR, ErrorKind.RESET),
        (End.CLIENT_LEFT, Outcome.CLIENT_LEFT, None),
        (End.EOF, Outcome.ERROR, ErrorKind.INCOMPLETE),
    ],
)
@pytest.mark.parametrize(("asked", "streamed"), [(None, True), (True, True), (False, False)])
def test_no_answer_at_all(
    end: End, outcome: Outcome, kind: ErrorKind | None, asked: bool | None, streamed: bool
) -> None:
    record = StreamMeter(Api.CHAT, start_ns=5, stream=asked).finish(end, 9)
    assert (record.outcome, record.error_kind, record.streamed) == (outcome, kind, streamed)
    assert record.e2e_ns == 4


def test_informational_answers_are_passed_over() -> None:
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(103, [("link", "x")], 1)
    meter.on_headers(200, EVENTS, 2)
    meter.feed(sse(ONE, delta({}, "stop"), DONE), 3)
    assert meter.finish(End.EOF, 4).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("api", [api for api in Api if not api.generates])
def test_other_apis_have_a_duration_and_a_status_only(api: Api) -> None:
    record = run(sse(ONE), api=api)
    assert (record.outcome, record.output_chunks, record.output_tokens) == (Outcome.COMPLETED, 0, None)
    assert (record.status, record.e2e_ns) == (200, MS)
    assert run(b"x", api=api, end=End.RESET).error_kind is ErrorKind.RESET


def test_a_whole_answer_under_an_event_streams_type_and_the_other_way_round() -> None:
    whole = json.dumps(
        {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    ).encode()
    assert not run(whole).streamed
    assert run(whole).outcome is Outcome.COMPLETED
    stream = run(b"\n", sse(ONE, delta({}, "stop"), DONE), headers=[("content-type", "application/json")])
    assert stream.streamed
    assert stream.first_ns == 2 * MS


@pytest.mark.parametrize(
    ("api", "answer", "finish"),
    [
        (Api.MESSAGES, {"content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"}, "end_turn"),
        (Api.RESPONSES, {"status": "completed", "output": [{"content": [{"text": "a"}]}]}, "completed"),
        (
            Api.RESPONSES,
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "max_output_tokens",
        ),
        (Api.COMPLETIONS, {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}, "stop"),
    ],
)
def test_whole_answers(api: Api, answer: dict[str, Any], finish: str) -> None:
    answer["usage"] = {"input_tokens": 3, "output_tokens": 2}
    record = run(json.dumps(answer).encode(), api=api, headers=[("content-type", "application/json")])
    assert record.outcome is Outcome.COMPLETED
    assert [choice.finish_reason for choice in record.choices] == [finish]
    assert (record.output_tokens, record.prompt_tokens, record.streamed) == (2, 3, False)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"status": "failed", "error": {"code": "x"}}, ErrorKind.STREAM),
        ({"status": "queued"}, ErrorKind.INCOMPLETE),
        ({"error": {"message": "x"}}, ErrorKind.STREAM),
        ([], ErrorKind.MALFORMED),
    ],
)
def test_whole_answers_that_are_none(answer: Any, kind: ErrorKind) -> None:
    assert run(json.dumps(answer).encode(), api=Api.RESPONSES, headers=[]).error_kind is kind


def test_responses_that_fail_in_mid_stream() -> None:
    events = sse(
        {"type": "response.output_text.delta", "delta": "a"}, {"type": "response.failed", "response": {}}
    )
    assert run(events, api=Api.RESPONSES).error_kind is ErrorKind.STREAM


def test_a_messages_error_event() -> None:
    body = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n'
    assert run(body, api=Api.MESSAGES).error_kind is ErrorKind.STREAM


def test_an_encoding_that_cannot_be_read_is_no_fault_of_the_server() -> None:
    record = run(b"\x0b\x02\x80", headers=[*EVENTS, ("content-encoding", "br")])
    assert record.outcome is Outcome.COMPLETED
    assert (record.first_ns, record.output_tokens) == (None, None)
    assert any(warning.startswith("encoding:") for warning in record.warnings)


def test_broken_and_cut_compression() -> None:
    headers = [*EVENTS, ("content-encoding", "gzip")]
    assert run(b"no gzip at all", headers=headers).error_kind is ErrorKind.MALFORMED
    packed = gzip.compress(sse(ONE, delta({}, "stop"), DONE))
    assert run(packed[:-30], headers=headers).outcome is Outcome.ERROR
    assert run(packed, headers=headers).outcome is Outcome.COMPLETED


def test_a_compressed_body_that_swells_is_stopped() -> None:
    packed = gzip.compress(b"data: " + b"x" * 80_000_000, 1)
    record = run(packed, headers=[*EVENTS, ("content-encoding", "gzip")])
    assert (record.error_kind, record.error) == (ErrorKind.MALFORMED, "the compressed body is too large")


def test_an_answer_too_large_to_read_is_still_completed() -> None:
    record = run(b'{"x": "' + b"a" * 3_000_000 + b'"}', headers=[("content-type", "application/json")])
    assert record.outcome is Outcome.COMPLETED
    assert record.output_tokens is None
    assert any("too large" in warning for warning in record.warnings)


def test_an_echoed_prompt_is_no_output() -> None:
    pieces = [sse(delta({"role": "user", "content": ""})), sse(delta({"content": "prompt"})), sse(ONE)]
    assert run(*pieces, echo=True).first_ns == 3 * MS
    assert run(*pieces).first_ns == 2 * MS


def test_live_figures() -> None:
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(200, EVENTS, 0)
    seen = []
    for at_ns in range(10, 60, 10):
        seen.append((meter.first_ns, meter.output_chunks))
        meter.feed(sse(ONE), at_ns)
    assert seen == [(None, 0), (10, 1), (10, 2), (10, 3), (10, 4)]


HEAD = '{"id":"chatcmpl-1","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"'
TAIL = '"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'


@pytest.mark.parametrize(
    ("event", "output", "finish", "error"),
    [
        # Text that looks like the keys: output and nothing else.
        (HEAD + r"\"usage\":{\"completion_tokens\":9}" + TAIL, 1, None, False),
        (HEAD + r"\"},\"finish_reason\":\"stop\"" + TAIL, 1, None, False),
        (HEAD + r"\\" + TAIL, 1, None, False),
        (HEAD + r"\\\"" + TAIL, 1, None, False),
        (HEAD + r"\u0022error\u0022:1" + TAIL, 1, None, False),
        (HEAD + r"{\"error\":{}}" + TAIL, 1, None, False),
        # The keys themselves after a text that ends where it seems to: not like the events before.
        (HEAD + 'a"},"logprobs":null,"finish_reason":"stop","token_ids":null}]}', 1, "stop", False),
        (HEAD + r'a\\"},"logprobs":null,"finish_reason":"stop","token_ids":null}]}', 1, "stop", False),
        (
            HEAD + 'a"},"finish_reason":"length","x":{"y":" "},"logprobs":null,"token_ids":null}]}',
            1,
            "length",
            False,
        ),
        (HEAD + 'a"},"logprobs":null,"finish_reason":null}],"error":{"message":"b"}}', 0, None, True),
        (HEAD + TAIL, 0, None, False),
    ],
)
def test_adversarial_text_after_the_shape_is_known(
    event: str, output: int, finish: str | None, error: bool
) -> None:
    json.loads(event)
    plain = [sse(HEAD + f" w{i}" + TAIL) for i in range(4)]
    record = run(*plain, sse(event), end=End.CLIENT_LEFT)
    assert record.output_chunks == len(plain) + output
    assert record.choices[0].finish_reason == finish
    assert record.error_kind is (ErrorKind.STREAM if error else None)
    assert record.output_tokens == record.output_chunks
    assert record.tokens_estimated


def test_adversarial_log_probabilities_after_the_shape_is_known() -> None:
    def event(token: str, told: str, rest: str = "") -> bytes:
        choice = f'"index":0,"delta":{{"content":"{token}"}},"logprobs":{told},"finish_reason":null'
        return sse(f'{{"id":"c","choices":[{{{choice}}}{rest}]}}')

    plain = [event("a", '{"content":[{"token":"a","logprob":-1.5,"top_logprobs":[]}]}') for _ in range(3)]
    leaves = event("b", '{"content":[]},"finish_reason":"stop","x":{"content":[]}')
    second = event("b", '{"content":[]}},{"index":1,"delta":{"content":"c"},"logprobs":{"content":[]}')
    looks_so = event("b", r'{"content":[{"token":"},","bytes":[125]},{"token":"}}","logprob":-1}]}')
    assert run(*plain, leaves).output_chunks == 4
    # Of two equal keys JSON's last counts: the finish reason is null again.
    assert run(*plain, leaves).choices[0].finish_reason is None
    assert [choice.output_chunks for choice in run(*plain, second, choices=2).choices] == [4, 1]
    assert run(*plain, looks_so, plain[0]).output_chunks == 5
