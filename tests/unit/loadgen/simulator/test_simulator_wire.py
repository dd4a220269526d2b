"""Requests read, answers written, faults and stop strings: the protocol without sockets."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulator.faults import FaultPlan, Faults, parse_faults, plan_faults
from loadgen.simulator.profile import find_profile
from loadgen.simulator.text import answer_token, chat_tokens, count_tokens, cut_at_stop, token_ids
from loadgen.simulator.wire import Ask, Endpoint, RefusedError, Reply, read_ask
from sidecar.errors import UserError

DEMO = find_profile("demo")


def ask_of(endpoint: Endpoint, **body: Any) -> Ask:
    return read_ask(endpoint, json.dumps(body).encode(), DEMO)


def events_of(text: str) -> list[Any]:
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def reply_to(ask: Ask) -> Reply:
    return Reply(ask, request_id="5", created_s=7, fingerprint="test")


def test_prompts_of_every_form_are_counted() -> None:
    assert ask_of("completions", prompt="one two three").prompts == (3,)
    assert ask_of("completions", prompt=[5, 6, 7, 8]).prompts == (4,)
    assert ask_of("completions", prompt=["one two", "three"]).prompts == (2, 1)
    assert ask_of("completions", prompt=[[1, 2], [3]]).prompts == (2, 1)
    messages = [
        {"role": "system", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {}}],
        },
    ]
    assert ask_of("chat", messages=messages).prompts == (chat_tokens(["be kind", "hello"]),)


def test_limits_and_options_are_read() -> None:
    message = [{"role": "user", "content": "hi"}]
    assert ask_of("completions", prompt="hi").max_tokens == 16
    assert ask_of("chat", messages=message).max_tokens is None
    assert ask_of("chat", messages=message, max_tokens=9, max_completion_tokens=4).max_tokens == 4
    ask = ask_of(
        "chat",
        messages=message,
        n=3,
        stop="x",
        ignore_eos=True,
        min_tokens=2,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert (ask.n, ask.stops, ask.ignore_eos, ask.min_tokens) == (3, ("x",), True, 2)
    assert (ask.stream, ask.include_usage, ask.continuous_usage) == (True, True, True)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[" * 100_000, 400, None),
        (b"[1]", 400, None),
        (b"\xff", 400, None),
        (b'{"model": "gpt-9", "prompt": "x"}', 404, "model"),
        (b"{}", 400, "prompt"),
        (b'{"prompt": ""}', 400, "prompt"),
        (b'{"prompt": []}', 400, "prompt"),
        (b'{"prompt": [1, "x"]}', 400, "prompt"),
        (b'{"prompt": "x", "max_tokens": -3}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": 0}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": "many"}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": true}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": 8192}', 400, "input_tokens"),
        (b'{"prompt": "x", "n": 0}', 400, "n"),
        (b'{"prompt": "x", "n": 129}', 400, "n"),
        (b'{"prompt": "x", "stop": 5}', 400, "stop"),
        (b'{"prompt": "x", "stream_options": {"include_usage": true}}', 400, "stream_options"),
    ],
)
def test_a_wrong_request_is_refused_as_vllm_does(body: bytes, status: int, param: str | None) -> None:
    with pytest.raises(RefusedError, match=r".") as caught:
        read_ask("completions", body, DEMO)
    error = caught.value.body()["error"]
    assert (error["code"], error["param"]) == (status, param)


@pytest.mark.parametrize("messages", [None, [], "hi", ["hi"], [[]]])
def test_chat_needs_messages(messages: Any) -> None:
    with pytest.raises(RefusedError, match="messages must be a list"):
        ask_of("chat", messages=messages)


@given(st.binary(max_size=200))
def test_no_body_makes_it_raise_anything_else(body: bytes) -> None:
    for endpoint in ("chat", "completions"):
        try:
            read_ask(endpoint, body, DEMO)
        except RefusedError:
            continue


def test_a_chat_stream_is_vllms() -> None:
    ask = Ask("chat", "m", (5,), stream=True, include_usage=True, continuous_usage=True)
    reply = reply_to(ask)
    text = reply.token(0, " a", None) + reply.token(0, " b", "length") + reply.end()
    role, first, last, usage = events_of(text)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["usage"] == {"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0}
    assert first["choices"] == [
        {"index": 0, "delta": {"content": " a"}, "logprobs": None, "finish_reason": None, "token_ids": None}
    ]
    assert first["usage"]["completion_tokens"] == 1
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("length", None)
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 7)
    assert {e["object"] for e in (role, first, last, usage)} == {"chat.completion.chunk"}
    assert {e["id"] for e in (role, first, last, usage)} == {"chatcmpl-5"}


def test_a_completion_stream_of_several_choices() -> None:
    reply = reply_to(Ask("completions", "m", (5, 2), n=2, stream=True, include_usage=True))
    text = "".join(reply.token(i, f" {i}", "stop", "END" if i == 3 else None) for i in range(4)) + reply.end()
    *tokens, usage = events_of(text)
    assert [(t["choices"][0]["index"], t["choices"][0]["text"]) for t in tokens] == [
        (0, " 0"),
        (1, " 1"),
        (2, " 2"),
        (3, " 3"),
    ]
    assert [t["choices"][0]["stop_reason"] for t in tokens] == [None, None, None, "END"]
    assert "usage" not in tokens[0]
    assert usage["usage"] == {"prompt_tokens": 7, "total_tokens": 11, "completion_tokens": 4}


def test_an_answer_in_one_piece() -> None:
    reply = reply_to(Ask("chat", "m", (5,), n=2))
    for index, word in ((0, " a"), (1, " b"), (0, " c")):
        assert reply.token(index, word, "stop" if word != " a" else None) == ""
    whole = reply.whole()
    assert [c["message"]["content"] for c in whole["choices"]] == [" a c", " b"]
    assert [c["finish_reason"] for c in whole["choices"]] == ["stop", "stop"]
    assert whole["usage"]["completion_tokens"] == 3
    assert whole["object"] == "chat.completion"


def test_an_error_inside_the_stream_still_ends_it() -> None:
    reply = reply_to(Ask("chat", "m", (5,), stream=True))
    *_, error = events_of(reply.token(0, " a", None) + reply.error_event("broke"))
    assert error["error"]["message"] == "broke"
    assert error["error"]["code"] == 500


def test_tokens_are_pieces_of_twelve_characters() -> None:
    assert count_tokens("one two  three\nfour") == 4
    assert count_tokens("") == 0
    assert count_tokens("x" * 25) == 3
    assert len(token_ids("one two one")) == 3
    assert token_ids("one two one")[0] == token_ids("one")[0]
    assert chat_tokens(["hi", "there you"]) == 1 + 2 + 2 * 3 + 1


@given(start=st.integers(0, 65535), number=st.integers(1, 10_000))
def test_each_answer_token_counts_as_one_and_needs_no_escape(start: int, number: int) -> None:
    token = answer_token(start, number)
    assert count_tokens(token) == 1
    assert json.dumps(token) == f'"{token}"'


@given(start=st.integers(0, 65535), limit=st.integers(1, 60), at=st.integers(1, 60), cut=st.integers(0, 3))
def test_a_stop_string_ends_the_answer_where_it_is_complete(
    start: int, limit: int, at: int, cut: int
) -> None:
    stop = (answer_token(start, at) + answer_token(start, at + 1))[cut:]
    found = cut_at_stop(start, limit, [stop, ""])
    text = "".join(answer_token(start, i) for i in range(1, limit + 1))
    if stop not in text:
        assert found is None
        return
    assert found is not None
    tokens, before, which = found
    assert which == stop
    assert before == text[: text.index(stop)]
    said = "".join(answer_token(start, i) for i in range(1, tokens + 1))
    assert stop in said
    assert stop not in "".join(answer_token(start, i) for i in range(1, tokens))


def test_faults_are_parsed_and_wrong_ones_named() -> None:
    assert parse_faults("") == Faults()
    assert parse_faults("reject=1, retry_after_s=3,stall_after=2") == Faults(
        reject=1.0, retry_after_s=3.0, stall_after=2
    )
    for text, says in (
        ("boom", "'boom' is not key=value"),
        ("boom=1", "'boom=1' is not key=value"),
        ("error=x", "error needs a number, got 'x'"),
        ("error=2", "out of range 0..1"),
        ("stall_s=-1", "out of range"),
        ("error=nan", "out of range"),
        ("stall_after=1.5", "stall_after needs a number"),
        ("error_status=200", "must be 400..599"),
    ):
        with pytest.raises(UserError) as caught:
            parse_faults(text)
        assert says in str(caught.value)


def test_fault_shares_come_true() -> None:
    rng = random.Random(3)
    plans = [
        plan_faults(parse_faults("reject=0.2,error=0.25,stall=0.5,stall_s=1.5"), rng) for _ in range(4000)
    ]
    rejected = sum(p.status == 429 for p in plans) / 4000
    failed = sum(p.status == 500 for p in plans) / 4000
    stalled = [p for p in plans if p.stall_ns]
    assert rejected == pytest.approx(0.2, abs=0.03)
    assert failed == pytest.approx(0.8 * 0.25, abs=0.03)
    assert len(stalled) / 4000 == pytest.approx(0.6 * 0.5, abs=0.03)
    assert {(p.stall_after, p.stall_ns) for p in stalled} == {(8, 1_500_000_000)}
    assert plan_faults(Faults(), rng) == FaultPlan()
    assert plan_faults(Faults(drop=1, error_event=1), rng) == FaultPlan(drop_after=4)
