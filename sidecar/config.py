"""Settings of ``goodput-sidecar run``: a YAML file, then the environment (``GOODPUT_*``), then flags.

Later sources win key by key. Every error names where the value came from, the key, and what would be right.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sidecar.errors import SettingsError
from sidecar.urls import NO_USER, has_user, shown, split_http
from sidecar.user_yaml import parse_value, read_text

ENV_PREFIX = "GOODPUT_"


def _setting(default: Any, help_text: str, kind: str = "text") -> Any:
    return field(default=default, metadata={"help": help_text, "kind": kind}, repr=kind != "secret")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, with their defaults. Times are seconds."""

    upstream: str = _setting("", "where vLLM is, like http://127.0.0.1:8000 (required)", "url")
    engine: str = _setting("", "where its /metrics is, when not at the upstream", "url")
    listen: str = _setting(
        "127.0.0.1:8080", "address of the proxy, HOST:PORT (port 0: any free one)", "address"
    )
    admin: str = _setting("127.0.0.1:9090", "address of metrics, health and status page", "address")
    slo: str = _setting("", "bounds of the default class, like ttft=0.5,tpot=0.05")
    slo_file: str = _setting("", "YAML file with SLO classes", "file")
    objective: float = _setting(0.99, "share of eligible requests that should be good, over 30 days", "share")
    capacity: str = _setting("", "capacity file written by goodput-loadgen target", "file")
    scrape_interval_s: float = _setting(5.0, "seconds between two scrapes of the engine", "seconds")
    engine_health_path: str = _setting(
        "/health", "asked at each scrape of a vLLM: a 5xx there means down; off when empty", "path"
    )
    engine_token: str = _setting("", "bearer token for the engine's /metrics", "secret")
    engine_token_file: str = _setting("", "file with that token, read anew at each scrape", "file")
    engine_ca_file: str = _setting("", "certificates (PEM) that an https engine is checked with", "file")
    engine_cert_file: str = _setting("", "client certificate (PEM) to show to an https engine", "file")
    engine_key_file: str = _setting("", "its private key (PEM), when not in the same file", "file")
    engine_verify_tls: bool = _setting(True, "check an https engine's certificate", "switch")
    drain_s: float = _setting(30.0, "seconds that running requests get to finish after SIGTERM", "seconds")
    scaler: str = _setting(
        "", "address of the KEDA external scaler (gRPC), HOST:PORT; off when empty", "address"
    )
    host_header: str = _setting(
        "pass", "Host that vLLM gets: pass (the client's) or upstream (its own)", "host"
    )
    forwarded: bool = _setting(False, "add X-Forwarded-For, -Proto and -Host to requests", "switch")
    set_request_id: bool = _setting(
        True, "give requests without an X-Request-Id one, to join vLLM's spans and logs", "switch"
    )
    max_head_bytes: int = _setting(64 * 1024, "longest request head; longer ones get 431", "count")
    max_connections: int = _setting(16384, "client connections at once; one more gets 503", "count")
    connect_timeout_s: float = _setting(5.0, "seconds to reach vLLM; then 502", "seconds")
    head_timeout_s: float = _setting(30.0, "seconds for a request head to arrive; then 408", "seconds")
    idle_timeout_s: float = _setting(
        3600.0, "seconds without a byte either way before a connection is ended", "seconds"
    )
    class_header: str = _setting("x-slo-class", "request header that names the SLO class")
    max_models: int = _setting(32, "distinct model names that may stand as a label", "count")
    max_series: int = _setting(10_000, "time series that the metrics page may hold", "count")
    content: str = _setting("", "how much of users' text spans may carry: drop, shape, redact or full")
    allow_full_content: bool = _setting(False, "second switch that content full needs", "switch")
    semconv: str = _setting("", "release of the gen_ai conventions that spans follow")
    spans_file: str = _setting("", "write spans to this file, a JSON line each", "file")
    redaction_key_file: str = _setting("", "key for pseudonyms that stay the same over restarts", "file")
    redaction_regions: str = _setting("", "countries whose national telephone forms are known, e.g. US,GB,DE")
    redaction_deny_file: str = _setting("", "words that never leave, one a line", "file")
    redaction_patterns: str = _setting("", "further patterns, YAML", "file")
    spans_receiver: str = _setting("", "host to receive vLLM's own spans on (OTLP); off when empty")
    spans_receiver_grpc_port: int = _setting(4317, "its gRPC port", "port")
    spans_receiver_http_port: int = _setting(4318, "its HTTP port", "port")
    gpu_dcgm: str = _setting("", "where dcgm-exporter is, like http://127.0.0.1:9400", "url")
    gpu_amd: str = _setting("", "where AMD's device-metrics-exporter is", "url")
    gpu_nvml: bool = _setting(False, "ask the NVIDIA driver itself (needs nvidia-ml-py)", "switch")
    gpu_kernel_log: str = _setting("", "kernel log to read Xids from, like /dev/kmsg; off when empty", "file")
    gpu_fabric_log: str = _setting("", "the fabric manager's log, for SXids", "file")
    gpu_interval_s: float = _setting(15.0, "seconds between two looks at the GPUs", "seconds")
    gpus: str = _setting("", "this pod's GPUs: UUIDs with commas, or all; else by the pod's name")
    gpus_shared: bool = _setting(
        False, "GPUs here are time-sliced or under MPS, whatever the exporter shows", "switch"
    )
    pod_name: str = _setting("", "this pod, as GPU exporters name it (default: $POD_NAME)")
    pod_namespace: str = _setting("", "its namespace (default: $POD_NAMESPACE)")
    usd_per_gpu_hour: float = _setting(0.0, "price of one GPU for an hour; no costs when 0", "amount")
    gpu_count: float = _setting(0.0, "GPUs that are paid for (0: as many as are seen)", "amount")
    host_watts: float = _setting(0.0, "constant draw of the host beside its GPUs", "amount")
    server_power_factor: float = _setting(1.0, "server power over board power (fans, supplies)", "amount")
    pue: float = _setting(1.0, "facility power over IT power", "amount")
    model_params: float = _setting(0.0, "the model's parameters, where vLLM counts no FLOPs", "amount")
    model_weight_bytes: float = _setting(0.0, "bytes of weights that a step reads", "amount")
    model_kv_bytes_per_token: float = _setting(0.0, "KV cache bytes of a token", "amount")
    model_dtype: str = _setting("bf16", "dtype the multiplications run in: bf16, fp8, fp4 or int8")

    def address(self, key: str) -> tuple[str, int]:
        """Host and port of ``listen``, ``admin`` or ``scaler``."""
        return split_address(getattr(self, key))


