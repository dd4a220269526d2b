"""What the meter notes of an answer for its span: its id, who gave it, and when its first chunk came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.requests.records import Api, End
from sidecar.requests.stream import StreamMeter
from sidecar.spans.genai import time_to_first_chunk_ns


def streamed(api: Api, events: list[dict[str, Any]]) -> StreamMeter:
    meter = StreamMeter(api, start_ns=100, model="asked")
    meter.on_headers(200, [("content-type", "text/event-stream")], 150)
    for number, event in enumerate(events):
        name = f"event: {event['type']}\n" if "type" in event else ""
        meter.feed(f"{name}data: {json.dumps(event)}\n\n".encode(), 200 + 10 * number)
    return meter


def chat(delta: dict[str, str]) -> dict[str, Any]:
    return {"id": "chatcmpl-7", "model": "answered", "choices": [{"index": 0, "delta": delta}]}


@pytest.mark.parametrize(
    ("api", "events", "answer_id"),
    [
        (Api.CHAT, [chat({"role": "assistant"}), chat({"content": "a"})], "chatcmpl-7"),
        (Api.MESSAGES, [{"type": "message_start", "message": {"id": "msg_1", "model": "answered"}}], "msg_1"),
        (Api.RESPONSES, [{"type": "response.created", "response": {"id": "r1", "model": "answered"}}], "r1"),
    ],
)  # fmt: skip
def test_a_stream_says_its_id_and_model_once(api: Api, events: list[dict[str, Any]], answer_id: str) -> None:
    record = streamed(api, events).finish(End.RESET, 900)
    assert record.extra == {"response_id": answer_id, "response_model": "answered", "first_chunk_ns": "200"}
    assert record.model == "asked"
    assert time_to_first_chunk_ns(record) == 100, "of the first chunk, though it carries no token"


def test_an_answer_that_was_not_streamed_has_no_first_chunk() -> None:
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(200, [("content-type", "application/json")], 1)
    body = {
        "id": "chatcmpl-8",
        "model": "answered",
        "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}],
    }
    meter.feed(json.dumps(body).encode(), 5)
    record = meter.finish(End.EOF, 6)
    assert record.extra == {"response_id": "chatcmpl-8", "response_model": "answered"}
    assert time_to_first_chunk_ns(record) is None


def test_names_that_are_no_text_are_left_out() -> None:
    record = streamed(Api.CHAT, [{"id": 7, "model": ["x"], "choices": []}]).finish(End.RESET, 900)
    assert record.extra == {"first_chunk_ns": "200"}
