"""Transports that may be gone already: uvloop raises RuntimeError on a closed one, asyncio ignores the call.

Between a connection's end and the call of ``connection_lost`` the other side may still have something to
do to it. There is nothing to be done about that then: ``connection_lost`` follows at once and cleans up
both sides.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress


def send(transport: asyncio.WriteTransport, data: bytes) -> None:
    """Write, if it is still possible."""
    with suppress(RuntimeError):
        transport.write(data)


def shut_half(transport: asyncio.WriteTransport) -> None:
    """Send what is buffered, then the end of our direction."""
    with suppress(RuntimeError, OSError):
        transport.write_eof()


def pause(transport: asyncio.ReadTransport) -> None:
    """Stop reading."""
    with suppress(RuntimeError):
        transport.pause_reading()


def resume(transport: asyncio.ReadTransport) -> None:
    """Read (again)."""
    with suppress(RuntimeError):
        if not transport.is_closing():
            transport.resume_reading()


def reset_on_close(transport: asyncio.BaseTransport) -> None:
    """Have the connection end with a reset, however it is closed from now on."""
    with suppress(OSError):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def was_reset(transport: asyncio.BaseTransport) -> bool:
    """True if the peer reset the connection. libuv calls it a plain end when data came just before."""
    try:
        sock = transport.get_extra_info("socket")
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except OSError:
        return False
