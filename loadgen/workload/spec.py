"""What is sent: classes of requests as plain data, and the bytes of each request made from one."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from loadgen.address import Target
from loadgen.workload.datasets import read_prompts
from loadgen.workload.lengths import Lengths
from loadgen.workload.prompts import WORDS, Calibration, IdMaker, PromptMaker
from loadgen.workload.sessions import Session, picked
from loadgen.workload.traces import BLOCK_TOKENS, TraceRow
from sidecar.requests.records import Api

_PROMPT = "@@PROMPT@@"
_ASKED_NUMBER = 918_273_645  # no length may be so great
_ASKED = str(_ASKED_NUMBER).encode()
CLASS_HEADER = "x-slo-class"  # what the sidecar, too, tells classes apart by

PATHS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Workload:
    """One class of requests. ``extra`` is merged into every body and wins over everything else.

    ``weight`` is its share of the requests (or sessions) beside the other classes of a mix; ``model`` the
    model or LoRA adapter it asks for, where that is another than the sweep's. ``shared_share`` of its
    requests begin with ``shared_prefix_tokens`` tokens that belong to one of ``shared_groups`` prefixes;
    nothing else is shared.
    """

    api: Literal["chat", "completions"] = "chat"
    prompt_tokens: Lengths = field(default_factory=lambda: Lengths("fixed", 128))
    output_tokens: Lengths = field(default_factory=lambda: Lengths("fixed", 64))
    ignore_eos: bool = True
    shared_prefix_tokens: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    weight: float = 1.0
    model: str = ""
    shared_share: float = 1.0
    shared_groups: int = 1
    prompts: str = ""  # file of prompts to send instead of made-up ones
    token_ids: bool = False  # prompts as token ids, exactly as long as drawn (completions only)
    turns: Lengths | None = None  # turns of a conversation; None: single requests
    think_s: float = 0.0  # mean pause of the user between two turns

    def to_json(self) -> dict[str, Any]:
        """For the report: lengths as they are written on the command line."""
        return {
            **asdict(self),
            "prompt_tokens": str(self.prompt_tokens),
            "output_tokens": str(self.output_tokens),
            "turns": None if self.turns is None else str(self.turns),
        }

    @property
    def own_hit_rate(self) -> float | None:
        """Share of prompt tokens that an endless prefix cache would find by this workload's own doing;
        ``None`` where it cannot be said beforehand.
        """
        if self.prompts or self.turns is not None:
            return None
        shared = min(self.shared_prefix_tokens, self.prompt_tokens.mean)
        return self.shared_share * shared / self.prompt_tokens.mean


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
    request_class: str = ""
    model: str = ""
    turn: int = 0  # of a conversation, from 1


class RequestMaker:
    """Makes the requests of one class: the same level and serial number always give the same bytes."""

    def __init__(
        self,
        workload: Workload,
        *,
        model: str,
        seed: int,
        calibration: Calibration,
        head: bytes,
        context_tokens: int | None = None,
    ) -> None:
        self._context_tokens = context_tokens
        self._calibration = calibration
        self._dialogues = read_prompts(workload.prompts) if workload.prompts else ()
        self.workload = workload
        self.api = Api(workload.api)
        self._model = workload.model or model
        self._seed = seed
        self._prompts = PromptMaker(
            seed, calibration, shared_tokens=workload.shared_prefix_tokens, groups=workload.shared_groups
        )
        self._ids = (
            IdMaker(
                seed,
                calibration.ids,
                shared_tokens=workload.shared_prefix_tokens,
                groups=workload.shared_groups,
            )
            if workload.token_ids
            else None
        )
        self._head = head
        # The body is written once; what differs between requests is put in as bytes.
        body = json.dumps(self.body(_PROMPT, _ASKED_NUMBER)).encode()
        before, self._has_prompt, after = body.partition(json.dumps(_PROMPT).encode())
        self._before, self._after = before, after

    def make(self, level: int, serial: int, row: TraceRow | None = None) -> PreparedRequest:
        """The request with this serial number of this level; a trace's row says how long it is, and what of
        it is shared.
        """
        rng = random.Random(hash((self._seed, level, serial)))
        tokens = self.workload.prompt_tokens.draw(rng) if row is None else row.prompt_tokens
        asked = self.workload.output_tokens.draw(rng) if row is None else row.output_tokens
        if self._dialogues and row is None:
            text = picked(self._dialogues, self._seed, level, serial)[0]
            return self.prepared(json.dumps(text).encode(), asked)
        if self._ids is not None:
            return self.prepared(self._ids.prompt(tokens, level, serial, group=self._group(rng)), asked)
        if row is not None and row.blocks:
            prompt = self._prompts.blocks(tokens, level, row.blocks, BLOCK_TOKENS)
        else:
            prompt = self._prompts.prompt(tokens, level, serial, group=self._group(rng))
        # Prompts are plain words, which JSON writes as they are.
        return self.prepared(b'"%b"' % prompt.encode(), asked)

    def session(self, level: int, serial: int) -> Session | None:
        """The conversation with this serial number; ``None`` where the class has single requests."""
        workload = self.workload
        if workload.turns is None:
            return None
        rng = random.Random(hash((self._seed, level, serial)))
        dialogue = picked(self._dialogues, self._seed, level, serial) if self._dialogues else ()
        if dialogue:
            opening = dialogue[0]
        else:
            tokens = workload.prompt_tokens.draw(rng)
            opening = self._prompts.prompt(tokens, level, serial, group=self._group(rng))
        return Session(
            self,
            opening,
            rng,
            turns=workload.turns.draw(rng),
            dialogue=dialogue,
            context_tokens=self._context_tokens,
        )

    def tokens_of(self, words: int) -> float:
        """About how many tokens so many words make, as calibrated."""
        return self._calibration.overhead + self._calibration.per_word * words

    def words(self, tokens: int, rng: random.Random) -> str:
        """About so many tokens of words that open no prompt."""
        return " ".join(rng.choices(WORDS, k=max(1, round(tokens / self._calibration.per_word))))

    def prepared(self, prompt: bytes, asked: int, *, turn: int = 0) -> PreparedRequest:
        """A request with this prompt (JSON: a text, or token ids) that asks for so many tokens."""
        content = prompt if self._has_prompt else b""
        body = b"%b%b%b" % (self._before, content, self._after.replace(_ASKED, b"%d" % asked))
        wire = b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)
        return PreparedRequest(wire, self.api, asked, self.workload.name, self.workload.model, turn)

    def _group(self, rng: random.Random) -> int | None:
        """Which of the shared prefixes a request begins with, if any."""
        workload = self.workload
        if not workload.shared_prefix_tokens or rng.random() >= workload.shared_share:
            return None
        return rng.randrange(workload.shared_groups)

    def body(self, prompt: str, asked: int) -> dict[str, Any]:
        """The request's JSON. ``min_tokens`` and ``ignore_eos`` are vLLM's; others may refuse them."""
        body: dict[str, Any] = {"model": self._model}
        if self.api is Api.CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        body |= {"max_tokens": asked, "stream": True, "stream_options": {"include_usage": True}}
        if self.workload.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": asked}
        return body | self.workload.extra
