"""Continuous batching, as vLLM's scheduler does it, without sockets, threads or a clock of its own.

The caller owns time: it asks :meth:`Engine.begin_step` what happens now and how long that takes, and calls
:meth:`Engine.end_step` when it is over. Scheduling rules, in vLLM's order: running sequences first, one
token each or the next chunk of their prompt; where the KV cache has no block left, the youngest running
sequence is preempted, loses its blocks and computes everything again later; waiting sequences join, oldest
first, while the token budget, the batch and the cache allow, and none joins in a step that preempted. There
is no prefix cache: choices of one request share nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loadgen.simulator.metrics import EngineStats
from loadgen.simulator.model import FLOPS_PER_PARAM, step_cost
from loadgen.simulator.profile import Profile

FinishReason = Literal["stop", "length"]
AbortReason = Literal["abort", "error"]


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request on its way through the engine. Times in nanoseconds of the caller's clock."""

    id: int
    prompt_tokens: int
    output_tokens: int  # how many it will produce
    finish_reason: FinishReason
    arrival_ns: int
    max_tokens: int  # what the client asked for, for the page only
    stall_after: int = 0  # injected stall: after this many tokens (0: none) ...
    stall_ns: int = 0  # ... nothing is computed for this long
    computed: int = 0  # tokens whose KV is in the cache
    produced: int = 0
    blocks: int = 0
    scheduled: int = 0  # tokens in the step that is running
    preemptions: int = 0
    resume_ns: int = 0
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None

    @property
    def known(self) -> int:
        """Tokens that must be in the cache before the next one comes out."""
        return self.prompt_tokens + self.produced


@dataclass(frozen=True, slots=True)
class Step:
    """A step about to run: how long it takes and what is in it."""

    duration_ns: int
    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Emission:
    """One token of one sequence, the ``number``-th (from 1); the last one carries the finish reason."""

    sequence_id: int
    number: int
    finish_reason: FinishReason | None


