"""Error budgets: how much badput a class may still have, and how fast it is being used up. Pure.

Burn rate = (1 - attainment) / (1 - objective): at 1 the budget of the whole period is used up exactly at its
end. An alert needs both windows of a pair above its threshold. Formula and pairs: the Google SRE workbook's
multi-window, multi-burn-rate alerts. At an objective of 90 % a burn can never pass 10, so thresholds are
capped at 0.9 / (1 - objective). Nothing eligible gives no burn at all: absent, not 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PERIOD_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Pair:
    """Two windows that must both burn faster than ``threshold``."""

    long: str
    short: str
    threshold: float
    severity: str  # "page" or "ticket"


PAIRS = (
    Pair("1h", "5m", 14.4, "page"),
    Pair("6h", "30m", 6.0, "page"),
    Pair("3d", "6h", 1.0, "ticket"),
)
BURN_WINDOWS_S = {"5m": 300, "30m": 1800, "1h": 3600, "6h": 21600, "3d": 259200}


def capped(threshold: float, objective: float) -> float:
    """The threshold that can still be reached at this objective."""
    return min(threshold, 0.9 / (1.0 - objective))


def burn_rate(good: int, eligible: int, objective: float, *, min_eligible: int = 1) -> float | None:
    """How many times faster than allowed the budget is used; ``None`` below ``min_eligible`` events."""
    if eligible < max(1, min_eligible):
        return None
    return (1.0 - good / eligible) / (1.0 - objective)


def budget_left(good: int, eligible: int, objective: float) -> float | None:
    """Share of the period's budget left, by events: 1 untouched, 0 used up, negative overdrawn.

    The budget is (1 - objective) of what was eligible in the period so far. ``None`` with nothing eligible.
    """
    if eligible <= 0:
        return None
    return 1.0 - (eligible - good) / ((1.0 - objective) * eligible)


@dataclass(slots=True)
class _Pairs:
    """Good and eligible by slot number, the oldest dropped."""

    slot_s: int
    slots: int
    _counts: dict[int, list[int]] = field(default_factory=dict)

    def add(self, now_s: float, good: int, eligible: int) -> None:
        number = int(now_s // self.slot_s)
        found = self._counts.get(number)
        if found is None:
            for old in [n for n in self._counts if n <= number - self.slots]:
                del self._counts[old]
            found = self._counts[number] = [0, 0]
        found[0] += good
        found[1] += eligible

    def within(self, now_s: float, length_s: float) -> tuple[int, int]:
        current = int(now_s // self.slot_s)
        oldest = current - max(1, round(length_s / self.slot_s)) + 1
        good = eligible = 0
        for number, (g, e) in self._counts.items():
            if oldest <= number <= current:
                good += g
                eligible += e
        return good, eligible


@dataclass(slots=True)
class ErrorBudget:
    """One class's budget. ``objective`` lies strictly between 0 and 1. Times are seconds of one clock."""

    objective: float
    min_eligible: int = 20
    _fine: _Pairs = field(default_factory=lambda: _Pairs(30, 120))  # to 1 h
    _middle: _Pairs = field(default_factory=lambda: _Pairs(600, 36))  # to 6 h
    _coarse: _Pairs = field(default_factory=lambda: _Pairs(6 * 3600, 120))  # to 30 d

    def __post_init__(self) -> None:
        if not 0.0 < self.objective < 1.0:
            raise ValueError(f"an objective lies between 0 and 1, not at {self.objective}")

    def add(self, now_s: float, good: int, eligible: int) -> None:
        """Count finished requests."""
        for ring in (self._fine, self._middle, self._coarse):
            ring.add(now_s, good, eligible)

    def events(self, now_s: float, window_s: float) -> tuple[int, int]:
        """(good, eligible) in the window, to the slot."""
        if window_s <= 3600:
            return self._fine.within(now_s, window_s)
        if window_s <= 6 * 3600:
            return self._middle.within(now_s, window_s)
        return self._coarse.within(now_s, window_s)

    def burn(self, now_s: float, window: str) -> float | None:
        """Burn rate over one of ``BURN_WINDOWS_S``."""
        good, eligible = self.events(now_s, BURN_WINDOWS_S[window])
        return burn_rate(good, eligible, self.objective, min_eligible=self.min_eligible)

    def left(self, now_s: float) -> float | None:
        """Share of the 30 days' budget left, counted since the sidecar started if that is later."""
        return budget_left(*self.events(now_s, PERIOD_S), self.objective)

    def firing(self, now_s: float) -> list[Pair]:
        """The pairs whose two windows both burn faster than their (capped) threshold."""
        found = []
        for pair in PAIRS:
            threshold = capped(pair.threshold, self.objective)
            burns = [self.burn(now_s, pair.long), self.burn(now_s, pair.short)]
            if all(burn is not None and burn > threshold for burn in burns):
                found.append(pair)
        return found
