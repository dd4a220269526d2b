"""Follow a log: ``/dev/kmsg`` record by record, or a file as it grows. Never blocks, bounded at each poll."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

_CHUNK = 64 * 1024  # more than a record of /dev/kmsg can be; a shorter read of it fails
_MAX_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Poll:
    """What came since the last poll. ``lost``: how often records were overwritten before they were read."""

    lines: tuple[str, ...]
    lost: int
    more: bool  # the limit was reached, and more can be read at once


@dataclass(slots=True)
class LogFollower:
    """Reads ``path`` from where it is now on; of ``/dev/kmsg`` also what its buffer still holds.

    Those older records say which GPU sits where; who counts events must drop them by their time.
    """

    path: str
    max_reads: int = 200
    _fd: int = -1
    _device: bool = False
    _inode: tuple[int, int] = (0, 0)
    _rest: bytes = field(default=b"")

    def open(self) -> None:
        """Open the log. Raises OSError."""
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        self._device = stat.S_ISCHR(status.st_mode)
        self._inode = (status.st_dev, status.st_ino)
        self._rest = b""
        if stat.S_ISREG(status.st_mode):
            os.lseek(self._fd, 0, os.SEEK_END)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def poll(self) -> Poll:
        """Read what is there, at most ``max_reads`` reads of it. Raises OSError when the log is gone."""
        lines: list[str] = []
        lost = reads = 0
        if not self._device:
            self._follow_rotation()
        while reads < self.max_reads:
            reads += 1
            try:
                data = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                return Poll(tuple(lines), lost, more=False)
            except OSError as error:
                if error.errno == errno.EPIPE and self._device:
                    lost += 1  # the buffer went round; the next read goes on with the oldest left
                    continue
                raise
            if not data:
                return Poll(tuple(lines), lost, more=False)
            lines += self._split(data)
        return Poll(tuple(lines), lost, more=True)

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _split(self, data: bytes) -> list[str]:
        *whole, rest = (self._rest + data).split(b"\n")
        # A line without end must not fill the memory: what is longer is no line of the kernel's.
        self._rest = rest if len(rest) <= _MAX_LINE else b""
        return [line.decode("utf-8", "replace") for line in whole if line]

    def _follow_rotation(self) -> None:
        """A regular file that was replaced is opened anew, one that was cut is read from its start."""
        mine = os.fstat(self._fd)
        if not stat.S_ISREG(mine.st_mode):
            return
        if mine.st_size < os.lseek(self._fd, 0, os.SEEK_CUR):
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._rest = b""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return  # moved away; the new one is not there yet
        if (now.st_dev, now.st_ino) != self._inode and mine.st_size == os.lseek(self._fd, 0, os.SEEK_CUR):
            os.close(self._fd)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(self._fd)
            self._inode = (status.st_dev, status.st_ino)
            self._rest = b""
