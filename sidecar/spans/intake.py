"""What happens to received spans: kept back until their request has ended, converted, counted, passed on."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.requests.records import RequestRecord
from sidecar.spans.coldstart import ColdStarts
from sidecar.spans.joins import Joins, Ours
from sidecar.spans.model import Span
from sidecar.spans.semconv import Convention
from sidecar.spans.vllm import Clean, converted, engine_request_id, is_request, record_of

HOLD_S = 10.0
_MOST_HELD = 4096


@dataclass(frozen=True, slots=True)
class _Held:
    span: Span
    until_s: float


class Intake:
    """Takes received spans, gives the converted ones to ``forward``.

    ``counts``: received, requests, startup, joined, unjoined, sampled_out, held_over (given up waiting),
    usage_dropped. ``on_record`` gets each request as vLLM tells it, for set-ups without the proxy. Calls
    may come from several threads.
    """

    def __init__(
        self,
        joins: Joins,
        convention: Convention,
        clean: Clean,
        forward: Callable[[Span], object],
        *,
        provider: str = "vllm",
        texts: bool = False,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self._joins = joins
        self._convention = convention
        self._clean = clean
        self._forward = forward
        self._provider = provider
        self._texts = texts
        self._on_record = on_record
        self._held: deque[_Held] = deque()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.cold_starts = ColdStarts()

    def take(self, spans: Sequence[Span], now_s: float) -> None:
        """New spans at ``now_s`` (monotonic seconds)."""
        with self._lock:
            self.counts["received"] += len(spans)
            self.cold_starts.take(spans)
            for span in spans:
                if not is_request(span):
                    self.counts["startup"] += 1
                    self._pass(span, None)
                    continue
                self.counts["requests"] += 1
                if self._on_record is not None and (record := record_of(span)) is not None:
                    self._on_record(record)
                ours = self._ours(span)
                if ours is not None and not ours.finished and len(self._held) < _MOST_HELD:
                    # Whether our span has the usage is known when the request has ended here as well.
                    self._held.append(_Held(span, now_s + HOLD_S))
                else:
                    self._pass(span, ours)

    def tick(self, now_s: float) -> None:
        """Look again at what is kept back; call about once a second."""
        with self._lock:
            for _ in range(len(self._held)):
                held = self._held.popleft()
                ours = self._ours(held.span)
                if ours is not None and ours.finished:
                    self._pass(held.span, ours)
                elif now_s >= held.until_s:
                    self.counts["held_over"] += 1
                    self._pass(held.span, ours)
                else:
                    self._held.append(held)

    def _ours(self, span: Span) -> Ours | None:
        return self._joins.find(span.parent_span_id, engine_request_id(span))

    def _pass(self, span: Span, ours: Ours | None) -> None:
        if ours is not None and not ours.kept:
            self.counts["sampled_out"] += 1
            return
        if is_request(span):
            self.counts["unjoined" if ours is None else "joined"] += 1
            if ours is not None and ours.usage:
                self.counts["usage_dropped"] += 1
        self._forward(
            converted(span, ours, self._convention, self._clean, provider=self._provider, texts=self._texts)
        )
