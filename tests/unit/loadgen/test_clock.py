"""Kernel stamps on the monotonic clock, with a wall clock that may be set."""

from __future__ import annotations

import socket
import struct
import time

from loadgen.clock import SO_TIMESTAMPNS, ArrivalClock, stamping


class Clocks:
    """A monotonic and a wall clock under the test's hand."""

    def __init__(self) -> None:
        self.mono = 1_000_000_000_000
        self.wall = 1_700_000_000_000_000_000

    def advance(self, ns: int) -> None:
        self.mono += ns
        self.wall += ns


def stamped(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("qq", *divmod(wall_ns, 1_000_000_000)))]


def clock_of(clocks: Clocks) -> ArrivalClock:
    return ArrivalClock(monotonic_ns=lambda: clocks.mono, realtime_ns=lambda: clocks.wall)


def test_a_late_reader_gets_the_arrival_not_the_read() -> None:
    clocks = Clocks()
    clock = clock_of(clocks)
    arrived_wall, arrived_mono = clocks.wall, clocks.mono
    clocks.advance(12_000_000)
    assert clock.at(stamped(arrived_wall), clocks.mono) == arrived_mono
    assert (clock.kernel_stamps, clock.read_stamps) == (1, 0)


def test_without_a_stamp_the_read_counts() -> None:
    clocks = Clocks()
    clock = clock_of(clocks)
    assert clock.at([], 42) == 42
    assert clock.read_stamps == 1


def test_a_stamp_is_never_later_than_the_read() -> None:
    clocks = Clocks()
    clock = clock_of(clocks)
    assert clock.at(stamped(clocks.wall + 900_000), clocks.mono) == clocks.mono


def test_a_step_of_the_wall_clock_voids_only_the_stamps_it_touched() -> None:
    clocks = Clocks()
    clock = clock_of(clocks)
    before_step = clocks.wall
    clocks.wall += 3_600_000_000_000
    clocks.advance(1_000_000)
    # Stamped after the step, read before the clocks were tied again: the offset is wrong by an hour.
    assert clock.at(stamped(clocks.wall), clocks.mono) == clocks.mono
    assert clock.steps == 1
    # Stamped before the step: an hour old, if it were believed.
    assert clock.at(stamped(before_step), clocks.mono) == clocks.mono
    clocks.advance(5_000_000)
    assert clock.at(stamped(clocks.wall - 2_000_000), clocks.mono) == clocks.mono - 2_000_000


def test_slow_slewing_is_followed() -> None:
    clocks = Clocks()
    clock = clock_of(clocks)
    for _ in range(40):
        clocks.advance(300_000_000)
        clocks.wall += 150_000  # 500 parts per million
        assert abs(clock.at(stamped(clocks.wall), clocks.mono) - clocks.mono) <= 300_000
    assert clock.steps == 0


def test_the_kernel_stamps_a_real_connection_before_it_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as reader:
        stamps = stamping(reader)
        reader.connect(server.getsockname())
        peer, _ = server.accept()
        with peer:
            clock = ArrivalClock()
            earliest = time.monotonic_ns()
            peer.sendall(b"token")
            latest = time.monotonic_ns()
            time.sleep(0.05)
            _, ancillary, _, _ = reader.recvmsg(100, 64)
            now = time.monotonic_ns()
            at = clock.at(ancillary, now)
    if stamps and ancillary:
        assert earliest - 1_000_000 <= at <= latest + 20_000_000 < now
    else:
        assert at == now
