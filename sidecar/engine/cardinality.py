"""How many time series a page costs a Prometheus, by family, and which labels make them many. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidecar.engine.page import Page

# One value for each request, person or text: such a label has no end.
_UNBOUNDED = re.compile(
    r"(^|_)(request|req|session|conversation|thread|trace|span|correlation)_?id$|^(user|user_?id|user_?name|email|"
    r"prompt|messages?|query|token|api_?key|client_?(ip|addr)|ip|uuid|running_lora_adapters|waiting_lora_adapters)$",
    re.I,
)
_MANY_VALUES = 200
_MAX_TOLD = 10  # families to name for one label
WARN_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class FamilyCount:
    """One family: its series, and its labels with how many values each has."""

    family: str
    kind: str
    series: int
    labels: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Cardinality:
    """A page's series. ``warnings`` are sentences for a person."""

    series: int
    duplicates: int
    families: tuple[FamilyCount, ...]  # most series first
    warnings: tuple[str, ...]


def count(page: Page, budget: int | None = None) -> Cardinality:
    """Count the page's series; warn of unbounded labels, duplicates, and a budget nearly or wholly used."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    series: dict[str, int] = {}
    values: dict[str, dict[str, set[str]]] = {}
    for one in page.series:
        key = one.key
        if key in seen:
            continue
        seen.add(key)
        family = page.family_of(one.name)
        series[family] = series.get(family, 0) + 1
        labels = values.setdefault(family, {})
        for label, value in one.labels.items():
            labels.setdefault(label, set()).add(value)
    families = tuple(
        FamilyCount(
            family,
            page.metadata.types.get(family, "unknown"),
            many,
            tuple(
                sorted(((label, len(of)) for label, of in values[family].items()), key=lambda pair: -pair[1])
            ),
        )
        for family, many in sorted(series.items(), key=lambda pair: (-pair[1], pair[0]))
    )
    duplicates = len(page.series) - len(seen)
    return Cardinality(len(seen), duplicates, families, _warnings(families, len(seen), duplicates, budget))


def _warnings(
    families: tuple[FamilyCount, ...], total: int, duplicates: int, budget: int | None
) -> tuple[str, ...]:
    found: list[str] = []
    if budget is not None and total > budget:
        found.append(f"{total} series break the budget of {budget}")
    elif budget is not None and total >= WARN_SHARE * budget:
        found.append(f"{total} series use {total / budget:.0%} of the budget of {budget}")
    told: dict[str, int] = {}
    for family in families:
        for label, many in family.labels:
            unbounded = _UNBOUNDED.search(label) is not None
            if not unbounded and (many <= _MANY_VALUES or label == "le"):
                continue
            told[label] = told.get(label, 0) + 1
            if told[label] > _MAX_TOLD:
                continue
            why = f"has no bound by its nature ({many} values now)" if unbounded else f"has {many} values"
            found.append(f"{family.family}: label {label!r} {why}")
    found += [
        f"label {label!r} likewise in {times - _MAX_TOLD} more families"
        for label, times in told.items()
        if times > _MAX_TOLD
    ]
    if duplicates:
        found.append(f"{duplicates} duplicate series: a Prometheus would refuse them")
    return tuple(found)
