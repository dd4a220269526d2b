"""AMD device-metrics-exporter pages -> readings. Pure.

A prefix before the names is a setting of the exporter and found on the page. Everything is typed gauge there;
energy is in microjoules. In partitioned modes a board shows as several partitions with one serial number: the
board's figures are partition 0's, the zeros of the others say nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sidecar.engine.page import Page
from sidecar.gpu.fields import read_yaml
from sidecar.gpu.reading import Gpu, Part, Pod, Reading, Sharing

_SUMMED = {"nvlink_tx_bytes_total", "nvlink_rx_bytes_total"}  # one series for each link
_WHOLE = {"spx", "none", ""}


@dataclass(frozen=True, slots=True)
class _AmdField:
    signal: str
    scale: float
    rank: int
    board: bool
    labels: Mapping[str, str]


@lru_cache(maxsize=1)
def _fields() -> dict[str, tuple[_AmdField, ...]]:
    table: dict[str, list[_AmdField]] = {}
    for row in read_yaml("amd_fields.yaml")["fields"]:
        one = _AmdField(
            row["signal"],
            float(row.get("scale", 1.0)),
            row.get("rank", 0),
            row.get("partition0", False) or row.get("rank") is not None,
            row.get("labels", {}),
        )
        for name in (row["metric"], *row.get("old_names", ())):
            table.setdefault(name, []).append(one)
    return {name: tuple(found) for name, found in table.items()}


@dataclass(slots=True)
class _Board:
    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)  # partition -> signal
    types: dict[str, str] = field(default_factory=dict)
    pods: dict[str, set[Pod]] = field(default_factory=dict)


def read_amd(page: Page) -> Reading:
    """The boards on a page. A page without any known metric gives no board and a note that says so."""
    table = _fields()
    prefix = _prefix(page)
    boards: dict[str, _Board] = {}
    for series, printed in page.samples():
        known = table.get(series.name.removeprefix(prefix))
        labels = series.labels
        if known is None or "gpu_id" not in labels or not abs(printed) < 2.0**62:
            continue
        board = boards.setdefault(_board_id(labels), _Board())
        partition = labels.get("gpu_partition_id") or "0"
        for ours, theirs in (("gpu", "gpu_id"), ("model", "card_model"), ("node", "hostname")):
            if labels.get(theirs) and (ours != "gpu" or partition == "0"):
                board.labels.setdefault(ours, labels[theirs])
        if labels.get("driver_version"):
            board.labels.setdefault("driver", labels["driver_version"])
        board.types[partition] = labels.get("gpu_compute_partition_type", "")
        pods = board.pods.setdefault(partition, set())
        if labels.get("pod"):
            pods.add(Pod(labels.get("namespace", ""), labels["pod"]))
        for one in known:
            if all(labels.get(name) == value for name, value in one.labels.items()):
                _place(board, partition, one, printed)
    gpus = tuple(_gpu(board_id, board) for board_id, board in boards.items())
    return Reading(gpus, () if gpus else ("the page has no metric of AMD's device-metrics-exporter",))


def _prefix(page: Page) -> str:
    """What stands before the metric names: the commonest of the prefixes that known names have here."""
    known = sorted(_fields(), key=len, reverse=True)
    found: Counter[str] = Counter()
    for name in page.by_name:
        match = next((one for one in known if name == one or name.endswith(f"_{one}")), None)
        if match is not None:
            found[name.removesuffix(match)] += 1
    return found.most_common(1)[0][0] if found else ""


def _board_id(labels: Mapping[str, str]) -> str:
    # A UUID may be per partition; the serial number is the board's, where it is printed at all.
    serial = labels.get("serial_number")
    return serial or labels.get("gpu_uuid") or f"{labels.get('hostname', '')}/{labels['gpu_id']}"


def _place(board: _Board, partition: str, one: _AmdField, printed: float) -> None:
    if one.signal == "power_watts" and printed <= 0:
        return  # a field that this part does not fill, or a partition: no board draws nothing
    value = printed * one.scale
    values = board.values.setdefault("0" if one.board and partition == "0" else partition, {})
    if one.board and partition != "0":
        return
    before = values.get(one.signal)
    if before is None or one.rank < before[0]:
        values[one.signal] = (one.rank, value)
    elif one.rank == before[0]:
        # Several compute dies or links of one board: bytes add up, of clocks the highest counts.
        both = before[1] + value if one.signal in _SUMMED else max(before[1], value)
        values[one.signal] = (one.rank, both)


def _gpu(board_id: str, board: _Board) -> Gpu:
    split = any(kind.lower() not in _WHOLE for kind in board.types.values()) or len(board.types) > 1
    pods = frozenset(pod for named in board.pods.values() for pod in named)
    parts: tuple[Part, ...] = ()
    if split:
        parts = tuple(
            Part(
                partition,
                board.types[partition],
                {signal: value for signal, (_, value) in board.values.get(partition, {}).items()},
                frozenset(board.pods.get(partition, ())),
            )
            for partition in sorted(board.types, key=lambda one: (len(one), one))
        )
        sharing = Sharing.MIG
    elif len(pods) > 1:
        sharing = Sharing.SHARED
    else:
        sharing = Sharing.EXCLUSIVE if pods else Sharing.UNKNOWN
    return Gpu(
        uuid=board_id,
        vendor="amd",
        index=board.labels.get("gpu", ""),
        model=board.labels.get("model", ""),
        node=board.labels.get("node", ""),
        driver=board.labels.get("driver", ""),
        values={signal: value for signal, (_, value) in board.values.get("0", {}).items()},
        parts=parts,
        pods=pods,
        sharing=sharing,
    )
