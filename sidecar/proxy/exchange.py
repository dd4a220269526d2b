"""One request and its answer: what the two sides of the proxy need to remember about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.proxy.framing import Body
from sidecar.proxy.head import Head, request_body
from sidecar.proxy.observe import Watch
from sidecar.proxy.rewrite import forward_request, websocket
from sidecar.proxy.trace import TraceContext, continue_trace, new_request_id, usable_request_id
from sidecar.requests.apis import api_of
from sidecar.requests.records import Api

if TYPE_CHECKING:
    from sidecar.proxy.server import Proxy
    from sidecar.proxy.settings import ProxySettings

_TRACE_FIELDS = frozenset({b"traceparent", b"tracestate"})
_CLASS = re.compile(rb"[A-Za-z0-9._-]{1,64}")


@dataclass(slots=True)
class Exchange:
    """State of one request; ``outgoing`` is its head for the upstream until that is written."""

    head: Head
    body: Body
    outgoing: bytes
    watch: Watch | None
    keep_alive: bool
    upgrade: bool
    expects_continue: bool
    complete: bool = False  # the request's last byte has passed
    body_began: bool = False
    continued: bool = False  # the client has got its 100
    answer_began: bool = False
    answered: bool = False
    open: bool = True  # counted in ``in_flight``

    def discard(self) -> None:
        """Observe no further, note no record: this is no model request after all."""
        self.watch = None


def open_exchange(proxy: Proxy, head: Head, peer: str) -> Exchange:
    """A request head has arrived: decide what goes on to the upstream and who looks on."""
    settings = proxy.settings
    api = Api.OTHER
    if settings.observe:
        try:
            api = api_of(head.method.decode("ascii"), head.target.decode("latin-1"))
        except Exception:
            proxy.gate.drop("api")
    model_request = api is not Api.OTHER
    replace, add = _own_fields(settings, head, proxy.upstream_address, peer)
    trace: TraceContext | None = None
    drop: frozenset[bytes] = frozenset()
    if model_request and settings.trace == "continue":
        came = head.values(b"traceparent")
        trace = continue_trace(came[0] if len(came) == 1 else b"")
        if trace.parent_span_id:
            replace[b"traceparent"] = trace.traceparent
        else:  # none, several or a broken one came: what belongs to that trace ends here
            drop = _TRACE_FIELDS
            add.append((b"traceparent", trace.traceparent))
    request_id = usable_request_id(head.first(b"x-request-id"))
    if model_request and not request_id:
        request_id = new_request_id()
        if settings.set_request_id and not head.values(b"x-request-id"):
            add.append((b"X-Request-Id", request_id.encode()))
    watch: Watch | None = None
    if model_request:
        if proxy.gate.open():
            slo_class = head.first(settings.class_header.lower().encode())
            watch = Watch(
                proxy.gate,
                api,
                target=head.target.split(b"?", 1)[0].decode("latin-1"),
                request_class=slo_class.decode() if _CLASS.fullmatch(slo_class) else "",
                request_id=request_id,
                trace=trace,
                capture=settings.capture_request_bytes,
            )
        else:
            proxy.gate.drop("overload")
    return Exchange(
        head=head,
        body=request_body(head),
        outgoing=forward_request(head, replace=replace, add=add, drop=drop),
        watch=watch,
        keep_alive=head.keep_alive,
        upgrade=websocket(head),
        expects_continue=head.minor == 1 and head.first(b"expect").lower() == b"100-continue",
    )


def _put(
    head: Head, replace: dict[bytes, bytes], add: list[tuple[bytes, bytes]], name: bytes, value: bytes
) -> None:
    if head.values(name):
        replace[name] = value
    else:
        add.append((name, value))


def _own_fields(
    settings: ProxySettings, head: Head, upstream: tuple[str, int], peer: str
) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]]]:
    replace: dict[bytes, bytes] = {}
    add: list[tuple[bytes, bytes]] = []
    if settings.host == "upstream":
        host, port = upstream
        name = f"[{host}]" if ":" in host else host
        _put(head, replace, add, b"host", f"{name}:{port}".encode())
    if settings.forwarded:
        before = b", ".join(head.values(b"x-forwarded-for"))
        chain = (before + b", " if before else b"") + peer.encode()
        if len(head.values(b"x-forwarded-for")) == 1:
            replace[b"x-forwarded-for"] = chain
        else:
            add.append((b"X-Forwarded-For", peer.encode()))
        if not head.values(b"x-forwarded-proto"):
            add.append((b"X-Forwarded-Proto", b"http"))
        if not head.values(b"x-forwarded-host") and head.first(b"host"):
            add.append((b"X-Forwarded-Host", head.first(b"host")))
    return replace, add
