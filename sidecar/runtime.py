"""The running sidecar: builds the parts, joins them, and ends in order.

One event loop, one thread. The proxy's path is served first: everything here happens in its callbacks' wake
or on timers. The first SIGTERM or SIGINT drains, a second one ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.config import Settings
from sidecar.derive.autoscale import Autoscale, Capacity, load_capacity
from sidecar.derive.judging import Judged
from sidecar.derive.live import Live
from sidecar.engine.scrape import EngineSnapshot, Scraper
from sidecar.errors import UserError
from sidecar.gpus import gpus_of
from sidecar.models import watch_models
from sidecar.process import raise_file_limit, run_on_best_loop, settle_memory
from sidecar.proxy.server import Proxy, ProxySettings
from sidecar.publish.admin import Admin, Sources
from sidecar.publish.exposition import Family
from sidecar.publish.metrics import ProcessView, ProxyView, families_in_steps
from sidecar.publish.push import pusher_of
from sidecar.publish.status import scaling, status_in_steps
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import SloPolicy, load_slo, parse_slo
from sidecar.scraping import scrape_settings_of
from sidecar.slices import Steps
from sidecar.tracing import tracing_of

if TYPE_CHECKING:
    from sidecar.publish.scaler import Scaler

_log = logging.getLogger(__name__)

# An extra scrape, when requests wait for the engine's word: soon, but not for each of them.
_POKE_AFTER_S = 0.3
_POKE_GAP_S = 1.0


def policy_of(settings: Settings) -> SloPolicy:
    """The SLO classes that the settings ask for. Raises SettingsError."""
    if settings.slo_file:
        return load_slo(Path(settings.slo_file))
    if settings.slo:
        return SloPolicy(default=parse_slo(settings.slo))
    return SloPolicy()


def capacity_of(settings: Settings) -> Capacity | None:
    """What the capacity file says, where one is named. Raises SettingsError."""
    return load_capacity(Path(settings.capacity)) if settings.capacity else None


class Runtime:
    """All parts of one sidecar."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started_wall_s = time.time()
        self.live = Live(
            policy=policy_of(settings),
            started_ns=time.monotonic_ns(),
            objective=settings.objective,
            capacity=capacity_of(settings),
            scrape_interval_s=settings.scrape_interval_s,
            max_models=settings.max_models,
        )
        host, port = settings.address("listen")
        proxied = ProxySettings(
            upstream=settings.upstream,
            listen_host=host,
            listen_port=port,
            class_header=settings.class_header,
            host="upstream" if settings.host_header == "upstream" else "pass",
            forwarded=settings.forwarded,
            set_request_id=settings.set_request_id,
            max_head_bytes=settings.max_head_bytes,
            max_connections=settings.max_connections,
            connect_timeout_s=settings.connect_timeout_s,
            head_timeout_s=settings.head_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
        )
        self.tracing = tracing_of(
            settings,
            os.environ,
            upstream=proxied.address(),
            engine=lambda: self.live.engine.view if self.live.engine is not None else None,
            slos=self.live.slos,
            note=_log.warning,
        )
        if self.tracing is not None:
            proxied = self.tracing.proxy_settings(proxied)
        self.proxy = Proxy(proxied, on_record=self._on_record)
        if self.tracing is not None:
            self.tracing.attach(self.proxy)
        reached = scrape_settings_of(settings)
        self.scraper = Scraper(reached.base_url, settings=reached)
        self.gpus = gpus_of(settings, os.environ, self.live)
        sources = Sources(
            families=self.families,
            status=self.status,
            autoscale=self.autoscale,
            scaling=lambda: scaling(self.live, time.monotonic_ns()),
            not_ready=self.not_ready,
            created_s=self.started_wall_s,
        )
        self.admin = Admin(sources, *settings.address("admin"))
        self.pusher = pusher_of(os.environ, self.pushed_families, began_wall_s=self.started_wall_s)
        self._held = asyncio.Event()  # something waits to be judged
        self._poke_at_s: float | None = None
        self._poked_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run until a signal comes; returns after draining. A second signal ends the process at once."""
        self._handle_signals()
        await self.proxy.start()
        try:
            await self.admin.start()
            if self.tracing is not None:
                await self.tracing.start()
        except BaseException:
            await self.proxy.close()
            raise
        _say(f"proxy listening on http://{_shown(self.settings.address('listen')[0])}:{self.proxy.port}")
        _say(f"admin listening on http://{_shown(self.settings.address('admin')[0])}:{self.admin.port}")
        receiver = self.tracing.receiver if self.tracing is not None else None
        if receiver is not None:
            host = _shown(receiver.settings.host)
            grpc = f"{host}:{receiver.grpc_port}"
            _say(f"span receiver listening on http://{host}:{receiver.http_port} grpc {grpc}")
        scaler = self._start_scaler()
        stop_scraping = asyncio.Event()
        scraping = asyncio.create_task(self.scraper.run(self._on_snapshot, stop_scraping))
        ticking = asyncio.create_task(self._tick())
        asking = asyncio.create_task(
            watch_models(self.settings.upstream, self.live.models.serve, stop_scraping)
        )
        looking = asyncio.create_task(self.gpus.run(stop_scraping)) if self.gpus is not None else None
        stop_pushing = asyncio.Event()
        pushing = asyncio.create_task(self.pusher.run(stop_pushing)) if self.pusher is not None else None
        settle_memory()
        try:
            await self._stop.wait()
            if not await self.proxy.drain(self.settings.drain_s):
                _log.warning(
                    "%d requests were still running after %g s", self.proxy.in_flight, self.settings.drain_s
                )
        finally:
            stop_scraping.set()
            ticking.cancel()
            scraping.cancel()
            asking.cancel()
            if self._looking is not None:
                self._looking.cancel()
            await asyncio.gather(scraping, ticking, asking, return_exceptions=True)
            if looking is not None:
                await asyncio.gather(looking, return_exceptions=True)
            await self.proxy.close()
            self._judged(self.live.settle(time.monotonic_ns(), time.time(), all_of_them=True))
            if pushing is not None:
                stop_pushing.set()
                await pushing
            if self.tracing is not None:
                await self.tracing.close()
            if scaler is not None:
                await asyncio.to_thread(scaler.close)
            await self.admin.close()

    def _start_scaler(self) -> Scaler | None:
        if not self.settings.scaler:
            return None
        # gRPC costs memory, so it is only loaded where it is asked for.
        from sidecar.publish.scaler import Scaler

        capacity = self.live.capacity
        scaler = Scaler(
            self.autoscale,
            asyncio.get_running_loop(),
            target_saturation=capacity.target_saturation if capacity is not None else None,
            peak_load=capacity.peak_load if capacity is not None else None,
        )
        host, port = self.settings.address("scaler")
        scaler.start(host, port)
        _say(f"scaler listening on {_shown(host)}:{scaler.port}")
        return scaler

    def stop(self) -> None:
        """Begin to drain."""
        self._stop.set()

    def families(self) -> Steps[list[Family]]:
        """The metrics page now."""
        self._count_gpus()
        return families_in_steps(
            self.live,
            time.monotonic_ns(),
            proxy=self._proxy_view(),
            scrapes=self.scraper.stats,
            process=_process(self.started_wall_s),
            more=[
                *(self.tracing.families() if self.tracing is not None else ()),
                *(self.gpus.families() if self.gpus is not None else ()),
            ],
            max_series=self.settings.max_series,
        )

    def status(self) -> Steps[dict[str, Any]]:
        """The status now, as JSON values."""
        self._count_gpus()
        now_ns = time.monotonic_ns()
        found = yield from status_in_steps(self.live, now_ns, time.time(), self._proxy_view())
        found["gpu"] = self.gpus.status() if self.gpus is not None else None
        return found

    def _count_gpus(self) -> None:
        seen = self.gpus.count() if self.gpus is not None else 0
        self.live.gpus = self.settings.gpu_count or seen or None

    def pushed_families(self) -> Steps[list[Family]]:
        """What the page holds but the gen_ai convention's metrics, which the span service pushes itself."""
        found = yield from self.families()
        return [family for family in found if not family.name.startswith("gen_ai_")]

    def autoscale(self) -> Autoscale:
        """The autoscaler's signal now."""
        return self.live.autoscale(time.monotonic_ns(), self.proxy.in_flight)

    def not_ready(self) -> str | None:
        """Why requests should not be sent here, or ``None``."""
        if self._stop.is_set():
            return "draining"
        engine = self.live.engine
        if engine is None:
            return "the engine has not been scraped yet"
        if not engine.up:
            self._look_again()
            return f"the engine is not up: {engine.reason}"
        return None

    def _look_again(self) -> None:
        """Someone waits for the engine, and the scraper may be pausing for half a minute by now."""
        now_s = time.monotonic()
        if now_s - self._poked_s >= _POKE_GAP_S and (self._looking is None or self._looking.done()):
            self._poked_s = now_s
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        self._on_snapshot(await self.scraper.scrape_once())

    def _on_record(self, record: RequestRecord) -> None:
        judged = self.live.add_record(record, time.monotonic_ns(), time.time())
        if not judged:
            self._held.set()
            if self._poke_at_s is None:
                now_s = time.monotonic()
                self._poke_at_s = max(now_s + _POKE_AFTER_S, self._poked_s + _POKE_GAP_S)
        self._judged(judged)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        if snapshot is self.live.engine:
            return  # a scrape that two waited for
        self._judged(self.live.add_snapshot(snapshot, time.monotonic_ns(), time.time()))

    def _judged(self, judged: list[Judged]) -> None:
        if self.tracing is None:
            return
        for one in judged:
            try:
                self.tracing.on_judged(one)
            except Exception:
                _log.exception("a judged request could not be passed on")

    async def _tick(self) -> None:
        # Only while something is held: a timer that always runs would be most of what idling costs.
        while True:
            await self._held.wait()
            await asyncio.sleep(0.1)
            if self.live.judging.held:
                self._judged(self.live.settle(time.monotonic_ns(), time.time()))
            if self._poke_at_s is not None and time.monotonic() >= self._poke_at_s:
                self._poke_at_s, self._poked_s = None, time.monotonic()
                if self.live.judging.held:
                    await self._look()
                if self.live.judging.held:  # that scrape was already on its way when they ended
                    self._poke_at_s = self._poked_s + _POKE_GAP_S
            if not self.live.judging.held and self._poke_at_s is None:
                self._held.clear()

    def _proxy_view(self) -> ProxyView:
        proxy = self.proxy
        return ProxyView(proxy.in_flight, proxy.requests, proxy.refused, proxy.broken, proxy.dropped)

    def reload(self) -> None:
        """Read the files of SLO classes and capacity again. With an error in them the old ones stay."""
        try:
            policy, capacity = policy_of(self.settings), capacity_of(self.settings)
        except UserError as error:
            _log.error("settings not read again, the old ones stay: %s", error)
            return
        self.live.reconfigure(policy, capacity)
        _log.info("SLO classes and capacity were read again")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def asked(number: int) -> None:
            if self._stop.is_set():
                # 128 + number is what a shell reports for a process ended by that signal.
                os._exit(128 + number)
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload)


def run(settings: Settings) -> int:
    """Run a sidecar until it is told to stop. Returns 0 after a drain. Raises UserError."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)

    async def main() -> None:
        await Runtime(settings).run()

    raise_file_limit()
    run_on_best_loop(main())
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _process(start_time_s: float) -> ProcessView:
    times = os.times()
    resident: int | None = None
    fds: int | None = None
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        fds = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        pass  # no /proc: those two stay unknown
    return ProcessView(times.user + times.system, resident, start_time_s, fds)
