"""Tells many sockets that bytes are there, in batches, on gevent's loop.

One loop watcher a socket costs a loop iteration for nearly every token: at 25,000 tokens a second most of a
core goes into waking up. All sockets share one epoll instance instead, itself watched by the loop. After each
batch the next one is taken a millisecond later, as long as there is something to take. Arrival times do not
suffer: the kernel stamps each segment when it comes, not when it is read.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent import get_hub, monkey

_epoll = monkey.get_original("select", "epoll")  # the patches take it away, since most would block with it
_READ = 1  # for the loop, and EPOLLIN
_BATCH_S = 0.001
_MAX_EVENTS = 1024


class SocketReader:
    """Calls back for each registered socket that is readable. ``batch_s`` 0: at once, one loop turn each."""

    def __init__(self, batch_s: float = _BATCH_S) -> None:
        self._epoll = _epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop = get_hub().loop
        self._batch_s = batch_s
        self._watcher = loop.io(self._epoll.fileno(), _READ)
        # Repeating: a one-shot timer of libev keeps what is left of its time when it is started again.
        self._timer = loop.timer(batch_s, batch_s) if batch_s else None
        self._waiting = False  # the watcher is on, the timer off

    def add(self, fd: int, readable: Callable[[], None]) -> None:
        """Start to watch a socket. ``readable`` is called in the loop and must neither block nor raise."""
        self._epoll.register(fd, _READ)
        self._callbacks[fd] = readable
        if len(self._callbacks) == 1 and not self._waiting:
            self._wait()

    def remove(self, fd: int) -> None:
        """Stop to watch it; must be called before it is closed. Safe to call again."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop for good."""
        self._watcher.stop()
        self._watcher.close()
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
        self._epoll.close()
        self._callbacks.clear()

    def _wait(self) -> None:
        self._waiting = True
        self._watcher.start(self._first)

    def _first(self) -> None:
        self._take()
        if self._timer is not None:
            self._watcher.stop()
            self._waiting = False
            self._timer.again(self._next)

    def _next(self) -> None:
        if not self._take():
            assert self._timer is not None
            self._timer.stop()
            self._wait()

    def _take(self) -> bool:
        ready = self._epoll.poll(0, _MAX_EVENTS)
        for fd, _ in ready:
            readable = self._callbacks.get(fd)  # an earlier one of this batch may have removed it
            if readable is not None:
                readable()
        return bool(ready)
