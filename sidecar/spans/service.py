"""All of spans in one part for the runtime: recorder, receiver, and their lines on the metrics page."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.errors import SettingsError
from sidecar.publish.exposition import Family
from sidecar.redaction.engine import Redactor
from sidecar.redaction.filter import Level
from sidecar.redaction.patterns import load_patterns
from sidecar.requests.records import RequestRecord
from sidecar.requests.slo import DEFAULT_SLO, SloClass, Verdict, judge
from sidecar.spans.coldstart import ColdStart
from sidecar.spans.export import Sink
from sidecar.spans.genai import EngineState
from sidecar.spans.genai_metrics import GenAiMetrics
from sidecar.spans.intake import Intake
from sidecar.spans.metrics_push import MetricsPush
from sidecar.spans.receiver import OtlpReceiver, ReceiverSettings
from sidecar.spans.recorder import RequestContext, SpanRecorder, resource_of
from sidecar.spans.semconv import DEFAULT_VERSION, convention
from sidecar.spans.settings import OtlpSettings, SpanSettings, from_environment

if TYPE_CHECKING:
    from sidecar.proxy.observe import Started
    from sidecar.proxy.server import Proxy
    from sidecar.proxy.settings import ProxySettings


@dataclass(frozen=True, slots=True)
class SpanOptions:
    """What an operator writes, as text; the standard ``OTEL_*`` variables come on top."""

    content: str = ""
    """drop (default), shape, redact or full."""
    allow_full_content: bool = False
    semconv: str = ""
    provider: str = ""
    spans_file: str = ""
    """A JSON-lines file for spans; else the exporter of the variables."""
    redaction_key_file: str = ""
    redaction_regions: str = ""
    redaction_deny_file: str = ""
    redaction_patterns: str = ""
    receiver_host: str = ""
    """Where vLLM's spans are received; empty: not at all."""
    receiver_grpc_port: int = 4317
    receiver_http_port: int = 4318


def span_settings(options: SpanOptions, environ: Mapping[str, str]) -> SpanSettings:
    """Options and environment joined. Raises SettingsError naming the option or variable."""
    settings = SpanSettings(
        semconv=options.semconv or DEFAULT_VERSION,
        provider=options.provider or "vllm",
        key=_file("redaction_key_file", options.redaction_key_file).strip() or None,
        deny=tuple(
            _file("redaction_deny_file", options.redaction_deny_file).decode("utf-8", "replace").splitlines()
        ),
        patterns=Path(options.redaction_patterns) if options.redaction_patterns else None,
        allow_full=options.allow_full_content,
    )
    if options.redaction_regions:
        regions = tuple(r.strip().upper() for r in options.redaction_regions.split(",") if r.strip())
        settings = replace(settings, regions=regions)
    if settings.patterns is not None:
        load_patterns(settings.patterns)
    if options.content:
        if options.content not in tuple(level.value for level in Level):
            raise SettingsError(
                f"content: {options.content!r} is none of {', '.join(level.value for level in Level)}"
            )
        level = Level(options.content)
        settings = replace(settings, level=level, content_on_span=level is not Level.DROP)
    settings = from_environment(environ, settings)
    if options.spans_file:
        settings = replace(settings, exporter="file", file=Path(options.spans_file))
    return settings


