"""What the engine looked like lately: means and extremes of its gauges, increases of its counters. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sidecar.engine.series import History
from sidecar.engine.view import EngineView

_GAUGES = ("running", "waiting", "kv_usage")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The engine over a window. ``None``: not known. Counts in requests, shares 0..1, rates per second."""

    scrapes: int = 0
    running_mean: float | None = None
    waiting_mean: float | None = None
    waiting_max: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_max: float | None = None
    preemptions: float | None = None
    prompt_tps: float | None = None
    generation_tps: float | None = None
    prompt_tokens_mean: float | None = None  # tokens of a finished request's prompt
    prefix_hit_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ns: int
    values: tuple[float | None, ...]


@dataclass(slots=True)
class EngineWatch:
    """Gauge samples of the last ``window_s`` beside the engine's counter history."""

    interval_s: float
    window_s: float = 300.0
    history: History = field(init=False)
    _samples: deque[_Sample] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.history = History(self.interval_s, self.window_s)

    def add(self, at_ns: int, view: EngineView | None, wall_s: float) -> None:
        """Take one scrape; a failed one (``None``) adds nothing."""
        self.history.add(at_ns, view, wall_s)
        if view is not None:
            values = (view.total("running"), view.total("waiting"), view.max("kv_usage"))
            self._samples.append(_Sample(at_ns, values))
        self._forget(at_ns)

    def evidence(self, now_ns: int, window_s: float | None = None) -> Evidence:
        """Over the last ``window_s`` seconds (default: all that is kept)."""
        self._forget(now_ns)
        horizon = now_ns - int((self.window_s if window_s is None else window_s) * 1e9)
        samples = [sample for sample in self._samples if sample.at_ns >= horizon]
        columns = {
            name: [v for sample in samples if (v := sample.values[i]) is not None]
            for i, name in enumerate(_GAUGES)
        }
        history = self.history
        grown = history.increase("preemptions", now_ns, window_s)
        prompts = history.histogram("request_prompt_tokens", now_ns, window_s)
        queries = history.increase("prefix_queries", now_ns, window_s)
        hits = history.increase("prefix_hits", now_ns, window_s)
        return Evidence(
            scrapes=len(samples),
            running_mean=_mean(columns["running"]),
            waiting_mean=_mean(columns["waiting"]),
            waiting_max=max(columns["waiting"], default=None),
            kv_usage_mean=_mean(columns["kv_usage"]),
            kv_usage_max=max(columns["kv_usage"], default=None),
            preemptions=grown.value if grown else None,
            prompt_tps=history.rate("prompt_tokens", now_ns, window_s),
            generation_tps=history.rate("generation_tokens", now_ns, window_s),
            prompt_tokens_mean=prompts.mean if prompts else None,
            prefix_hit_ratio=(
                hits.value / queries.value
                if hits and queries and hits.value is not None and queries.value
                else None
            ),
        )

    def _forget(self, now_ns: int) -> None:
        horizon = now_ns - int(self.window_s * 1e9)
        while self._samples and self._samples[0].at_ns < horizon:
            self._samples.popleft()


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
