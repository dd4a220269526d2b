"""Where a client connection stands in the sequence of its requests."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    """What the client's next bytes are."""

    HEAD = auto()  # a request head
    CONNECT = auto()  # held: the upstream connection is being made
    BODY = auto()  # the request's body
    WAIT = auto()  # held: a pipelined request, its turn comes after the answer
    TUNNEL = auto()  # after an upgrade: passed on as they are
    LINGER = auto()  # thrown away: the last answer is out, the client may still be sending
    CLOSING = auto()  # nothing more is read
