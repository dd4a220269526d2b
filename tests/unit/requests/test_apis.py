"""Which API a request line means, and what is read of a request's body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.requests.apis import RequestFacts, api_of, request_facts
from sidecar.requests.records import Api


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", Api.CHAT),
        ("/v1/completions", Api.COMPLETIONS),
        ("/v1/responses", Api.RESPONSES),
        ("/v1/messages", Api.MESSAGES),
        ("/v1/messages/count_tokens", Api.TOKENIZE),
        ("/v1/embeddings", Api.EMBEDDINGS),
        ("/v2/embed", Api.EMBEDDINGS),
        ("/rerank", Api.RERANK),
        ("/v1/rerank", Api.RERANK),
        ("/v2/rerank", Api.RERANK),
        ("/score", Api.SCORE),
        ("/v1/score", Api.SCORE),
        ("/pooling", Api.POOLING),
        ("/classify", Api.POOLING),
        ("/tokenize", Api.TOKENIZE),
        ("/detokenize", Api.TOKENIZE),
        ("/v1/audio/transcriptions", Api.AUDIO),
        ("/v1/audio/translations", Api.AUDIO),
        # Prefixes, queries, whole origins, Azure's form
        ("/team-a/llama/v1/chat/completions?api-version=3", Api.CHAT),
        ("http://pod:8000/v1/completions", Api.COMPLETIONS),
        ("/openai/deployments/gpt/chat/completions?api-version=3", Api.CHAT),
        # Never taken for generation
        ("/", Api.OTHER),
        ("", Api.OTHER),
        ("/metrics", Api.OTHER),
        ("/completions", Api.OTHER),
        ("/v1/chat", Api.OTHER),
        ("/v1/chat/completions/", Api.OTHER),
        ("/v1/chat/completions/render", Api.OTHER),
        ("/v1/responses/resp_1/cancel", Api.OTHER),
        ("/v1/my/completions", Api.OTHER),
        ("/vx/completions", Api.OTHER),
        ("/v1/models", Api.OTHER),
        ("/search?next=/v1/completions", Api.OTHER),
        ("/messages", Api.OTHER),
    ],
)
def test_api_of_a_path(path: str, api: Api) -> None:
    assert api_of("POST", path) is api
    assert api_of("post", path) is api
    assert api_of("GET", path) is Api.OTHER


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=6), st.text(max_size=40))
def test_any_request_line_has_an_api(method: str, path: str) -> None:
    assert api_of(method, path) in Api


@pytest.mark.parametrize(
    ("api", "body", "facts"),
    [
        (
            Api.CHAT,
            {
                "model": "m",
                "stream": True,
                "n": 3,
                "stream_options": {"include_usage": True},
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "abcd"}, {"type": "image_url"}]}
                ],
            },
            RequestFacts("m", True, 3, True, 4),
        ),
        (Api.COMPLETIONS, {"prompt": ["ab", "c"], "n": 2}, RequestFacts("", False, 4, False, 3)),
        (Api.COMPLETIONS, {"prompt": [1, 2, 3]}, RequestFacts("", False, 1, False, 0)),
        (
            Api.COMPLETIONS,
            {"prompt": [[1, 2], [3]], "echo": True},
            RequestFacts("", False, 2, False, 0, True),
        ),
        (Api.RESPONSES, {"input": "abc", "instructions": "de", "n": 7}, RequestFacts("", False, 1, False, 5)),
        (
            Api.MESSAGES,
            {"system": "ab", "messages": [{"role": "user", "content": "cde"}], "stream": True},
            RequestFacts("", True, 1, False, 5),
        ),
        (
            Api.CHAT,
            {"model": 5, "n": "x", "stream": "yes", "messages": 3, "stream_options": []},
            RequestFacts("", False, 1, False, 0),
        ),
        (Api.CHAT, {"n": True}, RequestFacts("", False, 1, False, 0)),
        (Api.CHAT, {"n": 10**9}, RequestFacts("", False, 65_536, False, 0)),
        (Api.CHAT, {"model": "\ud800" + "m" * 999}, RequestFacts("\ufffd" + "m" * 255, False, 1, False, 0)),
        (Api.CHAT, [1], RequestFacts("", False, 1, False, 0)),
    ],
)
def test_facts_of_a_body(api: Api, body: Any, facts: RequestFacts) -> None:
    assert request_facts(api, json.dumps(body).encode()) == facts


@pytest.mark.parametrize(
    ("last", "rest", "echo"),
    [
        ({"role": "user", "content": "a"}, {}, False),
        ({"role": "assistant", "content": "a"}, {}, True),
        ({"role": "assistant", "content": ""}, {}, False),
        ({"role": "user", "content": "a"}, {"add_generation_prompt": False}, True),
        ("a", {"add_generation_prompt": False}, False),
    ],
)
def test_a_chat_is_echoed_only_where_the_answer_continues_its_last_message(
    last: Any, rest: dict[str, Any], echo: bool
) -> None:
    body = {"echo": True, "messages": [{"role": "assistant", "content": "x"}, last], **rest}
    assert request_facts(Api.CHAT, json.dumps(body).encode()).echo is echo


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b'{"n": 1' + b"0" * 9_000 + b"}"])
def test_a_body_that_cannot_be_read_gives_no_facts(body: bytes) -> None:
    assert request_facts(Api.CHAT, body) == RequestFacts("", False, 1, False, 0)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(Api), st.binary(max_size=60))
def test_no_body_raises(api: Api, body: bytes) -> None:
    assert request_facts(api, body).choices >= 1
