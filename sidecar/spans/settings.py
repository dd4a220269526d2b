"""Settings of spans and their export, with the standard ``OTEL_*`` variables."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from sidecar.errors import SettingsError
from sidecar.redaction.filter import Level
from sidecar.redaction.numbers import DEFAULT_REGIONS
from sidecar.spans.semconv import DEFAULT_VERSION, convention
from sidecar.urls import split_http

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURE = {
    "NO_CONTENT": (False, False),
    "SPAN_ONLY": (True, False),
    "EVENT_ONLY": (False, True),
    "SPAN_AND_EVENT": (True, True),
}

FULL_NOTE = "content level full: what users write leaves this process unredacted"

FULL_NOTE = "content level full: what users write leaves this process unredacted"

ExporterName = Literal["otlp", "console", "file", "none"]


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Where and how to send. ``endpoint``: a full URL for HTTP, ``host:port`` for gRPC."""

    endpoint: str
    protocol: Literal["grpc", "http/protobuf"] = "http/protobuf"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0
    compression: Literal["none", "gzip"] = "none"
    certificate: str = ""
    insecure: bool = True


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """Everything about spans. Sizes in bytes, times in seconds. Wrong values raise SettingsError."""

    exporter: ExporterName = "none"
    otlp: OtlpSettings | None = None
    otlp_logs: OtlpSettings | None = None
    """Where the convention's events go, as log records; ``None``: nowhere."""
    file: Path | None = None
    semconv: str = DEFAULT_VERSION
    provider: str = "vllm"
    service_name: str = "vllm"
    resource: Mapping[str, Any] = field(default_factory=dict)
    level: Level = Level.DROP
    allow_full: bool = False
    """The second switch: without it the level ``full`` is refused."""
    content_on_span: bool = False
    content_on_event: bool = False
    key: bytes | None = field(default=None, repr=False)
    regions: tuple[str, ...] = DEFAULT_REGIONS
    deny: tuple[str, ...] = field(default=(), repr=False)
    patterns: Path | None = None
    sample_ratio: float = 1.0
    follow_parent: bool = True
    keep_bad: bool = True
    """Errors, refusals and badput are kept whatever the sampling says."""
    attribute_limit: int = 16_384
    body_limit: int = 256 * 1024
    """Longest request body that is looked into; keep at the proxy's ``capture_request_bytes``."""
    output_limit: int = 32_768
    """Characters of generated text kept of each choice; at level ``shape`` lengths stop there."""
    queue: int = 2048
    batch: int = 512
    interval_s: float = 5.0
    work_queue: int = 1024
    """Requests that may wait for redaction; beyond it their content is dropped."""
    work_bytes: int = 64 << 20
    """Bytes of bodies that may wait for redaction."""
    notes: tuple[str, ...] = ()
    """What the operator should be told at start: unknown values, risky choices."""

    def __post_init__(self) -> None:
        convention(self.semconv)
        if self.level is Level.FULL and not self.allow_full:
            raise SettingsError(
                "content level full: wants allow_full_content as well; users' texts would leave as is"
            )
        if not 0.0 <= self.sample_ratio <= 1.0:
            raise SettingsError(f"sample ratio: {self.sample_ratio} is not between 0 and 1")
        if self.level is Level.FULL and FULL_NOTE not in self.notes:
            object.__setattr__(self, "notes", (*self.notes, FULL_NOTE))
        for key in (
            "attribute_limit",
            "body_limit",
            "output_limit",
            "queue",
            "batch",
            "work_queue",
            "work_bytes",
        ):
            if getattr(self, key) <= 0:
                raise SettingsError(f"{key}: must be more than 0, not {getattr(self, key)}")
        if self.interval_s <= 0:
            raise SettingsError(f"interval_s: must be more than 0 seconds, not {self.interval_s}")
        if self.exporter == "otlp" and self.otlp is None:
            raise SettingsError("exporter otlp: wants an endpoint (OTEL_EXPORTER_OTLP_ENDPOINT)")
        if self.exporter == "file" and self.file is None:
            raise SettingsError("exporter file: wants a path")

    @property
    def captures(self) -> bool:
        """True where any content may be on a span or event."""
        return self.level is not Level.DROP and (self.content_on_span or self.content_on_event)


def capture_mode(value: str) -> tuple[bool, bool] | None:
    """(on spans, on events) for the capture variable; ``None`` for a word that is none of the four."""
    return _CAPTURE.get(value.strip().upper() or "NO_CONTENT")


def from_environment(environ: Mapping[str, str], base: SpanSettings | None = None) -> SpanSettings:
    """``base`` with the standard variables on top.

    Raises:
        SettingsError: a variable has a wrong value; names it.
    """
    settings = base or SpanSettings()
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return replace(settings, exporter="none")
    if CAPTURE_VARIABLE in environ:
        mode = capture_mode(environ[CAPTURE_VARIABLE])
        if mode is None:  # 'true' too; the value itself is not repeated, it may be anything
            note = f"{CAPTURE_VARIABLE} is none of {', '.join(_CAPTURE)}: no content is captured"
            settings = replace(settings, notes=(*settings.notes, note))
        on_span, on_event = mode or (False, False)
        level = settings.level
        if (on_span or on_event) and level is Level.DROP:
            level = Level.REDACT  # asked for content: its redacted form
        settings = replace(settings, content_on_span=on_span, content_on_event=on_event, level=level)
    resource = dict(settings.resource)
    resource.update(_pairs("OTEL_RESOURCE_ATTRIBUTES", environ))
    name = environ.get("OTEL_SERVICE_NAME") or str(resource.pop("service.name", "")) or settings.service_name
    resource.pop("service.name", None)
    settings = replace(settings, resource=resource, service_name=name)
    settings = _sampler(settings, environ)
    settings = _batching(settings, environ)
    wanted = environ.get("OTEL_TRACES_EXPORTER", "")
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if wanted and wanted not in ("otlp", "console", "none"):
        raise SettingsError(f"OTEL_TRACES_EXPORTER: {wanted!r} is none of otlp, console, none")
    if wanted == "console":
        return replace(settings, exporter="console")
    if wanted == "none":
        return replace(settings, exporter="none")
    if endpoint or wanted == "otlp":
        return replace(
            settings, exporter="otlp", otlp=otlp_settings(environ), otlp_logs=otlp_settings(environ, "logs")
        )
    return settings