KEYS = {f.name: f for f in fields(Settings)}
# A command line is seen by everybody on the machine, a settings file lies in a repository.
SECRETS = tuple(name for name, key in KEYS.items() if key.metadata["kind"] == "secret")


def split_address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[V6]:PORT``. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(text)
    host = host.removeprefix("[").removesuffix("]")
    return host or "0.0.0.0", int(port)


def load_settings(
    flags: Mapping[str, Any],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Join all sources. ``flags`` holds only what was given. Raises SettingsError."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    if file is not None:
        for key, raw in _read(file).items():
            if key in SECRETS:
                raise SettingsError(f"{file}: {key}: {_secret_help(key)}")
            values[key] = _checked(key, raw, f"{file}: {key}")
    for name, text in environ.items():
        key = name.removeprefix(ENV_PREFIX).lower()
        if name.startswith(ENV_PREFIX) and key in KEYS:
            values[key] = _checked(key, text, f"environment {name}")
    for key, raw in flags.items():
        flag = "--" + key.replace("_", "-")
        if key in SECRETS:
            raise SettingsError(f"{flag}: {_secret_help(key)}")
        values[key] = _checked(key, raw, flag)
    settings = Settings(**values)
    if not settings.upstream:
        raise SettingsError(
            f"upstream: say where vLLM is, with --upstream http://127.0.0.1:8000, {ENV_PREFIX}UPSTREAM "
            "or upstream: in the settings file"
        )
    if settings.slo and settings.slo_file:
        raise SettingsError("slo and slo_file: give one of them, not both")
    return settings


def _secret_help(key: str) -> str:
    return f"is a secret: give it in the environment, {ENV_PREFIX}{key.upper()}, or in a file, {key}_file"


def _read(path: Path) -> dict[str, Any]:
    raw = parse_value(read_text(path), str(path))
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise SettingsError(f"{path}: must hold settings as key: value, not a {type(raw).__name__}")
    for key in raw:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(KEYS)}"
            raise SettingsError(f"{path}: {key}: is no setting{hint}")
    return raw


