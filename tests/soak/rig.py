"""The real parts, put together: simulator process, gate, sidecar process, clients; and the books on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from loadgen.processes import die_with_parent
from tests.soak.collector import Collector, Exporter
from tests.soak.gate import Gate, Mode
from tests.soak.traffic import Traffic

ROOT = Path(__file__).parents[2]
SLO = "ttft=60,tpot=30"
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
# Buckets of requests that the upstream answered completely, though too slowly.
COUNTED = ("goodput_eligible_requests_total", "goodput_not_eligible_requests_total")
_SLOW = {"queue", "prefill", "preemption", "stall", "decode", "e2e"}


class Wrong(AssertionError):
    """An invariant does not hold."""


@dataclass
class Program:
    """A started process with its log file; ended by its pid."""

    process: asyncio.subprocess.Process
    log: Path
    addresses: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def words(self) -> str:
        """The end of its log."""
        return self.log.read_text("utf-8", "replace")[-2000:]

    async def ended(self, limit_s: float = 90) -> int:
        return await asyncio.wait_for(self.process.wait(), limit_s)

    def footprint(self) -> dict[str, float]:
        """Resident MiB, file descriptors and threads."""
        status = Path(f"/proc/{self.pid}/status").read_text("ascii")
        found = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "MiB": int(found["VmRSS"].split()[0]) / 1024,
            "fds": float(len(os.listdir(f"/proc/{self.pid}/fd"))),
            "threads": float(found["Threads"]),
        }


async def start(
    command: Iterable[str],
    *,
    log: Path,
    listening: int = 0,
    env: dict[str, str] | None = None,
    file_bytes: int | None = None,
    limit_s: float = 60,
) -> Program:
    """Start a process and wait for its ``listening`` lines. ``file_bytes``: no file it writes gets longer."""

    def limits() -> None:
        die_with_parent()
        if file_bytes is not None:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))

    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GOODPUT_", "OTEL_"))}
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=out,
            cwd=ROOT,
            env=clean | {"PYTHONUNBUFFERED": "1"} | (env or {}),
            preexec_fn=limits,
        )
    program = Program(process, log)
    assert process.stdout is not None
    try:
        for _ in range(listening):
            line = await asyncio.wait_for(process.stdout.readline(), limit_s)
            if b" listening on " not in line:
                raise Wrong(f"{command}: did not start: {line!r} {program.words()}")
            program.addresses.append(line.decode().split()[-1])
    except BaseException:
        program.signal(signal.SIGKILL)
        await program.ended()
        raise
    return program


async def until(
    condition: Callable[[], Any], what: str, limit_s: float = 60.0, every_s: float = 0.05
) -> float:
    """Wait until true (the condition may be a coroutine function); returns the seconds it took."""
    began = time.monotonic()
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        took = time.monotonic() - began
        if found:
            return took
        if took > limit_s:
            raise Wrong(f"within {limit_s:g} s it was not so that {what}")
        await asyncio.sleep(every_s)


@dataclass(frozen=True, slots=True)
class Books:
    """What was counted so far, on each side."""

    samples: dict[str, float]
    log: Counter[str]
    clients: Counter[str]
    asked: int

    def total(self, name: str, **labels: str) -> float:
        """Sum of a family of the sidecar's page over its label sets."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for key, value in self.samples.items()
            if key.partition("{")[0] == name and all(one in key for one in wanted)
        )


