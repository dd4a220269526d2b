"""Write a metrics page: Prometheus text 0.0.4 and OpenMetrics 1.0. Pure.

The same families in both. They differ in three ways that scrapers insist on: OpenMetrics names a counter's
family without ``_total``, allows exemplars and ``_created``, and ends in ``# EOF``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.slices import Steps, at_once

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation of a bucket with its trace. ``wall_s`` is Unix time."""

    trace_id: str
    value: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """A classic histogram's state: ``cumulative`` has one more entry than ``edges``, for +Inf."""

    edges: Sequence[float]
    cumulative: Sequence[float]
    sum: float | None
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)  # by bucket index


@dataclass(slots=True)
class Family:
    """One metric family. ``name`` is as on the text page: counters end in ``_total``."""

    name: str
    kind: str  # counter, gauge, histogram, info
    help: str
    samples: list[tuple[Labels, float | Buckets]] = field(default_factory=list)

    def add(self, value: float | Buckets | None, **labels: str) -> None:
        """Add a sample; ``None`` and NaN are absent, not a value."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return
        self.samples.append((tuple(labels.items()), value))


def number(value: float) -> str:
    """A number as both formats want it: whole numbers plainly, the rest as the shortest exact text."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


def render(families: Iterable[Family], *, openmetrics: bool, created_s: float | None = None) -> bytes:
    """The page as bytes, families without samples left out. ``created_s``: when counters began (Unix)."""
    return at_once(render_in_steps(families, openmetrics=openmetrics, created_s=created_s))


def render_in_steps(
    families: Iterable[Family], *, openmetrics: bool, created_s: float | None = None
) -> Steps[bytes]:
    """The same, a sample at a time."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            yield from _family(lines, family, openmetrics, created_s if openmetrics else None)
    if openmetrics:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _family(lines: list[str], family: Family, openmetrics: bool, created_s: float | None) -> Steps[None]:
    name = family.name
    kind = family.kind
    if openmetrics:
        if kind == "counter":
            name = name.removesuffix("_total")
        elif kind == "info":
            name = name.removesuffix("_info")
    elif kind == "info":
        kind = "gauge"
    lines.append(f"# HELP {name} {_escape(family.help, quotes=openmetrics)}")
    lines.append(f"# TYPE {name} {kind}")
    if openmetrics and name.endswith("_seconds"):
        lines.append(f"# UNIT {name} seconds")
    for labels, value in family.samples:
        if isinstance(value, Buckets):
            _histogram(lines, family.name, labels, value, openmetrics)
        else:
            lines.append(f"{family.name}{_labels(labels)} {number(value)}")
        if created_s is not None and kind in ("counter", "histogram"):
            lines.append(f"{name}_created{_labels(labels)} {number(created_s)}")
        yield


def _histogram(lines: list[str], name: str, labels: Labels, value: Buckets, openmetrics: bool) -> None:
    edges = [*value.edges, math.inf]
    for at, (edge, count) in enumerate(zip(edges, value.cumulative, strict=True)):
        # OpenMetrics wants a decimal point in every le, so that 1 and 1.0 cannot be two series.
        le = "+Inf" if edge == math.inf else repr(float(edge))
        line = f"{name}_bucket{_labels((*labels, ('le', le)))} {number(count)}"
        exemplar = value.exemplars.get(at)
        if openmetrics and exemplar is not None:
            seen = f"{exemplar.wall_s:.3f}"
            line += (
                f' # {{trace_id="{_escape(exemplar.trace_id, quotes=True)}"}} {number(exemplar.value)} {seen}'
            )
        lines.append(line)
    if value.sum is not None:
        lines.append(f"{name}_sum{_labels(labels)} {number(value.sum)}")
    lines.append(f"{name}_count{_labels(labels)} {number(value.cumulative[-1])}")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value, quotes=True)}"' for name, value in labels) + "}"


def _escape(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    # A lone surrogate cannot be written as UTF-8.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace('"', '\\"') if quotes else text


def accepts_openmetrics(accept: str) -> bool:
    """Whether an ``Accept`` header prefers OpenMetrics over Prometheus text."""
    best = {"openmetrics": 0.0, "text": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if kind == "application/openmetrics-text":
            best["openmetrics"] = max(best["openmetrics"], quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            best["text"] = max(best["text"], quality)
    return best["openmetrics"] > 0 and best["openmetrics"] >= best["text"]
