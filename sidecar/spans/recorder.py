"""From the proxy's observations to exported spans, off the request's way.

The proxy's event loop only puts references into a bounded queue. One worker thread parses, redacts and
builds; what it builds goes into the exporter's queue. Redaction is done before anything is queued for
export, and what cannot be redacted is not exported.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sidecar.publish.resource import described
from sidecar.redaction.engine import Reason, Redactor
from sidecar.redaction.filter import Content, ContentFilter
from sidecar.redaction.patterns import load_patterns
from sidecar.redaction.structure import bare_url
from sidecar.requests.records import RequestRecord
from sidecar.spans.export import LinesSink, OtlpSink, Sink, SpanExporter, console_sink
from sidecar.spans.genai import (
    EngineState,
    RequestParameters,
    Scene,
    SpanStyle,
    build_span,
    is_identifier,
    request_parameters,
)
from sidecar.spans.joins import Joins, Ours
from sidecar.spans.sampling import kept
from sidecar.spans.semconv import convention
from sidecar.spans.settings import SpanSettings

if TYPE_CHECKING:
    from sidecar.proxy.observe import Started
    from sidecar.requests.slo import Verdict

_MOST_PENDING = 20_000
_MOST_MODELS = 256
_API_PATH = re.compile(
    r"(?:/v1|/v2)?/(?:chat/completions|completions|responses|messages|embeddings|rerank|score|pooling|classify|"
    r"tokenize|detokenize|audio/transcriptions|audio/translations|audio/speech)\Z"
)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the caller of ``record`` knows beside record and verdict; all of it may be missing."""

    slo_class: str = ""
    stall_s: float | None = None
    response_id: str = ""
    response_model: str = ""
    engine: EngineState | None = None  # at arrival; else the state noted by ``started``


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What the worker keeps of a request that has begun."""

    start_wall_ns: int
    parameters: RequestParameters = field(default_factory=RequestParameters)
    content: Content = field(default_factory=Content)
    engine: EngineState | None = None


@dataclass(frozen=True, slots=True)
class _Begin:
    started: Started
    wall_ns: int
    engine: EngineState | None


@dataclass(frozen=True, slots=True)
class _End:
    record: RequestRecord
    verdict: Verdict | None
    context: RequestContext
    wall_ns: int


class SpanRecorder:
    """``started`` from the proxy's ``on_start``, ``record`` from its ``on_record``: both return at once.

    ``engine_state`` gives the latest scraped state, called on arrival. ``dropped`` counts, by reason, the
    spans that were lost here; ``exporter.dropped`` those lost behind.
    ``on_ended`` gets, on the worker, each ended request and its model's name as it may be shown, sampled or
    not.
    """

    def __init__(
        self,
        settings: SpanSettings,
        *,
        server_address: str = "",
        server_port: int | None = None,
        engine_state: Callable[[], EngineState | None] = lambda: None,
        sink: Sink | None = None,
        make_redactor: Callable[[], Redactor] | None = None,
        on_ended: Callable[[RequestRecord, str], None] | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.settings = settings
        self.joins = Joins()
        self.dropped: Counter[str] = Counter()
        self.sampled_out = 0
        self.filter = ContentFilter(
            settings.level,
            make_redactor or (lambda: redactor_of(settings)),
            size_limit=settings.body_limit - 1,
        )
        self._style = SpanStyle(
            convention(settings.semconv),
            provider=settings.provider,
            server_address=server_address,
            server_port=server_port,
            level=settings.level,
            content_on_span=settings.content_on_span,
            content_on_event=settings.content_on_event,
            attribute_limit=settings.attribute_limit,
        )
        self._engine_state = engine_state
        self._on_ended = on_ended
        self._wall_ns = wall_ns
        self._clock_ns = clock_ns
        self.exporter = SpanExporter(
            sink or make_sink(settings),
            queue=settings.queue,
            batch=settings.batch,
            interval_s=settings.interval_s,
        )
        self._jobs: deque[_Begin | _End] = deque()
        self._job_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._pending: OrderedDict[str, _Beginning] = OrderedDict()
        self._models: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def started(self, started: Started) -> None:
        """A request's last byte has arrived. Where too much waits already, its content is dropped."""
        # The wall clock is read once for each request: the end is this plus a monotonic difference.
        wall_ns = self._wall_ns() - max(0, self._clock_ns() - started.start_ns)
        if started.trace is not None:
            self.joins.put(Ours(started.trace.trace_id, started.trace.span_id), started.request_id)
        job = _Begin(started, wall_ns, self._engine_state())
        with self._changed:
            size = len(started.body)
            full = (
                len(self._jobs) >= self.settings.work_queue
                or self._job_bytes + size > self.settings.work_bytes
            )
            if full or self._closing:
                self.filter.counts.failed(Reason.QUEUE_FULL)
                return
            self._job_bytes += size
            self._jobs.append(job)
            self._changed.notify()

    def record(
        self, record: RequestRecord, verdict: Verdict | None = None, context: RequestContext | None = None
    ) -> None:
        """A request has ended. Where too much waits already, its span is dropped and counted."""
        wall_ns = self._wall_ns() - max(0, self._clock_ns() - record.start_ns)
        job = _End(record, verdict, context or RequestContext(), wall_ns)
        with self._changed:
            # Ends may fill the queue twice as far: a begun request should get its span.
            if self._closing or len(self._jobs) >= 2 * self.settings.work_queue:
                self.dropped["closed" if self._closing else "queue_full"] += 1
                return
            self._jobs.append(job)
            self._changed.notify()

    def flush(self, limit_s: float) -> bool:
        """Work off what waits and send it; True if done within ``limit_s`` seconds."""
        end = time.monotonic() + limit_s
        with self._changed:
            while self._jobs or self._busy:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return self.exporter.flush(max(0.0, end - time.monotonic()))

    def close(self, limit_s: float = 5.0) -> None:
        """Flush for at most ``limit_s`` seconds, then end; what is left is counted as dropped."""
        self.flush(limit_s / 2)
        with self._changed:
            self._closing = True
            if lost := sum(1 for job in self._jobs if isinstance(job, _End)):
                self.dropped["closed"] += lost
            self._jobs.clear()
            self._changed.notify_all()
        self._thread.join(timeout=max(1.0, limit_s / 2))
        self.exporter.close(limit_s / 2)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._jobs and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                job = self._jobs.popleft()
                self._busy = True
                if isinstance(job, _Begin):
                    self._job_bytes -= len(job.started.body)
            try:
                if isinstance(job, _Begin):
                    self._begin(job)
                else:
                    self._end(job)
            except Exception:  # the worker lives on; the message is not kept, it could hold content
                self.dropped["error"] += 1

    def _begin(self, job: _Begin) -> None:
        body = job.started.body
        parsed: Any = None
        if len(body) < self.settings.body_limit:
            try:
                parsed = json.loads(body)
            except (ValueError, RecursionError):
                parsed = None
        content = self.filter.request(body) if self.settings.captures else Content()
        self._pending[_key(job.started.trace, job.started.request_id)] = _Beginning(
            job.wall_ns, request_parameters(parsed), content, job.engine
        )
        while len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)

    def _end(self, job: _End) -> None:
        record, extra = job.record, job.record.extra
        beginning = self._pending.pop(extra.get("span_id") or record.request_id, None)
        if beginning is None:
            lost = Content(failed=Reason.QUEUE_FULL) if self.settings.captures else Content()
            beginning = _Beginning(job.wall_ns, content=lost)
        trace_id = extra.get("trace_id") or secrets.token_hex(16)
        span_id = extra.get("span_id") or secrets.token_hex(8)
        parent = extra.get("parent_span_id", "")
        model = self._shown_model(record.model)
        if self._on_ended is not None:
            self._on_ended(record, model)
        sampled = bool(int(extra.get("trace_flags") or "01", 16) & 1)
        keep = kept(
            record,
            job.verdict,
            trace_id=trace_id,
            parent_sampled=sampled if parent and self.settings.follow_parent else None,
            ratio=self.settings.sample_ratio,
            keep_bad=self.settings.keep_bad,
        )
        usage = record.output_tokens is not None and not record.tokens_estimated
        self.joins.put(Ours(trace_id, span_id, True, usage, keep), record.request_id)
        if not keep:
            self.sampled_out += 1
            return
        context = job.context
        scene = Scene(
            start_wall_ns=beginning.start_wall_ns,
            trace_id=trace_id,
            span_id=span_id,
            parent_span_id=parent,
            flags=1,
            parameters=beginning.parameters,
            content=self._content(beginning.content, record),
            model=model,
            response_id=self._shown(context.response_id or extra.get("response_id", "")),
            response_model=self._shown_model(context.response_model or extra.get("response_model", "")),
            engine=context.engine or beginning.engine,
            slo_class=self._shown(context.slo_class),
            stall_ns=None if context.stall_s is None else round(context.stall_s * 1e9),
            path=self._shown_path(record.path),
        )
        record = replace(record, request_id=self._shown(record.request_id))
        self.exporter.put(build_span(record, job.verdict, scene, self._style))

    def _content(self, content: Content, record: RequestRecord) -> Content:
        if not self.settings.captures:
            return content
        output = [
            (choice.text, choice.finish_reason)
            for choice in sorted(record.choices, key=lambda c: c.index)
            if choice.text is not None
        ]
        if not output:
            return content
        return self.filter.with_output(content, output, cut_at=self.settings.output_limit)

    def _shown(self, text: str) -> str:
        """An identifier that came from outside: redacted, and only if it looks like one."""
        return (self.filter.text(text) or "") if is_identifier(text) else ""

    def _shown_path(self, path: str) -> str:
        """The API's own part of the path. What stands before it is anyone's text, so only levels that let
        text out show it, redacted."""
        if self.settings.level.has_text:
            return self.filter.url(path) or ""
        own = _API_PATH.search(bare_url(path))
        return own.group() if own else ""

    def _shown_model(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= _MOST_MODELS:
                self._models.clear()
            self._models[model] = self._shown(model) or ("_OTHER" if model else "")
        return self._models[model]


def _key(trace: Any, request_id: str) -> str:
    return trace.span_id if trace is not None else request_id


def redactor_of(settings: SpanSettings) -> Redactor:
    """The redactor the settings ask for. Raises EngineMissing or SettingsError."""
    custom = load_patterns(settings.patterns)[1] if settings.patterns else ()
    return Redactor(key=settings.key, regions=settings.regions, custom=custom, deny=settings.deny)


def resource_of(settings: SpanSettings) -> Mapping[str, Any]:
    """The resource attributes of everything that is exported."""
    return described({**settings.resource, "service.name": settings.service_name})


class _Nowhere:
    """The sink of exporter ``none``."""

    logs_lost = 0

    def send(self, spans: Any) -> None:
        """Takes all, keeps nothing."""

    def close(self) -> None:
        """Nothing is held."""


def make_sink(settings: SpanSettings) -> Sink:
    """The sink for ``settings.exporter``."""
    if settings.exporter == "none":
        return _Nowhere()
    resource = resource_of(settings)
    if settings.exporter == "otlp":
        assert settings.otlp is not None
        return OtlpSink(settings.otlp, resource, settings.otlp_logs if settings.content_on_event else None)
    if settings.exporter == "file":
        assert settings.file is not None
        return LinesSink(settings.file, resource)
    return console_sink(resource)
