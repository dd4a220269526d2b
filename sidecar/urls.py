"""URLs from settings and command lines: taken apart without surprises, shown without passwords. Pure."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_USER = re.compile(r"//[^/?#]*@")
NO_USER = "leave user and password out of the URL: it is shown in logs, reports and the process list"


def split_http(text: str) -> SplitResult | None:
    """An http or https URL with a host and, if any, a port that can be one; ``None`` for anything else."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # half a bracket, a port of letters
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname and port != 0 else None


def has_user(text: str) -> bool:
    """True when a user name or password stands before the host."""
    return _USER.search(text) is not None


def shown(text: str) -> str:
    """The URL as messages may hold it."""
    return _USER.sub("//...@", text)
