"""The OpenAI protocol as vLLM speaks it: request bodies in, events and answers out. No sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loadgen.simulator.profile import Profile
from loadgen.simulator.text import chat_tokens, count_tokens

Endpoint = Literal["chat", "completions"]

DEFAULT_COMPLETION_TOKENS = 16  # the OpenAI API's own default, which vLLM keeps
MAX_CHOICES = 128


class RefusedError(Exception):
    """A request that gets an error answer in vLLM's form."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        return error_body(self.status, self.message, self.param)


_ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants. ``prompts``: tokens of each prompt; each gives ``n`` choices."""

    endpoint: Endpoint
    model: str
    prompts: tuple[int, ...]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


def _whole(body: Mapping[str, Any], key: str, default: int, low: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError(400, f"{key} must be a whole number, got {value!r}.", param=key)
    if value < low:
        raise RefusedError(400, f"{key} must be at least {low}, got {value}.", param=key)
    return value


def _prompt_tokens(value: Any) -> list[int]:
    if isinstance(value, str):
        return [count_tokens(value)]
    if isinstance(value, list) and value:
        if all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return [len(value)]
        if all(isinstance(v, str) or (isinstance(v, list) and v) for v in value):
            return [count for v in value for count in _prompt_tokens(v)]
    raise RefusedError(400, "prompt must be text, token ids, or a list of either.", param="prompt")


def message_texts(messages: Any) -> list[str]:
    """The text of each chat message; parts that are not text count as nothing."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise RefusedError(400, "messages must be a list of at least one message.", param="messages")
    texts = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        texts.append(
            " ".join(
                part if isinstance(part, str) else str(part.get("text") or "")
                for part in parts
                if isinstance(part, (str, dict))
            )
        )
    return texts


def read_ask(endpoint: Endpoint, raw: bytes, profile: Profile) -> Ask:
    """The request in ``raw``; raises :class:`RefusedError` as vLLM would refuse it."""
    body = read_object(raw)
    model = body.get("model")
    check_model(model, profile)
    prompts = (
        [chat_tokens(message_texts(body.get("messages")))]
        if endpoint == "chat"
        else _prompt_tokens(body.get("prompt"))
    )
    n = _whole(body, "n", 1, 1)
    if n * len(prompts) > MAX_CHOICES:
        raise RefusedError(400, f"at most {MAX_CHOICES} choices, got {n * len(prompts)}.", param="n")
    limit_key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _whole(body, limit_key, 0, 1) or None
    if max_tokens is None and endpoint == "completions":
        max_tokens = DEFAULT_COMPLETION_TOKENS
    for tokens in prompts:
        if tokens < 1:
            raise RefusedError(400, "the prompt is empty.", param="prompt")
        if tokens >= profile.max_model_len or tokens + (max_tokens or 1) > profile.max_model_len:
            raise RefusedError(
                400,
                f"This model's maximum context length is {profile.max_model_len} tokens. However, the "
                f"request has {tokens} input tokens and asks for {max_tokens or 1} output tokens.",
                param="input_tokens",
            )
    stream = body.get("stream") is True
    options = body.get("stream_options")
    if options is not None and (not stream or not isinstance(options, dict)):
        raise RefusedError(400, "stream_options needs stream=true and an object.", param="stream_options")
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise RefusedError(400, "stop must be text or a list of texts.", param="stop")
    options = options or {}
    return Ask(
        endpoint=endpoint,
        model=profile.model_name,
        prompts=tuple(prompts),
        n=n,
        max_tokens=max_tokens,
        min_tokens=_whole(body, "min_tokens", 0, 0),
        ignore_eos=body.get("ignore_eos") is True,
        stops=tuple(stops),
        stream=stream,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
    )


