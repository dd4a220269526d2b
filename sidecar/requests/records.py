"""What a request is: the plain data that the stream meter writes and everything else reads.

All times are integer nanoseconds of one monotonic clock; durations are differences of those.
``None`` always means *unknown or undefined*, never zero. Definitions: DESIGN section 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Api(StrEnum):
    """Which protocol a request speaks. Only the first four carry generated tokens."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    POOLING = "pooling"
    TOKENIZE = "tokenize"
    AUDIO = "audio"
    OTHER = "other"

    @property
    def generates(self) -> bool:
        """True for the APIs whose answer is a sequence of generated tokens."""
        return self in _GENERATING


_GENERATING = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES})


class Outcome(StrEnum):
    """How a request ended, before any SLO is looked at."""

    COMPLETED = "completed"  # 2xx, a finish reason for every choice, no error event, the proper end seen
    ERROR = "error"
    REJECTED = "rejected"  # 429 or 503: the server refused the load
    CLIENT_LEFT = "client_left"


class End(StrEnum):
    """How the response's bytes stopped."""

    EOF = "eof"  # the body's proper end (last chunk, Content-Length reached)
    RESET = "reset"  # the connection broke before that
    CLIENT_LEFT = "client_left"
    TIMEOUT = "timeout"  # the load generator gave up waiting
    CONNECT = "connect"  # no connection could be made


class ErrorKind(StrEnum):
    """Class of a failure. ``CLIENT`` (4xx but 408, 429) is the client's own fault."""

    CLIENT = "client"
    HTTP = "http"  # a 408, or a 5xx that is not a rejection
    STREAM = "stream"  # an error event inside a 2xx answer, or a finish reason that means failure
    INCOMPLETE = "incomplete"  # the stream ended without its proper end or without a finish reason
    MALFORMED = "malformed"  # the answer could not be read as its protocol
    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """One choice (or one prompt of a batch) of a response."""

    index: int
    output_chunks: int
    first_ns: int | None
    last_ns: int | None
    tokens: int | None
    tokens_estimated: bool
    finish_reason: str | None
    text: str | None = None  # only when capture is on, cut to its limit

    @property
    def tpot_ns(self) -> float | None:
        """(last - first) / (n - 1); ``None`` for n <= 1 or for a single chunk of many tokens."""
        if self.first_ns is None or self.last_ns is None or self.tokens is None:
            return None
        if self.tokens <= 1 or self.output_chunks <= 1:
            return None
        return (self.last_ns - self.first_ns) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request, as measured at one place (sidecar or load generator)."""

    api: Api
    model: str
    streamed: bool
    start_ns: int
    end_ns: int
    outcome: Outcome
    status: int | None = None
    error_kind: ErrorKind | None = None
    error: str | None = None  # a short reason in our words, never the server's text
    first_ns: int | None = None
    last_ns: int | None = None
    output_chunks: int = 0
    output_tokens: int | None = None
    tokens_estimated: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    accepted_tokens: int | None = None  # accepted draft tokens, where the server says
    choices: tuple[ChoiceRecord, ...] = ()
    gaps_ns: tuple[int, ...] = ()  # gaps between successive output chunks of one choice, all choices
    token_gaps_ns: tuple[tuple[float, int], ...] = ()  # (gap per token, tokens) of multi-token chunks
    chunk_tokens: tuple[int, ...] | None = None  # exact, with continuous usage; else None
    first_answer_ns: int | None = None  # first output that is not reasoning
    retry_after_s: float | None = None
    warnings: tuple[str, ...] = ()
    # Filled in by whoever watched the request, not by the meter:
    request_id: str = ""
    path: str = ""
    request_class: str = ""
    scheduled_ns: int | None = None
    sent_ns: int | None = None
    queue_ns: int | None = None  # the waiting part of TTFT, where the engine tells
    preemptions_rose: bool = False
    extra: dict[str, str] = field(default_factory=dict)
    # Gaps between successive output chunks of the whole stream, whichever choice each belongs to. With one
    # choice the same as gaps_ns; SLOs look at gaps_ns, what one reader of one choice feels.
    stream_gaps_ns: tuple[int, ...] = ()

    @property
    def ttft_ns(self) -> int | None:
        """First token time - start; ``None`` when not streamed or nothing came."""
        return None if self.first_ns is None else self.first_ns - self.start_ns

    @property
    def tpot_ns(self) -> float | None:
        """The worst choice's TPOT; ``None`` where no choice has one."""
        known = [t for c in self.choices if (t := c.tpot_ns) is not None]
        return max(known) if known else None

    @property
    def e2e_ns(self) -> int:
        """End of response - start."""
        return self.end_ns - self.start_ns

    @property
    def max_gap_ns(self) -> int | None:
        """The longest gap, ``None`` where there is none."""
        return max(self.gaps_ns, default=None)
