"""Members of a JSON object whose middle is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.requests.apis import request_facts
from sidecar.requests.records import Api
from sidecar.requests.salvage import cut_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["model", "n", "stream", "messages", "tools", "a", ', "n', '{"stream": true}'])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=8), st.data())
def test_never_a_member_that_is_not_there(body: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(body, ensure_ascii=data.draw(st.booleans())).encode()
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    found = cut_object(text[:first], text[last:])
    assert found.items() <= body.items() or found == {k: body[k] for k in found}


def test_the_order_of_the_openai_client() -> None:
    inner = {"type": "object", "properties": {"n": {"type": "number"}, "model": {"type": "string"}}}
    body = {
        "messages": [{"role": "user", "content": "x" * 5_000 + '", "n": 9}'}],
        "model": "demo",
        "n": 2,
        "stream": True,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": inner}}],
    }
    text = json.dumps(body).encode()
    facts = request_facts(Api.CHAT, text[:1_000], end=text[-600:])
    assert (facts.model, facts.choices, facts.stream) == ("demo", 2, True)


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [
        (b'{"n": 1', b"", {}),  # may have been 12
        (b'{"n": 1, "m', b'"}', {"n": 1}),
        (b'{"n":1,"messages":[', b']}],"n":2}', {"n": 2}),  # the later counts
        (b'{"a":', b'{"n":2}}', {}),  # belongs to an inner object
        (b"[1, 2", b'{"n":2}]', {}),
        (b"", b'\xff\xfe,"n":2} \r\n', {"n": 2}),
        (b'\xef\xbb\xbf{"n":1,', b"", {}),
        (b'{"n" 1, ', b'x, "n":}', {}),
        (b"", b'{"n":' * 100, {}),
    ],
)
def test_cuts(begin: bytes, end: bytes, found: dict[str, Any]) -> None:
    assert cut_object(begin, end) == found


def test_deep_nesting_gives_no_facts() -> None:
    assert request_facts(Api.CHAT, b'{"a":' + b"[" * 100_000, end=b"]}").model == ""
