"""The GPUs of this pod, watched: each source on its own, one account of what they say.

A source that fails, hangs or answers nonsense says so in its own success and reason, and touches nothing
else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sidecar.derive.engine_spread import EngineSpread
from sidecar.derive.spread import OutlierWatch, Standing, standings
from sidecar.gpu.amd import read_amd
from sidecar.gpu.collectors import CollectError, Collector, NvmlCollector, PageCollector
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.energy import EnergyMeter, Work
from sidecar.gpu.fields import causes
from sidecar.gpu.incidents import Event, Incidents
from sidecar.gpu.logsource import LogSource
from sidecar.gpu.ownership import Flapping, Owned, OwnGpu, own_gpus
from sidecar.gpu.reading import Gpu, Reading, pci_address
from sidecar.gpu.settings import GpuSettings
from sidecar.gpu.throttle import throttle_shares
from sidecar.gpu.xid import Xid

_log = logging.getLogger(__name__)

SPREAD_SIGNALS = ("sm_clock_hertz", "power_watts", "temperature_celsius")
_THROTTLE_WINDOW_NS = 120 * 10**9
_STALE_LOOKS = 3
_STALE_LEAST_S = 5.0  # a busy machine is late, not blind


@dataclass(slots=True)
class SourceState:
    """How one source is doing. ``success`` is ``None`` before its first look."""

    name: str
    success: bool | None = None
    reason: str = ""
    code: str = ""
    duration_s: float | None = None
    last_good_ns: int | None = None
    looks: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def good(self, at_ns: int, duration_s: float) -> None:
        """A look that gave something."""
        self.success, self.reason, self.code = True, "", ""
        self.looks += 1
        self.duration_s, self.last_good_ns = duration_s, at_ns

    def failed(self, reason: str, code: str, duration_s: float) -> None:
        """A look that gave nothing."""
        if self.success is not False:
            _log.warning("GPU source %s: %s", self.name, reason)
        self.success, self.reason, self.code = False, reason, code
        self.looks += 1
        self.duration_s = duration_s
        self.failures[code] += 1


@dataclass(frozen=True, slots=True)
class Straggler:
    """A GPU that stands out among its peers. ``since_s``: Unix time."""

    gpu: Gpu
    signal: str
    standing: Standing
    since_s: float
    reasons: tuple[str, ...]


@dataclass(slots=True)
class GpuState:
    """What is known of the pod's GPUs; pure: readings and events in, with their times."""

    settings: GpuSettings
    work: Callable[[], Work] = Work
    energy: EnergyMeter = field(default_factory=EnergyMeter)
    engines: EngineSpread = field(default_factory=EngineSpread)
    incidents: Incidents = field(default_factory=Incidents)
    owned: Owned = field(default_factory=Owned)
    standings: dict[str, dict[str, Standing]] = field(default_factory=dict)  # signal -> UUID
    stragglers: list[Straggler] = field(default_factory=list)
    kernel_log_watched: bool = False
    foreign_events: int = 0  # of boards that are not this pod's
    _readings: dict[str, tuple[int, Reading]] = field(default_factory=dict)
    _history: dict[str, deque[tuple[int, Gpu]]] = field(default_factory=dict)
    _outliers: OutlierWatch = field(default_factory=OutlierWatch)
    _flapping: Flapping = field(init=False)
    _had_activity: bool = False

    def __post_init__(self) -> None:
        self._flapping = Flapping(window_ns=int(20 * self.settings.interval_s * 1e9))

    def take(self, source: str, reading: Reading, at_ns: int, wall_s: float) -> list[Event]:
        """Take a reading of ``source``. Returns new events that it shows."""
        reading = self._flapping.add(reading, at_ns)
        self._readings[source] = (at_ns, reading)
        joined = self._joined(at_ns)
        identity = self.settings.identity
        if source == "nvml":
            # What the library shows is what this container may see.
            identity = replace(identity, visible=identity.visible | {gpu.uuid for gpu in reading.gpus})
        self.owned = own_gpus(joined, identity)
        events = self._exporter_events(at_ns)
        self.energy.add(at_ns, self.owned, self.work())
        for own in self.owned.gpus:
            history = self._history.setdefault(own.gpu.uuid, deque())
            if not history or history[-1][0] < at_ns:
                history.append((at_ns, own.gpu))
            while len(history) > 2 and history[1][0] <= at_ns - _THROTTLE_WINDOW_NS:
                history.popleft()
        mine = {own.gpu.uuid for own in self.owned.gpus}
        self._history = {uuid: kept for uuid, kept in self._history.items() if uuid in mine}
        self._compare(wall_s)
        return events

    def log_event(self, report: Xid, at_s: float) -> Event | None:
        """An Xid of the kernel log; ``None`` for more of a known event, and for other pods' boards."""
        if self._foreign(report.pci):
            self.foreign_events += 1
            return None
        return self.incidents.add(report, at_s)

    def gpus(self, now_ns: int) -> list[OwnGpu]:
        """The pod's GPUs as last seen; empty once all sources are stale."""
        fresh = [at for at, _ in self._readings.values() if now_ns - at <= self._stale_ns]
        return list(self.owned.gpus) if fresh else []

    def throttle(self, uuid: str) -> dict[str, float]:
        """Cause -> share of the last two minutes; empty where no counter tells."""
        history = self._history.get(uuid)
        if not history or len(history) < 2:
            return {}
        (first_ns, first), (last_ns, last) = history[0], history[-1]
        return throttle_shares(first, last, (last_ns - first_ns) / 1e9)

    def reasons(self, gpu: Gpu) -> tuple[str, ...]:
        """Why a board is held back, in words: from the bits now, else from the counters."""
        bits = gpu.values.get("clock_event_reasons")
        named = causes(int(bits)) if bits is not None else ()
        return named or tuple(cause for cause, share in self.throttle(gpu.uuid).items() if share >= 0.05)

    def notes(self, now_ns: int) -> list[str]:
        """What a person should know about the sources, without repeats."""
        said = dict.fromkeys(self.owned.notes)
        for at, reading in self._readings.values():
            if now_ns - at <= self._stale_ns:
                said.update(dict.fromkeys(reading.notes))
        if self._had_activity and self.owned.gpus and not self._activity():
            said[
                "tensor and DRAM activity are no longer measured: another profiler may hold the counters"
            ] = None
        if self.foreign_events:
            said[f"{self.foreign_events} Xid reports of GPUs that are not this pod's were left out"] = None
        return list(said)

    @property
    def _stale_ns(self) -> int:
        return int(max(_STALE_LEAST_S, _STALE_LOOKS * self.settings.interval_s) * 1e9)

    def _joined(self, at_ns: int) -> Reading:
        """All fresh readings as one; the exporter's word on a board comes before the library's."""
        gpus: dict[str, Gpu] = {}
        for name in sorted(self._readings, key=lambda source: source == "nvml"):
            at, reading = self._readings[name]
            if at_ns - at <= self._stale_ns:
                for gpu in reading.gpus:
                    gpus.setdefault(gpu.uuid, gpu)
        for gpu in gpus.values():
            if gpu.pci:
                self.incidents.uuids.setdefault(pci_address(gpu.pci), gpu.uuid)
        return Reading(tuple(gpus.values()))

    def _activity(self) -> bool:
        return any("dram_active_ratio" in own.values() for own in self.owned.gpus)

    def _foreign(self, pci: str) -> bool:
        uuid = self.incidents.uuids.get(pci)
        return (
            uuid is not None and bool(self.owned.gpus) and uuid not in {o.gpu.uuid for o in self.owned.gpus}
        )

    def _exporter_events(self, at_ns: int) -> list[Event]:
        """Xids that the exporter shows anew. Its gauge is sticky and a code, so only a change counts, and
        only where the kernel log is not watched; what stood there at the first look is old."""
        if self.kernel_log_watched:
            return []
        found: list[Event] = []
        for own in self.owned.gpus:
            history = self._history.get(own.gpu.uuid)
            if not history:
                continue
            before, now = history[-1][1], own.gpu
            codes = {code for code, n in now.xid_counts.items() if n > before.xid_counts.get(code, 0)}
            last = now.values.get("last_xid")
            if last and last != before.values.get("last_xid"):
                codes.add(int(last))
            for code in sorted(codes):
                report = Xid(code, pci_address(now.pci) or now.uuid, "")
                event = self.incidents.add(report, at_ns / 1e9, "dcgm")
                if event is not None:
                    event.uuid = now.uuid
                    found.append(event)
        return found

    def _compare(self, wall_s: float) -> None:
        self._had_activity = self._had_activity or self._activity()
        boards = {own.gpu.uuid: own.gpu for own in self.owned.gpus if own.part is None}
        self.standings, self.stragglers = {}, []
        for signal in SPREAD_SIGNALS:
            values = {u: gpu.values[signal] for u, gpu in boards.items() if signal in gpu.values}
            found = standings(values)
            self.standings[signal] = found
            for uuid, since_s in self._outliers.update(signal, found, wall_s).items():
                gpu = boards[uuid]
                self.stragglers.append(Straggler(gpu, signal, found[uuid], since_s, self.reasons(gpu)))


