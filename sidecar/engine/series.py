"""Counters over time. Any decrease is a reset and adds the new value; each series is rated before any sum.

No extrapolation to a window's edges (unlike Prometheus' ``rate``): an increase is what the samples show,
divided by the time between the first and the last of them. After a reset it is a lower bound, because what
was counted between the last scrape and the restart is lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sidecar.engine.view import EngineView, Histogram, SeriesId, Signal, merge

K = TypeVar("K", bound=Hashable)

_START_TOLERANCE_S = 2.0  # the kernel's boot time, and with it the start time, may move when the clock is set
_STALE_INTERVALS = 2.0
_MAX_SERIES = 50_000  # an engine's own series are bounded; a page that invents them without end is not


@dataclass(frozen=True, slots=True)
class Increase:
    """What a counter grew by. ``value`` is ``None`` where it is not known (never 0 for unknown).

    ``hidden_restart_possible``: nothing on the page would show a restart after which the counter already
    stands higher than before (no start time and no ``_created``, as in multiprocess mode).
    """

    value: float | None
    resets: int
    elapsed_s: float
    hidden_restart_possible: bool = True

    @property
    def rate(self) -> float | None:
        """Increase per second; ``None`` where unknown or where no time has passed."""
        return self.value / self.elapsed_s if self.value is not None and self.elapsed_s > 0 else None


def increase(samples: Sequence[tuple[float, float | None]]) -> Increase:
    """Of one series: ``(time in seconds, value or None for a missing scrape)`` in time order."""
    return increase_of([(t, None if v is None else {"": v}) for t, v in samples])


def increase_of(scrapes: Sequence[tuple[float, Mapping[K, float] | None]]) -> Increase:
    """Of several series, each rated alone, then added: ``(time in seconds, values or None)``."""
    last: dict[K, float] = {}
    grown, resets = 0.0, 0
    good = [(t, values) for t, values in scrapes if values is not None]
    for _, values in good:
        for key, value in values.items():
            if math.isnan(value):
                continue
            before = last.get(key)
            if before is not None:
                grown += value - before if value >= before else value
                resets += value < before
            last[key] = value
    if len(good) < 2 or good[-1][0] <= good[0][0]:
        return Increase(None, resets, 0.0)
    return Increase(grown, resets, good[-1][0] - good[0][0])


@dataclass(slots=True)
class _Counter:
    """One counter series: the value last seen and the sum of its increases since it was first seen."""

    raw: float
    created_s: float | None
    grown: float = 0.0


@dataclass(slots=True)
class _Buckets:
    """One histogram series, likewise. ``epoch`` changes when its edges do."""

    raw: Histogram
    created_s: float | None
    grown: Histogram
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """One scrape, kept small: no view, and what did not change shares its objects with the entry before."""

    at_ns: int
    load: tuple[float | None, ...]
    tokens: tuple[float | None, ...]
    counters: Mapping[tuple[str, SeriesId], float]
    buckets: Mapping[tuple[str, SeriesId], tuple[int, Histogram]]
    resets: Mapping[str, int]


@dataclass(slots=True)
class History:
    """The recent scrapes of one engine, made reset-aware as they come in.

    ``interval_s`` is the scrape interval: what was not seen for two of them is absent. ``window_s`` is the
    longest window that can be asked for; entries older than it are dropped.
    """

    interval_s: float
    window_s: float = 300.0
    restarts: int = 0  # seen in a start time, or as a page full of resets
    _entries: deque[_Entry] = field(default_factory=deque)
    _counters: dict[tuple[str, SeriesId], _Counter] = field(default_factory=dict)
    _buckets: dict[tuple[str, SeriesId], _Buckets] = field(default_factory=dict)
    _resets: dict[str, int] = field(default_factory=dict)
    _wall_s: float | None = None
    _view: EngineView | None = None

    def add(self, at_ns: int, view: EngineView | None, wall_s: float | None = None) -> None:
        """Take one scrape; ``None`` is a failed one, which adds nothing. ``at_ns`` is monotonic, ``wall_s``
        the Unix time of the same moment (only needed to place ``_created`` against the last scrape)."""
        if view is None or (self._entries and at_ns <= self._entries[-1].at_ns):
            return
        restarted = self._restarted(view)
        resets_before = sum(self._resets.values())
        for signal in view.signals.values():
            if signal.kind != "gauge":
                for one, value in signal.series.items():
                    self._count((signal.name, one), value, signal.created_s.get(one), restarted)
        for histogram in view.histograms.values():
            for one, buckets in histogram.series.items():
                self._observe((histogram.name, one), buckets, histogram.created_s.get(one), restarted)
        if restarted or (sum(self._resets.values()) > resets_before and not view.restarts_visible):
            self.restarts += 1
        self._wall_s = wall_s
        self._view = view
        self._entries.append(
            _Entry(
                at_ns,
                tuple(view.total(name) for name in _LOAD_GAUGES),
                tuple(view.total(name) for name in _TOKEN_COUNTERS),
                {key: state.grown for key, state in self._counters.items()},
                {key: (state.epoch, state.grown) for key, state in self._buckets.items()},
                dict(self._resets),
            )
        )
        self._forget(at_ns)

    @property
    def latest(self) -> EngineView | None:
        """The last good view, however old."""
        return self._view

    def gauge(self, name: str, now_ns: int) -> Signal | None:
        """The gauge (or raw counter) as last seen, ``None`` once it is older than two intervals."""
        return self._view.signals.get(name) if self._view is not None and self._fresh(now_ns) else None

    def increase(self, name: str, now_ns: int, window_s: float | None = None) -> Increase | None:
        """Of one counter over all engines and models. ``None``: stale, absent, or fewer than two scrapes."""
        parts = self.increase_by(name, None, now_ns, window_s)
        return parts.get("") if parts else None

    def increase_by(
        self, name: str, label: str | None, now_ns: int, window_s: float | None = None
    ) -> dict[str, Increase] | None:
        """The same by one of the signal's own labels, by ``engine`` or ``model``; ``None``: all in one."""
        ends = self._ends(now_ns, window_s)
        if ends is None or self._view is None or name not in self._view.signals:
            return None
        first, last = ends
        elapsed_s = (last.at_ns - first.at_ns) / 1e9
        grown: dict[str, float] = {}
        for key, value in last.counters.items():
            if key[0] == name:
                group = _group(key[1], label)
                grown[group] = grown.get(group, 0.0) + value - first.counters.get(key, 0.0)
        resets = last.resets.get(name, 0) - first.resets.get(name, 0)
        hidden = not self._view.restarts_visible
        return {group: Increase(value, resets, elapsed_s, hidden) for group, value in grown.items()}

    def rate(self, name: str, now_ns: int, window_s: float | None = None) -> float | None:
        """Increase per second."""
        grown = self.increase(name, now_ns, window_s)
        return grown.rate if grown else None

    def histogram(self, name: str, now_ns: int, window_s: float | None = None) -> Histogram | None:
        """What was observed in the window, over all engines and models."""
        ends = self._ends(now_ns, window_s)
        if ends is None or self._view is None or name not in self._view.histograms:
            return None
        first, last = ends
        parts = []
        for key, (epoch, grown) in last.buckets.items():
            if key[0] == name:
                before = first.buckets.get(key)
                # Other edges than at the window's start: only what was seen since they changed can be told.
                parts.append(grown if before is None or before[0] != epoch else _minus(grown, before[1]))
        return merge(parts)

    def elapsed_s(self, now_ns: int, window_s: float | None = None) -> float | None:
        """Seconds between the first and the last scrape of the window; ``None`` for fewer than two."""
        ends = self._ends(now_ns, window_s)
        return (ends[1].at_ns - ends[0].at_ns) / 1e9 if ends else None

    def resets(self, now_ns: int, window_s: float | None = None) -> int:
        """Series resets seen in the window, over all signals."""
        ends = self._ends(now_ns, window_s)
        return sum(ends[1].resets.values()) - sum(ends[0].resets.values()) if ends else 0

    def in_flight_before(self, now_ns: int, window_s: float | None = None) -> float:
        """Requests running or waiting at the window's first scrape; 0 where the engine does not say."""
        ends = self._ends(now_ns, window_s)
        running, waiting, *_ = ends[0].load if ends else (None, None)
        return (running or 0.0) + (waiting or 0.0)

    def frozen_s(self, now_ns: int) -> float:
        """For how long the load gauges have stood still above zero while no token was made, in seconds.

        After all requests are aborted at once vLLM keeps the last values of running, waiting and KV usage
        until the next step, so unchanged gauges without tokens are no proof of load.
        """
        entry = self._fresh(now_ns)
        if entry is None or not any(entry.load):
            return 0.0
        since = entry.at_ns
        for older in reversed(self._entries):
            if older.load != entry.load or older.tokens != entry.tokens:
                break
            since = older.at_ns
        return (entry.at_ns - since) / 1e9

    def _restarted(self, view: EngineView) -> bool:
        before = self.latest
        if before is None or before.start_time_s is None or view.start_time_s is None:
            return False
        return abs(view.start_time_s - before.start_time_s) > _START_TOLERANCE_S

    def _count(
        self, key: tuple[str, SeriesId], value: float, created_s: float | None, restarted: bool
    ) -> None:
        state = self._counters.get(key)
        if state is None:
            # The first sight gives no increase, unless the series has surely begun since the last scrape.
            grown = value if self._entries and (restarted or self._begun_since(created_s)) else 0.0
            self._counters[key] = _Counter(value, created_s, grown)
            return
        if value < state.raw or restarted or _another(created_s, state.created_s):
            state.grown += value
            self._resets[key[0]] = self._resets.get(key[0], 0) + 1
        else:
            state.grown += value - state.raw
        state.raw, state.created_s = value, created_s

    def _observe(
        self,
        key: tuple[str, SeriesId],
        value: Histogram,
        created_s: float | None,
        restarted: bool,
    ) -> None:
        state = self._buckets.get(key)
        if state is None:
            begun = self._entries and (restarted or self._begun_since(created_s))
            self._buckets[key] = _Buckets(value, created_s, value if begun else _minus(value, value))
            return
        if value.edges != state.raw.edges:
            # Edges only change with the process: all that stands here was observed since, on a new scale.
            state.grown, state.epoch = value, state.epoch + 1
            self._resets[key[0]] = self._resets.get(key[0], 0) + 1
        elif (
            restarted
            or _another(created_s, state.created_s)
            or any(new < old for new, old in zip(value.cumulative, state.raw.cumulative, strict=True))
        ):
            state.grown = _plus(state.grown, value)
            self._resets[key[0]] = self._resets.get(key[0], 0) + 1
        elif value.cumulative != state.raw.cumulative:
            state.grown = _plus(state.grown, _minus(value, state.raw))
        else:
            return
        state.raw, state.created_s = value, created_s

    def _begun_since(self, created_s: float | None) -> bool:
        return created_s is not None and self._wall_s is not None and created_s > self._wall_s

    def _forget(self, at_ns: int) -> None:
        horizon = at_ns - int(self.window_s * 1e9)
        # One entry at or before the horizon stays, so that a full window can be asked for.
        while len(self._entries) > 2 and self._entries[1].at_ns <= horizon:
            self._entries.popleft()
        if len(self._counters) + len(self._buckets) > _MAX_SERIES:
            self._counters.clear()
            self._buckets.clear()
            self._entries.clear()
            self._view = None

    def _fresh(self, now_ns: int) -> _Entry | None:
        if not self._entries or now_ns - self._entries[-1].at_ns > _STALE_INTERVALS * self.interval_s * 1e9:
            return None
        return self._entries[-1]

    def _ends(self, now_ns: int, window_s: float | None) -> tuple[_Entry, _Entry] | None:
        last = self._fresh(now_ns)
        if last is None:
            return None
        horizon = now_ns - int((self.window_s if window_s is None else window_s) * 1e9)
        first = next((entry for entry in self._entries if entry.at_ns >= horizon), last)
        return (first, last) if first.at_ns < last.at_ns else None


_LOAD_GAUGES = ("running", "waiting", "kv_usage")
_TOKEN_COUNTERS = ("generation_tokens", "prompt_tokens")


def _group(one: SeriesId, label: str | None) -> str:
    if label is None:
        return ""
    if label == "engine":
        return one.engine
    return one.model if label == "model" else one.get(label) or ""


def _another(created_s: float | None, before_s: float | None) -> bool:
    return created_s is not None and before_s is not None and abs(created_s - before_s) > 1e-3


def _minus(a: Histogram, b: Histogram) -> Histogram:
    total = None if a.sum is None or b.sum is None else a.sum - b.sum
    return Histogram(b.edges, tuple(x - y for x, y in zip(a.cumulative, b.cumulative, strict=True)), total)


def _plus(a: Histogram, b: Histogram) -> Histogram:
    total = None if a.sum is None or b.sum is None else a.sum + b.sum
    return Histogram(a.edges, tuple(x + y for x, y in zip(a.cumulative, b.cumulative, strict=True)), total)
