"""The Xid catalogue: what a code means, how far its damage reaches, what to do first. Advice, no action.

Nothing here drains, restarts or blames, and no one code decides anything: ``look_beside`` says what must be
known before a person (or their automation) does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sidecar.gpu.fields import read_yaml

# From the least to the most drastic. An Xid 154 may raise an advisory and never lowers it.
ADVISORIES = ("unknown", "informational", "restart_app", "check_fabric", "reset_gpu", "drain_and_diagnose")

_WORDS = {
    "unknown": "record it; the code is not in the catalogue, so nothing is advised",
    "informational": "record and show",
    "restart_app": "restart the application; its uncommitted output is lost or suspect, the GPU is not",
    "check_fabric": "look at links, switches and peers before the GPU",
    "reset_gpu": "take work off the GPU and reset it, then check",
    "drain_and_diagnose": "take the node out of service, gather a bug report and run diagnostics",
}

# Recovery action numbers of Xid 154 (and of the DCGM field) -> the advisory they ask for at least.
_RECOVERY = {
    1: "reset_gpu",
    2: "drain_and_diagnose",
    3: "check_fabric",
    4: "reset_gpu",
    7: "drain_and_diagnose",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What the catalogue says of one code. ``known`` false: the code is not in it."""

    code: int
    name: str
    scope: tuple[str, ...]  # app, driver, gpu, fabric, system: where the cause may lie
    containment: str
    advisory: str
    look_beside: tuple[str, ...]
    note: str = ""
    doubtful: bool = False
    known: bool = True

    @property
    def undetermined(self) -> bool:
        """Whether the code alone cannot tell the application from the driver or the hardware."""
        return "app" in self.scope and len(self.scope) > 1


def words(advisory: str) -> str:
    """An advisory as a clause."""
    return _WORDS[advisory]


def advice_for(code: int) -> Advice:
    """The catalogue's entry; one that advises nothing for a code that is not in it."""
    found = _codes().get(code)
    if found is not None:
        return found
    name = "unused on data-centre parts" if code in _unused() else "not in the catalogue"
    return Advice(code, name, (), "depends", "unknown", (), known=False)


def sxid_advice(code: int) -> Advice:
    """Of an NVSwitch report: always ``check_fabric``; its boundary is never known from the code alone."""
    row = _sxids().get(code)
    name = row[0] if row else "not in the catalogue"
    note = f"fabric manager guide: {row[1].replace('_', ' ')}" if row else ""
    beside = ("severity_in_line", "switch_and_port", "topology", "xid_74", "fabric_manager")
    return Advice(code, name, ("fabric",), "depends", "check_fabric", beside, note, known=row is not None)


def raised(advisory: str, recovery_action: int) -> str:
    """``advisory``, or what a recovery action asks for if that is more drastic."""
    asked = _RECOVERY.get(recovery_action, "unknown")
    return max(advisory, asked, key=ADVISORIES.index)


@lru_cache(maxsize=1)
def _codes() -> dict[int, Advice]:
    return {
        row["code"]: Advice(
            code=row["code"],
            name=row["name"],
            scope=tuple(row["scope"]),
            containment=row["containment"],
            advisory=row["advisory"],
            look_beside=tuple(row.get("context", ())),
            note=row.get("note", ""),
            doubtful=row.get("doubtful", False),
        )
        for row in read_yaml("xid_catalog.yaml")["codes"]
    }


@lru_cache(maxsize=1)
def _unused() -> frozenset[int]:
    return frozenset(read_yaml("xid_catalog.yaml")["unused"])


@lru_cache(maxsize=1)
def _sxids() -> dict[int, tuple[str, str]]:
    return {row["code"]: (row["name"], row["class"]) for row in read_yaml("xid_catalog.yaml")["sxids"]}
