"""The report's charts, each a function from points to SVG text. Colours live in report.css."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.report import svg
from loadgen.report.curve import Point
from loadgen.report.svg import Frame, Scale
from loadgen.report.text import BUCKETS, interval, number, percent, seconds
from loadgen.results import Peak


@dataclass(frozen=True, slots=True)
class Loads:
    """The shared load axis: logarithmic when the loads span more than a factor of six."""

    values: tuple[float, ...]
    axis: str  # what the loads count, the axis title

    def scale(self, frame: Frame) -> Scale:
        """Loads to pixels, with a little air at both ends."""
        low, high = self.values[0], self.values[-1]
        if low <= 0 or high / low <= 6:
            pad = (high - low or max(abs(high), 1.0)) * 0.06
            return Scale(low - pad, high + pad, frame.x0, frame.x1)
        pad = (high / low) ** 0.05
        return Scale(low / pad, high * pad, frame.x0, frame.x1, log=True)


def loads_axis(frame: Frame, x: Scale, loads: Loads) -> list[str]:
    """A tick at each load (numbers thinned out where they would touch), and the axis title."""
    parts = [svg.line(frame.x0, frame.y0, frame.x1, frame.y0, class_="axis")]
    free_from = frame.x0 - 20.0
    for load in loads.values:
        at, label = x(load), number(load)
        parts.append(svg.line(at, frame.y0, at, frame.y0 + 4, class_="axis"))
        half = 4.2 * len(label)
        if at - half >= free_from:
            parts.append(svg.text(at, frame.y0 + 18, label, class_="tick", text_anchor="middle"))
            free_from = at + half + 3
    middle = (frame.x0 + frame.x1) / 2
    parts.append(svg.text(middle, frame.height - 6, loads.axis, class_="axis-title", text_anchor="middle"))
    return parts


def value_axis(
    frame: Frame, y: Scale, ticks: Sequence[float], labels: Sequence[str], title: str
) -> list[str]:
    """Grid lines with their values, and what they count above them."""
    parts = []
    for tick, label in zip(ticks, labels, strict=True):
        parts.append(svg.line(frame.x0, y(tick), frame.x1, y(tick), class_="grid"))
        parts.append(svg.text(frame.x0 - 7, y(tick) + 4, label, class_="tick", text_anchor="end"))
    parts.append(svg.text(4, 12, title, class_="axis-title"))
    return parts


def goodput(points: Sequence[Point], peak: Peak, loads: Loads, ident: str, width: float) -> str:
    """Goodput with its intervals, throughput beside it, the gap shaded, peak and plateau marked."""
    frame = Frame(width, 360.0 if width > 500 else 300.0, top=40.0)
    x = loads.scale(frame)
    highest = max(
        (max(p.throughput_rps, p.goodput_rps, (p.goodput_ci_rps or (0, 0))[1]) for p in points), default=1
    )
    ticks = svg.nice_ticks(highest)
    y = Scale(0, ticks[-1], frame.y0, frame.y1)
    parts = value_axis(frame, y, ticks, [number(t) for t in ticks], "requests per second")
    used = [p for p in points if p.judged]
    if peak.plateau is not None and peak.plateau[1] > peak.plateau[0]:
        left, right = x(peak.plateau[0]), x(peak.plateau[1])
        tip = f"Plateau: loads {number(peak.plateau[0])} to {number(peak.plateau[1])} cannot be told apart"
        band = svg.el("title", svg.esc(tip))
        parts.append(
            svg.el(
                "rect",
                band,
                x=left,
                y=frame.y1,
                width=right - left,
                height=frame.y0 - frame.y1,
                class_="plateau",
            )
        )
    good = [(x(p.load), y(p.goodput_rps)) for p in used]
    through = [(x(p.load), y(p.throughput_rps)) for p in used]
    if len(used) > 1:
        parts.append(svg.el("path", d=svg.path(through + good[::-1]) + "Z", class_="gap"))
        parts.append(svg.el("path", d=svg.path(through), class_="line throughput"))
        parts.append(svg.el("path", d=svg.path(good), class_="line goodput"))
    parts += loads_axis(frame, x, loads)
    for p in used:
        tip = f"load {number(p.load)}: throughput {number(p.throughput_rps)} requests/s"
        at, up = x(p.load), y(p.throughput_rps)
        box = svg.el("title", svg.esc(tip))
        parts.append(svg.el("rect", box, x=at - 3, y=up - 3, width=6.0, height=6.0, class_="dot throughput"))
    for p in points:
        parts += _goodput_marks(p, x, y)
    parts += _peak_mark(frame, x, y, peak)
    words = f"Goodput at {len(points)} loads. " + (
        f"It peaks at load {number(peak.load)} with {number(peak.goodput_rps)} good requests per second."
        if peak.load is not None
        else f"No peak: {peak.reason}"
    )
    return svg.picture(frame, ident, "Goodput and throughput against load", words, *parts)


def _goodput_marks(point: Point, x: Scale, y: Scale) -> list[str]:
    """Whisker and dot of one load; its repeats as small dots; a cross where no repeat counts."""
    at, up = x(point.load), y(point.goodput_rps)
    if not point.judged:
        why = (
            "; ".join(dict.fromkeys(flag for level in point.levels for flag in level.flags))
            or "nothing to judge"
        )
        tip = svg.el("title", svg.esc(f"load {number(point.load)} does not count: {why}"))
        return [svg.el("path", tip, d=f"M{at - 5:.1f},{up - 5:.1f}l10,10m0,-10l-10,10", class_="invalid")]
    parts = []
    if (ci := point.goodput_ci_rps) is not None:
        low, high = y(max(0.0, ci[0])), y(ci[1])
        d = f"M{at - 4:.1f},{high:.1f}h8M{at:.1f},{high:.1f}V{low:.1f}M{at - 4:.1f},{low:.1f}h8"
        parts.append(svg.el("path", d=d, class_="whisker"))
    if len(point.used) > 1:
        parts += [svg.el("circle", cx=at, cy=y(r.goodput_rps), r=2.0, class_="repeat") for r in point.used]
    tip = (
        f"load {number(point.load)}: goodput {number(point.goodput_rps)} requests/s "
        f"(95 %: {interval(point.goodput_ci_rps)}), attainment {percent(point.attainment)}"
    )
    parts.append(svg.el("circle", svg.el("title", svg.esc(tip)), cx=at, cy=up, r=4.5, class_="dot goodput"))
    return parts


def _peak_mark(frame: Frame, x: Scale, y: Scale, peak: Peak) -> list[str]:
    if peak.load is None or peak.goodput_rps is None:
        return []
    at, up = x(peak.load), y(peak.goodput_rps)
    label = f"peak {number(peak.goodput_rps)}/s at {number(peak.load)}"
    if not peak.bracketed:
        label = f"at least {number(peak.goodput_rps)}/s, still rising at {number(peak.load)}"
    room = 3.6 * len(label)
    anchor_x = min(max(at, frame.x0 + room), frame.x1 - room)
    return [
        svg.line(at, frame.y1, at, frame.y0, class_="peak-line"),
        svg.el("circle", cx=at, cy=up, r=9.0, class_="peak-ring"),
        svg.text(anchor_x, frame.y1 - 7, label, class_="peak-label", text_anchor="middle"),
    ]


def attainment(points: Sequence[Point], peak: Peak, loads: Loads, ident: str, width: float) -> str:
    """Share of good requests against load, with the highest load that holds each stated share."""
    frame = Frame(width, 280.0 if width > 500 else 250.0, top=30.0)
    x, y = loads.scale(frame), Scale(0, 1, frame.y0, frame.y1)
    ticks = (0, 0.25, 0.5, 0.75, 1.0)
    parts = value_axis(frame, y, ticks, [f"{t:.0%}" for t in ticks], "good, of eligible")
    known = [(p, a) for p in points if p.valid and (a := p.attainment) is not None]
    parts.append(
        svg.el("path", d=svg.path([(x(p.load), y(a)) for p, a in known]), class_="line goodput")
        if known
        else ""
    )
    parts += loads_axis(frame, x, loads)
    said: list[str] = []
    labels: list[str] = []
    for i, capacity in enumerate(peak.capacity):
        if capacity.load is None:
            said.append(f"No load held {capacity.share:.0%}.")
            continue
        at = x(capacity.load)
        label = f"{capacity.share:.0%} up to {number(capacity.load)}"
        said.append(f"{label}.")
        foot, up = frame.y0 - 12 - 18 * i, y(capacity.share)
        left = at - frame.x0 > 8.0 * len(label)
        anchor = {"x": at + (-6 if left else 6), "y": foot, "text_anchor": "end" if left else "start"}
        corner = svg.path([(frame.x0, up), (at, up), (at, frame.y0)])
        parts.append(svg.el("path", d=corner, class_="capacity-line"))
        labels.append(svg.el("text", svg.esc(label), class_="capacity-label", **anchor))
    parts += labels
    for p, a in known:
        tip = svg.el("title", svg.esc(f"load {number(p.load)}: {percent(a)} good"))
        parts.append(svg.el("circle", tip, cx=x(p.load), cy=y(a), r=4.0, class_="dot goodput"))
    return svg.picture(frame, ident, "Attainment against load", " ".join(said) or "Attainment.", *parts)


_PERCENTILES = (("p50_s", "p50"), ("p95_s", "p95"), ("p99_s", "p99"))


def latency(
    points: Sequence[Point],
    which: str,
    name: str,
    bounds: Sequence[tuple[str, float]],
    loads: Loads,
    ident: str,
    width: float,
) -> str:
    """p50, p95 and p99 of one latency on a logarithmic axis, with the SLO's bounds as dashed lines."""
    frame = Frame(width, 250.0, left=62.0, right=40.0, top=30.0)
    x = loads.scale(frame)
    series = {
        label: [
            (p.load, v) for p in points if p.valid and (v := p.quantile(which, key)) is not None and v > 0
        ]
        for key, label in _PERCENTILES
    }
    values = [v for line in series.values() for _, v in line] + [v for _, v in bounds if v > 0]
    if not any(series.values()):
        empty = svg.text(
            frame.width / 2, frame.height / 2, "not measured", class_="note", text_anchor="middle"
        )
        return svg.picture(
            frame, ident, f"{name} against load", f"{name} was not measured at any load.", empty
        )
    ticks = svg.log_ticks(min(values), max(values))
    y = Scale(ticks[0], ticks[-1], frame.y0, frame.y1, log=True)
    parts = value_axis(frame, y, ticks, [seconds(t) for t in ticks], name)
    parts += loads_axis(frame, x, loads)
    for bound_name, bound in bounds:
        up = y(bound)
        label = svg.text(frame.x0 + 4, up - 5, f"SLO {bound_name} {seconds(bound)}", class_="slo-label")
        parts += [svg.line(frame.x0, up, frame.x1, up, class_="slo-line"), label]
    lowest_label = frame.y0 + 12
    for label, line in series.items():  # from p50 up, so a label only ever has to move up
        if not line:
            continue
        parts.append(svg.el("path", d=svg.path([(x(q), y(v)) for q, v in line]), class_=f"line {label}"))
        for q, v in line:
            tip = svg.el("title", svg.esc(f"load {number(q)}: {name} {label} {seconds(v)}"))
            parts.append(svg.el("circle", tip, cx=x(q), cy=y(v), r=2.6, class_=f"dot {label}"))
        lowest_label = min(y(line[-1][1]) + 4, lowest_label - 13)
        parts.append(svg.text(x(line[-1][0]) + 7, lowest_label, label, class_=f"series-label {label}"))
    worst = series["p99"][-1:] or series["p50"][-1:]
    words = f"{name} at {len(points)} loads; at load {number(worst[0][0])} its p99 is {seconds(worst[0][1])}."
    return svg.picture(frame, ident, f"{name} against load", words, *parts)


