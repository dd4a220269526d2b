"""The few answers the proxy gives itself, in the shape OpenAI clients read. Pure."""

from __future__ import annotations

import json
from http import HTTPStatus

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def answer(status: HTTPStatus, message: str, *, with_body: bool = True, extra: bytes = b"") -> bytes:
    """A whole response that ends the connection. ``with_body`` false: the answer to HEAD. ``extra``:
    header lines."""
    error = {"message": message, "type": "goodput_sidecar", "param": None, "code": int(status)}
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {int(status)} {status.phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    ).encode()
    return head + extra + b"\r\n" + (body if with_body else b"")
