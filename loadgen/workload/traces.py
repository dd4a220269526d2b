"""Time-stamped traces of real traffic, read from the formats they are published in.

Azure LLM inference (CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``), BurstGPT (CSV:
``Timestamp,Model,Request tokens,Response tokens,...``, seconds) and Mooncake (JSON lines: ``timestamp`` in
milliseconds, ``input_length``, ``output_length``, ``hash_ids`` of 512-token blocks, where equal ids mean
equal text from the start on).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

from sidecar.errors import UserError

SAMPLES = Path(__file__).parent / "samples"
BLOCK_TOKENS = 512  # of a Mooncake hash id
_LAP = (
    1 << 32
)  # added to a block's id for each lap, so that a trace that starts over shares nothing with itself
_CONTEXT_MARGIN = 32  # tokens left free of a model's context: words become tokens only about as calibrated


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request: seconds after the first one, tokens in and out, ids of the blocks its prompt is made
    of.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows by time. ``skipped`` rows had no tokens, ``clipped`` ones were longer than the model's context."""

    rows: tuple[TraceRow, ...]
    kind: str
    source: str
    skipped: int = 0
    clipped: int = 0

    @property
    def span_s(self) -> float:
        """How long one lap takes at the trace's own speed: to the last row and one mean gap more."""
        n = len(self.rows)
        last_s = self.rows[-1].at_s
        return last_s * n / (n - 1) if n > 1 and last_s > 0 else 1.0

    @property
    def rate_rps(self) -> float:
        """Requests per second at the trace's own speed."""
        return len(self.rows) / self.span_s

    @property
    def own_hit_rate(self) -> float:
        """Share of prompt tokens that an endless prefix cache would find in one lap."""
        seen: set[int] = set()
        found = 0
        for row in self.rows:
            for number, block in enumerate(row.blocks):
                if block not in seen:
                    break
                found += min(BLOCK_TOKENS, max(0, row.prompt_tokens - number * BLOCK_TOKENS))
            seen.update(row.blocks)
        return found / sum(row.prompt_tokens for row in self.rows)

    def row(self, serial: int) -> TraceRow:
        """The row of a serial number; the trace starts over after its last one, with other prompts."""
        lap, at = divmod(serial, len(self.rows))
        row = self.rows[at]
        return replace(row, blocks=tuple(block + lap * _LAP for block in row.blocks)) if lap else row

    def times(self, rate_rps: float, *, worker: int = 0, workers: int = 1) -> Iterator[float]:
        """Endless due times in seconds, for one worker, squeezed or stretched so that the mean rate is this
        one.

        The pattern of bursts and lulls stays; only its speed changes.
        """
        pace = self.rate_rps / rate_rps
        every = (pace * (lap * self.span_s + row.at_s) for lap in count() for row in self.rows)
        return islice(every, worker, None, workers)

    def fitted(self, context_tokens: int | None) -> Trace:
        """The same trace with rows cut to a model's context; how many were is in ``clipped``."""
        if context_tokens is None:
            return self
        room = max(2, context_tokens - _CONTEXT_MARGIN)
        rows = []
        for row in self.rows:
            output = min(row.output_tokens, room // 2)
            prompt = min(row.prompt_tokens, room - output)
            rows.append(replace(row, prompt_tokens=prompt, output_tokens=output))
        return replace(
            self, rows=tuple(rows), clipped=sum(a != b for a, b in zip(rows, self.rows, strict=True))
        )


def sample_names() -> list[str]:
    """The generated samples that come with the package."""
    return sorted(path.stem for path in SAMPLES.iterdir() if path.suffix in (".csv", ".jsonl"))


def read_trace(name: str) -> Trace:
    """Read a file, or a sample by its name. Raises `UserError` naming file and line."""
    path = Path(name)
    if not path.exists() and path.name == name:
        path = next((p for p in SAMPLES.glob(f"{name}.*")), path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise UserError(
            f"--trace {name}: cannot be read ({error.strerror}); give a file or one of "
            + ", ".join(sample_names())
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"--trace {name}: is not UTF-8 text") from None
    kind, rows = _rows(lines, str(path))
    kept = [row for row in rows if row.prompt_tokens > 0 and row.output_tokens > 0]
    if not kept:
        raise UserError(f"--trace {name}: holds no request with tokens in and out")
    kept.sort(key=lambda row: row.at_s)
    first_s = kept[0].at_s
    moved = tuple(replace(row, at_s=row.at_s - first_s) for row in kept)
    return Trace(moved, kind, str(name), skipped=len(rows) - len(kept))


def _rows(lines: Sequence[str], where: str) -> tuple[str, list[TraceRow]]:
    head = lines[0] if lines else ""
    if head.lstrip().startswith("{"):
        return "mooncake", [
            _mooncake(line, f"{where}:{number}") for number, line in enumerate(lines, 1) if line.strip()
        ]
    columns = [column.strip().lower() for column in head.split(",")]
    for kind, names in (
        ("azure", ("timestamp", "contexttokens", "generatedtokens")),
        ("burstgpt", ("timestamp", "request tokens", "response tokens")),
    ):
        if all(name in columns for name in names):
            places = [columns.index(name) for name in names]
            return kind, [
                _csv_row(row, places, f"{where}:{number}", dated=kind == "azure")
                for number, row in enumerate(csv.reader(lines[1:]), 2)
                if row
            ]
    raise UserError(
        f"{where}:1: no trace format that is known; Azure (TIMESTAMP,ContextTokens,GeneratedTokens), "
        "BurstGPT (Timestamp,Model,Request tokens,Response tokens,...) or Mooncake (JSON lines)"
    )


def _csv_row(row: Sequence[str], places: Sequence[int], where: str, *, dated: bool) -> TraceRow:
    try:
        at, prompt, output = (row[place].strip() for place in places)
        at_s = _utc_s(at) if dated else float(at)
        found = TraceRow(at_s, int(float(prompt)), int(float(output)))
    except (IndexError, ValueError, OverflowError):
        raise UserError(f"{where}: not a time and two token counts") from None
    if not math.isfinite(found.at_s):
        raise UserError(f"{where}: the time must be a number")
    return found


def _utc_s(text: str) -> float:
    """Seconds of a date and time; without a zone it is UTC, so that no local clock change can enter."""
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _mooncake(line: str, where: str) -> TraceRow:
    try:
        value: Any = json.loads(line)
        blocks = value.get("hash_ids") or []
        at_ms = float(value["timestamp"])
        row = TraceRow(
            at_ms / 1e3, int(value["input_length"]), int(value["output_length"]), tuple(map(int, blocks))
        )
    except (RecursionError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{where}: needs timestamp, input_length and output_length") from None
    if not math.isfinite(at_ms):
        raise UserError(f"{where}: the timestamp must be a number")
    return row
