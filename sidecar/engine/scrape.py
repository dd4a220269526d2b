"""Fetch an engine's metrics page on a schedule and say what it holds, or why nothing is known.

A snapshot is either ``up`` with a fresh view, or down with a reason and no view at all: never old values.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import httpx

from sidecar.engine.body import DEFAULT_MAX_BYTES, PageError
from sidecar.engine.exposition import Page, Parser
from sidecar.engine.mapping import map_page
from sidecar.engine.view import EngineView
from sidecar.errors import SettingsError
from sidecar.urls import NO_USER, has_user, shown, split_http

_log = logging.getLogger(__name__)

_TOKEN = re.compile(r"[!-~]+")

_ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1"
_VERSION_MAX_BYTES = 64 * 1024
_VERSION_EVERY_S = 600.0
_BACKOFF_LIMIT_S = 30.0
# A connection per request: a kept one would race against the server's keep-alive limit, which in uvicorn is
# 5 s, as long as the usual interval.
_NEW_CONNECTIONS = httpx.Limits(max_keepalive_connections=0)


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What one scrape found. ``at_ns`` (monotonic) and ``wall_s`` (Unix) are when the page had arrived.

    ``up`` false: ``view`` is ``None``, ``reason`` is one sentence and ``code`` a short bounded word
    (``connect``, ``tls``, ``timeout``, ``auth``, ``status``, ``cut``, ``not_metrics``, ``encoding``,
    ``too_large``, ``read``, ``sleeping``, ``unhealthy``, ``internal``).
    """

    at_ns: int
    up: bool
    reason: str
    version: str | None
    view: EngineView | None
    duration_s: float
    bytes: int = 0
    lines: int = 0
    samples: int = 0
    skipped_lines: int = 0
    wall_s: float = 0.0
    code: str = ""


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How to reach the page. ``timeout_s`` ``None``: four fifths of the interval, at most 10 s.

    ``health_path`` (say ``/health``): a 5xx there counts as down although the page still answers, as it
    does when only vLLM's engine process has died. Not asked where the page is another server's, some of
    which run a request for it; no answer, or a late one, says nothing: the page did come.
    """

    base_url: str
    interval_s: float = 5.0
    timeout_s: float | None = None
    metrics_path: str = "/metrics"
    version_path: str | None = "/version"
    health_path: str | None = None
    bearer_token: str | None = field(default=None, repr=False)
    bearer_token_file: Path | None = None  # read anew for every scrape: projected tokens are rotated
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    verify_tls: bool = True
    max_bytes: int = DEFAULT_MAX_BYTES

    @property
    def limit_s(self) -> float:
        """The time one scrape may take as a whole."""
        return min(0.8 * self.interval_s, 10.0) if self.timeout_s is None else self.timeout_s

    @property
    def aside_s(self) -> float:
        """The time that asking for the version, or for health, may take beside the page."""
        return min(2.0, 0.1 * self.interval_s)

    def url(self, path: str) -> str:
        """``base_url`` with a path; a base that already ends in the metrics path is taken as its parent."""
        return self.base_url.rstrip("/").removesuffix(self.metrics_path).rstrip("/") + path

    def check(self) -> None:
        """Raise :class:`SettingsError` for what cannot work."""
        if has_user(self.base_url):
            raise SettingsError(f"engine URL {shown(self.base_url)!r}: {NO_USER}")
        if split_http(self.base_url) is None:
            raise SettingsError(f"engine URL {self.base_url!r}: must look like http://127.0.0.1:8000")
        if self.interval_s <= 0:
            raise SettingsError(f"scrape interval {self.interval_s:g} s: must be above 0")
        if not 0 < self.limit_s < self.interval_s:
            raise SettingsError(
                f"scrape timeout {self.limit_s:g} s: must be below the interval, {self.interval_s:g} s"
            )

    def headers(self) -> dict[str, str]:
        """Request headers, with the token as it stands now."""
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip", "User-Agent": "goodput-sidecar"}
        try:
            token = self.token()
        except SettingsError as error:
            raise _Failed("auth", str(error)) from None
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def token(self) -> str | None:
        """The bearer token as it stands now. Raises :class:`SettingsError`, which never shows it."""
        where, token = "the token", self.bearer_token
        if self.bearer_token_file is not None:
            where = f"token file {self.bearer_token_file}"
            try:
                token = self.bearer_token_file.read_bytes().decode("latin-1").strip()
            except OSError as error:
                raise SettingsError(f"{where}: {error.strerror}") from None
            if not token:
                raise SettingsError(f"{where}: is empty")
        if token and _TOKEN.fullmatch(token) is None:
            raise SettingsError(f"{where}: is no bearer token, which is one word of ASCII without blanks")
        return token

    def tls(self) -> ssl.SSLContext | bool:
        """What httpx verifies with."""
        if not self.base_url.startswith("https"):
            return False  # nothing to verify; True would load the system's certificates for every scrape
        where = f"CA file {self.ca_file}"
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            if self.cert_file is not None:
                where = f"client certificate {self.cert_file}"
                if self.key_file is not None:
                    where += f" with key {self.key_file}"
                # Without a password of ours OpenSSL would ask for one on the terminal, and wait.
                context.load_cert_chain(self.cert_file, self.key_file, password="")
        except ssl.SSLError as error:
            raise SettingsError(f"TLS: {where}: not usable as PEM: {error.reason or error}") from None
        except OSError as error:
            raise SettingsError(f"TLS: {where}: cannot be read: {error.strerror or error}") from None
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(slots=True)
class ScrapeStats:
    """The scraper's own counters and last readings, for the sidecar's page."""

    scrapes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    skipped_lines: int = 0
    last_duration_s: float | None = None
    last_bytes: int | None = None
    last_lines: int | None = None
    last_success_ns: int | None = None
    callback_errors: int = 0

    def age_s(self, now_ns: int) -> float | None:
        """Seconds since the last good page; ``None`` before the first."""
        return None if self.last_success_ns is None else (now_ns - self.last_success_ns) / 1e9

    def note(self, snapshot: EngineSnapshot) -> None:
        """Count one scrape."""
        self.scrapes += 1
        self.last_duration_s = snapshot.duration_s
        self.skipped_lines += snapshot.skipped_lines
        if snapshot.up:
            self.last_success_ns = snapshot.at_ns
            self.last_bytes, self.last_lines = snapshot.bytes, snapshot.lines
        else:
            self.failures[snapshot.code] = self.failures.get(snapshot.code, 0) + 1


class Scraper:
    """Scrapes one engine. ``stats`` and ``last`` may be read at any time."""

    def __init__(
        self,
        base_url: str,
        *,
        interval_s: float = 5.0,
        timeout_s: float | None = None,
        settings: ScrapeSettings | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        rng: random.Random | None = None,
    ) -> None:
        """``settings`` replaces the other arguments. Raises :class:`SettingsError`."""
        self.settings = settings or ScrapeSettings(base_url, interval_s=interval_s, timeout_s=timeout_s)
        self.settings.check()
        self.stats = ScrapeStats()
        self.last: EngineSnapshot | None = None
        self._tls = self.settings.tls()
        self._clock_ns = clock_ns
        self._rng = rng or random.Random()
        self._parser = Parser(max_bytes=self.settings.max_bytes)
        self._version = _Version()
        self._running: asyncio.Task[EngineSnapshot] | None = None

    async def scrape_once(self) -> EngineSnapshot:
        """One scrape. A call while one is in flight waits for that one: never two at a time."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scrape())
        return await asyncio.shield(self._running)

    async def run(self, on_snapshot: Callable[[EngineSnapshot], None], stop: asyncio.Event) -> None:
        """Scrape every interval until ``stop`` is set, backing off while the engine is down."""
        failures = 0
        while not stop.is_set():
            started = time.monotonic()
            snapshot = await self.scrape_once()
            try:
                on_snapshot(snapshot)
            except Exception:
                self.stats.callback_errors += 1
                _log.exception("a scrape could not be taken in")
            failures = 0 if snapshot.up else failures + 1
            wait_s = max(0.0, started + self.delay_s(failures) - time.monotonic())
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)
        if self._running is not None and not self._running.done():
            self._running.cancel()

    def delay_s(self, failures: int) -> float:
        """Seconds from the start of one scrape to the next, after so many failures in a row."""
        interval_s = self.settings.interval_s
        if failures == 0:
            return interval_s
        longest_s = max(interval_s, _BACKOFF_LIMIT_S)
        # Jitter keeps the sidecars of a deployment from knocking all at once when the engines come back.
        return min(interval_s * 2.0 ** min(failures - 1, 10), longest_s) * self._rng.uniform(0.5, 1.0)

    async def _scrape(self) -> EngineSnapshot:
        settings = self.settings
        started_ns = self._clock_ns()
        page: Page | None = None
        try:
            async with self._client() as client:
                async with asyncio.timeout(settings.limit_s):
                    page = await self._fetch(client)
                duration_s = (self._clock_ns() - started_ns) / 1e9
                await self._ask_version(client, page)
                snapshot = _read(page, self._version.text, self._clock_ns(), duration_s)
                if snapshot.view is not None and snapshot.view.server in ("vllm", ""):
                    await self._ask_health(client)
        except Exception as error:
            failed = _failure(error, settings.limit_s)
            if page is None:
                self._version.asked_ns = None  # whatever comes back may be another release
            now_ns = self._clock_ns()
            snapshot = _down(failed, self._version.text, now_ns, (now_ns - started_ns) / 1e9)
        self.stats.note(snapshot)
        self.last = snapshot
        return snapshot

    def _client(self) -> httpx.AsyncClient:
        settings = self.settings
        return httpx.AsyncClient(
            timeout=settings.limit_s,
            verify=self._tls,
            trust_env=False,
            headers=settings.headers(),
            limits=_NEW_CONNECTIONS,
        )

    async def _fetch(self, client: httpx.AsyncClient) -> Page:
        settings = self.settings
        async with client.stream("GET", settings.url(settings.metrics_path)) as response:
            _check_status(response)
            body = _Body(settings.max_bytes)
            async for chunk in response.aiter_raw():
                body.add(chunk)
        return self._parser.parse(body.bytes(), **_page_headers(response))

    async def _ask_version(self, client: httpx.AsyncClient, page: Page) -> None:
        settings, version = self.settings, self._version
        start_s = _start_time(page)
        if settings.version_path is None or not version.due(start_s, self._clock_ns()):
            return
        # A server that has no answer for this has a page all the same.
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(settings.aside_s):
                response = await client.get(settings.url(settings.version_path))
            version.take(_version_in(response), start_s, self._clock_ns())

    async def _ask_health(self, client: httpx.AsyncClient) -> None:
        settings = self.settings
        if settings.health_path is None:
            return
        # A busy server may be late here, and one without this path answers 404: neither is a dead engine.
        with suppress(httpx.HTTPError, TimeoutError):
            async with (
                asyncio.timeout(settings.aside_s),
                client.stream("GET", settings.url(settings.health_path)) as response,
            ):
                if response.status_code >= 500:
                    raise _Failed("unhealthy", f"{settings.health_path} answers {response.status_code}")


