"""The live display: which level is running, in which phase, how long is left. Plain lines where there is no
terminal.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from loadgen.plan import LevelPlan
from loadgen.results import LevelResult

_PHASES = {"warmup": "warm-up", "window": "measuring", "drain": "draining"}


def clock(seconds: float) -> str:
    """Minutes and seconds, as on a clock."""
    whole = max(0, math.ceil(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def level_line(level: LevelResult) -> str:
    """One measured level in one line."""
    good = "no eligible request" if level.attainment is None else f"{level.attainment:.1%} good"
    text = f"{_load(level.load, level.kind):<12} goodput {level.goodput_rps:7.2f}/s   {good}"
    if level.ttft.p99_s is not None:
        text += f"   TTFT p99 {level.ttft.p99_s:.3f} s"
    if level.tpot.p99_s is not None:
        text += f"   TPOT p99 {level.tpot.p99_s * 1e3:.1f} ms"
    if not level.valid:
        text += f"   NOT USED ({level.flags[0]})"
    return text


def _load(load: float, kind: str) -> str:
    return f"{load:g} in flight" if kind == "concurrency" else f"{load:g} req/s"


def output() -> Console:
    """Standard output; wide enough for the table where it goes into a file or a pipe."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110)


class Display:
    """Two bars on a terminal: the level and the sweep. Use as a context manager around the sweep."""

    def __init__(self, console: Console, remaining_s: Callable[[], float]) -> None:
        self._console = console
        self._remaining_s = remaining_s
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._plan: LevelPlan | None = None
        self._length_s = 1.0

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """One lasting line above the bars."""
        self._console.print(text, highlight=False, markup=False)

    def begin(self, plan: LevelPlan) -> None:
        """A level begins."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._plan = plan
        self._length_s = plan.warmup_s + plan.window_s
        name = _load(plan.load, "rate" if plan.arrivals.open_loop else "concurrency")
        note = f"about {clock(self._length_s + self._remaining_s())} left"
        self._task = self._progress.add_task(
            f"level {plan.number + 1}: {name}", total=self._length_s, note=note
        )
        if not self._console.is_terminal:
            self.say(f"level {plan.number + 1}: {name}, {note}")

    def tick(self, tick: dict[str, Any]) -> None:
        """News from the level under way."""
        if self._task is None:
            return
        elapsed_s = float(tick["elapsed_s"])
        left_s = max(0.0, self._length_s - elapsed_s) + self._remaining_s()
        failed = f", {tick['failed']} failed" if tick["failed"] else ""
        self._progress.update(
            self._task,
            completed=min(elapsed_s, self._length_s),
            note=f"{_PHASES.get(tick['phase'], tick['phase'])}: {tick['in_flight']} in flight, "
            f"{tick['done']} done{failed} · about {clock(left_s)} left",
        )

    def end(self, level: LevelResult) -> None:
        """A level was measured."""
        self.say(level_line(level))