def _sampler(settings: SpanSettings, environ: Mapping[str, str]) -> SpanSettings:
    name = environ.get("OTEL_TRACES_SAMPLER", "")
    if not name:
        return settings
    follow = name.startswith("parentbased_")
    kind = name.removeprefix("parentbased_")
    if kind not in ("always_on", "always_off", "traceidratio"):
        raise SettingsError(
            "OTEL_TRACES_SAMPLER: wants always_on, always_off, traceidratio or one of them with parentbased_"
        )
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(kind)
    if ratio is None:
        ratio = _number("OTEL_TRACES_SAMPLER_ARG", environ, 1.0)
    return replace(settings, sample_ratio=ratio, follow_parent=follow)


def _batching(settings: SpanSettings, environ: Mapping[str, str]) -> SpanSettings:
    queue = int(_number("OTEL_BSP_MAX_QUEUE_SIZE", environ, settings.queue))
    batch = int(_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", environ, settings.batch))
    for name, value in (("OTEL_BSP_MAX_QUEUE_SIZE", queue), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", batch)):
        if not 0 < value <= 1_000_000:
            raise SettingsError(f"{name}: wants a number from 1 to 1000000")
    delay_ms = _number("OTEL_BSP_SCHEDULE_DELAY", environ, settings.interval_s * 1000)
    return replace(settings, queue=queue, batch=batch, interval_s=delay_ms / 1000)


def otlp_settings(environ: Mapping[str, str], signal: str = "traces") -> OtlpSettings:
    """The OTLP variables of a signal, the signal's own before the common ones.

    Raises:
        SettingsError: a wrong value; names the variable.
    """
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"

    def read(key: str) -> tuple[str, str]:
        for name in (own + key, f"OTEL_EXPORTER_OTLP_{key}"):
            if environ.get(name):
                return name, environ[name]
        return own + key, ""

    protocol_name, protocol = read("PROTOCOL")
    protocol = protocol or "http/protobuf"
    if protocol not in ("grpc", "http/protobuf"):
        raise SettingsError(f"{protocol_name}: {protocol!r} is none of grpc, http/protobuf")
    endpoint_name, endpoint = read("ENDPOINT")
    endpoint = endpoint or ("http://localhost:4317" if protocol == "grpc" else "http://localhost:4318")
    parts = split_http(endpoint)
    if parts is None:
        raise SettingsError(f"{endpoint_name}: wants a URL such as http://localhost:4318")
    if protocol == "grpc":
        target = parts.netloc
    elif endpoint_name == own + "ENDPOINT" and environ.get(endpoint_name):
        target = endpoint  # the signal's own endpoint is used as it stands
    else:
        target = endpoint.rstrip("/") + f"/v1/{signal}"
    compression_name, compression = read("COMPRESSION")
    if compression not in ("", "none", "gzip"):
        raise SettingsError(f"{compression_name}: {compression!r} is none of none, gzip")
    timeout_name, _ = read("TIMEOUT")
    timeout_ms = _number(timeout_name, environ, 10_000.0)
    if not 0 < timeout_ms < 1e9:
        raise SettingsError(f"{timeout_name}: wants milliseconds above 0")
    certificate_name, certificate = read("CERTIFICATE")
    if certificate:
        try:
            ssl.create_default_context(cafile=certificate)
        except OSError as error:  # an SSLError too
            reason = error.strerror or type(error).__name__
            raise SettingsError(f"{certificate_name}: {certificate}: no certificates: {reason}") from None
    headers_name, _ = read("HEADERS")
    return OtlpSettings(
        endpoint=target,
        protocol="grpc" if protocol == "grpc" else "http/protobuf",
        headers=_pairs(headers_name, environ),
        timeout_s=timeout_ms / 1000,
        compression="gzip" if compression == "gzip" else "none",
        certificate=certificate,
        insecure=parts.scheme == "http" or read("INSECURE")[1].lower() == "true",
    )


def _pairs(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for number, item in enumerate(environ.get(name, "").split(","), 1):
        if not item.strip():
            continue
        key, sign, value = item.partition("=")
        if not sign or not key.strip():
            raise SettingsError(f"{name}: entry {number} is not of the form key=value")
        found[key.strip()] = unquote(value.strip())
        if not (key + found[key.strip()]).isprintable():
            raise SettingsError(f"{name}: entry {number} holds a control character")
    return found


def _number(name: str, environ: Mapping[str, str], default: float) -> float:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise SettingsError(f"{name}: {text!r} is not a number of 0 or more")
    return value
