"""Peak figures per device, found by exact name. Dense figures only are ever divided by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from sidecar.gpu.fields import read_yaml

DTYPES = ("bf16", "fp8", "fp4", "int8")
_SAME = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "half": "bf16", "auto": "bf16"}


@dataclass(frozen=True, slots=True)
class Peak:
    """One device. FLOP/s (int8: OP/s), bytes per second, bytes, watts; ``None``: not known.

    ``doubtful``: why the figures may be wrong; a ratio that divides by them says so.
    """

    key: str
    vendor: str
    dense_flops: dict[str, float | None]
    sparse_flops: dict[str, float | None]
    bandwidth_bytes_per_s: float
    memory_bytes: float
    tdp_w: float | None
    doubtful: tuple[str, ...]
    note: str
    devices_per_board: int

    def dense(self, dtype: str) -> float | None:
        """Dense peak of one device in FLOP/s for ``dtype`` (bf16, fp16, fp8, fp4, int8)."""
        return self.dense_flops.get(canonical_dtype(dtype))

    def describe(self, dtype: str) -> str:
        """What an MFU that divides by this peak must say."""
        flops = self.dense(dtype)
        figure = f"{flops / 1e12:g} TFLOPS" if flops is not None else "unknown"
        doubt = ", doubtful" if self.doubtful else ""
        return f"{self.key} {canonical_dtype(dtype)} dense {figure}{doubt}"


def canonical_dtype(dtype: str) -> str:
    """``fp16``, ``bfloat16`` and ``half`` run at the BF16 rate on all listed parts."""
    low = dtype.lower()
    return _SAME.get(low, low)


def find_peak_of(model: str) -> Peak | None:
    """The device whose product name is ``model``, or whose key it is.

    Case, and the difference of blanks, dashes and underscores, do not count. Never by prefix or family: an
    A10G is no A10, and an unknown name gives ``None`` and so no ratio at all.
    """
    return _by_name().get(_plain(model))


def all_peaks() -> tuple[Peak, ...]:
    """Every device of the table (a variant of memory counts as one of its own)."""
    return _load()[0]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().lower())


def _by_name() -> dict[str, Peak]:
    return _load()[1]


@lru_cache(maxsize=1)
def _load() -> tuple[tuple[Peak, ...], dict[str, Peak]]:
    peaks: list[Peak] = []
    names: dict[str, Peak] = {}
    for row in read_yaml("peaks.yaml")["gpus"]:
        forms = [(row["names"], row["memory_gb"], row["bandwidth_gb_per_s"])]
        forms += [(v["names"], v["memory_gb"], v["bandwidth_gb_per_s"]) for v in row.get("variants", ())]
        for own_names, memory_gb, bandwidth in forms:
            peak = Peak(
                key=row["key"],
                vendor=row["vendor"],
                dense_flops={d: _tera(row["dense"].get(d)) for d in DTYPES},
                sparse_flops={d: _tera(row["sparse"].get(d)) for d in DTYPES},
                bandwidth_bytes_per_s=bandwidth * 1e9,
                memory_bytes=memory_gb * 1e9,
                tdp_w=row["tdp_w"],
                doubtful=tuple(row.get("doubtful", ())),
                note=row.get("note", ""),
                devices_per_board=row.get("devices_per_board", 1),
            )
            peaks.append(peak)
            for name in own_names:
                names[_plain(name)] = peak
        names.setdefault(_plain(row["key"]), next(p for p in peaks if p.key == row["key"]))
    return tuple(peaks), names


def _tera(figure: float | None) -> float | None:
    return None if figure is None else figure * 1e12
