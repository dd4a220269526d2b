"""Ties the kernel's arrival stamps (realtime clock) to the monotonic clock that everything else uses."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence

SO_TIMESTAMPNS = 35  # Linux, 64-bit: asm-generic/socket.h; the socket module has no name for it
_TIMESPEC = struct.Struct("qq")
# A stamp older than this, or later than now, was made while the wall clock was being set.
_OLDEST_NS = 30_000_000_000
_TIE_EVERY_NS = 250_000_000
_STEP_NS = 2_000_000  # slewing moves the offset by far less than this between two ties

Ancillary = Sequence[tuple[int, int, bytes]]


def stamping(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives on this socket; False where it cannot."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class ArrivalClock:
    """Turns a read's ancillary data into the monotonic nanosecond at which its last byte reached this
    machine.

    A stamp is an upper bound for all but the last event of a read. Where there is none, or the wall clock was
    stepped, the moment of the read is taken instead, which the caller passes in before it parses anything.
    """

    def __init__(
        self,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._realtime_ns = realtime_ns
        self._offset_ns = 0
        self._tied_ns = -_TIE_EVERY_NS
        self.kernel_stamps = 0
        self.read_stamps = 0
        self.steps = 0  # how often the wall clock was found to have been set
        self.tie()

    def tie(self) -> None:
        """Measure the offset between the two clocks: the tightest of three samples."""
        best: tuple[int, int] | None = None
        for _ in range(3):
            before = self._monotonic_ns()
            real = self._realtime_ns()
            after = self._monotonic_ns()
            sample = (after - before, real - (before + after) // 2)
            if best is None or sample < best:
                best = sample
        assert best is not None
        if self._tied_ns >= 0 and abs(best[1] - self._offset_ns) > _STEP_NS:
            self.steps += 1
        self._offset_ns = best[1]
        self._tied_ns = self._monotonic_ns()

    def at(self, ancillary: Ancillary, now_ns: int) -> int:
        """The arrival time on the monotonic clock, never later than ``now_ns`` (the moment of the read)."""
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack_from(data)
                if now_ns - self._tied_ns > _TIE_EVERY_NS:
                    self.tie()
                stamp_ns: int = seconds * 1_000_000_000 + nanoseconds - self._offset_ns
                if stamp_ns <= now_ns + _STEP_NS and now_ns - stamp_ns < _OLDEST_NS:
                    self.kernel_stamps += 1
                    return min(stamp_ns, now_ns)
                self.tie()
                break
        self.read_stamps += 1
        return now_ns
