"""A GPU exporter behind a real socket, served by a thread; what it serves can be changed at any time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Exporter:
    """``page`` is asked for at each scrape; ``status`` and ``cut`` make it misbehave."""

    url: str
    page: Callable[[], bytes]
    status: int = 200
    cut: bool = False
    scrapes: int = 0
    hang: threading.Event | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def exporter(page: Callable[[], bytes]) -> Iterator[Exporter]:
    """Serve ``page()`` at ``/metrics``."""
    made: list[Exporter] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served = made[0]
            with served._lock:
                served.scrapes += 1
                body = served.page()
            if served.hang is not None:
                served.hang.wait(30)
            with contextlib.suppress(ConnectionError):
                self.send_response(served.status if self.path == "/metrics" else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if served.cut else body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.append(Exporter(f"http://127.0.0.1:{server.server_address[1]}", page))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made[0]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
