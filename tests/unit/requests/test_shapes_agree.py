"""Deciding events from their bytes gives the record that decoding each of them would, whatever they hold."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import HealthCheck, given, settings

from sidecar.requests import stream
from sidecar.requests.records import Api, End, RequestRecord
from sidecar.requests.stream import StreamMeter
from tests.support.odd_events import Odd, odd_streams


def measure(odd: Odd, *, capture: int) -> RequestRecord:
    meter = StreamMeter(odd.api, start_ns=0, choices=odd.choices, capture_chars=capture)
    meter.on_headers(200, [("content-type", "text/event-stream")], 0)
    for count, event in enumerate((*odd.events[:-1], *odd.events), 1):
        meter.feed(event, count * 1_000)
    return meter.finish(End.RESET, 10**9)


def decoded(odd: Odd, *, capture: int) -> RequestRecord:
    """The same with no shape ever learnt."""
    with patch.object(stream, "learn", lambda *_: None):
        return measure(odd, capture=capture)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(odd_streams())
def test_bytes_tell_what_decoding_tells(odd: Odd) -> None:
    assert measure(odd, capture=0) == decoded(odd, capture=0)
    assert measure(odd, capture=1_000) == decoded(odd, capture=1_000)


def test_what_only_an_earlier_shape_told_is_kept() -> None:
    def event(text: str, tokens: int, more: str = "") -> bytes:
        usage = f'{{"prompt_tokens":5,"completion_tokens":{tokens}{more}}}'
        choice = f'{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}'
        return f'data: {{"choices":[{choice}],"usage":{usage}}}\n\n'.encode()

    thought = ',"completion_tokens_details":{"reasoning_tokens":%d}'
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(200, [], 0)
    for at in range(1, 9):
        meter.feed(event("a", at, thought % at if at % 2 else ""), at)
    record = meter.finish(End.RESET, 10)
    assert (record.reasoning_tokens, record.output_tokens, record.chunk_tokens) == (7, 8, (1,) * 8)