def fetch_view(base_url: str, timeout_s: float = 5.0) -> EngineSnapshot:
    """One scrape, synchronously (for the load generator and the command line). Never raises for a bad
    engine; raises :class:`SettingsError` for a bad URL."""
    settings = ScrapeSettings(base_url, interval_s=2 * timeout_s, timeout_s=timeout_s)
    settings.check()
    snapshot, _ = fetch_page(settings)
    return snapshot


def fetch_page(settings: ScrapeSettings) -> tuple[EngineSnapshot, Page | None]:
    """The same with every setting, and with the page itself where there is a whole one."""
    started = time.monotonic()
    deadline = started + settings.limit_s
    page: Page | None = None
    version: str | None = None
    try:
        with httpx.Client(
            timeout=settings.limit_s,
            verify=settings.tls(),
            trust_env=False,
            headers=settings.headers(),
            limits=_NEW_CONNECTIONS,
        ) as client:
            with client.stream("GET", settings.url(settings.metrics_path)) as response:
                _check_status(response)
                body = _Body(settings.max_bytes)
                for chunk in response.iter_raw():
                    body.add(chunk)
                    if time.monotonic() > deadline:
                        raise TimeoutError
            page = Parser(max_bytes=settings.max_bytes).parse(body.bytes(), **_page_headers(response))
            duration_s = time.monotonic() - started
            if settings.version_path is not None:
                with suppress(httpx.HTTPError):
                    left_s = max(0.05, deadline - time.monotonic())
                    version = _version_in(client.get(settings.url(settings.version_path), timeout=left_s))
        return _read(page, version, time.monotonic_ns(), duration_s), page
    except SettingsError:
        raise
    except Exception as error:
        failed = _failure(error, settings.limit_s)
        return _down(failed, version, time.monotonic_ns(), time.monotonic() - started), page


