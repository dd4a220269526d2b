"""The suite: faults one after the other under traffic, then held load, and one table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.soak import engine_faults, other_faults, process_faults
from tests.soak.held import Held, hold
from tests.soak.rig import Rig, Wrong, rig, settle

Fault = Callable[[Rig], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. ``recovery_s`` is ``None`` where there was nothing to recover from."""

    what: str
    asked: int
    failed: int
    lost: int
    recovery_s: float | None
    wrong: str = ""


def faults(*, idle: int) -> list[tuple[str, Fault]]:
    """What is done to the rig, in order."""
    return [
        ("engine killed and restarted", engine_faults.killed_and_restarted),
        ("engine stands still", engine_faults.stalled),
        ("engine answers 500", partial(engine_faults.answers, status=500)),
        ("engine answers 503", partial(engine_faults.answers, status=503)),
        ("engine cuts connections", engine_faults.cuts),
        ("page: random bytes", partial(engine_faults.page, kind="garbage")),
        ("page: cut in the middle", partial(engine_faults.page, kind="truncated")),
        ("page: a byte now and then", partial(engine_faults.page, kind="trickle")),
        ("page: without end", partial(engine_faults.page, kind="huge")),
        ("collector down", other_faults.collector_down),
        ("collector slow", other_faults.collector_slow),
        ("collector answers 503", partial(other_faults.collector_refuses, status=503)),
        ("collector answers 400", partial(other_faults.collector_refuses, status=400)),
        ("GPU exporter gone", other_faults.exporter_gone),
        ("clock an hour ahead", partial(other_faults.clock_stepped, offset_s=3600.0)),
        ("clock an hour back", partial(other_faults.clock_stepped, offset_s=-3600.0)),
        ("clients read slowly", other_faults.slow_readers),
        ("clients send a byte a second", other_faults.byte_a_second),
        ("clients all leave at once", other_faults.shared_fate),
        ("disk full for spans", process_faults.spans_disk_full),
        ("disk full for a report", process_faults.report_disk_full),
        ("disk full during a sweep", process_faults.sweep_disk_full),
        ("SIGTERM under load", process_faults.sigterm_under_load),
        ("a second signal", process_faults.second_signal),
        ("settings with an error", process_faults.wrong_settings),
        ("settings reloaded with an error", process_faults.reloaded_with_an_error),
        ("a Locust worker killed", process_faults.worker_killed),
        ("the sweep itself killed", process_faults.master_killed),
        (f"{idle} idle connections", partial(other_faults.idle_connections, count=idle)),
    ]


async def under_traffic(
    one: Rig, chosen: Sequence[tuple[str, Fault]], say: Callable[[str], None]
) -> list[Line]:
    """Inject each fault, then compare all books."""
    lines = []
    for name, fault in chosen:
        before = await one.books()
        await asyncio.sleep(0.5)
        wrong, took = "", None
        figures = {"asked": 0, "failed": 0, "lost": 0}
        try:
            took = await fault(one)
        except (Wrong, TimeoutError) as error:
            wrong = str(error) or "not in time"
            one.gate.set(type(one.gate.mode)())
        try:
            figures = settle(one, before, await one.books())
        except Wrong as error:
            wrong = f"{wrong}; {error}" if wrong else str(error)
        if not one.sidecar.alive:
            raise Wrong(f"{name}: the sidecar ended: {one.sidecar.log.read_text()[-2000:]}")
        line = Line(name, figures["asked"], figures["failed"], figures["lost"], took, wrong)
        lines.append(line)
        say(row(line))
    return lines


async def soak(
    *,
    minutes: float,
    idle: int,
    hold_s: float = 2.5,
    say: Callable[[str], None] = print,
    only: str = "",
) -> tuple[list[Line], Held | None]:
    """The faults, then ``minutes`` of held load. ``only``: faults whose name holds one of its words,
    which commas part."""
    began = time.monotonic()
    say(HEAD)
    words = only.split(",")
    chosen = [(name, fault) for name, fault in faults(idle=idle) if any(word in name for word in words)]
    async with rig(hold_s=hold_s) as one:
        lines = await under_traffic(one, chosen, say)
        held = await hold(one, minutes * 60) if minutes else None
        if held is not None:
            say(held.text())
        log = one.sidecar.log.read_text()
        if "Traceback" in log:
            lines.append(
                Line(
                    "the sidecar's log", 0, 0, 0, None, "a traceback: " + log[log.index("Traceback") :][:1500]
                )
            )
        say(f"{len(one.traffic.outcomes)} requests, {one.lost} lost, in {time.monotonic() - began:.0f} s")
    return lines, held


HEAD = f"{'fault':<34} {'asked':>6} {'failed':>6} {'lost':>5} {'recovery':>9}  holds"


def row(line: Line) -> str:
    """One line of the table."""
    recovery = "-" if line.recovery_s is None else f"{line.recovery_s:.2f} s"
    figures = f"{line.asked:>6} {line.failed:>6} {line.lost:>5} {recovery:>9}"
    return f"{line.what:<34} {figures}  {line.wrong or 'yes'}"
