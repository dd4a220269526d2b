"""What changes between the head that came and the head that goes on: as little as HTTP allows. Pure.

Lines that stay keep every byte (case, blanks, order). A head in which nothing has to change is the same
bytes. Connections are paired one to one, so ``close`` and ``keep-alive`` mean on one side what they mean
on the other.
"""

from __future__ import annotations

from sidecar.proxy.head import Head

# RFC 9110, 7.6.1, and what older texts add. Transfer-Encoding and Trailer stay: the body passes in its
# coding.
_HOP = frozenset({b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te"})
_CHANGED = _HOP | {b"upgrade", b"http2-settings"}  # with none of these the head passes as it is
# A client may name any field in Connection; these frame or route the message and cannot be taken out.
_PROTECTED = frozenset({b"host", b"content-length", b"transfer-encoding", b"trailer", b"content-type"})


def websocket(head: Head) -> bool:
    """True if the head asks for (or grants) the one upgrade that is let through."""
    return b"upgrade" in head.tokens(b"connection") and head.tokens(b"upgrade") == [b"websocket"]


def forward_request(
    head: Head,
    *,
    replace: dict[bytes, bytes],
    add: list[tuple[bytes, bytes]],
    drop: frozenset[bytes] = frozenset(),
) -> bytes:
    """The request head for the upstream. ``replace``: lower-case name to new value of fields that are there;
    ``drop``: lower-case names of fields that do not go on."""
    keep = {b"close", b"keep-alive"}
    extra = set(drop)
    if websocket(head):
        keep.add(b"upgrade")
    else:
        extra |= {b"upgrade", b"http2-settings"}  # h2c would be a tunnel past every check
    wants_trailers = b"trailers" in head.tokens(b"te") and b"te" in head.tokens(b"connection")
    if wants_trailers:
        keep.add(b"te")
    return _forward(head, keep, extra, replace, add)


def forward_response(head: Head, *, close: bool = False) -> bytes:
    """The response head for the client; ``close`` announces that the connection ends after it."""
    keep = {b"close", b"keep-alive"}
    extra: set[bytes] = set()
    if head.status in (101, 426):
        keep.add(b"upgrade")
    if not close:
        return _forward(head, keep, extra, {}, [])
    extra.add(b"connection")
    return _forward(head, set(), extra, {}, [(b"Connection", b"close")])


def _forward(
    head: Head,
    keep: set[bytes],
    extra: set[bytes],
    replace: dict[bytes, bytes],
    add: list[tuple[bytes, bytes]],
) -> bytes:
    options = head.tokens(b"connection")
    if b"te" in keep:
        replace = {**replace, b"te": b"trailers"}
    if (
        not replace
        and not extra.intersection(head.fields)
        and not _CHANGED.intersection(head.fields)
        and keep.issuperset(options)
    ):
        return head.raw[:-2] + b"".join([name + b": " + value + b"\r\n" for name, value in add]) + b"\r\n"
    drop = (_HOP | extra | (set(options) - _PROTECTED)) - (keep & {b"te", b"upgrade"})
    stay = [o for o in options if o in keep]
    out = [head.lines[0]]
    connection_done = stay == options  # then the Connection lines can stay as they are
    for line, name in zip(head.lines[1:], head.names, strict=True):
        if name == b"connection":
            if name in extra:
                continue
            if stay == options:
                out.append(line)
            elif stay and not connection_done:
                connection_done = True
                out.append(line[:10] + b": " + b", ".join(stay))
        elif name in replace:
            out.append(line[: len(name)] + b": " + replace[name])
        elif name not in drop:
            out.append(line)
    out.extend(name + b": " + value for name, value in add)
    return b"\r\n".join(out) + b"\r\n\r\n"
