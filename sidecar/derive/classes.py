"""One model and SLO class: lifetime counters, windows, classic histograms, error budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.derive.budget import ErrorBudget
from sidecar.derive.distserve import defined, kept_rate, met_both
from sidecar.derive.loghist import EdgeHistogram, with_edges
from sidecar.derive.windows import (
    LATENCIES,
    WINDOWS,
    Counts,
    Ring,
    Slot,
    WindowSpec,
    slot_of,
)
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import SloClass, Verdict

# The page's chart: counts of the last hour in half minutes, without latencies.
CHART = WindowSpec("chart", 3600, 30)

BASE_EDGES_S: Mapping[str, tuple[float, ...]] = {
    "ttft": (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160),
    "tpot": (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1),
    "itl": (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10),
    "e2e": (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280),
}


def edges_for(classes: tuple[SloClass, ...]) -> dict[str, tuple[float, ...]]:
    """Edges (seconds) of each exported histogram, with the bounds of every class among them: all classes
    share the same edges, so that they can be added up."""
    return {
        "ttft": with_edges(BASE_EDGES_S["ttft"], (c.ttft_s for c in classes)),
        "tpot": with_edges(BASE_EDGES_S["tpot"], (c.tpot_s for c in classes)),
        "itl": with_edges(
            BASE_EDGES_S["itl"], [b for c in classes for b in (c.itl_p99_s, c.max_gap_s, c.stall_s)]
        ),
        "e2e": with_edges(BASE_EDGES_S["e2e"], (c.e2e_s for c in classes)),
    }


@dataclass(frozen=True, slots=True)
class Sampled:
    """The last observation of a bucket that had a trace."""

    trace_id: str
    value_s: float
    wall_s: float


@dataclass(slots=True)
class ClassState:
    """Everything known of one (model, class). Times are nanoseconds of one monotonic clock."""

    model: str
    slo: SloClass
    objective: float
    edges_s: Mapping[str, tuple[float, ...]]
    since_ns: int
    totals: Counts = field(default_factory=Counts)
    histograms: dict[str, EdgeHistogram] = field(init=False)
    exemplars: dict[str, dict[int, Sampled]] = field(init=False)
    budget: ErrorBudget = field(init=False)
    rings: dict[str, Ring] = field(init=False)
    chart: Ring = field(default_factory=lambda: Ring(CHART))

    def __post_init__(self) -> None:
        self.histograms = {name: EdgeHistogram(self.edges_s[name]) for name in LATENCIES}
        self.exemplars = {name: {} for name in LATENCIES}
        self.budget = ErrorBudget(self.objective)
        self.rings = {spec.name: Ring(spec) for spec in WINDOWS}

    @property
    def name(self) -> str:
        """The class's name."""
        return self.slo.name

    def add(self, record: RequestRecord, verdict: Verdict, wall_s: float) -> None:
        """Count one finished request; it belongs to the time at which it ended."""
        deadlines = None
        if self.slo.ttft_s is not None and self.slo.tpot_s is not None:
            deadlines = (self.slo.ttft_s, self.slo.tpot_s)
        slot = slot_of(record, verdict, deadlines)
        if defined(self.slo):
            slot.counts.distserve = int(met_both(record, verdict))
        end_ns = record.end_ns
        self.totals.merge(slot.counts)
        for ring in self.rings.values():
            ring.add(slot, end_ns)
        self.chart.add(Slot(slot.counts), end_ns)
        self.budget.add(end_ns / 1e9, slot.counts.good, slot.counts.eligible)
        self._observe(record, wall_s)

    def _observe(self, record: RequestRecord, wall_s: float) -> None:
        trace_id = record.extra.get("trace_id", "")
        sampled = record.extra.get("trace_flags", "01") != "00"
        for name, value in (("ttft", record.ttft_ns), ("tpot", record.tpot_ns), ("e2e", record.e2e_ns)):
            if value is not None:
                at = self.histograms[name].add(value)
                if trace_id and sampled:
                    self.exemplars[name][at] = Sampled(trace_id, value / 1e9, wall_s)
        self.histograms["itl"].add_all(record.gaps_ns)

    def kept_rate(self, share: float, now_ns: int) -> float | None:
        """DistServe's goodput as far as it was seen: see there. Requests per second of this replica."""
        if not defined(self.slo):
            return None
        watched_s = (now_ns - self.since_ns) / 1e9
        return kept_rate(self.chart.by_slot(now_ns), CHART.slot_s, share, watched_s=watched_s)

    def covered_s(self, window: str, now_ns: int) -> float:
        """How much time one of the windows covers now."""
        return self.rings[window].covered_s(now_ns, self.since_ns)

    def slot(self, window: str, now_ns: int) -> Slot:
        """One of the windows, mergeable with other classes'."""
        return self.rings[window].merged(now_ns)
