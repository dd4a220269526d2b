"""Goodput over sliding windows, in constant memory per class. Pure: the clock is passed in.

A window is a ring of slots; a request belongs to the slot in which it ended. A window of 10 s is made of ten
1 s slots, the longer ones of coarser slots, so that a class keeps the same few dozen slots whatever its
traffic. The oldest slot that would reach beyond the window is left out: a window covers at most its length
and at least one slot less, and rates divide by what it really covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.derive.loghist import LogHistogram
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import Verdict, why_not_eligible

LATENCIES = ("ttft", "tpot", "itl", "e2e")
QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window's name, length and slot, in seconds."""

    name: str
    length_s: int
    slot_s: int


WINDOWS = (
    WindowSpec("10s", 10, 1),
    WindowSpec("1m", 60, 5),
    WindowSpec("5m", 300, 15),
    WindowSpec("1h", 3600, 120),
)


@dataclass(slots=True)
class Counts:
    """What happened to the requests of one class; adds up. ``good + sum(badput) == eligible``."""

    eligible: int = 0
    good: int = 0
    badput: dict[str, int] = field(default_factory=dict)
    not_eligible: dict[str, int] = field(default_factory=dict)  # by reason
    errors: dict[str, int] = field(default_factory=dict)  # by kind
    output_tokens: int = 0
    good_tokens: int = 0
    prompt_tokens: int = 0
    estimated: int = 0  # requests whose tokens are estimated
    fluid_tokens: int = 0  # tokens that arrived before the reader's running deadline
    judged_tokens: int = 0  # tokens for which that is known
    distserve: int = 0  # eligible requests that met TTFT and TPOT, whatever else

    def merge(self, other: Counts) -> None:
        """Add all of another."""
        self.eligible += other.eligible
        self.good += other.good
        self.output_tokens += other.output_tokens
        self.good_tokens += other.good_tokens
        self.prompt_tokens += other.prompt_tokens
        self.estimated += other.estimated
        self.fluid_tokens += other.fluid_tokens
        self.judged_tokens += other.judged_tokens
        self.distserve += other.distserve
        for mine, theirs in (
            (self.badput, other.badput),
            (self.not_eligible, other.not_eligible),
            (self.errors, other.errors),
        ):
            for key, value in theirs.items():
                mine[key] = mine.get(key, 0) + value

    @property
    def attainment(self) -> float | None:
        """Good / eligible; ``None`` with nothing eligible."""
        return self.good / self.eligible if self.eligible else None

    @property
    def fluidity(self) -> float | None:
        """Tokens on time / tokens; ``None`` where no token was judged."""
        return self.fluid_tokens / self.judged_tokens if self.judged_tokens else None


@dataclass(slots=True)
class Slot:
    """Counts and latencies of a span of time, or of a single request on its way into the rings."""

    counts: Counts = field(default_factory=Counts)
    latencies: dict[str, LogHistogram] = field(default_factory=dict)

    def merge(self, other: Slot) -> None:
        """Add all of another."""
        self.counts.merge(other.counts)
        for name, histogram in other.latencies.items():
            mine = self.latencies.get(name)
            if mine is None:
                mine = self.latencies[name] = LogHistogram()
            mine.merge(histogram)


def slot_of(record: RequestRecord, verdict: Verdict, deadlines_s: tuple[float, float] | None = None) -> Slot:
    """One finished request as a slot. ``deadlines_s``: the reader's deadlines for fluidity (first token,
    each further token), seconds."""
    counts = Counts()
    tokens = record.output_tokens or 0
    counts.output_tokens = tokens
    counts.prompt_tokens = record.prompt_tokens or 0
    counts.estimated = int(record.tokens_estimated)
    if record.error_kind is not None:
        counts.errors[record.error_kind.value] = 1
    if not verdict.eligible:
        counts.not_eligible[why_not_eligible(record)] = 1
    else:
        counts.eligible = 1
        if verdict.good:
            counts.good = 1
            counts.good_tokens = tokens
        elif verdict.bucket is not None:
            counts.badput[verdict.bucket.value] = 1
    if deadlines_s is not None:
        counts.fluid_tokens, counts.judged_tokens = fluidity(record, *deadlines_s)
    slot = Slot(counts)
    for name, value in (("ttft", record.ttft_ns), ("tpot", record.tpot_ns), ("e2e", record.e2e_ns)):
        if value is not None:
            slot.latencies[name] = LogHistogram()
            slot.latencies[name].add(value)
    if record.gaps_ns:
        slot.latencies["itl"] = LogHistogram()
        slot.latencies["itl"].add_all(record.gaps_ns)
    return slot


