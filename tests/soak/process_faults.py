"""Faults that need a process of their own: full disks, signals, killed load generators, wrong settings."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import time
from pathlib import Path

from loadgen.report.jsonio import to_json
from tests.soak.rig import SLO, Mode, Program, Rig, Wrong, samples, start, start_sidecar, until
from tests.soak.traffic import Traffic
from tests.support.loadgen_runs import descendants, running
from tests.support.reports import sweep as report_of_a_sweep


async def _sidecar(rig: Rig, name: str, *flags: str, **starting: object) -> Program:
    program = await start_sidecar(
        rig.folder, f"http://127.0.0.1:{rig.gate.port}", "--slo", SLO, *flags, name=name, **starting
    )

    async def ready() -> bool:
        async with rig.session.get(program.addresses[1] + "/readyz") as answer:
            return answer.status == 200

    await until(ready, f"{name} was ready")
    return program


async def _end(program: Program) -> None:
    if program.alive:
        program.signal(signal.SIGKILL)
        await program.ended()


async def _page(rig: Rig, program: Program) -> dict[str, float]:
    async with rig.session.get(program.addresses[1] + "/metrics") as answer:
        return samples(await answer.text())


async def _other(rig: Rig, program: Program, clients: int = 4) -> Traffic:
    return Traffic(program.addresses[0], rig.model, clients=clients, seed=77, name=program.log.stem)


async def spans_disk_full(rig: Rig) -> float:
    """The spans file can't grow: requests go on, losses are counted; with room again, all lines are whole."""
    spans = rig.folder / "spans.jsonl"
    program = await _sidecar(
        rig, "disk", "--spans-file", str(spans), "--content", "drop",
        file_bytes=30_000, env={"OTEL_BSP_SCHEDULE_DELAY": "200"},
    )  # fmt: skip
    try:
        async with await _other(rig, program) as traffic:

            async def lost() -> bool:
                page = await _page(rig, program)
                return any(v for k, v in page.items() if k.startswith("goodput_spans_dropped_total"))

            await until(lost, "lost spans were counted")
            await asyncio.sleep(rig.hold_s)
            hard = resource.prlimit(program.pid, resource.RLIMIT_FSIZE)[1]
            full = spans.stat().st_size
            resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (hard, hard))
            took = await until(lambda: spans.stat().st_size > full + 5000, "spans were written again")
            traffic.pause()
            await until(lambda: not traffic.busy, "traffic came to rest")
            bad = [what for what in traffic.whats() if what not in ("ok", "left", "404")]
        if bad:
            raise Wrong(f"requests failed with the disk: {bad}")
        program.signal(signal.SIGTERM)
        if (status := await program.ended()) != 0:
            raise Wrong(f"exit status {status} after the disk was full")
        for number, line in enumerate(spans.read_text("utf-8").splitlines(), 1):
            try:
                json.loads(line)
            except ValueError:
                raise Wrong(f"line {number} of the spans file is no JSON: ...{line[-60:]}") from None
        if "Traceback" in program.log.read_text():
            raise Wrong("a traceback in the log")
        return took
    finally:
        await _end(program)


async def report_disk_full(rig: Rig) -> float:
    """A report that can't be written: one line, not 0, and the reports that were there stay whole."""
    out = rig.folder / "reports"
    source = rig.folder / "source.json"
    source.write_text(to_json(report_of_a_sweep()), "utf-8")
    command = ["-m", "loadgen.cli", "report", str(source), "--out", str(out)]
    good = await start(command, log=rig.folder / "report.log")
    if await good.ended() != 0:
        raise Wrong(good.log.read_text()[-500:])
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    log = rig.folder / "report-full.log"
    full = await start(command, log=log, file_bytes=2000)
    status = await full.ended()
    said = log.read_text()
    if status == 0 or "Traceback" in said or len(said.strip().splitlines()) != 1:
        raise Wrong(f"exit status {status}, said: {said[-500:]!r}")
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    if after != before:
        raise Wrong(f"the folder holds {sorted(after)}, held {sorted(before)}, or a file changed")
    return 0.0