@dataclass
class Rig:
    """Everything that runs. Times are seconds."""

    folder: Path
    gate: Gate
    collector: Collector
    simulator: Program
    sidecar: Program
    traffic: Traffic
    clock: Path
    session: aiohttp.ClientSession
    model: str
    exporter: Exporter
    hold_s: float  # how long a fault lasts
    lost: int = 0

    @property
    def proxy(self) -> str:
        return self.sidecar.addresses[0]

    @property
    def admin(self) -> str:
        return self.sidecar.addresses[1]

    async def get(self, path: str) -> tuple[int, str]:
        """Ask the sidecar's admin port."""
        async with self.session.get(self.admin + path, timeout=aiohttp.ClientTimeout(30)) as answer:
            return answer.status, await answer.text()

    async def metrics(self) -> dict[str, float]:
        """Samples of the sidecar's page by name and labels."""
        return samples((await self.get("/metrics"))[1])

    async def ready(self) -> bool:
        """Whether the sidecar says that requests may come."""
        return (await self.get("/readyz"))[0] == 200

    async def engine_is(self, up: bool) -> bool:
        """Whether the sidecar sees the engine up (or down)."""
        return (await self.metrics()).get("goodput_engine_up") == float(up)

    async def books(self) -> Books:
        """Bring traffic to rest, then read what every side has counted."""
        self.traffic.pause()
        await self.quiet()
        log = Counter(what for key, what in self.gate.log.items() if key.startswith(self.traffic.name + "-"))
        found = Books(await self.metrics(), log, self.traffic.whats(), len(self.traffic.outcomes))
        self.traffic.resume()
        return found

    async def quiet(self) -> None:
        """Wait until nothing is in flight anywhere, and nothing waits to be judged."""

        counts: list[float] = []

        async def at_rest() -> bool:
            if self.traffic.busy or self.gate.count():
                return False
            page = await self.metrics()
            if page["goodput_proxy_in_flight_requests"] or page["goodput_held_requests"]:
                return False
            # A record is made a moment after its request, when the sidecar's loop has nothing else to do.
            books = Books(page, Counter(), Counter(), 0)
            counts.append(sum(books.total(name) for name in COUNTED))
            return len(counts) > 4 and counts[-5] == counts[-1]

        await until(at_rest, "traffic came to rest", 100, 0.1)

    async def answering(self) -> bool:
        """Whether a request gets through now."""
        import random

        return (await self.traffic.ask("completion", random.Random(0))).what == "ok"

    async def kill_engine(self) -> None:
        """SIGKILL; nothing listens any more."""
        self.simulator.signal(signal.SIGKILL)
        await self.simulator.ended()
        await self.gate.shut()

    async def start_engine(self) -> None:
        """A new engine process behind the same address."""
        self.simulator = await start_simulator(self.folder)
        self.gate.engine = self.simulator.addresses[0]
        await self.gate.open()

    def set_clock(self, offset_s: float) -> None:
        """Set the sidecar's wall clock that far from the truth."""
        with self.clock.open("r+b") as file:
            file.write(struct.pack("d", offset_s))


def samples(page: str) -> dict[str, float]:
    """A metrics page's samples by name and labels."""
    found = {}
    for line in page.splitlines():
        if match := _SAMPLE.match(line):
            found[f"{match[1]}{{{match[2]}}}" if match[2] else match[1]] = float(match[3])
    return found


def settle(rig: Rig, before: Books, after: Books) -> dict[str, int]:
    """Compare the three books over one fault. Returns figures for the table. Raises Wrong."""

    def rose(name: str, **labels: str) -> int:
        return round(after.total(name, **labels) - before.total(name, **labels))

    def logged(test: Callable[[str], bool]) -> int:
        return sum((after.log - before.log)[key] for key in after.log if test(key))

    eligible, good = rose("goodput_eligible_requests_total"), rose("goodput_good_requests_total")
    badput = rose("goodput_badput_requests_total")
    outside = rose("goodput_not_eligible_requests_total")
    counted = eligible + outside
    asked = after.asked - before.asked
    clients = after.clients - before.clients
    unseen = rose("goodput_proxy_broken_total", reason="connect")
    bad = rose("goodput_badput_requests_total", bucket="error") + rose(
        "goodput_badput_requests_total", bucket="rejected"
    )
    # Of an answer that is not streamed nobody can tell the first token's time.
    unjudged = rose("goodput_not_eligible_requests_total", reason="unjudged")
    slow = unjudged + sum(rose("goodput_badput_requests_total", bucket=bucket) for bucket in _SLOW)
    gone = rose("goodput_badput_requests_total", bucket="abandoned") + rose(
        "goodput_not_eligible_requests_total", reason="client_left"
    )
    upstream = sum((after.log - before.log).values())
    missed = sum(1 for _ in unread(rig, before.asked))
    failed = missed + logged(
        lambda what: what == "cut" or what.startswith(("status 5", "status 429", "done 5"))
    )
    checks = {
        f"good {good} + badput {badput} = eligible {eligible}": good + badput == eligible,
        # A client may have sent its request just as the dead engine's connection took its own along.
        f"counted {counted} = asked {asked}": asked - missed <= counted <= asked,
        f"counted {counted} = upstream's log {upstream} + not connected {unseen} + unread {missed}": (
            upstream + unseen <= counted <= upstream + unseen + missed
        ),
        f"errors and rejections {bad} = upstream's {failed} + not connected {unseen}": (
            failed + unseen - missed <= bad <= failed + unseen
        ),
        f"complete answers {good + slow} and left {gone} = clients' {clients['ok']} and {clients['left']}": (
            good + slow + gone == clients["ok"] + clients["left"] and good + slow >= clients["ok"]
        ),
    }
    wrong = [text for text, holds in checks.items() if not holds]
    lost = lost_requests(rig, before.asked)
    rig.lost += len(lost)
    if lost:
        wrong.append(f"lost without the upstream's doing: {', '.join(lost[:5])}")
    if wrong:
        raise Wrong("; ".join(wrong) + f" (log {after.log - before.log}, clients {clients})")
    return {"asked": asked, "failed": failed + unseen, "good": good, "lost": len(lost)}


