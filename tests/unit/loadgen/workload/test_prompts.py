"""Prompts: of the length asked for, distinct from their first word on, the same for the same seed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.address import Target
from loadgen.workload.lengths import Lengths
from loadgen.workload.prompts import Calibration, PromptMaker, fit
from loadgen.workload.spec import RequestMaker, Workload, build_head
from sidecar.requests.records import Api

MAKER = PromptMaker(0, Calibration())


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(1, 130_000), level=st.integers(0, 50), serial=st.integers(0, 10**7))
def test_a_prompt_has_as_many_words_as_tokens_asked_for(tokens: int, level: int, serial: int) -> None:
    assert len(MAKER.prompt(tokens, level, serial).split()) == tokens


def test_a_template_and_long_words_are_allowed_for() -> None:
    maker = PromptMaker(0, Calibration(per_word=1.5, overhead=10))
    assert len(maker.prompt(160, 0, 0).split()) == 100


def test_no_two_prompts_share_their_opening() -> None:
    openings = {
        " ".join(MAKER.prompt(40, level, serial).split()[:5]) for level in range(20) for serial in range(500)
    }
    assert len(openings) == 20 * 500


def test_another_seed_makes_other_prompts_and_the_same_seed_the_same() -> None:
    assert MAKER.prompt(50, 1, 2) == PromptMaker(0, Calibration()).prompt(50, 1, 2)
    assert MAKER.prompt(50, 1, 2) != PromptMaker(1, Calibration()).prompt(50, 1, 2)


def test_a_shared_prefix_is_shared_and_nothing_else() -> None:
    maker = PromptMaker(0, Calibration(), shared_tokens=30)
    first, second = (maker.prompt(80, 0, serial).split() for serial in (1, 2))
    assert first[:30] == second[:30]
    assert first[30:35] != second[30:35]
    assert len(first) == len(second) == 80


@settings(max_examples=40, deadline=None)
@given(per_word=st.floats(0.3, 5), overhead=st.floats(0, 60))
def test_a_calibration_finds_the_line(per_word: float, overhead: float) -> None:
    found = fit([(w, round(overhead + per_word * w)) for w in (20, 100, 400)], "tokenize")
    assert found.per_word == pytest.approx(per_word, abs=0.01)
    assert abs(found.overhead + found.per_word * 200 - overhead - per_word * 200) < 2


def test_a_calibration_needs_different_lengths() -> None:
    with pytest.raises(ValueError, match="length"):
        fit([(5, 6), (5, 7)], "tokenize")


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_request_says_what_the_workload_asks(api: str) -> None:
    workload = Workload(api=api, output_tokens=Lengths("fixed", 7), extra={"temperature": 0, "stream": True})  # type: ignore[arg-type]
    target = Target.of("http://127.0.0.1:8000/v1x/")
    head = build_head(target, Api(api), "key")
    maker = RequestMaker(workload, model="m", seed=0, calibration=Calibration(), head=head)
    request = maker.make(0, 0)
    assert request.wire == maker.make(0, 0).wire
    assert request.wire != maker.make(0, 1).wire
    top, _, body = request.wire.partition(b"\r\n\r\n")
    lines = top.decode().split("\r\n")
    path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    assert lines[0] == f"POST /v1x{path} HTTP/1.1"
    assert "Authorization: Bearer key" in lines
    assert f"Content-Length: {len(body)}" in lines
    said = json.loads(body)
    assert said["max_tokens"] == said["min_tokens"] == request.asked_tokens == 7
    assert said["ignore_eos"] is True
    assert said["stream_options"] == {"include_usage": True}
    assert said["temperature"] == 0
    assert ("messages" in said) is (api == "chat")


def test_other_servers_are_spared_what_only_vllm_knows() -> None:
    maker = RequestMaker(Workload(ignore_eos=False), model="m", seed=0, calibration=Calibration(), head=b"")
    assert not {"ignore_eos", "min_tokens"} & set(json.loads(maker.make(0, 0).wire.partition(b"\r\n\r\n")[2]))
