"""What an operator can set about the proxy, with defaults that suit a sidecar beside vLLM."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from sidecar.errors import SettingsError
from sidecar.urls import shown

_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def _same(upstream: str, listen: str) -> bool:
    """True if connections to the first surely come to the second: every request would go round for ever."""
    return upstream == listen or (listen in ("0.0.0.0", "::", "localhost") and upstream in _LOCAL)


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Settings of one proxy. Sizes are bytes, times seconds. Wrong values raise SettingsError."""

    upstream: str
    """The one server behind the proxy: ``http://host:port``, without a path."""
    listen_host: str = "127.0.0.1"
    listen_port: int = 8080
    """0 takes any free port; read it from ``Proxy.port``."""
    max_head_bytes: int = 64 * 1024
    """Longest request or response head; longer requests get 431."""
    max_connections: int = 16384
    """Client connections at once; one more gets 503."""
    connect_timeout_s: float = 5.0
    head_timeout_s: float = 30.0
    """How long a request head may take to arrive, from its first byte (or from the connection's start)."""
    idle_timeout_s: float = 3600.0
    """How long a connection may stand without a byte in either direction, in a request or between two."""
    continue_after_s: float = 0.5
    """When the upstream leaves a client that sent ``Expect: 100-continue`` waiting, 100 is sent for it
    then."""
    buffer_bytes: int = 64 * 1024
    """High-water mark of each direction's write buffer; beyond it the other side is no longer read."""
    host: Literal["pass", "upstream"] = "pass"
    """``Host`` as the client sent it, or the upstream's own."""
    forwarded: bool = False
    """Add ``X-Forwarded-For``, ``-Proto`` and ``-Host``."""
    trace: Literal["pass", "continue"] = "pass"
    """``traceparent`` as it came, or our own span between: same trace, our span id (a new trace if none
    came)."""
    set_request_id: bool = True
    """Give model requests without an ``X-Request-Id`` one: vLLM builds its own id from it."""
    class_header: str = "x-slo-class"
    """The request header whose value names the SLO class."""
    capture_request_bytes: int = 256 * 1024
    """How much of a request body is looked at for facts (model, stream, choices)."""
    capture_chars: int = 0
    """How much generated text of each choice the record keeps; 0 keeps none."""
    observe: bool = True
    """False: bytes only, no records."""

    def __post_init__(self) -> None:
        host, port = self.address()
        if port == self.listen_port and _same(host, self.listen_host):
            raise SettingsError(f"upstream: {self.upstream!r} is where the proxy itself listens")
        if not 0 <= self.listen_port <= 65535:
            raise SettingsError(f"listen_port: {self.listen_port} is not a port (0 to 65535)")
        for key in ("max_head_bytes", "max_connections", "buffer_bytes"):
            if getattr(self, key) <= 0:
                raise SettingsError(f"{key}: must be more than 0, not {getattr(self, key)}")
        for key in ("connect_timeout_s", "head_timeout_s", "idle_timeout_s", "continue_after_s"):
            if not getattr(self, key) > 0:
                raise SettingsError(f"{key}: must be more than 0 seconds, not {getattr(self, key)}")
        for key in ("capture_request_bytes", "capture_chars"):
            if getattr(self, key) < 0:
                raise SettingsError(f"{key}: must not be negative, not {getattr(self, key)}")
        if self.host not in ("pass", "upstream"):
            raise SettingsError(f"host: pass or upstream, not {self.host!r}")
        if self.trace not in ("pass", "continue"):
            raise SettingsError(f"trace: pass or continue, not {self.trace!r}")
        if not _FIELD_NAME.fullmatch(self.class_header):
            raise SettingsError(f"class_header: {self.class_header!r} is not a header name")

    def address(self) -> tuple[str, int]:
        """Host and port of the upstream."""
        wrong = SettingsError(
            f"upstream: {shown(self.upstream)!r} must be like http://127.0.0.1:8000, without a path"
        )
        try:
            parts = urlsplit(self.upstream)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query or parts.username:
            raise wrong
        return host, port if port is not None else 80