class Engine:
    """A batch, a queue and a KV cache. All state is plain; nothing here waits."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.stats = EngineStats(profile.max_model_len)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.free_blocks = profile.kv_blocks
        self._by_id: dict[int, Sequence] = {}
        self._next_id = 0
        self._in_step: list[Sequence] = []

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return 1 - self.free_blocks / self.profile.kv_blocks

    @property
    def unfinished(self) -> int:
        return len(self._by_id)

    def submit(
        self,
        *,
        prompt_tokens: int,
        output_tokens: int,
        now_ns: int,
        finish_reason: FinishReason = "length",
        max_tokens: int | None = None,
        stall_after: int = 0,
        stall_ns: int = 0,
    ) -> int:
        """Queue a sequence; returns its id. Raises ``ValueError`` where it could never fit."""
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError("a sequence needs at least one prompt token and one output token")
        if prompt_tokens + output_tokens > self.profile.max_model_len:
            raise ValueError(f"{prompt_tokens} + {output_tokens} tokens exceed {self.profile.max_model_len}")
        sequence = Sequence(
            id=self._next_id,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            finish_reason=finish_reason,
            arrival_ns=now_ns,
            max_tokens=output_tokens if max_tokens is None else max_tokens,
            stall_after=stall_after,
            stall_ns=stall_ns,
        )
        self._next_id += 1
        self._by_id[sequence.id] = sequence
        self.waiting.append(sequence)
        return sequence.id

    def abort(self, sequence_ids: Iterable[int], *, reason: AbortReason = "abort") -> None:
        """Forget sequences whose client left or that failed, and free their blocks; others are ignored."""
        for sequence_id in sequence_ids:
            sequence = self._by_id.pop(sequence_id, None)
            if sequence is None:
                continue
            if sequence in self.running:
                self.running.remove(sequence)
            else:
                self.waiting.remove(sequence)
            self._release(sequence)
            self.stats.aborted(reason)

    def begin_step(self, now_ns: int) -> Step | None:
        """Schedule the next step; ``None`` when nothing can run now (see :meth:`next_wake_ns`)."""
        if self._in_step:
            raise RuntimeError("the step before has not ended")
        budget = self.profile.max_batched_tokens
        preemptions = self.stats.preemptions
        at = 0
        while at < len(self.running) and budget > 0:
            sequence = self.running[at]
            if sequence.resume_ns > now_ns:
                at += 1
                continue
            want = min(sequence.known - sequence.computed, budget)
            if self._make_room(sequence, want):
                self._schedule(sequence, want)
                budget -= want
                at += 1
        held_back = self.stats.preemptions > preemptions
        while self.waiting and budget > 0 and not held_back and len(self.running) < self.profile.max_batch:
            sequence = self.waiting[0]
            want = min(sequence.known - sequence.computed, budget)
            if self.profile.blocks_for(want) > self.free_blocks:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence.first_scheduled_ns is None:
                sequence.first_scheduled_ns = max(now_ns, sequence.arrival_ns)
            self._schedule(sequence, want)
            budget -= want
        if not self._in_step:
            return None
        tokens = sum(s.scheduled for s in self._in_step)
        kv_tokens = sum(s.computed + s.scheduled for s in self._in_step)
        cost = step_cost(self.profile, tokens=tokens, kv_tokens=kv_tokens, sequences=len(self._in_step))
        self.stats.step(
            flops=FLOPS_PER_PARAM * self.profile.params * tokens,
            read_bytes=self.profile.weight_bytes + kv_tokens * self.profile.kv_bytes_per_token,
            write_bytes=tokens * self.profile.kv_bytes_per_token,
        )
        return Step(max(1, round(cost.step_s * 1e9)), tokens, len(self._in_step))

    def end_step(self, now_ns: int) -> list[Emission]:
        """The step is over: the tokens it brought, in batch order."""
        emissions: list[Emission] = []
        prompts = 0
        for sequence in self._in_step:
            scheduled, sequence.scheduled = sequence.scheduled, 0
            if sequence.id not in self._by_id:
                continue  # aborted meanwhile
            sequence.computed += scheduled
            if sequence.computed < sequence.known:
                continue  # a chunk of a prompt, or of what preemption threw away
            sequence.produced += 1
            if sequence.first_token_ns is None:
                sequence.first_token_ns = now_ns
                prompts += sequence.prompt_tokens
                self.stats.first_token(sequence.prompt_tokens, now_ns - sequence.arrival_ns)
            elif sequence.last_token_ns is not None:
                self.stats.next_token(now_ns - sequence.last_token_ns)
            sequence.last_token_ns = now_ns
            done = sequence.produced == sequence.output_tokens
            emissions.append(
                Emission(sequence.id, sequence.produced, sequence.finish_reason if done else None)
            )
            if done:
                self._finish(sequence)
            elif sequence.produced == sequence.stall_after:
                sequence.resume_ns = now_ns + sequence.stall_ns
        self._in_step.clear()
        self.stats.step_ended(prompts + len(emissions))
        return emissions

    def next_wake_ns(self) -> int | None:
        """When the first stalled sequence goes on; ``None`` when only a new request can bring work."""
        return min((s.resume_ns for s in self.running if s.resume_ns), default=None)

    def _schedule(self, sequence: Sequence, tokens: int) -> None:
        need = self.profile.blocks_for(sequence.computed + tokens) - sequence.blocks
        sequence.blocks += need
        self.free_blocks -= need
        sequence.scheduled = tokens
        self._in_step.append(sequence)

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Free blocks for ``tokens`` more of a running sequence; False if it had to go itself."""
        need = self.profile.blocks_for(sequence.computed + tokens) - sequence.blocks
        while need > self.free_blocks:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.computed = 0
        sequence.resume_ns = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
        self.stats.preempted()

    def _release(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0

    def _finish(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        del self._by_id[sequence.id]
        assert sequence.first_scheduled_ns is not None
        assert sequence.first_token_ns is not None
        assert sequence.last_token_ns is not None
        self.stats.finished(
            reason=sequence.finish_reason,
            prompt_tokens=sequence.prompt_tokens,
            output_tokens=sequence.produced,
            max_tokens=sequence.max_tokens,
            preemptions=sequence.preemptions,
            arrival_ns=sequence.arrival_ns,
            scheduled_ns=sequence.first_scheduled_ns,
            first_token_ns=sequence.first_token_ns,
            last_token_ns=sequence.last_token_ns,
        )
