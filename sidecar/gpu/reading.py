"""What one look at the GPUs gave: plain data, the same whichever exporter or library it came from.

Values are by signal name (``power_watts``, ``energy_joules_total``, ...; the list is in the field files
beside this one), in base units: watts, joules, hertz, bytes, seconds, ratios of 1. What is not known is not
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Sharing(StrEnum):
    """Who uses a board, as far as can be seen."""

    EXCLUSIVE = "exclusive"  # one pod is named on it and nothing speaks for a second
    SHARED = "shared"  # several pods, or a sharing replica
    MIG = "mig"  # cut into instances (or AMD partitions)
    UNKNOWN = "unknown"  # no pod is named


@dataclass(frozen=True, slots=True, order=True)
class Pod:
    """A pod that an exporter names on a series. ``namespace`` may be empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Part:
    """A MIG instance or an AMD partition of a board, with the figures that are its own."""

    id: str
    profile: str
    values: Mapping[str, float]
    pods: frozenset[Pod] = frozenset()
    uuid: str = ""  # MIG-..., where the page says it


@dataclass(frozen=True, slots=True)
class Gpu:
    """One board. ``values`` are the board's: each counted once, however often the page repeats it."""

    uuid: str
    vendor: str
    index: str = ""
    model: str = ""
    pci: str = ""  # 0000:1b:00.0, lower case; empty when unknown
    node: str = ""
    driver: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    pods: frozenset[Pod] = frozenset()
    sharing: Sharing = Sharing.UNKNOWN
    by_pod: Mapping[Pod, Mapping[str, float]] = field(default_factory=dict)  # per-process figures
    xid_counts: Mapping[int, int] = field(default_factory=dict)  # in the exporter's sliding window
    clock_events: Mapping[str, float] = field(default_factory=dict)  # samples of that window, by reason

    def ratio(self, signal: str) -> float | None:
        """A value that must lie in 0..1, clamped: SM_ACTIVE above 1 was seen under MIG."""
        value = self.values.get(signal)
        return None if value is None else min(1.0, max(0.0, value))

    @property
    def name(self) -> str:
        """For people: ``GPU 3``, or its UUID where no index is known."""
        return f"GPU {self.index}" if self.index else self.uuid


@dataclass(frozen=True, slots=True)
class SwitchError:
    """The last SXid a switch or one of its links shows: a code, not a count."""

    switch: str
    link: str
    code: int
    fatal: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """All boards of one look, in order, and what a person should know about the source."""

    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...] = ()
    switch_errors: tuple[SwitchError, ...] = ()

    def by_uuid(self) -> dict[str, Gpu]:
        """UUID -> board."""
        return {gpu.uuid: gpu for gpu in self.gpus}


def pci_address(text: str) -> str:
    """A PCI address as the kernel log writes it: ``00000000:1B:00.0`` -> ``0000:1b:00``, no function."""
    domain, _, rest = text.strip().lower().partition(":")
    if not rest:
        return ""
    return f"{domain[-4:].rjust(4, '0')}:{rest.partition('.')[0]}"