class _PageHeaders(TypedDict):
    content_type: str
    content_encoding: str
    content_length: int | None


class _Failed(Exception):
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Body:
    """Collects a response up to a limit."""

    def __init__(self, max_bytes: int) -> None:
        self._chunks: list[bytes] = []
        self._room = max_bytes
        self._max_bytes = max_bytes

    def add(self, chunk: bytes) -> None:
        self._room -= len(chunk)
        if self._room < 0:
            raise PageError(f"page larger than {self._max_bytes} bytes", "too_large")
        self._chunks.append(chunk)

    def bytes(self) -> bytes:
        return b"".join(self._chunks)


@dataclass(slots=True)
class _Version:
    """The engine's version, asked for again after a restart and from time to time."""

    text: str | None = None
    start_s: float | None = None
    asked_ns: int | None = None

    def due(self, start_s: float | None, now_ns: int) -> bool:
        return (
            self.asked_ns is None
            or start_s != self.start_s
            or now_ns - self.asked_ns > _VERSION_EVERY_S * 1e9
        )

    def take(self, text: str | None, start_s: float | None, now_ns: int) -> None:
        self.text, self.start_s, self.asked_ns = text, start_s, now_ns


def _page_headers(response: httpx.Response) -> _PageHeaders:
    length = response.headers.get("content-length", "")
    return {
        "content_type": response.headers.get("content-type", ""),
        "content_encoding": response.headers.get("content-encoding", ""),
        "content_length": int(length) if length.isdecimal() and length.isascii() else None,
    }


