"""The way out for spans: a bounded queue, one worker, and where it sends to.

Whoever hands in a span never waits: a full queue drops it and counts. A collector that is down or slow
costs spans, not requests.

The SDK's exporters are not used: they answer failures with one word, so that drops could not be counted by
reason, and log the collector's text, which may repeat content. They also take a wrong variable without a word
and would need every span, ours and forwarded ones, remade as the SDK's; its resource detection is used.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from sidecar.errors import SettingsError
from sidecar.spans.model import Span
from sidecar.spans.otlp import as_json, logs_json, logs_request, trace_request
from sidecar.spans.settings import OtlpSettings
from sidecar.spans.transport import Undelivered, make_transport

_RETRIES = 4
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0


class Sink(Protocol):
    """Takes a batch. ``send`` raises Undelivered; one that may work later says so. ``logs_lost`` counts
    batches of log records that were not taken."""

    logs_lost: int

    def send(self, spans: Sequence[Span]) -> None:
        """Deliver the batch or raise Undelivered."""

    def close(self) -> None:
        """Give back what is held."""


class OtlpSink:
    """OTLP over HTTP (protobuf) or gRPC. ``logs``: where log records go."""

    def __init__(
        self, settings: OtlpSettings, resource: Mapping[str, Any], logs: OtlpSettings | None = None
    ) -> None:
        self._transport = make_transport(settings)
        self._logs = make_transport(logs, "logs") if logs is not None else None
        self._resource = dict(resource)
        self.logs_lost = 0

    def send(self, spans: Sequence[Span]) -> None:
        """One export request with all spans, then one with their log records.

        Only the first can fail: sent again, spans that were taken would be there twice.
        """
        self._transport.send(trace_request(spans, self._resource).SerializeToString())
        logs = logs_request(spans, self._resource) if self._logs is not None else None
        if logs is not None and self._logs is not None:
            try:
                self._logs.send(logs.SerializeToString())
            except Undelivered:
                self.logs_lost += 1

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()
        if self._logs is not None:
            self._logs.close()


class LinesSink:
    """One OTLP/JSON message a line, to a file or the console. The file is made readable to its owner only.

    A file holds whole lines only, whatever happens: what a full disk took half of is cut off again.
    """

    def __init__(self, target: Path | IO[str], resource: Mapping[str, Any]) -> None:
        self.logs_lost = 0
        self._resource = dict(resource)
        self._out = _Lines(target) if isinstance(target, Path) else target

    def send(self, spans: Sequence[Span]) -> None:
        """Each span in a line of its own."""
        try:
            for span in spans:
                self._out.write(json.dumps(as_json([span], self._resource)) + "\n")
                if span.logs:
                    self._out.write(json.dumps(logs_json(span, self._resource)) + "\n")
            self._out.flush()
        except (OSError, ValueError):
            raise Undelivered("write", again=False) from None

    def close(self) -> None:
        """Close the file; the console stays open."""
        if isinstance(self._out, _Lines):
            self._out.close()


class _Lines:
    """A file that is appended to in whole lines, without a buffer that could keep half of one."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise SettingsError(f"spans file {path}: cannot write: {error.strerror}") from None
        self._torn = False

    def write(self, line: str) -> None:
        """Append the line. Raises OSError when not all of it could be written; nothing of it stays then."""
        # Where half a line could not be cut off (a pipe), at least the next one begins anew.
        data = b"\n" * self._torn + line.encode()
        self._torn = False
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            if written:
                self._cut_off(written)
            raise

    def _cut_off(self, count: int) -> None:
        try:
            os.ftruncate(self._file, os.fstat(self._file).st_size - count)
        except OSError:
            self._torn = True

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def console_sink(resource: Mapping[str, Any]) -> LinesSink:
    """Spans as lines on standard output."""
    return LinesSink(sys.stdout, resource)


@dataclass(slots=True)
class _Limits:
    queue: int
    batch: int
    interval_s: float


class SpanExporter:
    """Queue and worker thread before one sink.

    ``sent`` counts delivered spans, ``dropped`` the others by reason: ``queue_full``, ``undelivered``,
    ``rejected`` (the collector will never take them), ``closed``.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        queue: int = 2048,
        batch: int = 512,
        interval_s: float = 5.0,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._sink = sink
        self._limits = _Limits(queue, min(batch, queue), interval_s)
        self._waiting: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._flush = False
        self._stop = threading.Event()
        self._sleep = sleep or self._stop.wait
        self.sent = 0
        self.dropped: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    @property
    def logs_lost(self) -> int:
        """Batches of log records that the collector did not take."""
        return self._sink.logs_lost

    @property
    def waiting(self) -> int:
        """Spans in the queue."""
        return len(self._waiting)

    def put(self, span: Span) -> bool:
        """Queue a span; False where it was dropped. Never waits for the collector."""
        with self._changed:
            if self._closing:
                self.dropped["closed"] += 1
                return False
            if len(self._waiting) >= self._limits.queue:
                self.dropped["queue_full"] += 1
                return False
            self._waiting.append(span)
            if len(self._waiting) >= self._limits.batch:
                self._changed.notify()
        return True

    def flush(self, limit_s: float) -> bool:
        """Send what waits now; True if all of it was dealt with within ``limit_s`` seconds."""
        end = time.monotonic() + limit_s
        with self._changed:
            self._flush = True
            self._changed.notify_all()
            while self._waiting or self._busy:
                left = end - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return not self._waiting and not self._busy
        return True

    def close(self, limit_s: float = 5.0) -> None:
        """Flush for at most ``limit_s`` seconds, count the rest as dropped, end the worker."""
        self.flush(limit_s)
        with self._changed:
            self._closing = True
            if self._waiting:
                self.dropped["closed"] += len(self._waiting)
                self._waiting.clear()
            self._changed.notify_all()
        self._stop.set()
        self._thread.join(timeout=max(1.0, limit_s))
        if not self._thread.is_alive():
            self._sink.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and self._flush:
                    self._flush = False
                    self._changed.notify_all()
                if len(self._waiting) < self._limits.batch and not self._closing and not self._flush:
                    self._changed.wait(self._limits.interval_s)
                if self._closing and not self._waiting:
                    return
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.batch))]
                self._busy = bool(batch)
            if batch:
                self._deliver(batch)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _deliver(self, batch: list[Span]) -> None:
        pause_s = _FIRST_PAUSE_S
        for attempt in range(_RETRIES + 1):
            try:
                self._sink.send(batch)
            except Undelivered as failure:
                if not failure.again:
                    self.dropped["rejected"] += len(batch)
                    return
                if attempt == _RETRIES or self._stop.is_set():
                    break
                self._sleep(failure.after_s if failure.after_s is not None else pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            except Exception:  # a fault of ours must not end the worker; its text could hold content
                self.dropped["error"] += len(batch)
                return
            else:
                self.sent += len(batch)
                return
        self.dropped["undelivered"] += len(batch)
