"""The Locust process: ``python -m loadgen.locust_main``. Levels in on stdin, records out on stdout, as
msgpack.

Locust needs gevent's monkey patches, which must come first and change a whole process; the sweep (terminal,
search, HTTP checks, reports) is plain Python and stays unpatched. So the load runs in processes of its own,
one a core, that end when their stdin does: a sweep that dies leaves none behind.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402  (the patches must come before anything that imports sockets or threads)
import signal  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import msgpack  # type: ignore[import-untyped]  # noqa: E402
from gevent.os import nb_read  # noqa: E402
from locust.env import Environment  # noqa: E402

from loadgen.level_run import LevelRun  # noqa: E402
from loadgen.orders import plan_from, setup_from  # noqa: E402
from loadgen.stream_client import StreamClient  # noqa: E402
from loadgen.user import LevelUser, fire_request  # noqa: E402
from loadgen.wire import pack  # noqa: E402
from loadgen.workload.mix import MixMaker  # noqa: E402
from loadgen.workload.spec import CLASS_HEADER, Workload, build_head  # noqa: E402
from loadgen.workload.traces import read_trace  # noqa: E402
from sidecar.requests.records import Api  # noqa: E402


class Process:
    """One worker: takes orders, runs levels with a local Locust runner, says what happened."""

    def __init__(self, out_fd: int) -> None:
        self._out_fd = out_fd
        self._environment = Environment(user_classes=[LevelUser])
        self._runner = self._environment.create_local_runner()
        self._run: LevelRun | None = None
        self._client: StreamClient | None = None
        LevelUser.current = staticmethod(lambda: self._run)

    def say(self, message: dict[str, Any]) -> None:
        """Send one message to the sweep. Small ones never block; records go out between levels."""
        data = memoryview(msgpack.packb(message))
        while data:
            data = data[os.write(self._out_fd, data) :]

    def setup(self, order: dict[str, Any]) -> None:
        """Prepare client and request maker."""
        setup = setup_from(order)
        self._setup = setup
        self._client = StreamClient(setup.target)

        def head_of(workload: Workload) -> bytes:
            named = {CLASS_HEADER: workload.name} if workload.name else {}
            return build_head(setup.target, Api(workload.api), setup.api_key, setup.headers | named)

        self._maker = MixMaker(
            setup.mix,
            model=setup.model,
            seed=setup.seed,
            calibration=setup.calibration,
            head_of=head_of,
            trace=read_trace(setup.trace).fitted(setup.context_tokens) if setup.trace else None,
            context_tokens=setup.context_tokens,
        )
        self.say({"event": "ready", "pid": os.getpid()})

    def level(self, order: dict[str, Any]) -> None:
        """Run one level and send its records."""
        assert self._client is not None
        setup = self._setup
        run = LevelRun(
            plan_from(order["plan"]),
            client=self._client,
            maker=self._maker,
            model=setup.model,
            worker=order["worker"],
            workers=order["workers"],
            timeout_s=setup.timeout_s,
            on_record=lambda record: fire_request(self._environment, record),
        )
        self._run = run
        try:
            run.run(self.say, lambda users: self._runner.start(users, spawn_rate=max(1, users)))
        finally:
            self._run = None
        self._runner.stop()
        outcome = run.outcome()
        health = outcome["client"]
        self.say(
            {
                "event": "level",
                "records": pack(outcome["records"]),
                "ended_ns": outcome["ended_ns"],
                "warmup_s": outcome["warmup_s"],
                "client": [
                    health.cpu_share,
                    health.loop_lag_p99_s,
                    health.stamp,
                    health.shared_stamp_share,
                ],
            }
        )

    def cut(self) -> None:
        """Cut the level under way short, if there is one."""
        if self._run is not None:
            self._run.cut()

    def obey(self) -> None:
        """Take orders from stdin until it ends or says so. Orders during a level (``cut``) are heard at
        once.
        """
        unpacker = msgpack.Unpacker()
        busy: gevent.Greenlet | None = None
        os.set_blocking(0, False)
        while True:
            data = nb_read(0, 65536)
            if not data:
                break
            unpacker.feed(data)
            for order in unpacker:
                if order["do"] == "quit":
                    self.cut()
                    return
                if order["do"] == "cut":
                    self.cut()
                elif order["do"] == "window":
                    if self._run is not None:
                        self._run.begin_window(order["start_ns"])
                elif order["do"] == "setup":
                    self.setup(order)
                elif order["do"] == "level":
                    if busy is not None:
                        busy.join()
                    busy = gevent.spawn(self.level, order)
                    busy.link_exception(self._broken)
        self.cut()

    def _broken(self, greenlet: gevent.Greenlet) -> None:
        self.say({"event": "broken", "reason": repr(greenlet.exception)[:500]})


def main() -> int:
    """Run until stdin ends. Interrupts are for the sweep, which then says what to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out_fd = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the messages
    sys.stdout = sys.stderr
    process = Process(out_fd)
    process.obey()
    os._exit(0)  # no farewell: greenlets of unfinished requests have nothing more to say


if __name__ == "__main__":
    sys.exit(main())
