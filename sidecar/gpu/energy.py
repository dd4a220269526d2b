"""Joules of this pod over time, with the tokens made in the same time. Pure.

Energy counters are taken reset-aware, each board alone. A board's joules are charged for the time between two
looks only if it was this pod's alone at both: a pod that comes later does not inherit the past, and a board
that left takes its past along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.gpu.ownership import Owned

_LONGEST_GAP_NS = 600 * 10**9  # what happened between two looks farther apart is nobody's
_STUCK_NS = 180 * 10**9  # exporters repeat a value for their interval; longer means that it does not count
_STUCK_W = 20.0


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine and the sidecar had done when the boards were looked at; all only ever grow."""

    tokens: float = 0.0
    good_tokens: float = 0.0
    busy: bool | None = None  # whether requests ran at that moment


@dataclass(frozen=True, slots=True)
class Usage:
    """Between two looks. ``joules`` is ``None`` where not all boards are this pod's alone.

    ``estimated``: some of it from the power gauge, because a board counts no energy.
    ``occupancy``: share of the time in which requests ran, ``None`` unknown.
    """

    elapsed_s: float
    joules: float | None
    tokens: float
    good_tokens: float
    occupancy: float | None
    estimated: bool = False

    @property
    def watts(self) -> float | None:
        """Mean draw of the boards."""
        return None if self.joules is None else self.joules / self.elapsed_s


@dataclass(slots=True)
class _Board:
    at_ns: int
    energy_j: float | None
    watts: float | None
    charged: bool
    changed_ns: int


@dataclass(frozen=True, slots=True)
class _Entry:
    at_ns: int
    joules: float
    broken: int  # how often energy could not be charged so far
    estimates: int
    tokens: float
    good_tokens: float
    busy_s: float
    known_s: float


@dataclass(slots=True)
class EnergyMeter:
    """The account. ``window_s``: the longest window that can be asked for."""

    window_s: float = 3600.0
    resets: int = 0
    joules: float = 0.0  # charged to this pod since the start
    _boards: dict[str, _Board] = field(default_factory=dict)
    _entries: deque[_Entry] = field(default_factory=deque)
    _broken: int = 0
    _estimates: int = 0
    _busy_s: float = 0.0
    _known_s: float = 0.0
    _busy: bool | None = None

    def add(self, at_ns: int, owned: Owned, work: Work) -> None:
        """Take one look; looks come in time order."""
        if self._entries:
            elapsed_ns = at_ns - self._entries[-1].at_ns
            if elapsed_ns <= 0:
                return
            if self._busy is not None and elapsed_ns <= _LONGEST_GAP_NS:
                self._known_s += elapsed_ns / 1e9
                self._busy_s += elapsed_ns / 1e9 if self._busy else 0.0
        self._busy = work.busy
        seen: set[str] = set()
        whole = owned.all_charged
        for own in owned.gpus:
            if own.gpu.uuid not in seen:
                seen.add(own.gpu.uuid)
                whole = self._board(at_ns, own.gpu.uuid, own.gpu.values, own.charged) and whole
        for gone in [uuid for uuid, board in self._boards.items() if at_ns - board.at_ns > _LONGEST_GAP_NS]:
            del self._boards[gone]
        if any(uuid not in seen for uuid in self._boards):
            whole = False  # a board of ours is missing from this look
        if not whole:
            self._broken += 1
        self._entries.append(
            _Entry(
                at_ns,
                self.joules,
                self._broken,
                self._estimates,
                work.tokens,
                work.good_tokens,
                self._busy_s,
                self._known_s,
            )
        )
        horizon = at_ns - int(self.window_s * 1e9)
        while len(self._entries) > 2 and self._entries[1].at_ns <= horizon:
            self._entries.popleft()

    def usage(self, now_ns: int, window_s: float) -> Usage | None:
        """Of the last ``window_s`` seconds, between the looks that lie in it; ``None`` for fewer than two."""
        horizon = now_ns - int(window_s * 1e9)
        first = next((entry for entry in self._entries if entry.at_ns >= horizon), None)
        if first is None or first is self._entries[-1]:
            return None
        last = self._entries[-1]
        elapsed_s = (last.at_ns - first.at_ns) / 1e9
        known_s = last.known_s - first.known_s
        return Usage(
            elapsed_s=elapsed_s,
            joules=last.joules - first.joules if last.broken == first.broken else None,
            tokens=max(0.0, last.tokens - first.tokens),
            good_tokens=max(0.0, last.good_tokens - first.good_tokens),
            occupancy=(last.busy_s - first.busy_s) / known_s if known_s > 0 else None,
            estimated=last.estimates > first.estimates,
        )

    def _board(self, at_ns: int, uuid: str, values: Mapping[str, float], charged: bool) -> bool:
        """Account for one board; whether all of its energy since the last look is known and this pod's."""
        energy_j, watts = values.get("energy_joules_total"), values.get("power_watts")
        before = self._boards.get(uuid)
        if before is None:
            self._boards[uuid] = _Board(at_ns, energy_j, watts, charged, at_ns)
            return charged and not self._entries
        grown, estimated = self._grown(at_ns, before, energy_j, watts)
        fine = charged and before.charged and grown is not None and at_ns - before.at_ns <= _LONGEST_GAP_NS
        if fine and grown is not None:
            self.joules += grown
            self._estimates += estimated
        if self._entries and before.at_ns < self._entries[-1].at_ns:
            # It was missing from the last look: its joules are ours, but not this short time's alone.
            fine = False
        before.at_ns, before.energy_j, before.watts, before.charged = at_ns, energy_j, watts, charged
        return fine

    def _grown(
        self, at_ns: int, before: _Board, energy_j: float | None, watts: float | None
    ) -> tuple[float | None, bool]:
        if energy_j is not None and before.energy_j is not None:
            if energy_j != before.energy_j:
                before.changed_ns = at_ns
                if energy_j < before.energy_j:
                    self.resets += 1
                    return energy_j, False
                return energy_j - before.energy_j, False
            if at_ns - before.changed_ns <= _STUCK_NS or (watts or 0.0) < _STUCK_W:
                return 0.0, False
        if watts is None or before.watts is None:
            return None, False
        return (watts + before.watts) / 2 * (at_ns - before.at_ns) / 1e9, True
