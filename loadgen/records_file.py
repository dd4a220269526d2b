"""Raw per-request records as JSON lines, written after every level. ``goodput-sidecar judge`` reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from loadgen.plan import LevelPlan
from loadgen.step import started_at
from sidecar.errors import UserError
from sidecar.requests.recordio import to_json
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import SloPolicy, judge


class RecordsFile:
    """One line a request: the level's number and load, whether it started in the measured window, the
    verdict, and under ``record`` the record itself (nanoseconds from the level's start).
    """

    def __init__(self, path: Path, *, append: bool) -> None:
        """Empty the file, or take up where it ends. Raises `UserError` when it cannot be written."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if append and path.exists():
                _cut_half_line(path)
            else:
                path.write_bytes(b"")
        except OSError as error:
            raise UserError(f"--records {path}: cannot be written ({error.strerror})") from None

    def write(self, plan: LevelPlan, records: Sequence[RequestRecord], policy: SloPolicy) -> None:
        """Add a level's records, and have them on the disk before returning."""
        with self._path.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(_line(plan, record, policy), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _line(plan: LevelPlan, record: RequestRecord, policy: SloPolicy) -> dict[str, object]:
    slo = policy.class_for(record)
    verdict = judge(record, slo)
    start_ns, end_ns = plan.window_ns
    return {
        "level": plan.number,
        "load": plan.load,
        "in_window": start_ns <= started_at(record) < end_ns,
        "slo": slo.name,
        "good": verdict.good,
        "eligible": verdict.eligible,
        "bucket": None if verdict.bucket is None else verdict.bucket.value,
        "record": to_json(record),
    }


def _cut_half_line(path: Path) -> None:
    """Drop what a crash left of a last line."""
    with path.open("rb+") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        at = size
        while at > 0:
            begin = max(0, at - 65536)
            file.seek(begin)
            found = file.read(at - begin).rfind(b"\n")
            if found >= 0:
                at = begin + found + 1
                break
            at = begin
        if at < size:
            file.truncate(at)
