"""From the sidecar's settings to those of its scraper: token, TLS files, health. Errors name the key."""

from __future__ import annotations

from pathlib import Path

from sidecar.config import Settings
from sidecar.engine.scrape import ScrapeSettings
from sidecar.errors import SettingsError

_TLS_KEYS = ("engine_ca_file", "engine_cert_file", "engine_key_file")


def scrape_settings_of(settings: Settings) -> ScrapeSettings:
    """How the engine's page is reached. Raises SettingsError for files that are missing or do not fit."""
    url = settings.engine or settings.upstream
    if settings.engine_token and settings.engine_token_file:
        raise SettingsError("engine_token and engine_token_file: give one of them, not both")
    if settings.engine_key_file and not settings.engine_cert_file:
        raise SettingsError("engine_key_file: needs engine_cert_file, the certificate it belongs to")
    for key in _TLS_KEYS:
        if getattr(settings, key) and not url.startswith("https:"):
            raise SettingsError(f"{key}: only an https engine URL uses it, and this is {url}")
    found = ScrapeSettings(
        url,
        interval_s=settings.scrape_interval_s,
        health_path=settings.engine_health_path or None,
        bearer_token=settings.engine_token or None,
        bearer_token_file=_path(settings.engine_token_file),
        ca_file=_path(settings.engine_ca_file),
        cert_file=_path(settings.engine_cert_file),
        key_file=_path(settings.engine_key_file),
        verify_tls=settings.engine_verify_tls,
    )
    try:
        found.token()
    except SettingsError as error:
        raise SettingsError(f"engine_token{'_file' if settings.engine_token_file else ''}: {error}") from None
    return found


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
