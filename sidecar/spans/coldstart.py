"""What a start of vLLM spent its time on, from the start-up spans of its processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.spans.model import Span

# Names as vLLM's tracing package gives them; what is not listed counts as "other".
PHASES = {
    "Init device": "init_device",
    "Load weights": "load_weights",
    "Initialize model": "build_model",
    "Allocate KV cache": "kv_cache",
    "Capture model": "capture",
    "Compile graph": "compile",
    "Inductor compilation": "compile",
    "Warmup (GPU)": "warmup",
    "Warmup (CPU)": "warmup",
    "API server setup": "api_server",
}
STARTUP_NAMES = frozenset(PHASES) | {
    "Overall Loading",
    "Prepare model",
    "EngineCoreProc init",
    "AsyncMPClient init",
    "Worker init",
    "Executor init",
    "Loading (GPU)",
    "Loading (CPU)",
    "Load model",
}
_ROOT = "Overall Loading"
_MOST_STARTS = 8


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds of one start. ``complete``: the span over all of it has been seen; else ``total_s`` is
    what the spans so far cover. Phases of the same name in several workers run side by side: the longest
    counts. ``other`` is the rest of the total, not below 0."""

    total_s: float
    phases_s: dict[str, float]
    complete: bool
    started_unix_s: float


@dataclass(slots=True)
class _Start:
    begin_ns: int
    end_ns: int
    complete: bool = False
    longest_ns: dict[str, int] = field(default_factory=dict)


class ColdStarts:
    """Collects start-up spans; the starts are told apart by trace."""

    def __init__(self) -> None:
        self._starts: dict[str, _Start] = {}

    def take(self, spans: Iterable[Span]) -> None:
        """Add the start-up spans among ``spans``; others are passed over."""
        for span in spans:
            if span.name not in STARTUP_NAMES:
                continue
            start = self._starts.setdefault(span.trace_id, _Start(span.start_ns, span.end_ns))
            if len(self._starts) > _MOST_STARTS:
                del self._starts[next(iter(self._starts))]
            duration = max(0, span.end_ns - span.start_ns)
            if span.name == _ROOT:
                start.begin_ns, start.end_ns, start.complete = span.start_ns, span.end_ns, True
            elif not start.complete:
                start.begin_ns = min(start.begin_ns, span.start_ns)
                start.end_ns = max(start.end_ns, span.end_ns)
            if (phase := PHASES.get(span.name)) is not None:
                start.longest_ns[phase] = max(start.longest_ns.get(phase, 0), duration)

    @property
    def latest(self) -> ColdStart | None:
        """The start that began last; ``None`` before any start-up span."""
        if not self._starts:
            return None
        start = max(self._starts.values(), key=lambda s: s.begin_ns)
        total_s = (start.end_ns - start.begin_ns) / 1e9
        phases = {name: ns / 1e9 for name, ns in start.longest_ns.items()}
        phases["other"] = max(0.0, total_s - sum(phases.values()))
        return ColdStart(total_s, phases, start.complete, start.begin_ns / 1e9)