async def sweep_disk_full(rig: Rig) -> float:
    """The disk fills up in a sweep: it goes on, the result is on the screen, the end says what is wrong."""
    out = rig.folder / "sweep-disk"
    sweep = await _sweep(rig, out, file_bytes=2000)
    try:
        assert sweep.process.stdout is not None
        shown = (await asyncio.wait_for(sweep.process.stdout.read(), 100)).decode()
        status, said = await sweep.ended(), sweep.log.read_text()
        if status != 2 or "Traceback" in said or "cannot be written" not in said:
            raise Wrong(f"exit status {status}, said: {said[-500:]!r}")
        if "peak" not in shown.lower():
            raise Wrong(f"the result is not on the screen: {shown[-500:]!r}")
        if list(out.iterdir()):
            raise Wrong(f"half-written files stay: {[path.name for path in out.iterdir()]}")
        return 0.0
    finally:
        await _end(sweep)


async def sigterm_under_load(rig: Rig) -> float:
    """Every request that was in flight ends whole; what comes later is not accepted; exit status 0."""
    program = await _sidecar(rig, "sigterm", "--drain-s", "60")
    try:
        async with await _other(rig, program, 0) as traffic:
            rig.gate.set(Mode(held=True))
            asked = [asyncio.create_task(traffic.ask("chat", random.Random(n))) for n in range(16)]

            async def in_flight() -> bool:
                return (await _page(rig, program))["goodput_proxy_in_flight_requests"] == 16

            await until(in_flight, "all requests were in flight")
            program.signal(signal.SIGTERM)
            began = time.monotonic()
            rig.gate.set(Mode())
            outcomes = await asyncio.gather(*asked)
            whats = [one.what for one in outcomes]
            if set(whats) != {"ok"}:
                raise Wrong(f"after SIGTERM: {whats}")
            if (status := await program.ended()) != 0:
                raise Wrong(f"exit status {status}")
            return time.monotonic() - began
    finally:
        rig.gate.set(Mode())
        await _end(program)


async def second_signal(rig: Rig) -> float:
    """While it drains, a second signal ends it at once."""
    program = await _sidecar(rig, "twice", "--drain-s", "600")
    rig.gate.set(Mode(held=True))
    try:
        async with await _other(rig, program, 0) as traffic:
            asked = asyncio.create_task(traffic.ask("chat", random.Random(1)))

            async def in_flight() -> bool:
                return (await _page(rig, program))["goodput_proxy_in_flight_requests"] == 1

            await until(in_flight, "the request was in flight")
            program.signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            if not program.alive:
                raise Wrong("the first signal ended it with a request in flight")
            began = time.monotonic()
            program.signal(signal.SIGTERM)
            status = await program.ended()
            took = time.monotonic() - began
            await asked
        if status != 128 + signal.SIGTERM:
            raise Wrong(f"exit status {status}")
        return took
    finally:
        rig.gate.set(Mode())
        await _end(program)


async def worker_killed(rig: Rig) -> float:
    """SIGKILL of one of two Locust processes: the sweep says so and ends with a readable report."""
    out = rig.folder / "sweep-worker"
    sweep = await _sweep(rig, out, "--workers", "2")
    try:
        children = await _workers(sweep, 2)
        await until(lambda: _levels(out) >= 1, "the first level was on disk", 60)
        os.kill(children[0], signal.SIGKILL)
        began = time.monotonic()
        status = await sweep.ended(100)
        if status not in (0, 1) or "Traceback" in sweep.log.read_text():
            raise Wrong(f"exit status {status}: {sweep.log.read_text()[-500:]}")
        report = json.loads((out / "report.json").read_text("utf-8"))
        if "worker_lost" not in json.dumps(report):
            raise Wrong("the report does not say that a process was lost")
        if left := running(set(children)):
            raise Wrong(f"processes left: {left}")
        return time.monotonic() - began
    finally:
        await _end(sweep)


