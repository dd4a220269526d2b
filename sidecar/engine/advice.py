"""What a person should know about a page: what is missing and which setting brings it, what will break."""

from __future__ import annotations

from sidecar.engine.catalog import Catalog, Deprecation, Name, SignalSpec, Version, parse_version
from sidecar.engine.view import Missing, Notice

_OF_ANY_PYTHON_SERVER = ("http_", "process_", "python_")
_ELSE_ZERO = "values only with"


def advise(
    catalog: Catalog,
    on_page: frozenset[str],
    mapped: frozenset[str],
    *,
    idle: frozenset[str],
    version: str | None,
    generation: str,
    recognised: bool,
    openmetrics: bool,
) -> tuple[tuple[Missing, ...], tuple[Missing, ...], tuple[Notice, ...]]:
    """Core signals the page lacks, each with the likely cause; further ones that a setting would bring; and
    notices for the whole page. ``idle``: signals that are mapped and stand at 0."""
    notices: list[Notice] = []
    nothing = None if recognised else _nothing_known(on_page)
    if nothing is not None:
        notices.append(nothing)
    elif not mapped:
        notices.append(Notice("no_signals", "the page has none of the signals that can be mapped"))
    if openmetrics and catalog.server == "vllm" and recognised:
        notices.append(
            Notice(
                "rust_frontend",
                "OpenMetrics page (vLLM's Rust front end): some families are not on it, "
                "others appear at first use",
            )
        )
    for name in sorted(on_page):
        family = _deprecated_family(name, catalog)
        if family is not None:
            notices.append(Notice("deprecated", _deprecation(family)))
    missing = tuple(
        Missing(spec.name, _why(spec, catalog, version, generation) if nothing is None else nothing.text)
        for spec in catalog.signals
        if spec.core and spec.name not in mapped
    )
    return missing, _by_a_setting(catalog, mapped, idle, version, generation), tuple(dict.fromkeys(notices))


def _by_a_setting(
    catalog: Catalog, mapped: frozenset[str], idle: frozenset[str], version: str | None, generation: str
) -> tuple[Missing, ...]:
    """What this release could show beside the core, and the flag that brings it."""
    release = parse_version(version)
    if release is None:
        return ()
    found: list[Missing] = []
    for spec in catalog.signals:
        present = [n for n in _of_generation(spec, generation) if n.in_release(release)]
        if spec.core or not present:
            continue
        needs = spec.needs or ""
        if spec.name in mapped:
            if spec.name in idle and needs.startswith(_ELSE_ZERO):
                found.append(Missing(spec.name, needs))
        elif present[0].hidden_from is not None and release >= present[0].hidden_from:
            found.append(Missing(spec.name, _hidden(release)))
        elif needs.startswith("--"):
            found.append(Missing(spec.name, f"needs: {needs}"))
    return tuple(found)


def _nothing_known(on_page: frozenset[str]) -> Notice:
    if not on_page:
        return Notice("empty_page", "the page has no samples: nothing is known of the engine")
    if any(name.startswith("goodput_engine_") for name in on_page):
        return Notice("own_page", "this is a sidecar's own page: the engine's is at the sidecar's upstream")
    if all(name.startswith(_OF_ANY_PYTHON_SERVER) for name in on_page):
        return Notice(
            "log_stats_disabled",
            "only process and HTTP metrics: the engine was likely started with --disable-log-stats",
        )
    return Notice("unknown_server", "no family of a known inference server is on the page")


def _deprecated_family(name: str, catalog: Catalog) -> Deprecation | None:
    return catalog.deprecated.get(name) or catalog.deprecated.get(name.removesuffix("_bucket"))


def _deprecation(what: Deprecation) -> str:
    parts = [f"{what.name} is deprecated since {what.since}"]
    if what.hidden_from:
        parts.append(f"hidden from {what.hidden_from}")
    parts.append(
        f"gone after {what.gone_after}" if what.gone_after else "still filled in the newest known release"
    )
    if what.use:
        parts.append(f"use {what.use}")
    return ", ".join(parts)


def _why(spec: SignalSpec, catalog: Catalog, version: str | None, generation: str) -> str:
    release = parse_version(version)
    if not spec.names:
        return f"{catalog.server} does not have it ({spec.meaning})"
    if release is None and spec.needs and catalog.newest is None:
        return f"not on the page; needs: {spec.needs}"
    if release is None or catalog.newest is None:
        return f"not on the page; a release that has it: {spec.names[0].declared}"
    present = [n for n in _of_generation(spec, generation) if n.in_release(release)]
    if not present:
        first = spec.names[0]
        return f"{catalog.server} {version} does not have it ({first.name}: {first.declared})"
    if spec.needs:
        return f"needs: {spec.needs}"
    if generation == "v0":
        return "the old engine makes a series at its first observation: no request yet?"
    return f"{present[0].name} should be on the page of this release"


def _of_generation(spec: SignalSpec, generation: str) -> list[Name]:
    return [n for n in spec.names if n.engine in (generation, "", "frontend") or not generation]


def _hidden(release: Version) -> str:
    # The flag is compared as text with exactly the minor release before the running one.
    return f"hidden: start with --show-hidden-metrics-for-version={release[0]}.{release[1] - 1}"
