"""A sweep: asks the search for loads, has them run, tells it what came of them, until time or questions run
out.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from loadgen import __version__
from loadgen.arrivals import Arrivals
from loadgen.guards import Expectations
from loadgen.plan import LevelPlan, Measured
from loadgen.preflight import Server
from loadgen.report.jsonio import to_json
from loadgen.results import LevelResult, SweepReport
from loadgen.search import PeakSearch
from loadgen.step import level_result
from loadgen.workload.mix import Mix
from loadgen.workload.spec import PATHS
from loadgen.workload.traces import Trace
from sidecar.errors import UserError
from sidecar.requests.records import Api
from sidecar.requests.slo import SloPolicy

SHARES = (0.99, 0.95, 0.9)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What every level of a sweep shares. ``max_s`` bounds the whole sweep: no level starts that would pass
    it.
    """

    url: str
    slo: SloPolicy
    mix: Mix
    seed: int
    arrivals: Arrivals
    warmup_s: float
    window_s: float
    drain_limit_s: float
    max_s: float | None = None
    max_in_flight: int | None = None
    warmup_max_s: float | None = None
    trace: Trace | None = None  # what is replayed, as read


class Runs(Protocol):
    """Whatever can run a level: the Locust processes, or a simulation of them."""

    def __call__(self, plan: LevelPlan) -> Measured:
        """Run one level to its end, or to where it was cut."""
        ...