async def master_killed(rig: Rig) -> float:
    """SIGKILL of the sweep itself: its processes go too, and the levels it finished can be read."""
    out = rig.folder / "sweep-master"
    sweep = await _sweep(rig, out)
    try:
        children = await _workers(sweep, 1)
        await until(lambda: _levels(out) >= 1, "the first level was on disk", 60)
        sweep.signal(signal.SIGKILL)
        await sweep.ended()
        took = await until(lambda: not running(set(children)), "the Locust processes were gone", 20)
        if _levels(out) < 1:
            raise Wrong("no level can be read")
        return took
    finally:
        await _end(sweep)


def _levels(out: Path) -> int:
    for path in out.glob("*.json"):
        try:
            return len(json.loads(path.read_text("utf-8"))["levels"])
        except (ValueError, KeyError):
            raise Wrong(f"{path.name} is no whole report") from None
    return 0


async def _sweep(rig: Rig, out: Path, *flags: str, file_bytes: int | None = None) -> Program:
    return await start(
        [
            *("-m", "loadgen.cli", "sweep", "--url", rig.simulator.addresses[0], "--levels", "1,2,3,4"),
            *("--warmup-s", "0.3", "--window-s", "2", "--output-tokens", "8", "--prompt-tokens", "16"),
            *("--out", str(out), *flags),
        ],
        log=rig.folder / f"{out.name}.log",
        file_bytes=file_bytes,
    )


async def _workers(sweep: Program, count: int) -> list[int]:
    def found() -> list[int]:
        return sorted(
            pid
            for pid in descendants(sweep.pid)
            if b"loadgen.locust_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    await until(lambda: len(found()) >= count, "the Locust processes ran", 60)
    return found()


async def wrong_settings(rig: Rig) -> float:
    """A settings file with an error: one line that names it, exit status 2, no traceback."""
    config = rig.folder / "wrong.yaml"
    config.write_text("upstream: http://127.0.0.1:1\nscrape_interval_s: soon\n", "utf-8")
    log = rig.folder / "wrong.log"
    program = await start(["-m", "sidecar", "run", "--config", str(config)], log=log)
    status = await program.ended()
    said = log.read_text().strip().splitlines()
    if status != 2 or len(said) != 1 or "scrape_interval_s" not in said[0]:
        raise Wrong(f"exit status {status}, said: {said}")
    return 0.0


async def reloaded_with_an_error(rig: Rig) -> float:
    """SIGHUP under traffic: a wrong file is told and the old settings stay; a right one is used."""
    slo = rig.folder / "slo.yaml"
    right = "default: a\nclasses:\n  a: {{ttft_s: {bound}, tpot_s: 30}}\n"
    slo.write_text(right.format(bound=60), "utf-8")
    program = await start_sidecar(
        rig.folder, f"http://127.0.0.1:{rig.gate.port}", "--slo-file", str(slo), name="reload"
    )
    try:

        async def bound() -> float:
            return (await _page(rig, program))['goodput_slo_bound_seconds{class="a",bound="ttft"}']

        async with await _other(rig, program) as traffic:
            slo.write_text("default: a\nclasses:\n  a: {ttft_s: soon}\n", "utf-8")
            program.signal(signal.SIGHUP)
            await until(lambda: "the old ones stay" in program.words(), "the error was told")
            if await bound() != 60 or not program.alive:
                raise Wrong("the old settings did not stay")
            slo.write_text(right.format(bound=40), "utf-8")
            program.signal(signal.SIGHUP)
            began = time.monotonic()

            async def changed() -> bool:
                return await bound() == 40

            await until(changed, "the new settings were used")
            took = time.monotonic() - began
            traffic.pause()
            await until(lambda: not traffic.busy, "traffic came to rest")
            bad = [what for what in traffic.whats() if what not in ("ok", "left", "404")]
        if bad or "Traceback" in program.words():
            raise Wrong(f"requests failed while settings were read: {bad}")
        return took
    finally:
        await _end(program)