def _checked(key: str, raw: Any, where: str) -> Any:
    kind = KEYS[key].metadata["kind"]
    if kind in ("seconds", "share"):
        value = _number(raw, where)
        if kind == "seconds" and not value > 0:
            raise SettingsError(f"{where}: must be more than 0 seconds, not {raw}")
        if kind == "share" and not 0 < value < 1:
            raise SettingsError(f"{where}: must lie between 0 and 1, like 0.99, not {raw}")
        return value
    if kind == "amount":
        value = _number(raw, where)
        if value < 0:
            raise SettingsError(f"{where}: must be at least 0, not {raw}")
        return value
    if kind == "switch":
        return _switch(raw, where)
    if kind == "port":
        value = _number(raw, where)
        if value != int(value) or not 0 <= value <= 65535:
            raise SettingsError(f"{where}: must be a port, 0 to 65535, not {raw}")
        return int(value)
    if kind == "count":
        value = _number(raw, where)
        if value != int(value) or value < 1:
            raise SettingsError(f"{where}: must be a whole number of at least 1, not {raw}")
        return int(value)
    if not isinstance(raw, str):
        if raw is None:
            return ""
        if key == "listen" or kind == "address":
            raise SettingsError(f"{where}: must be HOST:PORT in quotes, like '127.0.0.1:8080', not {raw!r}")
        raise SettingsError(f"{where}: must be text, not {raw!r}")
    text = raw.strip()
    if text and kind == "path" and not text.startswith("/"):
        raise SettingsError(f"{where}: must be a path like /health, not {text!r}")
    if kind == "host" and text not in ("pass", "upstream"):
        raise SettingsError(f"{where}: must be pass or upstream, not {text!r}")
    if text and kind == "url":
        _check_url(text, where)
    if text and kind == "address":
        try:
            split_address(text)
        except ValueError:
            raise SettingsError(f"{where}: must be HOST:PORT, like 127.0.0.1:8080, not {raw!r}") from None
    return text


def _switch(raw: Any, where: str) -> bool:
    word = raw if isinstance(raw, bool) else {"true": True, "false": False}.get(str(raw).strip().lower())
    if word is None:
        raise SettingsError(f"{where}: must be true or false, not {raw!r}")
    return word


def _number(raw: Any, where: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise SettingsError(f"{where}: must be a number, not {raw!r}")
    try:
        value = float(raw)
    except ValueError:
        raise SettingsError(f"{where}: must be a number, not {raw!r}") from None
    if not math.isfinite(value):
        raise SettingsError(f"{where}: must be a number, not {raw!r}")
    return value


def _check_url(text: str, where: str) -> None:
    if has_user(text):
        raise SettingsError(f"{where}: {shown(text)!r}: {NO_USER}")
    if split_http(text) is None:
        raise SettingsError(f"{where}: must be a URL like http://127.0.0.1:8000, not {text!r}")