def _check_status(response: httpx.Response) -> None:
    status = response.status_code
    if status == 200:
        return
    if status in (401, 403):
        raise _Failed("auth", f"HTTP {status}: a bearer token is missing or wrong")
    if 300 <= status < 400:
        raise _Failed("status", f"HTTP {status}: redirects are not followed")
    raise _Failed("status", f"HTTP {status}")


def _version_in(response: httpx.Response) -> str | None:
    if response.status_code != 200 or len(response.content) > _VERSION_MAX_BYTES:
        return None
    try:
        found = json.loads(response.content)
    except (ValueError, RecursionError):
        return None
    text = found.get("version") if isinstance(found, dict) else None
    return text[:100] if isinstance(text, str) else None


def _start_time(page: Page) -> float | None:
    rows = page.by_name.get("process_start_time_seconds")
    return page.values[rows[0]] if rows else None


def _read(page: Page, version: str | None, now_ns: int, duration_s: float) -> EngineSnapshot:
    view = map_page(page, version)
    asleep = bool(view.sleeping) and view.sleeping.issuperset(view.engines)
    return EngineSnapshot(
        at_ns=now_ns,
        up=not asleep,
        reason="the engine sleeps" if asleep else "",
        code="sleeping" if asleep else "",
        version=version,
        view=None if asleep else view,
        duration_s=duration_s,
        bytes=page.byte_count,
        lines=page.line_count,
        samples=len(page),
        skipped_lines=page.skipped_count,
        wall_s=time.time(),
    )


def _down(failed: _Failed, version: str | None, now_ns: int, duration_s: float) -> EngineSnapshot:
    return EngineSnapshot(
        now_ns, False, failed.reason, version, None, duration_s, wall_s=time.time(), code=failed.code
    )


def _failure(error: Exception, limit_s: float) -> _Failed:
    if isinstance(error, _Failed):
        return error
    if isinstance(error, PageError):
        return _Failed(error.code, error.reason)
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return _Failed("timeout", f"no whole page within {limit_s:g} s")
    if isinstance(error, httpx.ConnectError):
        if "SSL" in str(error) or "certificate" in str(error).lower():
            return _Failed("tls", f"TLS: {str(error)[:200]}")
        return _Failed("connect", f"no connection: {str(error)[:200]}")
    if isinstance(error, httpx.RemoteProtocolError):
        return _Failed("cut", f"cut page: {str(error)[:200]}")
    if isinstance(error, httpx.HTTPError):
        return _Failed("read", f"{type(error).__name__}: {str(error)[:200]}")
    _log.exception("a scrape failed in an unforeseen way")
    return _Failed("internal", f"{type(error).__name__}: {str(error)[:200]}")
