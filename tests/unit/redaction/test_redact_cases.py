"""The redact cases: each through the whole content path at the level that lets text out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.redaction.engine import Redactor
from sidecar.redaction.filter import ContentFilter, Level, cut
from sidecar.redaction.structure import Structure

CASES = json.loads((Path(__file__).parents[2] / "cases" / "redact.json").read_text())["cases"]


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor()


def exported(given: dict[str, Any], redactor: Redactor) -> str:
    """What would leave of a case's input, all of it in one text."""
    content = ContentFilter(Level.REDACT, lambda: redactor)
    if "text_pieces" in given:
        text = "".join(given["text_pieces"])
        return json.dumps(content.with_output(content.request(b'{"messages": []}'), [(text, "stop")]).output)
    if "messages" in given:
        return json.dumps(content.request(json.dumps({"messages": given["messages"]}).encode()).messages)
    if "tool_arguments" in given:
        call = {"id": "c1", "function": {"name": "send", "arguments": given["tool_arguments"]}}
        body = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
        messages = content.request(json.dumps(body).encode()).messages
        assert messages is not None
        arguments = messages[0]["parts"][0]["arguments"]
        assert arguments["limit"] == 5, "what remains is still JSON, and its numbers are numbers"
        return json.dumps(messages, ensure_ascii=False)
    if "error_body" in given:
        return Structure(redactor).json_text(given["error_body"])
    shown = content.text(given["text"])
    assert shown is not None
    return cut(shown, given["limit"]) if "limit" in given else shown


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_case(case: dict[str, Any], redactor: Redactor) -> None:
    shown = exported(case["input"], redactor)
    for value in case["expect"]["must_vanish"]:
        assert value not in shown
        assert json.dumps(value)[1:-1] not in shown
    for value in case["expect"].get("must_stay", []):
        assert value in shown
    if "limit" in case["input"]:
        assert len(shown) <= case["input"]["limit"]


@pytest.mark.parametrize("case", [c for c in CASES if "text" in c["input"]], ids=lambda c: c["id"])
def test_case_text_as_a_message_keeps_no_private_value(case: dict[str, Any], redactor: Redactor) -> None:
    body = {"messages": [{"role": "user", "content": case["input"]["text"]}]}
    content = ContentFilter(Level.REDACT, lambda: redactor).request(json.dumps(body).encode())
    assert content.failed is None
    shown = json.dumps(content.messages, ensure_ascii=False)
    assert not [v for v in case["expect"]["must_vanish"] if v in shown]