def unread(rig: Rig, after: int) -> Iterator[str]:
    """Requests under way to the engine when it was killed, which it never read."""
    for number, (request_id, outcome) in enumerate(rig.traffic.outcomes.items()):
        began_s = outcome.ended_s - outcome.took_s
        killed = any(began_s <= at_s + 0.1 and at_s <= outcome.ended_s for at_s in rig.gate.shut_at)
        if number >= after and killed and outcome.what == "broken" and request_id not in rig.gate.log:
            yield request_id


def lost_requests(rig: Rig, after: int) -> list[str]:
    """Requests that failed although the upstream neither refused, cut nor missed them."""
    found = []
    excused = set(unread(rig, after))
    for number, (request_id, outcome) in enumerate(rig.traffic.outcomes.items()):
        if number < after or outcome.what in ("ok", "left"):
            continue
        what = rig.gate.log.get(request_id)
        if request_id in excused:
            continue
        given = {
            "broken": what is not None and what.startswith("cut"),
            "502": what in (None, "cut"),  # nothing listened, or it broke off before its answer
            "504": what == "cut",
        }.get(outcome.what, what in (f"status {outcome.what}", f"done {outcome.what}"))
        if not given:
            found.append(f"{request_id} {outcome.kind}: {outcome.what}, upstream: {what}")
    return found


async def start_simulator(folder: Path) -> Program:
    """``goodput-loadgen simulate`` on a free port."""
    return await start(
        ["-m", "loadgen.cli", "simulate", "--profile", "fast", "--port", "0", "--max-seconds", "7200"],
        log=folder / "simulator.log",
        listening=1,
    )


async def start_sidecar(
    folder: Path, upstream: str, *flags: str, name: str = "sidecar", **starting: Any
) -> Program:
    """``goodput-sidecar run`` on free ports."""
    return await start(
        [
            *("-m", "sidecar", "run", "--upstream", upstream, "--listen", "127.0.0.1:0"),
            *("--admin", "127.0.0.1:0", "--scrape-interval-s", "1.5", *flags),
        ],
        log=folder / f"{name}.log",
        listening=2,
        **starting,
    )


@contextlib.asynccontextmanager
async def rig(*, clients: int = 8, pause_s: float = 0.15, hold_s: float = 2.5) -> AsyncIterator[Rig]:
    """All parts running, with traffic; everything is ended at the end."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        clock = folder / "clock"
        clock.write_bytes(struct.pack("d", 0.0))
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        simulator = await start_simulator(folder)
        gate, collector, exporter = Gate(simulator.addresses[0]), Collector(), Exporter()
        running: list[Program] = []
        try:
            await gate.open()
            await collector.open()
            await exporter.open()
            sidecar = await start_sidecar(
                folder,
                f"http://127.0.0.1:{gate.port}",
                *("--slo", SLO, "--content", "redact", "--gpus", "all", "--gpu-interval-s", "0.5"),
                *("--gpu-dcgm", f"http://127.0.0.1:{exporter.port}"),
                env={
                    "SOAK_CLOCK": str(clock),
                    "PYTHONPATH": f"{Path(__file__).parent / 'clock'}:{ROOT}",
                    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
                    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                    "OTEL_BSP_SCHEDULE_DELAY": "300",
                },
            )
            running.append(sidecar)
            async with session.get(simulator.addresses[0] + "/v1/models") as answer:
                model = (await answer.json())["data"][0]["id"]
            traffic = Traffic(sidecar.addresses[0], model, clients=clients, pause_s=pause_s)
            made = Rig(
                folder, gate, collector, simulator, sidecar, traffic, clock, session, model, exporter, hold_s
            )
            try:
                await until(made.ready, "the sidecar was ready")
                async with traffic:
                    yield made
            finally:
                running.append(made.simulator)
        finally:
            for program in running or [simulator]:
                if program.alive:
                    program.signal(signal.SIGKILL)
                    await program.ended()
            await gate.shut()
            await collector.shut()
            await exporter.shut()


__all__ = ["Books", "Mode", "Program", "Rig", "Wrong", "rig", "samples", "settle", "start", "until"]
