"""What one page says, in canonical words: signals by name, each with its series. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SeriesId:
    """Which engine and model a value belongs to, and the signal's own further labels (sorted pairs).

    ``engine`` is ``""`` where the page has no engine label (vLLM's V0 engine).
    """

    engine: str
    model: str
    labels: tuple[tuple[str, str], ...] = ()

    def get(self, label: str) -> str | None:
        """The value of one of the signal's own labels."""
        return next((value for name, value in self.labels if name == label), None)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative buckets as on the page: ``cumulative[i]`` observations are <= ``edges[i]``.

    Edges rise and the last is +Inf, so ``cumulative[-1]`` is the count. Values in the signal's unit.
    """

    edges: tuple[float, ...]
    cumulative: tuple[float, ...]
    sum: float | None

    @property
    def count(self) -> float:
        """All observations."""
        return self.cumulative[-1]

    @property
    def mean(self) -> float | None:
        """Sum / count; ``None`` without observations or without a sum."""
        return self.sum / self.count if self.sum is not None and self.count > 0 else None


def merge(histograms: Iterable[Histogram]) -> Histogram | None:
    """Add histograms up. Where their edges differ only the edges that all have are kept: a cumulative
    count at a common edge is exact, whatever lies between. ``None`` for no histogram."""
    parts = list(histograms)
    if not parts:
        return None
    first = parts[0].edges
    if all(part.edges == first for part in parts):
        edges = first
        cumulative = tuple(sum(at) for at in zip(*(part.cumulative for part in parts), strict=True))
    else:
        common = set(first).intersection(*(part.edges for part in parts[1:]))
        edges = tuple(sorted(common))
        cumulative = tuple(
            sum(
                value
                for part in parts
                for edge, value in zip(part.edges, part.cumulative, strict=True)
                if edge == e
            )
            for e in edges
        )
    sums = [part.sum for part in parts]
    total = None if any(s is None for s in sums) else sum(s for s in sums if s is not None)
    return Histogram(edges, cumulative, total)


@dataclass(frozen=True, slots=True)
class Signal:
    """One gauge or counter. Never holds NaN; an empty signal does not exist."""

    name: str
    kind: str
    unit: str
    combine: str
    found: str  # the name on the page
    series: Mapping[SeriesId, float]
    created_s: Mapping[SeriesId, float] = field(default_factory=dict)  # counters, where the page tells

    @property
    def total(self) -> float:
        """Sum over all series. Meaningless for a share: use ``mean`` or ``max`` there."""
        return sum(self.series.values())

    @property
    def mean(self) -> float:
        """Mean over all series."""
        return self.total / len(self.series)

    @property
    def max(self) -> float:
        """The largest series."""
        return max(self.series.values())

    def by(self, label: str) -> dict[str, float]:
        """Sums by one of the signal's own labels; series without it count under ``""``."""
        sums: dict[str, float] = {}
        for one, value in self.series.items():
            key = one.get(label) or ""
            sums[key] = sums.get(key, 0.0) + value
        return sums


@dataclass(frozen=True, slots=True)
class HistogramSignal:
    """One histogram by series."""

    name: str
    unit: str
    found: str
    series: Mapping[SeriesId, Histogram]
    created_s: Mapping[SeriesId, float] = field(default_factory=dict)

    @property
    def merged(self) -> Histogram:
        """All series added up, on the edges they have in common."""
        whole = merge(self.series.values())
        assert whole is not None  # an empty signal does not exist
        return whole


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know about this page. ``code`` is a short bounded word."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A canonical signal that the page does not have, and why, as far as can be told."""

    signal: str
    why: str


@dataclass(frozen=True, slots=True)
class EngineView:
    """One page in canonical words. What is absent is absent: nothing here is a made-up zero."""

    server: str  # "vllm", "sglang", "tgi", "triton", "trtllm", or "" for a page of none of them
    version: str | None
    generation: str  # "v0" or "v1" for vLLM, as the page shows; else ""
    signals: Mapping[str, Signal]
    histograms: Mapping[str, HistogramSignal]
    notices: tuple[Notice, ...] = ()
    missing: tuple[Missing, ...] = ()
    unmapped: tuple[str, ...] = ()  # families that no catalogue knows
    start_time_s: float | None = None  # process_start_time_seconds, unix
    restarts_visible: bool = False  # the page has a start time or _created, so no restart can hide
    lora_running: frozenset[str] | None = None
    lora_waiting: frozenset[str] | None = None
    lora_max: int | None = None
    cache_config: Mapping[str, str] = field(default_factory=dict)
    sleeping: frozenset[str] = frozenset()  # engines that say they sleep
    engines: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    by_a_setting: tuple[Missing, ...] = ()  # beyond the core: what a flag of this release would bring

    def get(self, name: str) -> Signal | None:
        """A gauge or counter, or ``None`` where the page has no value of it."""
        return self.signals.get(name)

    def total(self, name: str) -> float | None:
        """Sum over engines and models."""
        signal = self.signals.get(name)
        return None if signal is None else signal.total

    def mean(self, name: str) -> float | None:
        """Mean over engines and models: for shares such as ``kv_usage``."""
        signal = self.signals.get(name)
        return None if signal is None else signal.mean

    def max(self, name: str) -> float | None:
        """The largest over engines and models."""
        signal = self.signals.get(name)
        return None if signal is None else signal.max

    def by(self, name: str, label: str) -> dict[str, float] | None:
        """Sums by one of the signal's own labels (``success`` by ``finished_reason``)."""
        signal = self.signals.get(name)
        return None if signal is None else signal.by(label)

    def histogram(self, name: str) -> Histogram | None:
        """A histogram over all engines and models."""
        signal = self.histograms.get(name)
        return None if signal is None else signal.merged

    @property
    def success_by_reason(self) -> dict[str, float] | None:
        """Finished requests by finish reason; aborts and errors are among them."""
        return self.by("success", "finished_reason")

    @property
    def prefix_hit_rate(self) -> float | None:
        """Hits / queries since the engine started (0..1), or the old engine's own gauge."""
        hits, queries = self.total("prefix_hits"), self.total("prefix_queries")
        if hits is not None and queries:
            return hits / queries
        return self.mean("prefix_hit_rate_gauge")
