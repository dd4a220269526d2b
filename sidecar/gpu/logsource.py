"""A log followed for Xid and SXid reports: the thin shell between the file and the account."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar.gpu.incidents import Event
from sidecar.gpu.kmsg import LogFollower
from sidecar.gpu.xid import Sxid, UuidHint, Xid, parse_line

if TYPE_CHECKING:
    from sidecar.gpu.watch import GpuState, SourceState

_EVERY_S = 1.0
_RETRY_S = 30.0
_FLOOD_S = 0.05  # requests come first


class LogSource:
    """``kernel_log`` or ``fabric_log``. Where it may not be read, Xids are not watched, and that is said."""

    def __init__(
        self,
        name: str,
        path: str,
        source: SourceState,
        state: GpuState,
        tell: Callable[[Event], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._name = name
        self._follower = LogFollower(path)
        self._source = source
        self._state = state
        self._tell = tell
        self._clock_ns = clock_ns
        # Records of /dev/kmsg from before the start say where the GPUs sit, and are no news.
        self._began_us = clock_ns() // 1000
        self.lost = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop`` is set; a log that is not there yet is tried again."""
        try:
            while not stop.is_set():
                wait_s = self._once()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), wait_s)
        finally:
            self._follower.close()
            self._watched(False)

    def _once(self) -> float:
        """One poll. Returns seconds to wait for the next."""
        started_ns = self._clock_ns()
        try:
            if not self._follower.is_open:
                self._follower.open()
            poll = self._follower.poll()  # never blocks
        except OSError as error:
            self._follower.close()
            self._watched(False)
            reason = f"cannot be read: {error.strerror or error}"
            code = "permission" if isinstance(error, PermissionError) else "read"
            self._source.failed(reason, code, (self._clock_ns() - started_ns) / 1e9)
            return _RETRY_S
        self._watched(True)
        self.lost += poll.lost
        for line in poll.lines:
            self._line(line)
        now_ns = self._clock_ns()
        self._source.good(now_ns, (now_ns - started_ns) / 1e9)
        return _FLOOD_S if poll.more else _EVERY_S

    def _watched(self, watched: bool) -> None:
        if self._name == "kernel_log":
            self._state.kernel_log_watched = watched

    def _line(self, line: str) -> None:
        parsed = parse_line(line)
        event: Event | None = None
        if isinstance(parsed, UuidHint):
            self._state.incidents.learn(parsed)
        elif isinstance(parsed, Xid):
            if parsed.record is None or parsed.record.usec >= self._began_us:
                event = self._state.log_event(parsed, self._at_s(parsed))
        elif isinstance(parsed, Sxid):
            event = self._state.incidents.add(parsed, self._at_s(parsed), parsed.source)
        if event is not None:
            self._tell(event)

    def _at_s(self, report: Xid | Sxid) -> float:
        """Monotonic seconds: the record's own time, else now."""
        if isinstance(report, Xid) and report.record is not None:
            return report.record.usec / 1e6
        return self._clock_ns() / 1e9
