"""On the path of a process under test: its wall clock reads the true time plus what a file says.

The monotonic clock stays as it is, as it does when a machine's clock is set.
"""

import mmap
import os
import struct
import time

_path = os.environ.get("SOAK_CLOCK")
if _path:
    _shared = mmap.mmap(os.open(_path, os.O_RDONLY), 8, access=mmap.ACCESS_READ)
    _true_s, _true_ns = time.time, time.time_ns

    def _offset_s() -> float:
        return struct.unpack("d", _shared[:8])[0]

    time.time = lambda: _true_s() + _offset_s()
    time.time_ns = lambda: _true_ns() + int(_offset_s() * 1e9)
