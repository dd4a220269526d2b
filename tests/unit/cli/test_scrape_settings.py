"""How the engine's page is reached: token, TLS files and health path, from settings to the scraper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import main
from sidecar.config import load_settings
from sidecar.errors import SettingsError
from sidecar.scraping import scrape_settings_of

UP = "http://127.0.0.1:8000"


def of(environ: dict[str, str] | None = None, **flags: Any) -> Any:
    return scrape_settings_of(load_settings({"upstream": UP, **flags}, environ=environ or {}))


def test_the_defaults_ask_for_health_and_carry_no_token() -> None:
    found = of(scrape_interval_s=2)
    assert (found.base_url, found.interval_s, found.limit_s) == (UP, 2.0, 1.6)
    assert (found.health_path, found.token(), found.verify_tls) == ("/health", None, True)
    assert of(engine_health_path="").health_path is None


def test_a_token_comes_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert of({"GOODPUT_ENGINE_TOKEN": "from-env"}).token() == "from-env"
    assert of(engine_token_file=str(file)).token() == "from-file"
    with pytest.raises(SettingsError, match="engine_token and engine_token_file: give one of them"):
        of({"GOODPUT_ENGINE_TOKEN": "x"}, engine_token_file=str(file))


def test_a_token_is_refused_where_others_would_see_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text("upstream: http://h:1\nengine_token: s3cret\n")
    for arguments in (["--upstream", UP, "--engine-token", "s3cret"], ["--config", str(file)]):
        assert main(["run", *arguments]) == 2
        said = capsys.readouterr()
        assert "is a secret: give it in the environment, GOODPUT_ENGINE_TOKEN, or in a file" in said.err
        assert "s3cret" not in said.err + said.out
    assert "s3cret" not in repr(load_settings({"upstream": UP}, environ={"GOODPUT_ENGINE_TOKEN": "s3cret"}))


def test_tls_files_reach_the_scraper(tmp_path: Path) -> None:
    found = of(
        engine="https://h:1",
        engine_ca_file="/a/ca.pem",
        engine_cert_file="/a/cert.pem",
        engine_key_file="/a/key.pem",
        engine_verify_tls="false",
    )
    assert (found.ca_file, found.cert_file, found.key_file) == (
        Path("/a/ca.pem"),
        Path("/a/cert.pem"),
        Path("/a/key.pem"),
    )
    assert (found.base_url, found.verify_tls) == ("https://h:1", False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"engine_token_file": "/no/such/file"}, "engine_token_file: token file /no/such/file: No such file"),
        (
            {"engine_ca_file": "/a/ca.pem"},
            f"engine_ca_file: only an https engine URL uses it, and this is {UP}",
        ),
        ({"engine": "https://h", "engine_key_file": "/k"}, "engine_key_file: needs engine_cert_file"),
        ({"engine_health_path": "health"}, "--engine-health-path: must be a path like /health"),
        ({"engine_verify_tls": "perhaps"}, "--engine-verify-tls: must be true or false"),
    ],
)
def test_what_cannot_work_is_named_by_its_key(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as error:
        of(**flags)
    assert str(error.value).startswith(said)
