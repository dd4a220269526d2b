"""Lines -> events -> incidents. Pure.

One event may log many lines (13 logs three, a flood of 95 was 800,000), so lines of one GPU, code and text
within a short time are one event. Events of one GPU within seconds are one incident: the first is the
candidate for the cause, 45 and 154 are consequences, and a 154 can raise what is advised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.gpu.advice import Advice, advice_for, raised, sxid_advice
from sidecar.gpu.xid import DriverHint, Refused, Stamp, Sxid, UuidHint, Xid, parse_line

SAME_EVENT_S = 5.0
SAME_INCIDENT_S = 10.0

_MANY_TEXTS = frozenset({13})  # codes whose one event logs several different lines
_CONSEQUENCES = frozenset({45, 154})
_VARIES = re.compile(r"0x[0-9a-fA-F_]+|\b[0-9a-fA-F]{8,}\b|\b\d+\b")
_MAX_OPEN = 4096
_MAX_CODES = 256  # the counter's labels; no driver has as many codes
_KEPT = 200


@dataclass(slots=True)
class Event:
    """One event and the lines it took. ``cause``: the first of its incident, and no known consequence."""

    report: Xid | Sxid
    advice: Advice
    advisory: str
    incident: int
    cause: bool
    lines: int = 1
    uuid: str | None = None
    source: str = "kernel"  # kernel, dcgm, fabric_manager

    @property
    def code(self) -> int:
        return self.report.code

    @property
    def sxid(self) -> bool:
        return isinstance(self.report, Sxid)

    @property
    def kind(self) -> str:
        """``Xid`` or ``SXid``."""
        return "SXid" if self.sxid else "Xid"


@dataclass(slots=True)
class _Open:
    event: Event
    last_s: float


@dataclass(slots=True)
class _Incident:
    number: int
    last_s: float
    recovery: int = 0


@dataclass(slots=True)
class Incidents:
    """Takes parsed reports in order; remembers the recent events, all counts, and which GPU sits where."""

    uuids: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)  # the newest, at most ``_KEPT``
    xids: Counter[int] = field(default_factory=Counter)
    sxids: Counter[int] = field(default_factory=Counter)
    repeats: int = 0  # lines that were more of a known event
    keep_all: bool = False
    _open: dict[tuple[str, ...], _Open] = field(default_factory=dict)
    _incidents: dict[str, _Incident] = field(default_factory=dict)
    _numbers: int = 0

    def add(self, report: Xid | Sxid, at_s: float, source: str = "kernel") -> Event | None:
        """Take one report at ``at_s`` (any clock, as long as it is one); the event if it is a new one."""
        key = _key(report)
        known = self._open.get(key)
        if known is not None and abs(at_s - known.last_s) <= SAME_EVENT_S:
            known.last_s = at_s
            known.event.lines += 1
            self.repeats += 1
            return None
        event = self._event(report, at_s, source)
        self._open[key] = _Open(event, at_s)
        if len(self._open) > _MAX_OPEN:
            self._open = {k: o for k, o in self._open.items() if at_s - o.last_s <= SAME_EVENT_S}
            if len(self._open) > _MAX_OPEN:
                self._open.clear()
        counts = self.sxids if event.sxid else self.xids
        # Counted by code; past the bound as code -1, which the page shows as "other".
        counts[event.code if event.code in counts or len(counts) < _MAX_CODES else -1] += 1
        self.events.append(event)
        if not self.keep_all and len(self.events) > _KEPT:
            del self.events[0]
        return event

    def learn(self, hint: UuidHint) -> None:
        """Which GPU sits at a PCI address; events that came before it learn it too."""
        self.uuids[hint.pci] = hint.uuid
        for event in self.events:
            if event.uuid is None and event.report.pci == hint.pci:
                event.uuid = hint.uuid

    def _event(self, report: Xid | Sxid, at_s: float, source: str) -> Event:
        incident = self._incidents.get(report.pci)
        first = incident is None or abs(at_s - incident.last_s) > SAME_INCIDENT_S
        if incident is None or first:
            self._numbers += 1
            incident = self._incidents[report.pci] = _Incident(self._numbers, at_s)
        incident.last_s = at_s
        advice = sxid_advice(report.code) if isinstance(report, Sxid) else advice_for(report.code)
        if isinstance(report, Xid) and report.recovery is not None:
            incident.recovery = int(report.recovery.new, 16)
            self._raise(incident)
        return Event(
            report,
            advice,
            raised(advice.advisory, incident.recovery),
            incident.number,
            cause=first and report.code not in _CONSEQUENCES,
            uuid=self.uuids.get(report.pci),
            source=source,
        )

    def _raise(self, incident: _Incident) -> None:
        for event in self.events:
            if event.incident == incident.number:
                event.advisory = raised(event.advisory, incident.recovery)


@dataclass(frozen=True, slots=True)
class LogFindings:
    """What a whole log says."""

    events: list[Event]
    lines: int
    refused: int
    driver: str | None
    xids: Counter[int]
    sxids: Counter[int]


def read_log(lines: Iterable[str]) -> LogFindings:
    """Read a saved log. A line without a time is taken to follow the one before at once."""
    found = Incidents(keep_all=True)
    total = refused = 0
    driver: str | None = None
    clock = _Clock()
    for line in lines:
        total += 1
        parsed = parse_line(line)
        if isinstance(parsed, Xid | Sxid):
            source = parsed.source if isinstance(parsed, Sxid) else "kernel"
            found.add(parsed, clock.at(parsed.at), source)
        elif isinstance(parsed, UuidHint):
            found.learn(parsed)
        elif isinstance(parsed, DriverHint):
            driver = parsed.version
        elif isinstance(parsed, Refused):
            refused += 1
    return LogFindings(found.events, total, refused, driver, found.xids, found.sxids)


@dataclass(slots=True)
class _Clock:
    """One time for lines of several clocks: a change of clock is taken to be far away."""

    name: str = ""
    offset_s: float = 0.0
    now_s: float = 0.0

    def at(self, stamp: Stamp | None) -> float:
        if stamp is None:
            return self.now_s
        if stamp.clock != self.name:
            self.name = stamp.clock
            self.offset_s = self.now_s + 1e6 - stamp.seconds
        self.now_s = stamp.seconds + self.offset_s
        return self.now_s


def _key(report: Xid | Sxid) -> tuple[str, ...]:
    kind = "sxid" if isinstance(report, Sxid) else "xid"
    detail = str(report.link) if isinstance(report, Sxid) else ""
    text = "" if report.code in _MANY_TEXTS else _VARIES.sub("#", report.message).rstrip(". ")
    return (kind, report.pci, str(report.code), detail, text)