def bucket_class(bucket: str) -> str:
    """The CSS class of a badput bucket; one we do not know shares the colour of ``other``."""
    return f"b-{bucket}" if bucket in BUCKETS or bucket == "good" else "b-other"


def badput(points: Sequence[Point], loads: Loads, ident: str, width: float) -> str:
    """One bar a load: good at the bottom, the badput buckets on it, together all eligible requests."""
    frame = Frame(width, 300.0 if width > 500 else 260.0, top=30.0)
    y = Scale(0, 1, frame.y0, frame.y1)
    ticks = (0, 0.25, 0.5, 0.75, 1.0)
    parts = value_axis(frame, y, ticks, [f"{t:.0%}" for t in ticks], "share of eligible requests")
    pitch = (frame.x1 - frame.x0) / max(len(points), 1)
    bar = min(pitch * 0.72, 56.0)
    free_from = frame.x0 - 20.0
    for i, p in enumerate(points):
        middle = frame.x0 + pitch * (i + 0.5)
        shares, base = p.shares(), 0.0
        for bucket in ["good", *(b for b in [*BUCKETS, *sorted(set(shares) - set(BUCKETS))] if b != "good")]:
            share = shares.get(bucket, 0.0)
            if share <= 0:
                continue
            tip = svg.el("title", svg.esc(f"load {number(p.load)}: {bucket} {percent(share)}"))
            top, foot = y(min(base + share, 1)), y(base)
            faded = "" if p.valid else " faded"
            shape = {"x": middle - bar / 2, "y": top, "width": bar, "height": max(foot - top, 0.5)}
            parts.append(svg.el("rect", tip, class_=bucket_class(bucket) + faded, **shape))
            base += share
        if not shares:
            parts.append(svg.text(middle, frame.y0 - 6, "none", class_="note", text_anchor="middle"))
        label = number(p.load) if p.valid else f"{number(p.load)} ×"
        half = 4.2 * len(label)
        if middle - half >= free_from:
            parts.append(svg.text(middle, frame.y0 + 18, label, class_="tick", text_anchor="middle"))
            free_from = middle + half + 3
    parts.append(svg.line(frame.x0, frame.y0, frame.x1, frame.y0, class_="axis"))
    centre = (frame.x0 + frame.x1) / 2
    parts.append(svg.text(centre, frame.height - 6, loads.axis, class_="axis-title", text_anchor="middle"))
    return svg.picture(frame, ident, "Why requests were not good, by load", "Each bar is one load.", *parts)


def engine(
    points: Sequence[Point], key: str, name: str, share: bool, loads: Loads, ident: str, width: float
) -> str:
    """One engine signal against load; ``share`` draws it from 0 to 100 %."""
    frame = Frame(width, 190.0, top=30.0)
    x = loads.scale(frame)
    known = [(p.load, v) for p in points if (v := p.mean(lambda level: level.engine.get(key))) is not None]
    ticks = [0, 0.5, 1.0] if share else svg.nice_ticks(max(v for _, v in known), 3)
    y = Scale(0, ticks[-1], frame.y0, frame.y1)
    parts = value_axis(frame, y, ticks, [f"{t:.0%}" if share else number(t) for t in ticks], name)
    parts += loads_axis(frame, x, loads)
    parts.append(svg.el("path", d=svg.path([(x(q), y(v)) for q, v in known]), class_="line engine"))
    for q, v in known:
        tip = svg.el("title", svg.esc(f"load {number(q)}: {name} {percent(v) if share else number(v)}"))
        parts.append(svg.el("circle", tip, cx=x(q), cy=y(v), r=3.0, class_="dot engine"))
    return svg.picture(frame, ident, f"{name} against load", f"{name} at {len(known)} loads.", *parts)