class Sweep:
    """One sweep. ``report`` is valid at any moment, also after an interrupt or a failure."""

    def __init__(
        self,
        settings: SweepSettings,
        search: PeakSearch,
        server: Server,
        *,
        stopped: Callable[[], bool] = lambda: False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._search = search
        self._server = server
        self._stopped = stopped
        self._clock_s = clock_s
        self._created = datetime.now(UTC).isoformat(timespec="seconds")
        self._began_s = clock_s()
        self._level_costs_s: list[float] = []
        self._number = 0  # of the next level: makes its prompts differ from every other level's
        self._resumed = ""
        self._why = "interrupted"  # until the sweep ends otherwise

    def resume(self, earlier: SweepReport) -> None:
        """Take up an earlier report of the same sweep: its levels count as told, but those cut short.

        Raises `UserError` naming the first setting that is not the same.
        """
        now = json.loads(to_json(self.report()))
        then = json.loads(to_json(earlier))
        for name in ("url", "model", "seed", "slo", "workload"):
            if now[name] != then[name]:
                where = _first_difference(then[name], now[name])
                raise UserError(
                    f"--resume: {name} is not that of the earlier report ({where}); give the same settings, "
                    "or another --out"
                )
        for level in earlier.levels:
            if not any(flag.startswith("interrupted") for flag in level.flags):
                self._search.tell(level)
        self._number = len(earlier.levels)
        self._resumed = f"{len(self._search.told)} levels of {earlier.created_wall}"

    @property
    def spent_s(self) -> float:
        """Seconds since the sweep began."""
        return self._clock_s() - self._began_s

    @property
    def level_cost_s(self) -> float:
        """What a level takes, drain included: the dearest so far, at first what was asked for."""
        asked = self._settings.warmup_s + self._settings.window_s
        return max([asked, *self._level_costs_s[-4:]])

    def remaining_s(self) -> float:
        """About how long the sweep still takes, the level under way not counted."""
        likely = self._search.remaining()[1] * self.level_cost_s
        if self._settings.max_s is None:
            return likely
        return max(0.0, min(likely, self._settings.max_s - self.spent_s))

    def run(self, run_level: Runs, on_level: Callable[[LevelResult], None]) -> None:
        """Measure until the search has no more questions, time is up or a stop is asked for."""
        first = self._number
        while not self._stopped():
            load = self._search.ask()
            if load is None:
                self._why = "complete" if self._search.stopped == "complete" else self._search.stopped
                return
            max_s = self._settings.max_s
            if max_s is not None and self._number > first and self.spent_s + self.level_cost_s > max_s:
                self._why = "budget"
                return
            began_s = self._clock_s()
            plan = self._plan(load, self._number)
            measured = run_level(plan)
            if measured.warmup_s is not None:
                plan = replace(plan, warmup_s=measured.warmup_s)
            self._level_costs_s.append(self._clock_s() - began_s)
            level = level_result(plan, measured, self._settings.slo, self._expectations())
            if measured.cut_ns is None or level.sent:
                self._search.tell(level)
                on_level(level)
            self._number += 1

    def fail(self, why: str) -> None:
        """The sweep ends early for this reason; what was measured stands."""
        self._why = why

    def _plan(self, load: float, number: int) -> LevelPlan:
        settings = self._settings
        return LevelPlan(
            load=load,
            arrivals=settings.arrivals,
            warmup_s=settings.warmup_s,
            window_s=settings.window_s,
            drain_limit_s=settings.drain_limit_s,
            seed=settings.seed,
            max_in_flight=settings.max_in_flight,
            number=number,
            warmup_max_s=settings.warmup_max_s,
        )

    def _expectations(self) -> Expectations:
        mix, trace = self._settings.mix, self._settings.trace
        return Expectations(
            exact_outputs=any(workload.ignore_eos for workload in mix.classes),
            own_hit_rate=mix.own_hit_rate if trace is None else trace.own_hit_rate,
            model=self._server.model,
            thinks=mix.talks,
            inexact_classes=frozenset(w.name for w in mix.classes if not w.ignore_eos),
        )

    def report(self) -> SweepReport:
        """The report of what was measured so far."""
        settings = self._settings
        levels = tuple(self._search.told)
        return SweepReport(
            format=1,
            tool=f"vllm-goodput {__version__}",
            created_wall=self._created,
            url=settings.url,
            model=self._server.model,
            server=self._server.name,
            slo=slo_json(settings.slo, settings.mix),
            workload=self._workload(),
            seed=settings.seed,
            levels=levels,
            peak=self._search.result(SHARES),
            stopped=self._why,
            flags=self._flags(levels),
            provenance={
                **({"resumed": self._resumed} if self._resumed else {}),
                "python": platform.python_version(),
                "machine": f"{platform.system()} {platform.machine()}",
                "prompt_calibration": self._server.calibration.source,
                "tokens_per_word": f"{self._server.calibration.per_word:.3f}",
                "ttft_misses": "told apart into queue and prefill by the engine's mean times over "
                "each window, an estimate for the level",
            },
        )

    def _workload(self) -> dict[str, Any]:
        """The workload for the report: classes, arrivals and, where one is replayed, what the trace is."""
        settings = self._settings
        plain = {**settings.mix.to_json(), "arrivals": asdict(settings.arrivals)}
        if settings.trace is None:
            return plain
        trace = settings.trace.fitted(self._server.max_model_len)
        return plain | {
            "trace": {
                "source": trace.source,
                "format": trace.kind,
                "requests": len(trace.rows),
                "own_rate_rps": trace.rate_rps,
                "lap_s_at_own_rate": trace.span_s,
                "skipped_without_tokens": trace.skipped,
                "cut_to_context": trace.clipped,
            }
        }

    @staticmethod
    def _flags(levels: tuple[LevelResult, ...]) -> tuple[str, ...]:
        """What holds for the sweep as a whole: each kind of level flag once, with the loads it touched, and
        in its own words where they are the same everywhere.
        """
        loads: dict[str, list[str]] = {}
        words: dict[str, set[str]] = {}
        for level in levels:
            for flag in level.flags:
                code, _, text = flag.partition(":")
                loads.setdefault(code, []).append(f"{level.load:g}")
                words.setdefault(code, set()).add(text)
        return tuple(
            f"{code} at load {', '.join(dict.fromkeys(at))}"
            + (f":{next(iter(words[code]))}" if len(words[code]) == 1 else "")
            for code, at in loads.items()
        )


def slo_json(policy: SloPolicy, mix: Mix) -> dict[str, Any]:
    """Name and bounds in seconds, for the report; of classes with different bounds, each under its name."""
    by_class = {w.name: policy.class_for(request_class=w.name, path=PATHS[Api(w.api)]) for w in mix.classes}
    slos = list(by_class.values())
    if all(slo == slos[0] for slo in slos):
        return asdict(slos[0])
    return {"name": "by class", "classes": {name: asdict(slo) for name, slo in by_class.items()}}


def _first_difference(then: Any, now: Any) -> str:
    """Where two settings differ first, for a person."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *now]:
            if then.get(key) != now.get(key):
                return f"{key} {_first_difference(then.get(key), now.get(key))}"
    return f"{then} then, {now} now"
