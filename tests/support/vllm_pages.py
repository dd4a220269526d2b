"""Writes the metrics page of any vLLM release, from the facts about what that release registers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_FACTS = Path(__file__).parents[1] / "fixtures" / "vllm" / "families_by_version.json"


class Family(NamedTuple):
    name: str
    kind: str
    labels: list[str]
    engines: list[str]
    hidden: bool
    needs: str | None
    bounds: list[float] | None
    label_values: dict[str, list[str]] | None


@cache
def releases() -> dict[str, tuple[Family, ...]]:
    """Release -> the families it registers."""
    facts = json.loads(_FACTS.read_text(encoding="utf-8"))
    families = [Family(*row) for row in facts["families"]]
    found: dict[str, tuple[Family, ...]] = {}
    for version, members in facts["versions"].items():
        found[version] = found[members] if isinstance(members, str) else tuple(families[i] for i in members)
    return found


def on_page(version: str, engine: str, *, hidden: bool = False) -> list[Family]:
    """The families that stand on the page of an engine generation (``v0`` or ``v1``) of a release."""
    return [
        family
        for family in releases()[version]
        if (engine in family.engines or "frontend" in family.engines) and (hidden or not family.hidden)
    ]


def value_of(name: str) -> float:
    """A value of its own for every name, so that a sum of two names cannot pass for one."""
    return float(1 + sum(ord(c) * (i + 1) for i, c in enumerate(name)) % 100_003)


@cache
def page_text(version: str, engine: str, *, engines: int = 2, hidden: bool = False) -> str:
    """A page in text format; with ``engines`` series where the family has an engine label."""
    lines: list[str] = []
    for family in on_page(version, engine, hidden=hidden):
        lines += [f"# HELP {family.name} Text.", f"# TYPE {family.name} {family.kind}"]
        for labels in _label_sets(family, engines):
            lines += _samples(family, labels)
    return "\n".join(lines) + "\n"


def _label_sets(family: Family, engines: int) -> list[dict[str, str]]:
    sets: list[dict[str, str]] = [{}]
    for label in family.labels:
        if label == "engine":
            values = [str(i) for i in range(engines)]
        elif label == "model_name":
            values = ["m"]
        elif label == "transfer_type":
            values = ["CPU_to_GPU", "GPU_to_CPU"]
        else:
            values = (family.label_values or {}).get(label, ["x"])
        sets = [{**one, label: value} for one in sets for value in values]
    return sets


def _samples(family: Family, labels: dict[str, str]) -> list[str]:
    def line(suffix: str, more: dict[str, Any], value: float) -> str:
        text = ",".join(f'{k}="{v}"' for k, v in {**labels, **more}.items())
        return f"{family.name}{suffix}{{{text}}} {value}"

    value = value_of(family.name)
    if family.kind == "histogram":
        bounds = family.bounds or [1.0, 2.0, 5.0]
        edges = [*map(str, bounds), "+Inf"]
        buckets = [line("_bucket", {"le": edge}, value + i) for i, edge in enumerate(edges)]
        return [*buckets, line("_count", {}, value + len(bounds)), line("_sum", {}, 0.5 * value)]
    if family.kind == "summary":
        return [line("_count", {}, value), line("_sum", {}, 2 * value)]
    return [line("", {}, value)]
