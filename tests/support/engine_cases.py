"""Reads the shared cases: small inputs with the right answer, one file per operation."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "cases"


def cases(op: str) -> list[Any]:
    """Every case of an operation as pytest parameters, named by its id."""
    import pytest

    found = json.loads((CASES / f"{op}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["id"]) for case in found]


def body_of(given: dict[str, Any]) -> bytes:
    """The bytes that ``body``, ``body_b64`` or ``body_repeat`` stand for."""
    if "body_b64" in given:
        return base64.b64decode(given["body_b64"])
    if "body_repeat" in given:
        template, count = given["body_repeat"]["template"], given["body_repeat"]["count"]
        return "".join(template.replace("{i}", str(i)) for i in range(count)).encode()
    return str(given["body"]).encode()


def close(got: float | None, expected: Any) -> bool:
    """Equal within the cases' tolerance; ``None`` only equals ``None``, and ``"NaN"`` only NaN."""
    if got is None or expected is None:
        return got is None and expected is None
    value = float(expected)
    if math.isnan(value):
        return math.isnan(got)
    return got == value or math.isclose(got, value, rel_tol=1e-9, abs_tol=1e-9)