def fluidity(record: RequestRecord, first_s: float, each_s: float) -> tuple[int, int]:
    """(chunks on time, chunks) by etalon's running deadline.

    A chunk's deadline is ``first_s`` for the first, ``each_s`` for each further one, plus the slack saved so
    far; a chunk on time passes its slack on, a late one resets it. Only for a single choice: with several
    their gaps cannot be told apart.
    """
    ttft = record.ttft_ns
    if ttft is None or len(record.choices) > 1:
        return 0, 0
    slack = round(first_s * 1e9) - ttft
    on_time = int(slack >= 0)
    slack = max(slack, 0)
    each = round(each_s * 1e9)
    for gap in record.gaps_ns:
        slack += each - gap
        if slack >= 0:
            on_time += 1
        else:
            slack = 0
    return on_time, len(record.gaps_ns) + 1


@dataclass(slots=True)
class Ring:
    """Slots of one window. ``add`` and ``merged`` take the time in nanoseconds of one monotonic clock."""

    spec: WindowSpec
    _slots: dict[int, Slot] = field(default_factory=dict)
    # All slots but the current one, merged; they rarely change, and merging them all each time is what costs.
    _closed: Slot | None = None
    _closed_for: int = -1

    def add(self, slot: Slot, now_ns: int) -> None:
        """Put one request into the current slot."""
        number = self._number(now_ns)
        mine = self._slots.get(number)
        if mine is None:
            self._forget(number)
            mine = self._slots[number] = Slot()
        if number != self._closed_for:
            self._closed = None
        mine.merge(slot)

    def merged(self, now_ns: int) -> Slot:
        """All of the window in one."""
        current = self._number(now_ns)
        if self._closed is None or self._closed_for != current:
            self._forget(current)
            self._closed, self._closed_for = Slot(), current
            for number, slot in self._slots.items():
                if number != current:
                    self._closed.merge(slot)
        whole = Slot()
        whole.merge(self._closed)
        if current in self._slots:
            whole.merge(self._slots[current])
        return whole

    def counts(self, now_ns: int) -> Counts:
        """The counts only, without merging histograms."""
        self._forget(self._number(now_ns))
        whole = Counts()
        for slot in self._slots.values():
            whole.merge(slot.counts)
        return whole

    def covered_s(self, now_ns: int, since_ns: int) -> float:
        """How much time the window covers now, given that nothing was watched before ``since_ns``."""
        oldest = self._oldest(self._number(now_ns)) * self.spec.slot_s
        begin_s = max(float(oldest), since_ns / 1e9)
        # Never less than a second: a rate over the first milliseconds says nothing.
        return max(now_ns / 1e9 - begin_s, 1.0)

    def by_slot(self, now_ns: int) -> list[tuple[float, Counts]]:
        """(seconds before now at which the slot began, its counts), oldest first, empty slots left out."""
        self._forget(self._number(now_ns))
        return [
            (now_ns / 1e9 - number * self.spec.slot_s, slot.counts)
            for number, slot in sorted(self._slots.items())
        ]

    def __len__(self) -> int:
        return len(self._slots)

    def _number(self, now_ns: int) -> int:
        return now_ns // (self.spec.slot_s * 1_000_000_000)

    def _oldest(self, current: int) -> int:
        # The current slot is only partly over; with it, length/slot slots never reach beyond the length.
        return current - self.spec.length_s // self.spec.slot_s + 1

    def _forget(self, current: int) -> None:
        oldest = self._oldest(current)
        for number in [n for n in self._slots if n < oldest]:
            del self._slots[number]


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency over a window: count and nearest-rank quantiles in seconds (``None``: nothing recorded)."""

    count: int
    quantiles_s: Mapping[str, float | None]
    max_s: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One window of one class (or of several merged). Rates are per second of ``covered_s``."""

    window: str
    covered_s: float
    counts: Counts
    goodput_rps: float
    token_goodput_tps: float
    attainment: float | None
    latencies: Mapping[str, Latency]


def summarize(slot: Slot, window: str, covered_s: float) -> Summary:
    """A merged window as figures."""
    latencies = {}
    for name in LATENCIES:
        histogram = slot.latencies.get(name, LogHistogram())
        values = histogram.quantiles_s(QUANTILES)
        named = {f"p{share * 100:g}": value for share, value in zip(QUANTILES, values, strict=True)}
        top = histogram.max_ns / 1e9 if histogram.total else None
        latencies[name] = Latency(histogram.total, named, top)
    counts = slot.counts
    return Summary(
        window=window,
        covered_s=covered_s,
        counts=counts,
        goodput_rps=counts.good / covered_s,
        token_goodput_tps=counts.good_tokens / covered_s,
        attainment=counts.attainment,
        latencies=latencies,
    )
