"""Counts of judged requests that always add up: good + badput = eligible."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sidecar.requests.judge import Bucket, Verdict
from sidecar.requests.records import ErrorKind, Outcome, RequestRecord

# Why a request is not eligible
LEFT_IN_TIME = "client_left"
UNJUDGED = "unjudged"
CLIENT_FAULT = "client_fault"


@dataclass(slots=True)
class Tally:
    """Sums over requests. ``badput`` holds eligible ones only; ``not_eligible`` says why not."""

    requests: int = 0
    completed: int = 0
    eligible: int = 0
    good: int = 0
    badput: Counter[Bucket] = field(default_factory=Counter)
    not_eligible: Counter[str] = field(default_factory=Counter)
    errors: Counter[ErrorKind] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    output_tokens: int = 0
    good_tokens: int = 0
    prompt_tokens: int = 0
    tokens_estimated: bool = False  # at least one request's tokens are

    def add(self, record: RequestRecord, verdict: Verdict) -> None:
        """Count one request under its verdict."""
        self.requests += 1
        self.completed += record.outcome is Outcome.COMPLETED
        tokens = record.output_tokens or 0
        self.output_tokens += tokens
        self.prompt_tokens += record.prompt_tokens or 0
        self.tokens_estimated |= record.tokens_estimated
        self.misses.update(verdict.misses)
        if record.error_kind is not None:
            self.errors[record.error_kind] += 1
        if not verdict.eligible:
            self.not_eligible[why_not_eligible(record)] += 1
            return
        self.eligible += 1
        if verdict.good:
            self.good += 1
            self.good_tokens += tokens
        elif verdict.bucket is not None:
            self.badput[verdict.bucket] += 1

    def merge(self, other: Tally) -> None:
        """Add another tally's counts to this one."""
        self.requests += other.requests
        self.completed += other.completed
        self.eligible += other.eligible
        self.good += other.good
        self.badput.update(other.badput)
        self.not_eligible.update(other.not_eligible)
        self.errors.update(other.errors)
        self.misses.update(other.misses)
        self.output_tokens += other.output_tokens
        self.good_tokens += other.good_tokens
        self.prompt_tokens += other.prompt_tokens
        self.tokens_estimated |= other.tokens_estimated

    @property
    def attainment(self) -> float | None:
        """good / eligible; ``None`` with nothing eligible."""
        return self.good / self.eligible if self.eligible else None

    def goodput_rps(self, window_s: float) -> float:
        """Good requests per second over a window (seconds, above 0)."""
        return self.good / window_s

    def token_goodput_tps(self, window_s: float) -> float:
        """Output tokens of good requests per second over a window (seconds, above 0)."""
        return self.good_tokens / window_s


def why_not_eligible(record: RequestRecord) -> str:
    """Why the judge did not count it: ``client_left``, ``client_fault`` or ``unjudged``."""
    if record.outcome is Outcome.CLIENT_LEFT:
        return LEFT_IN_TIME
    return CLIENT_FAULT if record.outcome is Outcome.ERROR else UNJUDGED
