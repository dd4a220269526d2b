"""How numbers and names read to a person. ``None`` is shown as a dash, never as zero."""

from __future__ import annotations

import math

ABSENT = "–"

BUCKETS = ("error", "rejected", "queue", "prefill", "stall", "preemption", "decode", "e2e", "abandoned")
"""Badput buckets in the order in which they are stacked and listed."""

BUCKET_MEANING = {
    "error": "the server failed or broke the stream",
    "rejected": "the server refused (429 or 503)",
    "queue": "first token late, mostly waiting for a place in the batch",
    "prefill": "first token late, mostly in the prefill itself",
    "stall": "tokens paused for longer than the stall bound",
    "preemption": "tokens paused while the engine preempted requests (KV cache full)",
    "decode": "tokens came too slowly throughout",
    "e2e": "the whole answer took too long",
    "abandoned": "the client left after a bound was broken",
}

BOUNDS = (
    ("ttft_s", "TTFT"),
    ("tpot_s", "TPOT"),
    ("itl_p99_s", "ITL p99"),
    ("max_gap_s", "longest gap"),
    ("e2e_s", "E2E"),
)
"""SLO keys that bound a request, with their names."""


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits, thousands set apart, no exponent, no trailing zeros."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds(value: float | None) -> str:
    """A duration with the unit that suits it: µs, ms or s."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if abs(value) >= 0.9995:
        return f"{number(value)} s"
    if abs(value) >= 0.0009995 or value == 0:
        return f"{number(value * 1e3)} ms"
    return f"{number(value * 1e6)} µs"


def percent(value: float | None) -> str:
    """A share as per cent; never rounded up to 100 or down to 0 when it is not."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value in (0, 1):
        return f"{value * 100:.0f} %"
    if 0 < value < 0.001:
        return "< 0.1 %"
    if 0.999 < value < 1:
        return "> 99.9 %"
    return f"{value * 100:.1f} %"


def interval(ci: tuple[float, float] | None) -> str:
    """A 95 % interval, or a dash."""
    return ABSENT if ci is None else f"{number(ci[0])} to {number(ci[1])}"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")


_STOPPED = {
    "budget": "The sweep ended because its budget was spent, before the search had no more questions.",
    "interrupted": "The sweep was interrupted: what was measured until then stands.",
}


def stopped_text(stopped: str) -> str:
    """Why a sweep ended, as a sentence; empty for one that came to its own end."""
    if stopped == "complete":
        return ""
    return _STOPPED.get(stopped, sentence(f"The sweep ended early: {stopped}"))


def load_unit(kind: str, load: float | None = None) -> str:
    """What a load counts: requests in flight, or arrivals per second."""
    if kind == "rate":
        return "requests/s offered"
    return "request in flight" if load == 1 else "requests in flight"


def slo_bounds(slo: dict[str, object]) -> list[tuple[str, float]]:
    """The bounds that are set, as (name, seconds); values that are no numbers are left out."""
    out: list[tuple[str, float]] = []
    for key, name in BOUNDS:
        value = slo.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            out.append((name, float(value)))
    classes = slo.get("classes")
    if isinstance(classes, dict):  # a mix: each class has bounds of its own
        for name, own in classes.items():
            if isinstance(own, dict):
                out += [(f"{name} {bound}", value) for bound, value in slo_bounds(own)]
    return out
