"""report.csv: one row for each measured level, flat columns, empty cell = unknown."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from loadgen.report.text import BUCKETS
from loadgen.results import LevelResult, SweepReport

_PLAIN = [
    "load",
    "kind",
    "started_wall",
    "valid",
    "warmup_s",
    "window_s",
    "drain_s",
    "sent",
    "completed",
    "eligible",
    "good",
    "not_eligible",
    "goodput_rps",
    "token_goodput_tps",
    "throughput_rps",
    "output_tps",
    "attainment",
    "in_flight_mean",
    "output_tokens",
    "prompt_tokens",
    "tokens_estimated",
    "client_cpu_share",
]
_QUANTILES = ["count", "mean_s", "p50_s", "p90_s", "p95_s", "p99_s", "p999_s", "max_s"]


def to_csv(report: SweepReport) -> str:
    """All levels in the order measured, with a header row. Lines end in ``\\n``; booleans are true/false."""
    buckets = known_first(BUCKETS, (b for level in report.levels for b in level.badput))
    errors = sorted({e for level in report.levels for e in level.errors})
    signals = sorted({s for level in report.levels for s in level.engine})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [*_PLAIN, "goodput_low_rps", "goodput_high_rps"]
        + [f"{name}_{q}" for name in ("ttft", "tpot", "itl", "e2e") for q in _QUANTILES]
        + [f"badput_{b}" for b in buckets]
        + [f"errors_{e}" for e in errors]
        + [f"engine_{s}" for s in signals]
        + ["flags"]
    )
    for level in report.levels:
        writer.writerow(_row(level, buckets, errors, signals))
    return out.getvalue()


def known_first(order: Iterable[str], found: Iterable[str]) -> list[str]:
    """The names of ``order``, then those only met in ``found``, sorted."""
    known = list(order)
    return known + sorted(set(found) - set(known))


def _row(level: LevelResult, buckets: list[str], errors: list[str], signals: list[str]) -> list[str]:
    cells: list[object] = [getattr(level, name) for name in _PLAIN]
    cells += level.goodput_ci_rps or (None, None)
    for quantiles in (level.ttft, level.tpot, level.itl, level.e2e):
        cells += [getattr(quantiles, q) for q in _QUANTILES]
    cells += [level.badput.get(b, 0) for b in buckets]
    cells += [level.errors.get(e, 0) for e in errors]
    cells += [level.engine.get(s) for s in signals]
    cells.append("; ".join(level.flags))
    return [_cell(c) for c in cells]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, float) else str(value)
    # A spreadsheet would run a text that begins with one of these as a formula.
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text
