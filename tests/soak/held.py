"""Load held for a while: nothing fails, nothing grows, nothing gets slower."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from tests.soak.rig import Rig, Wrong, settle
from tests.soak.slope import Slope, slope_of

# What may be gained over a run without being called growth: an allocator's arena, a collector's connection.
TOLERANCE = {"MiB": 4.0, "fds": 4.0, "threads": 1.0}


@dataclass(frozen=True, slots=True)
class Held:
    """Result of held load. ``slopes`` by what is measured; ``drift``: later half's median latency over the
    earlier half's."""

    seconds: float
    asked: int
    lost: int
    slopes: dict[str, Slope]
    last: dict[str, float]
    drift: float
    wrong: str

    def text(self) -> str:
        """A few lines for people."""
        rate = self.asked / self.seconds
        lines = [
            f"load held for {self.seconds:.0f} s: {self.asked} requests, {rate:.1f} a second, "
            f"{self.lost} lost; median latency in the second half over the first: {self.drift:.2f}; "
            f"{self.wrong or 'holds'}"
        ]
        for name, slope in self.slopes.items():
            lines.append(
                f"  {name}: {self.last[name]:.0f} at the end, {slope.per_s * 3600:+.2f} an hour "
                f"(standard error {slope.error * 3600:.2f}, noise {slope.noise:.2f})"
            )
        return "\n".join(lines)


async def hold(rig: Rig, seconds: float) -> Held:
    """Hold the traffic for ``seconds`` and watch the sidecar's process."""
    before = await rig.books()
    # The first moments still fill caches and arenas.
    await asyncio.sleep(min(10.0, seconds / 6))
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in TOLERANCE}
    began = time.monotonic()
    middle = began + seconds / 2
    while (now := time.monotonic()) < began + seconds:
        for name, value in rig.sidecar.footprint().items():
            points[name].append((now - began, value))
        await asyncio.sleep(min(1.0, seconds / 20))
    wrong = []
    figures = {"asked": 0, "lost": 0, "failed": 0}
    try:
        figures = settle(rig, before, await rig.books())
    except Wrong as error:
        wrong.append(str(error))
    if figures["failed"]:
        wrong.append(f"{figures['failed']} requests failed")
    slopes = {name: slope_of(found) for name, found in points.items()}
    for name, slope in slopes.items():
        if not slope.flat(span_s=seconds, tolerance=TOLERANCE[name]):
            wrong.append(f"{name} grows by {slope.per_s * 3600:.1f} an hour")
    halves: tuple[list[float], list[float]] = ([], [])
    for outcome in list(rig.traffic.outcomes.values())[before.asked :]:
        if outcome.what == "ok":
            halves[outcome.ended_s > middle].append(outcome.took_s)
    drift = statistics.median(halves[1]) / statistics.median(halves[0]) if all(halves) else float("nan")
    return Held(
        seconds,
        figures["asked"],
        figures["lost"],
        slopes,
        {name: found[-1][1] for name, found in points.items()},
        drift,
        "; ".join(wrong),
    )
