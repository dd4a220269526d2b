"""What real vLLM servers answered: every recorded body gives the right token counts and finish reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httptools
import pytest

from sidecar.requests.apis import api_of, request_facts
from sidecar.requests.records import Api, End, ErrorKind, Outcome, RequestRecord
from sidecar.requests.stream import StreamMeter

VLLM = Path(__file__).parents[2] / "fixtures" / "vllm"
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}

# file: (output chunks, output tokens, tokens estimated, prompt tokens, finish reasons)
STREAMED: dict[str, tuple[int, int, bool, int | None, list[str]]] = {
    "0.10.2/chat_continuous_usage": (8, 8, False, 9, ["length"]),
    "0.10.2/chat_echo": (3, 3, False, 9, ["length"]),
    "0.10.2/chat_logprobs": (4, 4, False, 9, ["length"]),
    "0.10.2/chat_n2": (16, 16, False, 9, ["length", "length"]),
    "0.10.2/chat_one_token": (1, 1, False, 9, ["length"]),
    "0.10.2/chat_plain": (8, 8, True, None, ["length"]),
    "0.10.2/chat_usage": (8, 8, False, 9, ["length"]),
    "0.32.0/chat_continuous_usage": (4, 4, False, 5, ["length"]),
    "0.32.0/chat_echo": (3, 3, False, 9, ["length"]),
    "0.32.0/chat_logprobs": (2, 2, True, None, ["length"]),
    "0.32.0/chat_n2": (8, 8, False, 5, ["length", "length"]),
    "0.32.0/chat_one_token": (1, 1, False, 5, ["length"]),
    "0.32.0/chat_plain": (5, 5, True, None, ["length"]),
    "0.32.0/chat_usage": (6, 6, False, 5, ["length"]),
    "0.32.0/completions_batch2": (6, 6, False, 5, ["length", "length"]),
    "0.32.0/completions_logprobs": (4, 4, False, 5, ["length"]),
    "0.32.0/completions_plain": (8, 8, True, None, ["length"]),
    # Two of the 16 tokens are the withheld stop string and come with no text.
    "0.32.0/completions_stop_string": (14, 16, False, 5, ["stop"]),
    "0.32.0/completions_token_ids": (4, 4, False, 5, ["length"]),
    "0.32.0/completions_usage": (5, 5, False, 3, ["length"]),
    "0.32.0/messages_stream": (5, 5, False, 5, ["max_tokens"]),
    # Five tokens in two events.
    "0.32.0/responses_stream": (2, 5, False, 5, ["max_output_tokens"]),
}
WHOLE: dict[str, tuple[int, int, list[str]]] = {
    "0.32.0/chat_nonstream": (5, 5, ["length"]),
    "0.32.0/chat_nonstream_n2": (16, 9, ["length", "length"]),
    "0.32.0/completions_nonstream": (8, 5, ["length"]),
}
REFUSED = (
    "0.32.0/chat_tool_auto.txt",
    "0.32.0/chat_tool_named.txt",
    "0.32.0/chat_tool_required.txt",
    "0.32.0/chat_nonstream_tool_named.json",
)


def sse(name: str) -> Path:
    version, _, rest = name.partition("/")
    return VLLM / version / "sse" / rest


def head_of(path: Path) -> tuple[int, list[tuple[str, str]]]:
    """Status and headers as recorded beside the body, or 200 and the type that the body's name says."""
    recorded = path.with_suffix(".headers")
    if not recorded.exists():
        kind = "text/event-stream; charset=utf-8" if path.suffix == ".txt" else "application/json"
        return 200, [("content-type", kind)]
    first, *rest = recorded.read_text().splitlines()
    headers = [(name, value.strip()) for line in rest if line for name, _, value in [line.partition(":")]]
    return int(first.split()[1]), headers


def meter_for(path: Path) -> StreamMeter:
    kind = path.stem.split("_")[0]
    return StreamMeter(
        api_of("POST", PATHS[kind]),
        start_ns=0,
        choices=2 if "n2" in path.stem or "batch2" in path.stem else 1,
        capture_chars=10_000,
        echo="echo" in path.stem,
    )


def measure(path: Path, cuts: list[tuple[int, int]] | None = None) -> RequestRecord:
    """The record of a recorded body; ``cuts``: (arrival, bytes by then) of each read."""
    status, headers = head_of(path)
    meter = meter_for(path)
    meter.on_headers(status, headers, 0)
    body = path.read_bytes()
    done = 0
    at_ns = 0
    for at_ns, size in cuts or [(1_000_000, len(body))]:
        meter.feed(body[done:size], at_ns)
        done = size
    return meter.finish(End.EOF, at_ns)


@pytest.mark.parametrize("name", sorted(STREAMED))
def test_recorded_stream(name: str) -> None:
    chunks, tokens, estimated, prompt, finishes = STREAMED[name]
    record = measure(sse(name).with_suffix(".txt"))
    assert record.outcome is Outcome.COMPLETED
    assert record.streamed
    assert (record.output_chunks, record.output_tokens, record.tokens_estimated) == (
        chunks,
        tokens,
        estimated,
    )
    assert record.prompt_tokens == prompt
    assert [choice.finish_reason for choice in record.choices] == finishes
    assert sum(choice.tokens or 0 for choice in record.choices) == tokens
    assert record.model == "tiny-llama"
    assert record.warnings == ()


@pytest.mark.parametrize("name", sorted(STREAMED))
def test_recorded_stream_byte_by_byte_is_the_same(name: str) -> None:
    path = sse(name).with_suffix(".txt")
    size = path.stat().st_size
    bytewise = measure(path, [(1_000_000, i + 1) for i in range(size)])
    assert bytewise == measure(path)


