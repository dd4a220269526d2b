"""What is sent: the workload as plain data, and the bytes of each request made from it."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from loadgen.address import Target
from loadgen.workload.lengths import Lengths
from loadgen.workload.prompts import Calibration, PromptMaker
from sidecar.requests.records import Api

_PROMPT = b"@@PROMPT@@"
_ASKED_NUMBER = 918_273_645  # no length may be so great
_ASKED = str(_ASKED_NUMBER).encode()

PATHS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Workload:
    """One class of requests. ``extra`` is merged into every body and wins over everything else."""

    api: Literal["chat", "completions"] = "chat"
    prompt_tokens: Lengths = field(default_factory=lambda: Lengths("fixed", 128))
    output_tokens: Lengths = field(default_factory=lambda: Lengths("fixed", 64))
    ignore_eos: bool = True
    shared_prefix_tokens: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For the report: lengths as they are written on the command line."""
        return {
            **asdict(self),
            "prompt_tokens": str(self.prompt_tokens),
            "output_tokens": str(self.output_tokens),
        }


def build_head(target: Target, api: Api, api_key: str = "", headers: dict[str, str] | None = None) -> bytes:
    """The head that all requests of a workload share."""
    lines = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "User-Agent": "goodput-loadgen",
    }
    if api_key:
        lines["Authorization"] = f"Bearer {api_key}"
    return target.head(PATHS[api], lines | (headers or {}))


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One HTTP request as bytes, and what it asks for."""

    wire: bytes
    api: Api
    asked_tokens: int


class RequestMaker:
    """Makes the requests of one worker: serials ``worker``, ``worker + workers``, ... of each level."""

    def __init__(
        self,
        workload: Workload,
        *,
        model: str,
        seed: int,
        calibration: Calibration,
        head: bytes,
    ) -> None:
        self._workload = workload
        self.api = Api(workload.api)
        self._model = model
        self._seed = seed
        self._prompts = PromptMaker(seed, calibration, shared_tokens=workload.shared_prefix_tokens)
        self._head = head
        self._body = json.dumps(self.body(_PROMPT.decode(), _ASKED_NUMBER)).encode()

    def make(self, level: int, serial: int) -> PreparedRequest:
        """The request with this serial number of this level; the same arguments give the same bytes."""
        rng = random.Random(hash((self._seed, level, serial)))
        prompt_tokens = self._workload.prompt_tokens.draw(rng)
        asked = self._workload.output_tokens.draw(rng)
        prompt = self._prompts.prompt(prompt_tokens, level, serial)
        # The body was written once; what differs between requests is put in as bytes. Prompts are plain
        # words.
        body = self._body.replace(_PROMPT, prompt.encode(), 1).replace(_ASKED, b"%d" % asked)
        wire = b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)
        return PreparedRequest(wire, self.api, asked)

    def body(self, prompt: str, asked: int) -> dict[str, Any]:
        """The request's JSON. ``min_tokens`` and ``ignore_eos`` are vLLM's; others may refuse them."""
        body: dict[str, Any] = {"model": self._model}
        if self.api is Api.CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        body |= {"max_tokens": asked, "stream": True, "stream_options": {"include_usage": True}}
        if self._workload.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": asked}
        return body | self._workload.extra
