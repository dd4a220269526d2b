"""Spans, when the settings or the standard OTEL_* variables ask for them; nothing is loaded otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sidecar.config import Settings
from sidecar.engine.view import EngineView
from sidecar.publish.push import push_asked, push_interval_s
from sidecar.requests.slo import SloClass

if TYPE_CHECKING:
    from sidecar.spans.service import SpanService

_ASKING = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


def tracing_of(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    upstream: tuple[str, int],
    engine: Callable[[], EngineView | None],
    note: Callable[[str], None],
    slos: Sequence[SloClass] = (),
) -> SpanService | None:
    """The span service that is asked for, or ``None``. ``note`` gets what the operator should be told.

    Raises SettingsError for a wrong setting or variable.
    """
    wanted = settings.content or settings.spans_file or settings.spans_receiver
    if not wanted and not any(environ.get(name) for name in _ASKING):
        return None
    from sidecar.spans.genai import EngineState
    from sidecar.spans.receiver import ReceiverSettings
    from sidecar.spans.service import SpanOptions, SpanService, span_settings
    from sidecar.spans.settings import otlp_settings

    options = SpanOptions(
        content=settings.content,
        allow_full_content=settings.allow_full_content,
        semconv=settings.semconv,
        spans_file=settings.spans_file,
        redaction_key_file=settings.redaction_key_file,
        redaction_regions=settings.redaction_regions,
        redaction_deny_file=settings.redaction_deny_file,
        redaction_patterns=settings.redaction_patterns,
    )
    spans = span_settings(options, environ)
    for line in spans.notes:
        note(line)
    if spans.exporter == "none" and not settings.spans_receiver:
        return None
    receiver = None
    if settings.spans_receiver:
        receiver = ReceiverSettings(
            settings.spans_receiver, settings.spans_receiver_grpc_port, settings.spans_receiver_http_port
        )

    def state() -> EngineState | None:
        view = engine()
        if view is None:
            return None
        return EngineState(view.total("running"), view.total("waiting"), view.max("kv_usage"))

    pushed = push_asked(environ)
    return SpanService(
        spans,
        receiver=receiver,
        server=upstream,
        engine_state=state,
        slos=slos,
        push=otlp_settings(environ, "metrics") if pushed else None,
        push_interval_s=push_interval_s(environ) if pushed else 60.0,
    )
