"""GPU fixtures: exporter pages, and what a reader must get from them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from sidecar.engine.exposition import parse
from sidecar.gpu.amd import read_amd
from sidecar.gpu.dcgm import read_dcgm
from sidecar.gpu.reading import Reading

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gpu"


def page_bytes(name: str) -> bytes:
    """A page as served; ``name`` without ``.txt``."""
    return (FIXTURES / f"{name}.txt").read_bytes()


def dcgm(name: str) -> Reading:
    """A dcgm-exporter page, read."""
    return read_dcgm(parse(page_bytes(name)))


def amd(name: str) -> Reading:
    """An AMD exporter page, read."""
    return read_amd(parse(page_bytes(name)))


@lru_cache(maxsize=1)
def expected() -> dict[str, Any]:
    """File (or group of files) -> what must be read from it."""
    found: dict[str, Any] = json.loads((FIXTURES / "dcgm_expected.json").read_text("utf-8"))["files"]
    return found


@lru_cache(maxsize=1)
def seed_vectors() -> dict[str, Any]:
    """Formulas' inputs and results."""
    found: dict[str, Any] = json.loads((FIXTURES / "seed_vectors.json").read_text("utf-8"))
    return found
