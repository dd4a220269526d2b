"""Just enough SVG to draw charts: elements, scales, ticks, and a titled frame. No styling: see report.css."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass


def el(tag: str, *children: str, **attributes: object) -> str:
    """An element. ``class_`` becomes ``class``, other underscores dashes; floats are cut to a tenth.

    Children are markup; make them from text with `esc`. An attribute that is ``None`` is left out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{''.join(children)}</{tag}>" if children else f"<{tag}{written}/>"


def esc(text: object) -> str:
    """Text made safe for markup and for attribute values."""
    return html.escape(str(text), quote=True)


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"
    return esc(value)


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """A line of text with its baseline at ``y``."""
    return el("text", esc(words), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def path(points: Sequence[tuple[float, float]]) -> str:
    """The ``d`` of a polyline."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps ``low..high`` of the data to ``start..stop`` in pixels, linearly or by logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside are clamped to the ends."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def nice_ticks(high: float, count: int = 5) -> list[float]:
    """Round ticks from 0 to at least ``high``: steps of 1, 2 or 5 times a power of ten."""
    if high <= 0 or not math.isfinite(high):
        return [0.0, 1.0]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks by logarithm, from one at or below ``low`` to one at or above ``high`` (both above 0).

    Steps of 1-2-5; of tens where that would be more than eight.
    """
    for steps in ((1, 2, 5), (1,)):
        marks = [m * 10.0**e for e in range(-12, 16) for m in steps]
        first = max((m for m in marks if m <= low * (1 + 1e-9)), default=marks[0])
        last = min((m for m in marks if m >= high * (1 - 1e-9)), default=marks[-1])
        if first == last:
            last = marks[min(marks.index(first) + 1, len(marks) - 1)]
        inside = [m for m in marks if first <= m <= last]
        if len(inside) <= 8:
            break
    return inside


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area of a chart inside its picture, in pixels."""

    width: float
    height: float
    left: float = 56.0
    right: float = 14.0
    top: float = 16.0
    bottom: float = 44.0

    @property
    def x0(self) -> float:
        """Left edge of the plotting area."""
        return self.left

    @property
    def x1(self) -> float:
        """Right edge of the plotting area."""
        return self.width - self.right

    @property
    def y0(self) -> float:
        """Bottom edge of the plotting area (pixels grow downwards)."""
        return self.height - self.bottom

    @property
    def y1(self) -> float:
        """Top edge of the plotting area."""
        return self.top


def picture(frame: Frame, ident: str, title: str, description: str, *parts: str) -> str:
    """A chart as one labelled image; ``ident`` must be unique in the page."""
    return el(
        "svg",
        el("title", esc(title), id=f"{ident}-t"),
        el("desc", esc(description), id=f"{ident}-d"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {frame.width:.0f} {frame.height:.0f}",
        width=frame.width,
        height=frame.height,
        role="img",
        aria_labelledby=f"{ident}-t {ident}-d",
    )
