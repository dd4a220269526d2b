"""Small inputs from what people reported, each with the right answer (tests/cases/target.json)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen import manifests
from loadgen.manifests import Place
from loadgen.results import Peak
from loadgen.target import Wish, plan, replicas_for
from tests.support import reports

CASES = json.loads((Path(__file__).parents[2] / "cases" / "target.json").read_text(encoding="utf-8"))["cases"]


def planned(given: dict[str, Any]) -> Any:
    """A plan from a report whose peak is exactly the case's, without an interval."""
    peak = Peak(
        load=20.0,
        goodput_rps=float(given["peak_per_replica"]),
        goodput_ci_rps=None,
        attainment=1.0,
        bracketed=True,
        reason="",
    )
    wish = Wish(
        rate_rps=given["demand"],
        use_share=given["use_share"],
        min_replicas=given.get("min_replicas", 1),
        max_replicas=given.get("max_replicas"),
    )
    return plan(reports.sweep(peak=peak), wish)


def at(doc: Any, path: str) -> Any:
    """The value at ``spec.triggers[type=prometheus].metadata``; ``None`` where there is none."""
    for key, name, wanted in re.findall(r"([A-Za-z]+)(?:\[([a-z]+)=([^\]]+)\])?\.?", path):
        doc = doc.get(key) if isinstance(doc, dict) else None
        if name:
            doc = next((item for item in doc or () if item.get(name) == wanted), None)
    return doc


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_case(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    checked = 0
    if "replicas" in expect:
        assert (
            replicas_for(given["demand"], given["peak_per_replica"], given["use_share"]) == expect["replicas"]
        )
        assert planned(given).replicas == expect["replicas"]
        checked += 1
    if given.get("emit") == "keda":
        doc = yaml.safe_load(manifests.keda(planned(given), Place("vllm", "default")))
        for path, wanted in expect["yaml"].items():
            assert at(doc, path) == wanted, path
        for path in expect["yaml_present"]:
            assert at(doc, path) is not None, path
        checked += 1
    assert checked