def read_object(raw: bytes) -> dict[str, Any]:
    """A JSON object; raises :class:`RefusedError` otherwise."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not JSON.") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body is not a JSON object.")
    return body


def check_model(model: Any, profile: Profile) -> None:
    """vLLM takes a request without a model for its own; any other name it does not know."""
    if model not in (None, "", profile.model_name):
        raise RefusedError(
            404, f"The model `{model}` does not exist. Valid: {profile.model_name}.", param="model"
        )


@dataclass(slots=True)
class _Choice:
    prompt_tokens: int
    tokens: int = 0
    finish_reason: str | None = None
    stop_reason: str | None = None
    head: str = ""
    pieces: list[str] | None = None  # kept only for an answer in one piece


class Reply:
    """The answer to one :class:`Ask`, token by token; choice ``prompt x n + j`` is that prompt's j-th."""

    def __init__(self, ask: Ask, *, request_id: str, created_s: int, fingerprint: str) -> None:
        self.ask = ask
        self.request_id = f"{'chatcmpl' if ask.endpoint == 'chat' else 'cmpl'}-{request_id}"
        self._created_s = created_s
        self._fingerprint = json.dumps(fingerprint)
        kind = "chat.completion.chunk" if ask.endpoint == "chat" else "text_completion"
        self._event_head = (
            f'data: {{"id":"{self.request_id}","object":"{kind}","created":{created_s},'
            f'"model":{json.dumps(ask.model)},"choices":['
        )
        self._choices: list[_Choice] = []
        for prompt_tokens in ask.prompts:
            for _ in range(ask.n):
                index = len(self._choices)
                delta = '"delta":{"content":"' if ask.endpoint == "chat" else '"text":"'
                head = f'{self._event_head}{{"index":{index},{delta}'
                self._choices.append(_Choice(prompt_tokens, head=head, pieces=None if ask.stream else []))

    @property
    def prompt_tokens(self) -> int:
        return sum(self.ask.prompts)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.tokens for choice in self._choices)

    def token(self, index: int, text: str, finish_reason: str | None, stop_reason: str | None = None) -> str:
        """Events for one token of choice ``index``; ``text`` is plain ASCII that JSON takes as it is."""
        choice = self._choices[index]
        choice.tokens += 1
        choice.finish_reason = finish_reason
        choice.stop_reason = stop_reason
        if choice.pieces is not None:
            choice.pieces.append(text)
            return ""
        chat = self.ask.endpoint == "chat"
        opening = self._role_event(index, choice) if chat and choice.tokens == 1 else ""
        if finish_reason is None:
            end = '"finish_reason":null' if chat else '"finish_reason":null,"stop_reason":null'
        else:
            end = f'"finish_reason":"{finish_reason}","stop_reason":{json.dumps(stop_reason)}'
        middle = '"},"logprobs":null,' if chat else '","logprobs":null,'
        return f'{opening}{choice.head}{text}{middle}{end},"token_ids":null}}]{self._usage_of(choice)}}}\n\n'

    def end(self) -> str:
        """The events after the last token."""
        usage = ""
        if self.ask.include_usage:
            usage = (
                f'{self._event_head}],"usage":{json.dumps(self._usage(), separators=(",", ":"))},'
                f'"system_fingerprint":{self._fingerprint}}}\n\n'
            )
        return f"{usage}data: [DONE]\n\n"

    def error_event(self, message: str) -> str:
        """An error inside the stream, and the stream's end, as vLLM closes one that broke."""
        return f"data: {json.dumps(error_body(500, message), separators=(',', ':'))}\n\ndata: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """The answer in one piece (not streamed)."""
        chat = self.ask.endpoint == "chat"
        choices = []
        for index, choice in enumerate(self._choices):
            text = "".join(choice.pieces or ())
            said: dict[str, Any] = (
                {"message": {"role": "assistant", "content": text, "refusal": None}}
                if chat
                else {"text": text}
            )
            choices.append(
                {
                    "index": index,
                    **said,
                    "logprobs": None,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
            )
        return {
            "id": self.request_id,
            "object": "chat.completion" if chat else "text_completion",
            "created": self._created_s,
            "model": self.ask.model,
            "choices": choices,
            "system_fingerprint": json.loads(self._fingerprint),
            "usage": self._usage() | {"prompt_tokens_details": None, "completion_tokens_details": None},
        }

    def _usage(self) -> dict[str, Any]:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def _usage_of(self, choice: _Choice, tokens: int | None = None) -> str:
        if not self.ask.continuous_usage:
            return ""
        done = choice.tokens if tokens is None else tokens
        return (
            f',"usage":{{"prompt_tokens":{choice.prompt_tokens},"total_tokens":{choice.prompt_tokens + done},'
            f'"completion_tokens":{done}}}'
        )

    def _role_event(self, index: int, choice: _Choice) -> str:
        return (
            f'{self._event_head}{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            f'"finish_reason":null}}]{self._usage_of(choice, 0)}}}\n\n'
        )