@pytest.mark.parametrize("name", ["0.10.2/chat_continuous_usage", "0.32.0/chat_continuous_usage"])
def test_continuous_usage_tells_the_tokens_of_each_chunk(name: str) -> None:
    record = measure(sse(name).with_suffix(".txt"))
    assert record.chunk_tokens == (1,) * record.output_chunks


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_recorded_answer_without_streaming(name: str) -> None:
    tokens, prompt, finishes = WHOLE[name]
    record = measure(sse(name).with_suffix(".json"))
    assert record.outcome is Outcome.COMPLETED
    assert not record.streamed
    assert record.ttft_ns is None
    assert (record.output_tokens, record.prompt_tokens) == (tokens, prompt)
    assert [choice.finish_reason for choice in record.choices] == finishes
    assert all(choice.text for choice in record.choices)


@pytest.mark.parametrize("name", REFUSED)
def test_recorded_refusal_is_the_clients_own_fault(name: str) -> None:
    record = measure(sse(name))
    assert (record.outcome, record.error_kind, record.status) == (Outcome.ERROR, ErrorKind.CLIENT, 400)


def test_every_recorded_body_is_in_a_table() -> None:
    bodies = {
        f"{path.parts[-3]}/{path.name}"
        for path in VLLM.glob("*/sse/*")
        if path.suffix in (".txt", ".json") and not path.name.endswith(".arrivals.json")
    }
    known = {f"{name}.txt" for name in STREAMED} | {f"{name}.json" for name in WHOLE} | set(REFUSED)
    assert bodies == known
    assert len(bodies) > 25


@pytest.mark.parametrize("version", ["0.10.2", "0.32.0"])
@pytest.mark.parametrize("step", [1, 7, 100, 4096])
def test_recorded_wire_bytes_through_an_http_parser(version: str, step: int) -> None:
    """Chunked as it came, cut anywhere, also inside chunk headers: the record is that of the whole."""

    def read(step: int) -> RequestRecord:
        meter = meter_for(VLLM / version / "sse" / "chat_usage.txt")

        class Events:
            def __init__(self) -> None:
                self.headers: list[tuple[str, str]] = []

            def on_header(self, name: bytes, value: bytes) -> None:
                self.headers.append((name.decode(), value.decode()))

            def on_headers_complete(self) -> None:
                meter.on_headers(parser.get_status_code(), self.headers, 0)

            def on_body(self, body: bytes) -> None:
                meter.feed(body, 1_000_000)

        parser = httptools.HttpResponseParser(Events())
        wire = (VLLM / version / "sse" / "chat_usage.wire").read_bytes()
        for at in range(0, len(wire), step):
            parser.feed_data(wire[at : at + step])
        return meter.finish(End.EOF, 2_000_000)

    record = read(step)
    assert record.outcome is Outcome.COMPLETED
    assert (record.output_tokens, record.tokens_estimated) == (8, False)
    assert record == read(1 << 20)


@pytest.mark.parametrize("version", ["0.10.2", "0.32.0"])
def test_recorded_arrivals_give_gaps_that_add_up(version: str) -> None:
    """The reads of a recorded stream (of another run: the cuts are scaled to this body's length)."""
    path = VLLM / version / "sse" / "chat_plain.txt"
    arrivals: list[list[Any]] = json.loads(path.with_suffix(".arrivals.json").read_text())
    scale = path.stat().st_size / arrivals[-1][1]
    cuts = [(round(at_s * 1e9), round(size * scale)) for at_s, size in arrivals]
    record = measure(path, cuts)
    assert record.first_ns is not None
    assert record.last_ns is not None
    assert sum(record.gaps_ns) == record.last_ns - record.first_ns
    assert min(record.gaps_ns) >= 0
    assert record.e2e_ns == cuts[-1][0]
    whole = measure(path)
    assert record.output_chunks == whole.output_chunks
    assert [c.finish_reason for c in record.choices] == [c.finish_reason for c in whole.choices]


@pytest.mark.parametrize(
    "path", sorted(VLLM.glob("*/errors/*")), ids=lambda path: f"{path.parts[-3]}-{path.stem}"
)
def test_recorded_error_bodies_never_become_output(path: Path) -> None:
    status = 500 if b"EngineCore" in path.read_bytes() else 400
    meter = StreamMeter(Api.CHAT, start_ns=0)
    meter.on_headers(status, [("content-type", "application/json")], 0)
    meter.feed(path.read_bytes(), 1)
    record = meter.finish(End.EOF, 2)
    assert record.outcome is Outcome.ERROR
    assert record.error_kind is (ErrorKind.HTTP if status == 500 else ErrorKind.CLIENT)
    assert record.error == f"HTTP {status}"
    assert record.output_chunks == 0


@pytest.mark.parametrize("path", sorted(VLLM.glob("*/sse/requests/*.json")), ids=lambda path: path.stem)
def test_recorded_requests_are_read(path: Path) -> None:
    request = json.loads(path.read_text())
    api = api_of("POST", request["path"])
    assert api.generates
    facts = request_facts(api, json.dumps(request["body"]).encode())
    assert facts.model == "tiny-llama"
    assert facts.stream
    assert facts.choices == (2 if "n2" in path.stem or "batch2" in path.stem else 1)
    assert facts.include_usage is ("stream_options" in request["body"])
    assert facts.prompt_chars > 0
    assert facts.echo is ("echo" in path.stem)
