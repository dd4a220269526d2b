"""Cost of the meter per stream chunk, as a share of decoding that chunk with the standard library's json.loads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from sidecar.requests.records import Api, End
from sidecar.requests.stream import StreamMeter

TARGET = 0.25
CHUNKS = 400
REPEATS = 25

Make = Callable[[int], bytes]


def _event(body: str, name: str = "") -> bytes:
    return ((f"event: {name}\n" if name else "") + f"data: {body}\n\n").encode()


def _word(i: int, size: int) -> str:
    return (f" w{i}" + "abcdefghij klmnop " * (size // 18 + 1))[:size]


def _chat(choices: str, rest: str = "") -> str:
    return (
        '{"id":"chatcmpl-8a9e283c884bf7d9","object":"chat.completion.chunk","created":1796066208,'
        f'"model":"tiny-llama","choices":[{choices}]{rest}}}'
    )


def chat(size: int) -> Make:
    """A chat chunk with ``size`` characters of content."""
    tail = '"logprobs":null,"finish_reason":null,"token_ids":null}'
    return lambda i: _event(_chat(f'{{"index":0,"delta":{{"content":"{_word(i, size)}"}},{tail}'))


def escaped(i: int) -> bytes:
    """Content full of quotes, line ends and keys of the protocol."""
    text = json.dumps(f'{{"usage": {i}, "finish_reason": "stop"}}\n\ndata: [DONE]')
    return _event(_chat(f'{{"index":0,"delta":{{"content":{text}}},"logprobs":null,"finish_reason":null}}'))


def continuous(i: int) -> bytes:
    """A chat chunk with usage."""
    usage = f'"usage":{{"prompt_tokens":5,"total_tokens":{6 + i},"completion_tokens":{1 + i}}}'
    choice = (
        f'{{"index":0,"delta":{{"content":" w{i}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}'
    )
    return _event(_chat(choice, "," + usage))


def logprobs(i: int) -> bytes:
    """About 2 kB of log probabilities."""
    word = f" w{i}"
    entry = {"token": word, "logprob": -9.171791076660156, "bytes": list(word.encode())}
    top = [dict(entry, logprob=-7.9686665534973145 - k) for k in range(20)]
    told = json.dumps({"content": [dict(entry, top_logprobs=top)]}, separators=(",", ":"))
    choice = f'{{"index":0,"delta":{{"content":"{word}"}},"logprobs":{told},"finish_reason":null,"token_ids":null}}'
    return _event(_chat(choice))


def two_choices(i: int) -> bytes:
    """Chunks of two choices in turn."""
    choice = f'{{"index":{i % 2},"delta":{{"content":" w{i}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}'
    return _event(_chat(choice))


def tool_call(i: int) -> bytes:
    """Tool-call arguments."""
    call = f'{{"index":0,"function":{{"arguments":" w{i}"}}}}'
    return _event(
        _chat(f'{{"index":0,"delta":{{"tool_calls":[{call}]}},"logprobs":null,"finish_reason":null}}')
    )


def completions(i: int) -> bytes:
    """A completions chunk."""
    return _event(
        '{"id":"cmpl-80fe4516929ab286","object":"text_completion","created":1796066254,"model":"tiny-llama","choices":'
        f'[{{"index":0,"text":" w{i}","logprobs":null,"finish_reason":null,"stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":null}]}'
    )


def responses(i: int) -> bytes:
    """A Responses chunk, with its sequence number."""
    kind = "response.output_text.delta"
    body = (
        f'{{"content_index":0,"delta":" w{i}","item_id":"msg_9ec09b8e15f54881","logprobs":[],"output_index":0,'
        f'"sequence_number":{i + 4},"type":"{kind}"}}'
    )
    return _event(body, kind)


def messages(i: int) -> bytes:
    """A Messages chunk."""
    body = f'{{"type":"content_block_delta","delta":{{"type":"text_delta","text":" w{i}"}},"index":0}}'
    return _event(body, "content_block_delta")


KINDS: tuple[tuple[str, Api, Make], ...] = (
    ("chat, 200 B", Api.CHAT, chat(9)),
    ("chat, 2 kB of text", Api.CHAT, chat(1800)),
    ("chat, 2 kB of log probabilities", Api.CHAT, logprobs),
    ("chat, continuous usage", Api.CHAT, continuous),
    ("chat, escaped JSON in the text", Api.CHAT, escaped),
    ("chat, two choices", Api.CHAT, two_choices),
    ("chat, tool call arguments", Api.CHAT, tool_call),
    ("completions", Api.COMPLETIONS, completions),
    ("responses", Api.RESPONSES, responses),
    ("messages", Api.MESSAGES, messages),
)


def _meter_s(api: Api, chunks: list[bytes]) -> float:
    """Seconds to feed all chunks to a fresh meter, its start and end included."""
    begin = time.perf_counter()
    meter = StreamMeter(api, start_ns=0)
    meter.on_headers(200, [("content-type", "text/event-stream")], 0)
    feed = meter.feed
    at_ns = 0
    for chunk in chunks:
        at_ns += 1000
        feed(chunk, at_ns)
    meter.finish(End.CLIENT_LEFT, at_ns)
    return time.perf_counter() - begin


def _loads_s(bodies: list[bytes]) -> float:
    begin = time.perf_counter()
    loads = json.loads
    for body in bodies:
        loads(body)
    return time.perf_counter() - begin


def main() -> int:
    """Print the table; the exit status says whether every target is met."""
    missed = False
    print(
        f"{'meter, per chunk':34} {'bytes':>6} {'meter us':>9} {'loads us':>9} {'ratio':>6} {'target':>7}  ok"
    )
    for name, api, make in KINDS:
        chunks = [make(i) for i in range(CHUNKS)]
        bodies = [chunk[chunk.index(b"data: ") + 6 :].strip() for chunk in chunks]
        meter_s = loads_s = float("inf")
        for _ in range(REPEATS):
            meter_s = min(meter_s, _meter_s(api, chunks))
            loads_s = min(loads_s, _loads_s(bodies))
        ratio = meter_s / loads_s
        ok = ratio <= TARGET
        missed |= not ok
        size = sum(map(len, chunks)) // CHUNKS
        print(
            f"{name:34} {size:6} {meter_s / CHUNKS * 1e6:9.2f} {loads_s / CHUNKS * 1e6:9.2f} "
            f"{ratio:6.3f} {TARGET:7.2f}  {'yes' if ok else 'NO'}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
