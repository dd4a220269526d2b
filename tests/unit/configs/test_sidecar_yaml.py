"""The settings file to start from shows the defaults and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from sidecar.config import KEYS, Settings, load_settings

FILE = Path(__file__).parents[3] / "configs" / "sidecar.yaml"


def test_it_loads_as_it_stands_and_shows_the_defaults() -> None:
    assert load_settings({}, file=FILE, environ={}) == Settings(upstream="http://127.0.0.1:8000")


def test_what_is_commented_out_exists_too(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=\w+: )", "", FILE.read_text("utf-8"), flags=re.M).replace("slo_file: slo.yaml", "")
    assert set(yaml.safe_load(text)) <= set(KEYS)
    full = tmp_path / "sidecar.yaml"
    full.write_text(text, "utf-8")
    found = load_settings({}, file=full, environ={})
    assert (found.content, found.capacity, found.address("scaler")) == (
        "redact",
        "capacity.json",
        ("0.0.0.0", 6000),
    )
