"""Spans of the proxied requests, when the standard OTEL_* variables ask for them; else nothing is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sidecar.derive.judging import Judged
from sidecar.engine.view import EngineView

if TYPE_CHECKING:
    from sidecar.proxy.observe import Started
    from sidecar.spans.recorder import SpanRecorder

_ASKING = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


class Tracing:
    """``started`` and ``judged`` feed one span a request; both return at once."""

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder

    def started(self, started: Started) -> None:
        """A request's last byte has arrived."""
        self._recorder.started(started)

    def judged(self, judged: Judged) -> None:
        """A request has ended and was judged."""
        from sidecar.spans.recorder import RequestContext

        record, slo, verdict = judged
        self._recorder.record(record, verdict, RequestContext(slo_class=slo.name, stall_s=slo.stall_s))

    @property
    def sent(self) -> int:
        """Spans that a collector took."""
        return self._recorder.exporter.sent

    @property
    def dropped(self) -> dict[str, int]:
        """Spans that were lost, by reason."""
        return dict(self._recorder.dropped + self._recorder.exporter.dropped)

    def close(self, limit_s: float = 5.0) -> None:
        """Send what waits, for at most ``limit_s`` seconds. Blocks."""
        self._recorder.close(limit_s)


def tracing_of(
    environ: Mapping[str, str],
    *,
    upstream: tuple[str, int],
    engine: Callable[[], EngineView | None],
    note: Callable[[str], None],
) -> Tracing | None:
    """Tracing as the environment asks for it, or ``None``. Raises SettingsError for a wrong variable."""
    if not any(environ.get(name) for name in _ASKING):
        return None
    from sidecar.spans.genai import EngineState
    from sidecar.spans.recorder import SpanRecorder
    from sidecar.spans.settings import from_environment

    settings = from_environment(environ)
    for line in settings.notes:
        note(line)
    if settings.exporter == "none":
        return None

    def state() -> EngineState | None:
        view = engine()
        if view is None:
            return None
        return EngineState(view.total("running"), view.total("waiting"), view.max("kv_usage"))

    return Tracing(
        SpanRecorder(settings, server_address=upstream[0], server_port=upstream[1], engine_state=state)
    )
