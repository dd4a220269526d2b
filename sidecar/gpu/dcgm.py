"""dcgm-exporter pages -> readings. Pure.

Every release since 2.2 is read: names by field id (DCGM 4.5.3 renamed them, 1.x had its own), labels in all
their spellings, values by true kind whatever ``# TYPE`` says. Board figures that the page repeats for each
MIG instance, each sharing pod or each resource claim count once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.engine.page import Page
from sidecar.gpu.fields import DcgmField, dcgm_fields
from sidecar.gpu.reading import Gpu, Part, Pod, Reading, Sharing, SwitchError

_XID_COUNTS = "DCGM_EXP_XID_ERRORS_COUNT"
_CLOCK_COUNTS = ("DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_FI_EXP_CLOCK_THROTTLE_REASONS_COUNT")
_SWITCH = re.compile(r"DCGM_FI_DEV_NVSWITCH_(?:LINK_)?(?P<non>NON_)?FATAL_ERRORS")
_OURS = re.compile(r"DCGM_|dcgm_")


@dataclass(slots=True)
class _Slot:
    """The series of one signal on one entity: those without a pod are the device's, the others a pod's."""

    known: DcgmField
    device: float | None = None
    pods: dict[Pod, float] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)

    def value(self) -> float | None:
        if self.links:
            return sum(self.links.values())
        if self.device is not None:
            return self.device
        return next(iter(self.pods.values()), None)


@dataclass(slots=True)
class _Part:
    profile: str = ""
    uuid: str = ""
    pods: set[Pod] = field(default_factory=set)
    slots: dict[str, _Slot] = field(default_factory=dict)


@dataclass(slots=True)
class _Board:
    labels: dict[str, str] = field(default_factory=dict)
    parts: dict[str, _Part] = field(default_factory=lambda: {"": _Part()})  # "": the whole board
    pods: set[Pod] = field(default_factory=set)
    replicas: bool = False
    xid_counts: dict[int, int] = field(default_factory=dict)
    clock_events: dict[str, float] = field(default_factory=dict)


def read_dcgm(page: Page) -> Reading:
    """The boards on a page. A page without any DCGM field gives no board and a note that says so."""
    table = dcgm_fields().by_name
    boards: dict[str, _Board] = {}
    switch_errors: list[SwitchError] = []
    seen_dcgm = False
    for series, printed in page.samples():
        name = series.name
        if _OURS.match(name) is None:
            continue
        seen_dcgm = True
        labels = series.labels
        known = table.get(name)
        if known is None and name not in (_XID_COUNTS, *_CLOCK_COUNTS):
            switch = _SWITCH.fullmatch(name)
            if switch and printed > 0:
                error = SwitchError(
                    labels.get("nvswitch", ""), labels.get("nvlink", ""), int(printed), not switch["non"]
                )
                switch_errors.append(error)
            continue
        uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid") or ""
        if not uuid:
            continue
        board = boards.get(uuid)
        if board is None:
            board = boards[uuid] = _Board()
        _identify(board, labels)
        pod = _pod_of(labels)
        part = _part_of(board, labels, pod)
        if known is None:
            _exporter_count(board, name, labels, printed)
            continue
        value = known.value(printed)
        if value is not None:
            _place(board.parts[""] if known.whole_board else part, known, value, pod, labels.get("nvlink"))
    notes = () if seen_dcgm else ("the page has no DCGM field: is it dcgm-exporter's?",)
    gpus = tuple(_gpu(uuid, board) for uuid, board in sorted(boards.items(), key=_order))
    return Reading(gpus, notes, tuple(switch_errors))


def _order(item: tuple[str, _Board]) -> tuple[int, str, str]:
    index = item[1].labels.get("gpu", "")
    return (int(index) if index.isdecimal() else 1 << 30, index, item[0])


def _identify(board: _Board, labels: Mapping[str, str]) -> None:
    if len(board.labels) == len(_IDENTITY):
        return
    for ours, names in _IDENTITY.items():
        if ours not in board.labels:
            found = next((labels[name] for name in names if labels.get(name)), None)
            if found is not None:
                board.labels[ours] = found


_IDENTITY = {
    "gpu": ("gpu",),
    "pci": ("pci_bus_id",),
    "model": ("modelName", "model_name"),
    "node": ("Hostname", "hostname"),
    "driver": ("DCGM_FI_DRIVER_VERSION",),
}


def _pod_of(labels: Mapping[str, str]) -> Pod | None:
    """The pod that holds the GPU; an empty label is no pod.

    Read back from Prometheus (``job`` and ``instance`` are its labels), plain ``pod`` is the exporter's own
    and the GPU's pod stands as ``exported_pod``.
    """
    if "exported_pod" in labels:
        name, namespace = labels["exported_pod"], labels.get("exported_namespace", "")
    elif "job" in labels and "instance" in labels:
        return None
    else:
        name = labels.get("pod") or labels.get("pod_name") or ""
        namespace = labels.get("namespace") or labels.get("pod_namespace") or ""
    return Pod(namespace, name) if name else None


def _part_of(board: _Board, labels: Mapping[str, str], pod: Pod | None) -> _Part:
    instance = labels.get("GPU_I_ID", "")
    part = board.parts.get(instance)
    if part is None:
        part = board.parts[instance] = _Part()
    if instance:
        part.profile = part.profile or labels.get("GPU_I_PROFILE", "") or labels.get("dra_mig_profile", "")
        part.uuid = part.uuid or labels.get("dra_mig_device_uuid", "")
    if labels.get("vgpu"):
        board.replicas = True
    if pod is not None:
        part.pods.add(pod)
        board.pods.add(pod)
    return part


def _place(part: _Part, known: DcgmField, value: float, pod: Pod | None, link: str | None) -> None:
    slot = part.slots.get(known.signal)
    if slot is None or slot.known.rank < known.rank:
        slot = part.slots[known.signal] = _Slot(known)
    elif slot.known.id != known.id and slot.known.rank >= known.rank:
        return
    if link is not None:
        slot.links[link] = value
    elif pod is None:
        slot.device = value if slot.device is None else slot.device
    else:
        slot.pods.setdefault(pod, value)


def _exporter_count(board: _Board, name: str, labels: Mapping[str, str], printed: float) -> None:
    # The windowed collectors let DCGM's marks through until 4.5.2-4.8.1.
    if not 0 <= printed < 0x7FFFFFF0:
        return
    if name == _XID_COUNTS:
        code = labels.get("xid", "")
        if code.isdecimal() and int(code) and printed:
            board.xid_counts[int(code)] = max(int(printed), board.xid_counts.get(int(code), 0))
        return
    reason = labels.get("clock_event") or labels.get("throttle_reason") or ""
    if reason:
        board.clock_events[reason] = max(printed, board.clock_events.get(reason, 0.0))


def _gpu(uuid: str, board: _Board) -> Gpu:
    whole = board.parts[""]
    parts = tuple(
        Part(part_id, part.profile, _values(part), frozenset(part.pods), part.uuid)
        for part_id, part in sorted(board.parts.items(), key=lambda item: (len(item[0]), item[0]))
        if part_id
    )
    by_pod: dict[Pod, dict[str, float]] = {}
    for signal, slot in whole.slots.items():
        if slot.device is not None:
            for pod, value in slot.pods.items():
                by_pod.setdefault(pod, {})[signal] = value
    if parts:
        sharing = Sharing.MIG
    elif board.replicas or len(board.pods) > 1:
        sharing = Sharing.SHARED
    else:
        sharing = Sharing.EXCLUSIVE if board.pods else Sharing.UNKNOWN
    pci = board.labels.get("pci", "").lower()
    return Gpu(
        uuid=uuid,
        vendor="nvidia",
        index=board.labels.get("gpu", ""),
        model=board.labels.get("model", ""),
        pci=pci[4:] if pci.startswith("00000000:") else pci,
        node=board.labels.get("node", ""),
        driver=board.labels.get("driver", ""),
        values=_values(whole),
        parts=parts,
        pods=frozenset(board.pods),
        sharing=sharing,
        by_pod=by_pod,
        xid_counts=board.xid_counts,
        clock_events=board.clock_events,
    )


def _values(part: _Part) -> dict[str, float]:
    return {signal: value for signal, slot in part.slots.items() if (value := slot.value()) is not None}
