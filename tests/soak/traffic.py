"""Clients that keep asking, each request with an id, and what became of every one."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

# What requests look like, and how often: streams of both APIs, whole answers, a wrong model, one who leaves.
KINDS = ("chat", "completion", "whole", "unknown model", "leaves")
WEIGHTS = (40, 40, 12, 4, 4)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Outcome:
    """``what``: ok, left, broken, or the status of an answer that is not 200."""

    kind: str
    what: str
    took_s: float
    ended_s: float


@dataclass
class Traffic:
    """Closed loop: ``clients`` at once, each pausing a little between two requests."""

    url: str
    model: str
    clients: int = 8
    pause_s: float = 0.15
    seed: int = 0
    name: str = "soak"  # what the requests' ids begin with
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _pausing: asyncio.Event = field(default_factory=asyncio.Event)
    busy: int = 0  # requests under way
    _session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Traffic:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(90)
        )
        self.resume()
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self.clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def resume(self) -> None:
        """Ask again."""
        self._pausing.set()

    def pause(self) -> None:
        """No new requests; those under way go on."""
        self._pausing.clear()

    def whats(self, after: int = 0) -> Counter[str]:
        """Outcomes from the ``after``-th on."""
        return Counter(one.what for one in itertools.islice(self.outcomes.values(), after, None))

    def note_begin(self) -> None:
        """A request of another client begins."""
        self.busy += 1

    def note_end(self) -> None:
        """It is over."""
        self.busy -= 1

    def note(self, request_id: str, kind: str, what: str, took_s: float) -> None:
        """What became of it."""
        self.outcomes[request_id] = Outcome(kind, what, took_s, time.monotonic())

    async def _client(self, number: int) -> None:
        rng = random.Random(self.seed * 1000 + number)
        while True:
            await self._pausing.wait()
            await self.ask(rng.choices(KINDS, WEIGHTS)[0], rng)
            await asyncio.sleep(rng.random() * 2 * self.pause_s)

    async def ask(self, kind: str, rng: random.Random) -> Outcome:
        """One request; its outcome is kept under its id."""
        assert self._session is not None
        request_id = f"{self.name}-{next(_numbers)}"
        body: dict[str, object] = {
            "model": "nobody" if kind == "unknown model" else self.model,
            "max_tokens": rng.randint(4, 24),
            "stream": kind != "whole",
            "ignore_eos": True,
        }
        path = "/v1/completions"
        if kind == "completion":
            body["prompt"] = "word " * rng.randint(1, 60)
        else:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": "word " * rng.randint(1, 60)}]
            body["stream_options"] = {"include_usage": True} if body["stream"] else None
        if kind == "leaves":
            body["max_tokens"] = 400
        began = time.monotonic()
        what = "broken"
        self.busy += 1
        try:
            with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
                what = await self._answer(
                    path, {k: v for k, v in body.items() if v is not None}, request_id, kind
                )
        finally:
            self.busy -= 1
        ended = time.monotonic()
        self.outcomes[request_id] = outcome = Outcome(kind, what, ended - began, ended)
        return outcome

    async def _answer(self, path: str, body: dict[str, object], request_id: str, kind: str) -> str:
        assert self._session is not None
        async with self._session.post(
            self.url + path, json=body, headers={"X-Request-Id": request_id}
        ) as answer:
            if answer.status != 200:
                await answer.read()
                return str(answer.status)
            if kind == "leaves":
                await answer.content.readany()
                answer.close()
                return "left"
            text = await answer.read()
            if kind == "whole":
                return "ok" if json.loads(text)["choices"] else "broken"
            return "ok" if text.rstrip().endswith(b"data: [DONE]") else "broken"
