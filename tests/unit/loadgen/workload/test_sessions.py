"""Conversations, prompts from files, prompts of token ids: what is in the bytes that are sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.datasets import read_prompts
from loadgen.workload.lengths import Lengths
from loadgen.workload.prompts import Calibration, IdMaker
from loadgen.workload.spec import PreparedRequest, RequestMaker, Workload
from sidecar.errors import UserError


def body(request: PreparedRequest | None) -> dict[str, Any]:
    assert request is not None
    head, _, text = request.wire.partition(b"\r\n\r\n")
    assert head.endswith(b"Content-Length: %d" % len(text))
    said: dict[str, Any] = json.loads(text)
    return said


def maker(workload: Workload, **more: Any) -> RequestMaker:
    return RequestMaker(workload, model="m", seed=2, calibration=Calibration(), head=b"", **more)


@settings(max_examples=30, deadline=None)
@given(answers=st.lists(st.text(max_size=30), min_size=3, max_size=3), serial=st.integers(0, 10**6))
def test_each_turn_carries_all_that_was_said(answers: list[str], serial: int) -> None:
    workload = Workload(turns=Lengths("fixed", 4), prompt_tokens=Lengths("fixed", 12), name="talk")
    session = maker(workload).session(0, serial)
    assert session is not None
    request = session.next(None)
    before: list[dict[str, str]] = []
    for turn, answer in enumerate([*answers, "end"], 1):
        messages = body(request)["messages"]
        assert request is not None
        assert (request.turn, request.request_class) == (turn, "talk")
        assert messages[: len(before)] == before
        assert messages[-1]["role"] == "user"
        assert len(messages[-1]["content"].split()) == 12
        assert len(messages) == 2 * turn - 1
        before = [*messages, {"role": "assistant", "content": answer}]
        request = session.next(answer)
    assert request is None, "four turns were asked for"


def test_a_conversation_ends_before_it_outgrows_the_context() -> None:
    workload = Workload(
        turns=Lengths("fixed", 50), prompt_tokens=Lengths("fixed", 40), output_tokens=Lengths("fixed", 10)
    )
    session = maker(workload, context_tokens=200).session(0, 0)
    assert session is not None
    turns, request = 0, session.next(None)
    while request is not None:
        words = sum(len(message["content"].split()) for message in body(request)["messages"])
        assert words + 10 <= 200
        turns += 1
        request = session.next("word " * 10)
    assert turns == 4


def test_the_user_thinks_as_long_as_stated_on_average() -> None:
    session = maker(Workload(turns=Lengths("fixed", 2), think_s=3.0)).session(0, 0)
    assert session is not None
    assert sum(session.think_s() for _ in range(4000)) / 4000 == pytest.approx(3.0, rel=0.1)
    quick = maker(Workload(turns=Lengths("fixed", 2))).session(0, 0)
    assert quick is not None
    assert quick.think_s() == 0


LINES = [
    {"prompt": 'say "hi"\n'},
    {"messages": [{"role": "system", "content": "no"}, {"role": "user", "content": "ä"}]},
    {
        "conversations": [
            {"from": "human", "value": "one"},
            {"from": "gpt", "value": "x"},
            {"from": "human", "value": "two"},
        ]
    },
    {"conversations": []},
]


@pytest.mark.parametrize("form", ["lines", "array"])
def test_prompts_come_from_either_form_of_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / "p.json"
    path.write_text("\n".join(map(json.dumps, LINES)) if form == "lines" else json.dumps(LINES))
    assert read_prompts(str(path)) == (('say "hi"\n',), ("ä",), ("one", "two"))
    made = maker(Workload(prompts=str(path)))
    sent = {body(made.make(0, serial))["messages"][0]["content"] for serial in range(6)}
    assert sent == {'say "hi"\n', "ä", "one"}
    talk = maker(Workload(prompts=str(path), turns=Lengths("fixed", 9)))
    for serial in range(3):
        session = talk.session(0, serial)
        assert session is not None
        first = body(session.next(None))["messages"][0]["content"]
        following = session.next("x")
        assert (following is not None) is (first == "one")
        if following is not None:
            assert body(following)["messages"][-1]["content"] == "two"
            assert session.next("x") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no prompt"),
        ("{", ":1: is not JSON"),
        ('{"prompt": "a"}\n{"text": 1}\n', ":2: has neither"),
        ("[1", "not JSON"),
        ("[3]", "entry 1"),
    ],
)
def test_a_mistake_in_prompts_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UserError) as found:
        read_prompts(str(path))
    assert words in str(found.value)
    assert "p.jsonl" in str(found.value)


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(1, 5000), level=st.integers(0, 9), serial=st.integers(0, 10**9))
def test_token_ids_are_exactly_as_many_as_asked(tokens: int, level: int, serial: int) -> None:
    ids = json.loads(IDS.prompt(tokens, level, serial))
    assert len(ids) == tokens
    assert set(ids) <= set(range(100, 180))


IDS = IdMaker(0, range(100, 180), shared_tokens=20, groups=2)


def test_token_ids_are_distinct_from_the_first_on_but_for_the_shared_prefix() -> None:
    openings = {
        tuple(json.loads(IDS.prompt(30, level, serial))[:6]) for level in (0, 1) for serial in range(500)
    }
    assert len(openings) == 1000
    a, b = (json.loads(IDS.prompt(40, 0, serial, group=1)) for serial in (1, 2))
    assert a[:20] == b[:20]
    assert a[20:26] != b[20:26]
    request = RequestMaker(
        Workload("completions", token_ids=True, prompt_tokens=Lengths("fixed", 33)),
        model="m",
        seed=0,
        calibration=Calibration(ids=tuple(range(100, 180))),
        head=b"",
    ).make(0, 5)
    assert len(body(request)["prompt"]) == 33
