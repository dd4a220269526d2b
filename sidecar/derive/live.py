"""The live picture: finished requests and scrapes come in, what is known now comes out. Pure.

All times are passed in: ``now_ns`` is monotonic, ``wall_s`` Unix.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.derive.attribution import Attribution
from sidecar.derive.autoscale import Autoscale, Capacity, signal
from sidecar.derive.classes import ClassState, edges_for
from sidecar.derive.evidence import EngineWatch
from sidecar.derive.judging import Judged, Judging
from sidecar.derive.names import OTHER, ModelNames
from sidecar.derive.selfcheck import SelfCheck
from sidecar.derive.windows import Counts, Slot, Summary, summarize
from sidecar.engine.scrape import EngineSnapshot
from sidecar.engine.view import EngineView
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import SloClass, SloPolicy
from sidecar.slices import Steps, at_once

_MAX_CLASSES = 64  # (model, class) pairs; what comes after goes into the model label __other__
_FROZEN_AFTER_S = 15.0


@dataclass(slots=True)
class Live:
    """State of one sidecar. ``started_ns`` is when it began to watch."""

    policy: SloPolicy
    started_ns: int
    objective: float = 0.99
    capacity: Capacity | None = None
    scrape_interval_s: float = 5.0
    max_models: int = 32
    engine: EngineSnapshot | None = None
    gpus: float | None = None  # of this replica, where known
    classes: dict[tuple[str, str], ClassState] = field(default_factory=dict)
    models: ModelNames = field(init=False)
    watch: EngineWatch = field(init=False)
    attribution: Attribution = field(default_factory=Attribution)
    judging: Judging = field(init=False)
    self_check: SelfCheck = field(default_factory=SelfCheck)
    slos: tuple[SloClass, ...] = field(init=False)
    _edges: dict[str, tuple[float, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.models = ModelNames(self.max_models)
        self.watch = EngineWatch(self.scrape_interval_s)
        self.judging = Judging(self.policy.class_for, self.attribution)
        self.slos = self.policy.all_classes()
        self._edges = edges_for(self.slos)

    def reconfigure(self, policy: SloPolicy, capacity: Capacity | None) -> None:
        """Judge by other classes and another capacity from now on. What was counted stays as it was judged,
        and the histograms keep their edges: a page's may not change while it is watched."""
        self.policy, self.capacity = policy, capacity
        self.judging.class_for = policy.class_for
        self.slos = policy.all_classes()
        known = {slo.name: slo for slo in self.slos}
        for (_, name), state in self.classes.items():
            state.slo = known.get(name, state.slo)

    def add_record(self, record: RequestRecord, now_ns: int, wall_s: float) -> list[Judged]:
        """Take a finished request. Returns it judged, or nothing when it waits for the next scrape: then a
        scrape soon is worth its while."""
        judged = self.judging.take(record, now_ns)
        if judged is None:
            return []
        self._count(judged, wall_s)
        return [judged]

    def add_snapshot(self, snapshot: EngineSnapshot, now_ns: int, wall_s: float) -> list[Judged]:
        """Take a scrape, good or failed. Returns requests that could be judged because of it."""
        self.engine = snapshot
        self.watch.add(snapshot.at_ns, snapshot.view, snapshot.wall_s)
        if snapshot.view is not None:
            self.attribution.add(snapshot.at_ns, snapshot.view, snapshot.duration_s)
            view = snapshot.view
            adapters = (view.lora_running or frozenset()) | (view.lora_waiting or frozenset())
            # Adapters may be many, and must not take the room of the models themselves.
            self.models.serve(frozenset(model for model in view.models if model))
            self.models.serve(adapters)
        ready = self.settle(now_ns, wall_s)
        if snapshot.view is not None:
            self._check(snapshot.at_ns, snapshot.view)
        return ready

    def settle(self, now_ns: int, wall_s: float, *, all_of_them: bool = False) -> list[Judged]:
        """Judge what was held long enough (or all of it)."""
        ready = self.judging.settle(now_ns, all_of_them=all_of_them)
        for judged in ready:
            self._count(judged, wall_s)
        return ready

    def _count(self, judged: Judged, wall_s: float) -> None:
        record, slo, verdict = judged
        answered = record.status is not None and 200 <= record.status < 300
        model = self.models.label(record.model, answered=answered)
        key = (model, slo.name)
        state = self.classes.get(key)
        if state is None:
            if len(self.classes) >= _MAX_CLASSES:
                key = (OTHER, slo.name)
                state = self.classes.get(key)
            if state is None:
                state = ClassState(key[0], slo, self.objective, self._edges, self.started_ns)
                self.classes[key] = state
        state.add(record, verdict, wall_s)

    def _check(self, at_ns: int, view: EngineView) -> None:
        totals = Counts()
        for state in self.classes.values():
            totals.merge(state.totals)
        used = {name for _, name in self.classes}
        self.self_check.at_scrape(
            at_ns,
            self.watch.history,
            next(iter(self.classes.values())).slo if len(used) == 1 else None,
            good=totals.good,
            finished=totals.eligible + sum(totals.not_eligible.values()) - totals.errors.get("client", 0),
            in_flight=(view.total("running") or 0.0) + (view.total("waiting") or 0.0) + self.judging.held,
        )

    def overall(self, window: str, now_ns: int) -> Summary:
        """One window over all models and classes."""
        return at_once(self.overall_in_steps(window, now_ns))

    def overall_in_steps(self, window: str, now_ns: int) -> Steps[Summary]:
        """The same, a class at a time."""
        whole = Slot()
        covered_s = 1.0
        for state in list(self.classes.values()):
            whole.merge(state.slot(window, now_ns))
            covered_s = max(covered_s, state.covered_s(window, now_ns))
            yield
        return summarize(whole, window, covered_s)

    def recent(self, window: str, now_ns: int) -> tuple[Counts, float]:
        """The counts of one window over all classes, and the seconds that it covers: cheap."""
        whole = Counts()
        covered_s = 1.0
        for state in self.classes.values():
            whole.merge(state.rings[window].counts(now_ns))
            covered_s = max(covered_s, state.covered_s(window, now_ns))
        return whole, covered_s

    def chart(self, now_ns: int) -> list[tuple[float, Counts]]:
        """(seconds ago, counts) for each half minute of the last hour in which something finished."""
        return at_once(self.chart_in_steps(now_ns))

    def chart_in_steps(self, now_ns: int) -> Steps[list[tuple[float, Counts]]]:
        """The same, a class at a time."""
        merged: dict[float, Counts] = {}
        for state in list(self.classes.values()):
            for ago_s, counts in state.chart.by_slot(now_ns):
                merged.setdefault(ago_s, Counts()).merge(counts)
            yield
        return sorted(merged.items(), reverse=True)

    def engine_age_s(self, now_ns: int) -> float | None:
        """Seconds since the last good scrape; ``None`` before the first."""
        last = self.attribution.last_ns
        return None if last is None else (now_ns - last) / 1e9

    def autoscale(self, now_ns: int, proxy_in_flight: int | None) -> Autoscale:
        """The autoscaler's signal now."""
        # One failed scrape is no gap yet: the last good view counts until it is stale.
        view = self.watch.history.latest
        return signal(
            self.capacity,
            engine_up=view is not None,
            engine_age_s=self.engine_age_s(now_ns),
            running=view.total("running") if view is not None else None,
            waiting=view.total("waiting") if view is not None else None,
            proxy_in_flight=proxy_in_flight,
            stale_after_s=max(15.0, 3 * self.scrape_interval_s),
            # Only where the proxy itself carries nothing: traffic may also go past it.
            frozen=proxy_in_flight == 0 and self.watch.history.frozen_s(now_ns) >= _FROZEN_AFTER_S,
        )

    def sorted_classes(self) -> Iterable[ClassState]:
        """All classes, by model and name."""
        return [self.classes[key] for key in sorted(self.classes)]