class GpuWatch:
    """Runs the sources of one sidecar and keeps ``state``. ``on_event`` hears of each new Xid and SXid."""

    def __init__(
        self,
        settings: GpuSettings,
        *,
        work: Callable[[], Work] = Work,
        on_event: Callable[[Event], None] | None = None,
        collectors: list[Collector] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.state = GpuState(settings, work)
        self._settings = settings
        self._clock_ns = clock_ns
        self._on_event = on_event
        self._collectors = _collectors(settings) if collectors is None else collectors
        self.sources = {one.name: SourceState(one.name) for one in self._collectors}
        self._logs: list[LogSource] = []
        for name, path in (("kernel_log", settings.kernel_log), ("fabric_log", settings.fabric_log)):
            if path:
                self.sources[name] = SourceState(name)
                self._logs.append(LogSource(name, path, self.sources[name], self.state, self._tell, clock_ns))

    async def run(self, stop: asyncio.Event) -> None:
        """Look until ``stop`` is set. Never raises for a source."""
        tasks = [asyncio.create_task(self._loop(one, stop)) for one in self._collectors]
        tasks += [asyncio.create_task(log.run(stop)) for log in self._logs]
        try:
            await stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for collector in self._collectors:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(collector.close(), 2.0)

    async def look(self, collector: Collector) -> None:
        """One look at one source, its success and duration noted."""
        source = self.sources[collector.name]
        started_ns = self._clock_ns()
        try:
            reading = await collector.collect()
            at_ns = self._clock_ns()
            events = self.state.take(collector.name, reading, at_ns, time.time())
            source.good(at_ns, (at_ns - started_ns) / 1e9)
        except CollectError as error:
            source.failed(str(error), error.code, (self._clock_ns() - started_ns) / 1e9)
        except Exception:
            _log.exception("GPU source %s", collector.name)
            source.failed("a fault of the sidecar's own, see its log", "internal", 0.0)
        else:
            for event in events:
                self._tell(event)

    async def _loop(self, collector: Collector, stop: asyncio.Event) -> None:
        while not stop.is_set():
            started = time.monotonic()
            await self.look(collector)
            rest_s = max(0.1, started + self._settings.interval_s - time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), rest_s)

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("a GPU event could not be passed on")


def _collectors(settings: GpuSettings) -> list[Collector]:
    timeout_s = min(10.0, max(2.0, 0.8 * settings.interval_s))
    found: list[Collector] = []
    if settings.dcgm_url:
        found.append(PageCollector("dcgm", settings.dcgm_url, read_dcgm, timeout_s))
    if settings.amd_url:
        found.append(PageCollector("amd", settings.amd_url, read_amd, timeout_s))
    if settings.nvml:
        found.append(NvmlCollector(timeout_s=timeout_s))
    return found
