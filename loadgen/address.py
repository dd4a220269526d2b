"""Where requests go: a base URL, taken apart once. Pure."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from sidecar.errors import UserError
from sidecar.urls import NO_USER, has_user, shown, split_http


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, taken apart once. ``verify`` False skips the check of the server's certificate."""

    host: str
    port: int
    prefix: str
    tls: bool
    verify: bool = True
    ca_file: str | None = None

    @classmethod
    def of(cls, url: str, *, verify: bool = True, ca_file: str | None = None) -> Target:
        """Read a base URL. Raises `UserError` when it is not http(s)://host[:port][/prefix]."""
        if has_user(url):
            raise UserError(f"--url {shown(url)}: {NO_USER}; --api-key-env names a variable that holds a key")
        parts = split_http(url)
        if parts is None or not parts.hostname:
            raise UserError(f"--url {url}: write http://HOST:PORT or https://HOST:PORT")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/")
        return cls(parts.hostname, parts.port or (443 if tls else 80), prefix, tls, verify, ca_file)

    def head(self, path: str, headers: dict[str, str]) -> bytes:
        """The request's head without Content-Length, ready to be followed by that line and the body."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"POST {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")

    def tls_context(self) -> ssl.SSLContext | None:
        """What TLS is spoken with; ``None`` for plain HTTP. Certificates are checked unless told
        otherwise.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
