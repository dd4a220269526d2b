"""The catalogue: which canonical signal has which name in which release of which server. Read from YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import yaml

Kind = Literal["gauge", "counter", "histogram", "summary"]
Combine = Literal["sum", "share", "state"]
Version = tuple[int, int, int, int, int]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:\.post(\d+))?")
_FILES = (
    "catalog.yaml",
    "catalog_sglang.yaml",
    "catalog_tgi.yaml",
    "catalog_triton.yaml",
    "catalog_trtllm.yaml",
)


@dataclass(frozen=True, slots=True)
class Name:
    """One spelling of a signal. ``since`` and ``until`` are the first and last release that has it."""

    name: str
    engine: str
    since: Version | None
    until: Version | None
    hidden_from: Version | None
    select: Mapping[str, str]
    scale: float
    declared: str  # "0.9.2 to 0.10.2", for people

    def in_release(self, version: Version) -> bool:
        """Whether the release registers this name (hidden or not)."""
        return (self.since is None or version >= self.since) and (self.until is None or version <= self.until)


@dataclass(frozen=True, slots=True)
class Caveat:
    """What to know about a signal's value, in the releases ``since`` to ``until``."""

    text: str
    since: Version | None
    until: Version | None

    def holds(self, version: Version | None) -> bool:
        """True in the releases it speaks of, and where the release is not known."""
        if version is None:
            return True
        return (self.since is None or version >= self.since) and (self.until is None or version <= self.until)


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """One canonical signal: what it means, how several series join, and its names, preferred first."""

    name: str
    kind: Kind
    unit: str
    combine: Combine
    core: bool
    meaning: str
    needs: str | None
    labels: tuple[str, ...]
    units_from: tuple[tuple[Version, str], ...]
    caveats: tuple[Caveat, ...]
    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A name on its way out, and what to use instead. Releases as written, for people."""

    name: str
    engine: str
    since: str
    hidden_from: str | None
    gone_after: str | None
    use: str | None


@dataclass(frozen=True, slots=True)
class Catalog:
    """All that is known of one server's metrics page."""

    server: str
    prefixes: tuple[str, ...]
    also_prefixes: tuple[str, ...]
    model_labels: tuple[str, ...]
    engine_labels: tuple[str, ...]
    copy_labels: frozenset[str]  # they tell copies of one value apart (server processes), not values
    newest: str | None
    signals: tuple[SignalSpec, ...]
    deprecated: Mapping[str, Deprecation]
    known_names: frozenset[str]


def parse_version(text: str | None) -> Version | None:
    """``"0.8.5.post1"`` -> ``(0, 8, 5, 0, 1)``. ``None`` for no version and for ``0.1.dev...``, which a
    development build reports and which says nothing of what is inside."""
    found = _VERSION.match(text.strip()) if text else None
    if found is None:
        return None
    parts = [int(part or 0) for part in found.groups()]
    version = (parts[0], parts[1], parts[2], parts[3], parts[4])
    return None if version[:2] == (0, 1) and "dev" in (text or "") else version


@lru_cache(maxsize=1)
def catalogs() -> tuple[Catalog, ...]:
    """All catalogues, vLLM's first. Read once."""
    return tuple(_load(file) for file in _FILES)


def vllm_catalog() -> Catalog:
    """vLLM's catalogue."""
    return catalogs()[0]


def _load(file: str) -> Catalog:
    text = resources.files("sidecar.engine").joinpath(file).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times as fast
    data: dict[str, Any] = yaml.load(text, Loader=loader)
    signals = tuple(_signal(name, fields) for name, fields in data["signals"].items())
    deprecated = {
        d["name"]: Deprecation(
            d["name"],
            d.get("engine", ""),
            d["since"],
            d.get("hidden_from"),
            d.get("gone_after"),
            d.get("use"),
        )
        for d in data.get("deprecated", ())
    }
    known = {n.name for s in signals for n in s.names} | set(data.get("passed_by", ()))
    return Catalog(
        server=data["server"],
        prefixes=tuple(data["prefixes"]),
        also_prefixes=tuple(data.get("also_prefixes", ())),
        model_labels=_as_tuple(data.get("model_label")),
        engine_labels=_as_tuple(data.get("engine_label")),
        copy_labels=frozenset(data.get("copy_labels", ("pid",))),
        newest=data.get("newest"),
        signals=signals,
        deprecated=deprecated,
        known_names=frozenset(known),
    )


def _as_tuple(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _signal(name: str, fields: Mapping[str, Any]) -> SignalSpec:
    return SignalSpec(
        name=name,
        kind=fields["kind"],
        unit=fields["unit"],
        combine=fields.get("combine", "sum"),
        core=bool(fields.get("core", False)),
        meaning=fields.get("meaning", ""),
        needs=fields.get("needs"),
        labels=tuple(fields.get("labels", ())),
        units_from=tuple(
            (version, unit)
            for text, unit in fields.get("units_from", {}).items()
            if (version := parse_version(text)) is not None
        ),
        caveats=tuple(
            Caveat(c["text"], parse_version(c.get("from")), parse_version(c.get("until")))
            for c in fields.get("caveats", ())
        ),
        names=tuple(_name(n) for n in fields["names"]),
    )


def _name(fields: Mapping[str, Any]) -> Name:
    since, until = fields.get("from"), fields.get("until")
    declared = (
        "every release" if since is None else f"from {since}" if until is None else f"{since} to {until}"
    )
    return Name(
        name=fields["name"],
        engine=fields.get("engine", ""),
        since=parse_version(since),
        until=parse_version(until),
        hidden_from=parse_version(fields.get("hidden_from")),
        select=fields.get("select", {}),
        scale=float(fields.get("scale", 1.0)),
        declared=declared,
    )
