"""Which of our spans belongs to a span of vLLM's: found by span id, else by request id. Bounded."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass

_ENGINE_ID = re.compile(r"(?:chatcmpl|cmpl|embd|resp|msg|pool|score|rerank|transcription)[-_](.+)\Z")
_BATCH_SUFFIX = re.compile(r"-\d{1,6}\Z")


@dataclass(frozen=True, slots=True)
class Ours:
    """What is known of one of our spans. ``finished``: its record is there; then ``usage`` tells whether
    it carries token usage and ``kept`` whether sampling let it out."""

    trace_id: str
    span_id: str
    finished: bool = False
    usage: bool = False
    kept: bool = True


class Joins:
    """Our latest spans by span id and request id."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._by_span: OrderedDict[str, Ours] = OrderedDict()
        self._by_request: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, ours: Ours, request_id: str) -> None:
        """Remember, or bring up to date, one of our spans; the oldest goes where there are too many."""
        with self._lock:
            self._by_span[ours.span_id] = ours
            self._by_span.move_to_end(ours.span_id)
            if request_id:
                self._by_request[request_id] = ours.span_id
                self._by_request.move_to_end(request_id)
            while len(self._by_span) > self._most:
                self._by_span.popitem(last=False)
            while len(self._by_request) > self._most:
                self._by_request.popitem(last=False)

    def find(self, parent_span_id: str, engine_request_id: str) -> Ours | None:
        """Our span that is the parent, or that has this request id under vLLM's prefix and suffix."""
        with self._lock:
            if (ours := self._by_span.get(parent_span_id)) is not None:
                return ours
            for name in request_ids(engine_request_id):
                span_id = self._by_request.get(name)
                if span_id is not None and span_id in self._by_span:
                    return self._by_span[span_id]
        return None


def request_ids(engine_id: str) -> list[str]:
    """The ``X-Request-Id`` values that vLLM may have made ``engine_id`` of: its prefix off, and for
    completions the prompt's number at the end, too."""
    match = _ENGINE_ID.match(engine_id)
    whole = match.group(1) if match else engine_id
    short = _BATCH_SUFFIX.sub("", whole)
    return [engine_id, whole] if short == whole else [engine_id, whole, short]
