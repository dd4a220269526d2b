"""The proxy inside the running sidecar: its settings arrive there, and no secret leaves by another way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.support.sidecar_process import sidecar_process, wait_for

SECRET = "hush-4711-secret"
SECRETS = {
    "authorization": f"Bearer {SECRET}",
    "proxy-authorization": f"Basic {SECRET}",
    "cookie": f"session={SECRET}",
    "x-api-key": SECRET,
    "api-key": SECRET,
}


@contextmanager
def recording_server() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers every POST, and the fields of each."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("content-length", 0)))
            if "broken" in self.path:
                self.wfile.write(f"HTTP/1.1 200 OK\r\n{SECRET}\r\n\r\n".encode())
                self.close_connection = True
                return
            body = b'{"error": {"message": "no"}}'
            self.send_response(401)
            self.send_header("Set-Cookie", f"session={SECRET}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


def ask(base: str, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    body = {"model": "demo", "messages": []}
    return httpx.post(base + path, json=body, headers=headers, timeout=30, trust_env=False)


def test_settings_arrive_at_the_proxy() -> None:
    with recording_server() as (upstream, seen):
        with sidecar_process(upstream) as sidecar:
            ask(sidecar.proxy)
            assert seen[-1]["host"] == urlsplit(sidecar.proxy).netloc
            assert len(seen[-1]["x-request-id"]) == 16
            assert "x-forwarded-for" not in seen[-1]
        flags = ("--host-header", "upstream", "--forwarded", "true", "--set-request-id", "false")
        environ = {"GOODPUT_MAX_HEAD_BYTES": "2000", "GOODPUT_MAX_CONNECTIONS": "2"}
        with sidecar_process(upstream, *flags, env=environ) as sidecar:
            ask(sidecar.proxy)
            assert seen[-1]["host"] == urlsplit(upstream).netloc
            assert seen[-1]["x-forwarded-for"] == "127.0.0.1"
            assert seen[-1]["x-forwarded-host"] == urlsplit(sidecar.proxy).netloc
            assert "x-request-id" not in seen[-1]
            assert ask(sidecar.proxy, x="y" * 3000).status_code == 431
            where = (urlsplit(sidecar.proxy).hostname, urlsplit(sidecar.proxy).port)
            with socket.create_connection(where), socket.create_connection(where):
                wait_for(lambda: ask(sidecar.proxy).status_code == 503)
        short = ("--idle-timeout-s", "0.3", "--head-timeout-s", "0.3", "--connect-timeout-s", "0.3")
        with sidecar_process(upstream, *short) as sidecar:
            with socket.create_connection(where_of(sidecar.proxy), timeout=20) as silent:
                assert silent.recv(10) == b""
            with socket.create_connection(where_of(sidecar.proxy), timeout=20) as slow:
                slow.sendall(b"POST ")
                assert slow.recv(12) == b"HTTP/1.1 408"
            with socket.create_connection(where_of(sidecar.proxy), timeout=20) as stopped:
                stopped.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")
                assert stopped.recv(12) == b"HTTP/1.1 504"


def where_of(url: str) -> tuple[str | None, int | None]:
    return urlsplit(url).hostname, urlsplit(url).port


def judged(page: dict[str, float]) -> float:
    """Requests that the sidecar has seen to their end."""
    return sum(value for name, value in page.items() if "eligible_requests_total{" in name)


def test_no_secret_in_a_log_a_metric_or_a_span(tmp_path: Path) -> None:
    spans = tmp_path / "spans.jsonl"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound but not listening
        dead = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with recording_server() as (upstream, seen):
            for server in (upstream, dead):
                flags = ("--spans-file", str(spans), "--content", "shape", "--scrape-interval-s", "0.5")
                with sidecar_process(server, *flags) as sidecar:
                    for path in ("/v1/chat/completions", "/broken/v1/completions", "/other"):
                        ask(sidecar.proxy, f"{path}?api_key={SECRET}", **SECRETS)
                    fields = "".join(f"{name}: {value}\r\n" for name, value in SECRETS.items())
                    for head in (
                        "GET http://a/ HTTP/1.1\r\n",
                        "GET / HTTP/1.1\r\nX : y\r\n",
                        f"GET /{SECRET}",
                    ):
                        with socket.create_connection(where_of(sidecar.proxy), timeout=20) as client:
                            client.sendall(f"{head}{fields}\r\n".encode())
                            client.shutdown(socket.SHUT_WR)
                            while client.recv(65536):
                                pass
                    wait_for(lambda page=sidecar.metrics: judged(page()) >= 2)  # type: ignore[misc]
                    written = "".join(sidecar.get(path).text for path in ("/", "/metrics", "/goodput.json"))
                    assert sidecar.end() == 0
                    assert sidecar.process.stdout is not None
                    assert sidecar.process.stderr is not None
                    written += sidecar.process.stdout.read() + sidecar.process.stderr.read()
                    assert "goodput_proxy_refused_total" in written
                    assert SECRET not in written
            assert seen[0]["authorization"] == SECRETS["authorization"]
            assert "proxy-authorization" not in seen[0]
    written = spans.read_text()
    assert written.count("demo") >= 2
    assert SECRET not in written
