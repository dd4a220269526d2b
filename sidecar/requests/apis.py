"""Which API a request speaks, and the few facts of its body that its measuring depends on."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from sidecar.requests.records import Api
from sidecar.requests.salvage import cut_object
from sidecar.requests.text import name_of

# The path's last segments, looked up longest first. Whatever stands before ``/v1`` is a prefix that a gateway
# or an ingress put there. vLLM serves some of these without a version, and only those are taken without.
_VERSIONED: dict[tuple[str, ...], Api] = {
    ("chat", "completions"): Api.CHAT,
    ("completions",): Api.COMPLETIONS,
    ("responses",): Api.RESPONSES,
    ("messages",): Api.MESSAGES,
    ("messages", "count_tokens"): Api.TOKENIZE,
    ("embeddings",): Api.EMBEDDINGS,
    ("embed",): Api.EMBEDDINGS,
    ("rerank",): Api.RERANK,
    ("score",): Api.SCORE,
    ("audio", "transcriptions"): Api.AUDIO,
    ("audio", "translations"): Api.AUDIO,
    ("audio", "speech"): Api.AUDIO,
}
_BARE: dict[str, Api] = {
    "rerank": Api.RERANK,
    "score": Api.SCORE,
    "pooling": Api.POOLING,
    "classify": Api.POOLING,
    "tokenize": Api.TOKENIZE,
    "detokenize": Api.TOKENIZE,
}
_VERSION = re.compile(r"v\d+")
_MAX_CHOICES = 65_536  # n times prompts; a server refuses fewer


def api_of(method: str, path: str) -> Api:
    """The API behind a request line; ``path`` may carry a prefix, a query or a whole origin.

    Only a POST asks for generation. An unknown path is ``Api.OTHER``: counted, never taken for generation.
    """
    if method.upper() != "POST":
        return Api.OTHER
    if "://" in path:
        path = "/" + path.split("://", 1)[1].partition("/")[2]
    segments = path.partition("?")[0].partition("#")[0].split("/")
    for length in (2, 1):
        if len(segments) <= length:
            continue
        version = segments[-length - 1]
        found = _VERSIONED.get(tuple(segments[-length:]))
        if found is not None and _VERSION.fullmatch(version):
            return found
    # Azure's form: .../deployments/NAME/chat/completions
    for length in (2, 1):
        tail = tuple(segments[-length:])
        if len(segments) > length + 2 and segments[-length - 2] == "deployments" and tail in _VERSIONED:
            return _VERSIONED[tail]
    return _BARE.get(segments[-1], Api.OTHER)


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the meter must know of a request's body; zero values where it does not say."""

    model: str
    stream: bool
    choices: int  # n, times the prompts of a batch: how many choices the answer must finish
    include_usage: bool
    prompt_chars: int  # characters of text in the prompt, a stand-in for its length in tokens
    echo: bool = False  # the prompt comes back before the generated text; of chat, its last message does


_NOTHING = RequestFacts("", False, 1, False, 0)


def request_facts(api: Api, body: bytes, *, end: bytes = b"") -> RequestFacts:
    """Read a request's body. Never raises: a body that cannot be read gives the zero facts.

    ``end``: where the middle of the body was not kept, its last bytes; ``body`` is then its beginning.
    """
    try:
        parsed = cut_object(body, end) if end else json.loads(body)
        return _facts(api, parsed) if isinstance(parsed, dict) else _NOTHING
    except (ValueError, RecursionError):
        return _NOTHING


def _facts(api: Api, body: dict[str, Any]) -> RequestFacts:
    n = body.get("n")
    choices = n if isinstance(n, int) and not isinstance(n, bool) and n >= 1 else 1
    if api is Api.COMPLETIONS:
        choices *= _batch_size(body.get("prompt"))
    elif api is not Api.CHAT:
        choices = 1
    options = body.get("stream_options")
    return RequestFacts(
        model=name_of(body.get("model")),
        stream=body.get("stream") is True,
        choices=min(choices, _MAX_CHOICES),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        prompt_chars=sum(
            _chars(body.get(key)) for key in ("messages", "prompt", "input", "system", "instructions")
        ),
        echo=body.get("echo") is True and (api is not Api.CHAT or _echoes(body)),
    )


def _echoes(body: dict[str, Any]) -> bool:
    """vLLM sends the last message of a chat back only where the answer continues it: under the same role."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or not last.get("content"):
        return False
    return body.get("add_generation_prompt") is False or last.get("role") == "assistant"


def _batch_size(prompt: Any) -> int:
    """A list of texts or of token lists is a batch; a text or a list of token ids is one prompt."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _chars(value: Any) -> int:
    """Characters of prompt text inside a prompt, a message list or an input, whatever its nesting."""
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item[key] for key in ("content", "text", "arguments", "output") if key in item)
    return total