def _file(key: str, path: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{key}: {path}: cannot read: {error.strerror}") from None


class SpanService:
    """Made before the proxy, started with it, closed after it.

    ``engine_state``: the latest scraped state; ``on_engine_record``: each request as vLLM's own span tells
    it, for set-ups without the proxy (an upper bound, see vllm.py). ``slos``: classes whose bounds become
    edges of the convention's metrics. ``push``: where those go by OTLP, every ``push_interval_s``.
    """

    def __init__(
        self,
        settings: SpanSettings,
        *,
        receiver: ReceiverSettings | None = None,
        server: tuple[str, int] | None = None,
        engine_state: Callable[[], EngineState | None] = lambda: None,
        on_engine_record: Callable[[RequestRecord], None] | None = None,
        slos: Sequence[SloClass] = (),
        push: OtlpSettings | None = None,
        push_interval_s: float = 60.0,
        sink: Sink | None = None,
        make_redactor: Callable[[], Redactor] | None = None,
    ) -> None:
        self.settings = settings
        host, port = server or ("", None)
        self.metrics = GenAiMetrics(
            convention(settings.semconv),
            slos,
            provider=settings.provider,
            server=server,
            started_unix_ns=time.time_ns(),
        )
        self.recorder = SpanRecorder(
            settings,
            server_address=host,
            server_port=port,
            engine_state=engine_state,
            sink=sink,
            make_redactor=make_redactor,
            on_ended=self.metrics.observe,
        )
        self.push = (
            MetricsPush(
                push, lambda: self.metrics.request(time.time_ns(), resource_of(settings)), push_interval_s
            )
            if push is not None
            else None
        )
        self._slo = slos[0] if slos else DEFAULT_SLO
        self._on_engine_record = on_engine_record
        self.engine_results: Counter[str] = Counter()
        self.intake = Intake(
            self.recorder.joins,
            convention(settings.semconv),
            self.recorder.filter.text,
            self.recorder.exporter.put,
            provider=settings.provider,
            texts=settings.level.has_text,
            on_record=self._engine_record,
        )
        self.receiver = OtlpReceiver(receiver, self.intake) if receiver is not None else None

    def proxy_settings(self, base: ProxySettings) -> ProxySettings:
        """``base`` with what spans need: our span between, bodies and outputs captured where wanted."""
        captures = self.settings.captures
        return replace(
            base,
            trace="continue",
            capture_request_bytes=self.settings.body_limit,
            capture_chars=self.settings.output_limit if captures else base.capture_chars,
        )

    def attach(self, proxy: Proxy) -> None:
        """Have the proxy tell of each request that begins. (Ends come by :meth:`on_judged`.)"""
        before = proxy.gate.on_start

        def both(started: Started) -> None:
            if before is not None:
                before(started)
            self.recorder.started(started)

        proxy.gate.on_start = both

    def on_judged(self, judged: tuple[RequestRecord, SloClass, Verdict]) -> None:
        """A request has ended and been judged."""
        record, slo, verdict = judged
        self.recorder.record(record, verdict, RequestContext(slo_class=slo.name, stall_s=slo.stall_s))

    def _engine_record(self, record: RequestRecord) -> None:
        verdict = judge(record, self._slo)
        result = "good" if verdict.good else "bad" if verdict.eligible else "not_eligible"
        self.engine_results[result] += 1
        if self._on_engine_record is not None:
            self._on_engine_record(record)

    async def start(self) -> None:
        """Listen for vLLM's spans, where that is wanted. Raises UserError if an address cannot be had."""
        if self.receiver is not None:
            await self.receiver.start()

    async def close(self, limit_s: float = 5.0) -> None:
        """Stop listening, send what waits for at most ``limit_s`` seconds."""
        if self.receiver is not None:
            await self.receiver.close()
        await asyncio.to_thread(self.recorder.close, limit_s)
        if self.push is not None:
            await asyncio.to_thread(self.push.close, limit_s)

    @property
    def cold_start(self) -> ColdStart | None:
        """vLLM's last start, from its start-up spans; ``None`` where none came."""
        return self.intake.cold_starts.latest

    def families(self) -> list[Family]:
        """The convention's metrics, and those about spans and redaction: counts, never a value."""
        recorder, intake = self.recorder, self.intake
        sent = Family("goodput_spans_sent_total", "counter", "Spans the collector took.")
        sent.add(recorder.exporter.sent)
        dropped = Family("goodput_spans_dropped_total", "counter", "Spans lost, by reason.")
        for reason, count in sorted((recorder.dropped + recorder.exporter.dropped).items()):
            dropped.add(count, reason=reason)
        if recorder.exporter.logs_lost:
            dropped.add(recorder.exporter.logs_lost, reason="logs_undelivered")
        sampled = Family("goodput_spans_sampled_out_total", "counter", "Spans not kept by sampling.")
        sampled.add(recorder.sampled_out)
        waiting = Family("goodput_spans_waiting", "gauge", "Spans in the export queue.")
        waiting.add(recorder.exporter.waiting)
        level = Family("goodput_content_level_info", "gauge", "How much of users' text may leave.")
        level.add(1, level=self.settings.level.value, patterns=recorder.filter.pattern_version)
        failures = Family(
            "goodput_redaction_failures_total", "counter", "Content dropped because it could not be redacted."
        )
        for reason, count in sorted(recorder.filter.counts.failures.items()):
            failures.add(count, reason=reason)
        replaced = Family("goodput_redaction_replaced_total", "counter", "Private values replaced, by kind.")
        for kind, count in sorted(recorder.filter.counts.replaced.items()):
            replaced.add(count, kind=kind)
        received = Family("goodput_received_spans_total", "counter", "Spans received from vLLM.")
        joined = Family(
            "goodput_received_request_spans_total", "counter", "vLLM's request spans, by whether joined."
        )
        refused = Family("goodput_received_refused_total", "counter", "OTLP messages refused, by reason.")
        quiet = Family("goodput_receiver_quiet", "gauge", "1 where no span has ever come in two minutes.")
        if self.receiver is not None:
            received.add(intake.counts["received"])
            for state in ("joined", "unjoined", "sampled_out"):
                joined.add(intake.counts[state], state=state)
            for reason, count in sorted(self.receiver.refused.items()):
                refused.add(count, reason=reason)
            quiet.add(1 if self.receiver.quiet else 0)
        told = Family(
            "goodput_engine_span_requests_total",
            "counter",
            "Requests as vLLM's own spans tell them, judged by the default class. The good share is an "
            "upper bound: rejected and aborted requests have no span, and gaps between tokens are not seen.",
        )
        for result, count in sorted(self.engine_results.items()):
            told.add(count, result=result)
        start = Family("goodput_engine_cold_start_seconds", "gauge", "vLLM's last start, by phase.")
        if (cold := self.cold_start) is not None:
            start.add(cold.total_s, phase="total")
            for phase, seconds in sorted(cold.phases_s.items()):
                start.add(seconds, phase=phase)
        ours = [sent, dropped, sampled, waiting, level, failures, replaced]
        return [*self.metrics.families(), *ours, received, joined, refused, quiet, told, start]
