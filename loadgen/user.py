"""The Locust users: one streaming request after another, measured by the shared stream meter.

`GoodputUser` is for anyone's locustfile:

    from loadgen.user import GoodputUser

    class Chat(GoodputUser):
        host = "http://127.0.0.1:8000"
        model = "my-model"

Locust's own event is fired when the *record* closes, with the time to the end of the answer, as a failure for
anything but a completed answer. (Locust's clients fire it as a success at the headers.) Locust's statistics
round to two digits; exact figures come from the records, which every listener of ``events.goodput_record``
receives.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

from locust import User, constant, events, task
from locust.event import EventHook
from locust.exception import StopUser

from loadgen.address import Target
from loadgen.level_run import LevelRun
from loadgen.stream_client import StreamClient
from loadgen.workload.prompts import Calibration
from loadgen.workload.spec import PATHS, RequestMaker, Workload, build_head
from sidecar.requests.records import Api, Outcome, RequestRecord


class RequestFailed(Exception):
    """What Locust shows as the reason of a failure: our error kind and a short reason."""


def fire_request(environment: Any, record: RequestRecord) -> None:
    """Tell Locust's listeners (statistics, web page) about one closed record."""
    failed = None
    if record.outcome is not Outcome.COMPLETED:
        kind = record.error_kind.value if record.error_kind else record.outcome.value
        failed = RequestFailed(f"{kind}: {record.error or record.status}")
    environment.events.request.fire(
        request_type="POST",
        name=record.path or PATHS.get(record.api, record.api.value),
        response_time=record.e2e_ns / 1e6,
        response_length=record.output_tokens or 0,
        exception=failed,
        context={},
        response=None,
        start_time=None,
        url=None,
    )


class GoodputUser(User):
    """A user for locustfiles: set ``host`` and ``model``, perhaps ``workload`` and ``seed``.

    The API key is taken from the environment variable ``OPENAI_API_KEY``, where set.
    """

    abstract = True
    wait_time = constant(0)
    model: ClassVar[str] = ""
    workload: ClassVar[Workload] = Workload()
    seed: ClassVar[int] = 0
    timeout_s: ClassVar[float] = 600.0
    _shared: ClassVar[dict[type, tuple[StreamClient, RequestMaker]]] = {}
    _serials: ClassVar[dict[type, int]] = {}

    def on_start(self) -> None:
        """Make the client that all users of a class share in this process."""
        kind = type(self)
        if kind not in self._shared:
            target = Target.of(self.host or self.environment.host or "")
            head = build_head(target, Api(self.workload.api), os.environ.get("OPENAI_API_KEY", ""))
            maker = RequestMaker(
                self.workload, model=self.model, seed=self.seed, calibration=Calibration(), head=head
            )
            self._shared[kind] = StreamClient(target), maker

    @task
    def stream(self) -> None:
        """One streaming request; its record goes to Locust and to the listeners of ``goodput_record``."""
        kind = type(self)
        client, maker = self._shared[kind]
        serial = self._serials[kind] = self._serials.get(kind, -1) + 1
        worker = getattr(self.environment.runner, "worker_index", 0)
        request = maker.make(worker, serial)
        exchange = client.request(request.wire, request.api, model=self.model, timeout_s=self.timeout_s)
        record = exchange.record()
        fire_request(self.environment, record)
        record_hook().fire(record=record)  # type: ignore[no-untyped-call]


def record_hook() -> EventHook:
    """The event ``goodput_record(record)``, made on first use beside Locust's own events."""
    if not hasattr(events, "goodput_record"):
        events.goodput_record = EventHook()  # type: ignore[attr-defined, no-untyped-call]
    hook: EventHook = events.goodput_record  # type: ignore[attr-defined]
    return hook


class LevelUser(User):
    """The sweep's user: does what the level under way tells it, once, and stops."""

    wait_time = constant(0)
    current: ClassVar[Callable[[], LevelRun | None]] = staticmethod(lambda: None)

    @task
    def level(self) -> None:
        """Take part in the level until it stops sending."""
        run = type(self).current()
        if run is not None and run.sending:
            if run.plan.arrivals.open_loop:
                run.open_loop()
            else:
                run.closed_loop()
        raise StopUser
