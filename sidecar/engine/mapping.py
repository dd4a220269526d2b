"""From a parsed page to canonical signals. Pure.

The page decides: the first name of a signal that stands on it wins, so an old and a new name are never
added up, and a development build without a usable version maps all the same. The version only explains
(units that changed under one name, what is missing and why, what will go away).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sidecar.engine.advice import advise
from sidecar.engine.catalog import Catalog, Name, SignalSpec, Version, catalogs, parse_version, vllm_catalog
from sidecar.engine.exposition import Page, Series
from sidecar.engine.view import EngineView, Histogram, HistogramSignal, Notice, SeriesId, Signal

_PASSED_BY = ("python_", "process_")
_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count", "_created")
# Label sets in which an engine describes itself: kept whole on the view, never as a series label.
_STATE = ("lora_info", "cache_config", "sleep_state")
_LARGEST = 1e100
_FAR_FUTURE_S = 4.0e9  # the year 2096: a larger "time" is a sum of times


def map_page(page: Page, version: str | None = None) -> EngineView:
    """Read one page. ``version`` is what ``/version`` said, if anything. Never raises for odd content."""
    rows = _Rows(page)
    catalog = _recognise(rows)
    return _Mapper(rows, catalog or vllm_catalog(), version, recognised=catalog is not None).map()


def _recognise(rows: _Rows) -> Catalog | None:
    for catalog in catalogs():
        if any(name.startswith(catalog.prefixes) for name in rows.names):
            return catalog
    for catalog in catalogs():
        if catalog.also_prefixes and rows.rename(
            catalog.also_prefixes, catalog.prefixes[0], catalog.known_names
        ):
            return catalog
    return None


class _Rows:
    """The page's samples by name, with names put back that another exporter had to respell."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.names: Mapping[str, list[int]] = page.by_name
        self.original: dict[str, str] = {}

    def rename(self, prefixes: Iterable[str], to: str, known: frozenset[str]) -> bool:
        renamed: dict[str, list[int]] = {}
        for name, rows in self.names.items():
            for prefix in prefixes:
                proper = to + name[len(prefix) :]
                if name.startswith(prefix) and _family(proper, known) is not None:
                    renamed[proper] = rows
                    self.original[proper] = name
                    break
            else:
                renamed[name] = rows
        self.names = renamed
        return bool(self.original)

    def of(self, name: str) -> list[tuple[Series, float]]:
        page = self.page
        return [(page.series[i], page.values[i]) for i in self.names.get(name, ())]


def _family(sample: str, known: frozenset[str]) -> str | None:
    if sample in known:
        return sample
    for suffix in _HISTOGRAM_PARTS:
        base = sample.removesuffix(suffix)
        if base != sample:
            if base in known:
                return base
            if suffix == "_created" and f"{base}_total" in known:
                return f"{base}_total"
    return None


class _Mapper:
    def __init__(self, rows: _Rows, catalog: Catalog, version: str | None, *, recognised: bool) -> None:
        self.rows = rows
        self.catalog = catalog
        self.version = version
        self.release: Version | None = parse_version(version)
        self.recognised = recognised
        # Labels that say where a value comes from or which part of it this is, and none that is its own.
        self.structural = {
            *catalog.engine_labels,
            *catalog.model_labels,
            *catalog.copy_labels,
            "le",
            "quantile",
        }
        self.notices: dict[tuple[str, str], Notice] = {}
        self.signals: dict[str, Signal] = {}
        self.histograms: dict[str, HistogramSignal] = {}

    def map(self) -> EngineView:
        state: dict[str, tuple[Name, list[tuple[Series, float]]]] = {}
        for spec in self.catalog.signals:
            for name in spec.names:
                if self._take(spec, name, state):
                    break
        ids: set[SeriesId] = set()
        for signal in self.signals.values():
            ids.update(signal.series)
        for histogram in self.histograms.values():
            ids.update(histogram.series)
        engines = sorted({one.engine for one in ids})
        models = sorted({one.model for one in ids})
        start = [v for _, v in self.rows.of("process_start_time_seconds") if _usable(v)]
        running, waiting, most = self._lora(state.get("lora_info"))
        self._note_version()
        if self.rows.page.skipped_count:
            count, first = self.rows.page.skipped_count, self.rows.page.skipped[0]
            text = f"{count} malformed lines skipped, the first is line {first.number}: {first.reason}"
            self._note("malformed_line", text)
        generation = self._generation(engines)
        self._note_lost_engines([engine for engine in engines if engine])
        missing, by_a_setting, advice = advise(
            self.catalog,
            frozenset(self.rows.names),
            frozenset(self.signals) | frozenset(self.histograms) | frozenset(state),
            idle=frozenset(name for name, signal in self.signals.items() if signal.max == 0),
            version=self.version,
            generation=generation,
            recognised=self.recognised,
            openmetrics=self.rows.page.openmetrics,
        )
        for notice in advice:
            self._note(notice.code, notice.text)
        return EngineView(
            server=self.catalog.server if self.recognised else "",
            version=self.version,
            generation=generation,
            signals=self.signals,
            histograms=self.histograms,
            notices=tuple(self.notices.values()),
            missing=missing,
            unmapped=self._unmapped(),
            start_time_s=max(start) if start else None,
            restarts_visible=bool(start) or any(s.created_s for s in self.signals.values()),
            lora_running=running,
            lora_waiting=waiting,
            lora_max=most,
            cache_config=self._cache_config(state.get("cache_config")),
            sleeping=self._sleeping(state.get("sleep_state")),
            engines=tuple(engine for engine in engines if engine),
            models=tuple(model for model in models if model),
            by_a_setting=by_a_setting,
        )

    def _note(self, code: str, text: str) -> None:
        self.notices.setdefault((code, text), Notice(code, text))

    def _take(
        self, spec: SignalSpec, name: Name, state: dict[str, tuple[Name, list[tuple[Series, float]]]]
    ) -> bool:
        if spec.kind == "histogram":
            return self._take_histogram(spec, name)
        if spec.kind == "summary":
            count = self.rows.of(name.name + "_count")
            return self._take_plain(spec, name, count) if count else False
        found = [(s, v) for s, v in self.rows.of(name.name) if _selected(s, name)]
        if not found:
            return False
        if spec.combine == "state":
            state[spec.name] = (name, found)
            return True
        return self._take_plain(spec, name, found)

    def _take_plain(self, spec: SignalSpec, name: Name, found: list[tuple[Series, float]]) -> bool:
        values: dict[SeriesId, float] = {}
        for series, raw in found:
            if not _usable(raw):
                self._note("nan", f"{self._shown(name.name)} is NaN or infinite for some series: no value")
                continue
            if spec.name == "prefix_hit_rate_gauge" and raw < 0:
                continue  # the old engine's way to say that prefix caching is off
            where = self._where(series, spec, name)
            value = raw * name.scale
            if where in values:
                value = self._second(spec, name, series, values[where], value)
            values[where] = value
        if not values:
            return False
        created = (
            self._created(name.name.removesuffix("_total"), spec, name) if spec.kind == "counter" else {}
        )
        self.signals[spec.name] = Signal(
            spec.name, spec.kind, self._unit(spec), spec.combine, self._shown(name.name), values, created
        )
        return True

    def _second(self, spec: SignalSpec, name: Name, series: Series, old: float, new: float) -> float:
        """Two values for one series: one is taken, never the sum."""
        if not self.catalog.copy_labels.isdisjoint(series.labels):
            self._note(
                "per_process",
                f"{self._shown(name.name)} stands once per server process: the highest is taken",
            )
            return max(old, new)
        self._note(
            "duplicate", f"duplicate series of {self._shown(name.name)}: the last one is taken, never the sum"
        )
        return new

    def _take_histogram(self, spec: SignalSpec, name: Name) -> bool:
        buckets: dict[SeriesId, dict[float, float]] = {}
        for series, value in self.rows.of(name.name + "_bucket"):
            if not _selected(series, name) or not _usable(value):
                continue
            try:
                edge = float(series.labels.get("le", "nan"))
            except ValueError:
                edge = math.nan
            if math.isnan(edge) or edge == -math.inf:
                self._note("bad_edge", f"{self._shown(name.name)} has a bucket whose le is no number")
                continue
            of = buckets.setdefault(self._where(series, spec, name), {})
            if edge * name.scale in of:
                self._note(
                    "duplicate", f"duplicate bucket of {self._shown(name.name)}: the last one is taken"
                )
            of[edge * name.scale] = value
        sums = {
            self._where(s, spec, name): v * name.scale
            for s, v in self.rows.of(name.name + "_sum")
            if _selected(s, name) and _usable(v)
        }
        whole: dict[SeriesId, Histogram] = {}
        for where, of in buckets.items():
            edges = tuple(sorted(of))
            if edges[-1] != math.inf:
                self._note("incomplete_histogram", f"{self._shown(name.name)} has no +Inf bucket: not used")
                continue
            whole[where] = Histogram(edges, _rising(of[e] for e in edges), sums.get(where))
        if not whole:
            return False
        self.histograms[spec.name] = HistogramSignal(
            spec.name, self._unit(spec), self._shown(name.name), whole, self._created(name.name, spec, name)
        )
        return True

    def _where(self, series: Series, spec: SignalSpec, name: Name) -> SeriesId:
        """Labels that nobody foresaw (a priority, a tenant) keep their series apart, so sums stay right."""
        labels = series.labels
        own: list[tuple[str, str]] = []
        for pair in labels.items():
            label = pair[0]
            if label not in self.structural and label not in name.select:
                own.append(pair)
                if label not in spec.labels and self.catalog.newest is not None:
                    self._note(
                        "new_label",
                        f"label {label[:40]!r} of {self._shown(name.name)} is not in the catalogue",
                    )
        own.sort()
        return SeriesId(
            _first(labels, self.catalog.engine_labels), _first(labels, self.catalog.model_labels), tuple(own)
        )

    def _created(self, base: str, spec: SignalSpec, name: Name) -> dict[SeriesId, float]:
        return {
            self._where(series, spec, name): value
            for series, value in self.rows.of(base + "_created")
            if _usable(value)
        }

    def _shown(self, name: str) -> str:
        """The name as the page spells it."""
        original = self.rows.original
        if name in original:
            return original[name]
        return next((o.removesuffix("_bucket") for p, o in original.items() if p == name + "_bucket"), name)

    def _unit(self, spec: SignalSpec) -> str:
        if spec.kind == "summary":
            return "observations"  # a summary is taken for its count
        if not spec.units_from:
            return spec.unit
        if self.release is None:
            # One name, two units in turn, and nothing that tells which: only the newer name is certain.
            new_name_stands = spec.names[0].name in self.rows.names
            return spec.unit if new_name_stands else " or ".join(unit for _, unit in spec.units_from)
        return next((unit for since, unit in reversed(spec.units_from) if self.release >= since), spec.unit)

    def _note_version(self) -> None:
        newest = parse_version(self.catalog.newest)
        if self.release is None and self.version:
            self._note(
                "no_version",
                f"version {self.version!r} says nothing of the release: mapped by what the page holds",
            )
        elif self.release is not None and newest is not None and self.release > newest:
            self._note(
                "newer_than_catalog",
                f"{self.catalog.server} {self.version} is newer than the catalogue ({self.catalog.newest}): "
                "the newest names are used",
            )

    def _note_lost_engines(self, engines: list[str]) -> None:
        # vllm-project/vllm#21257: each engine registered its families anew and only the last one stayed.
        lossy = self.release is not None and (0, 8, 3, 0, 0) <= self.release < (0, 10, 0, 0, 0)
        if lossy and self.catalog.server == "vllm" and len(engines) == 1 and engines[0] != "0":
            text = f"only engine {engines[0]}: before 0.10.0 data parallelism shows its last engine alone"
            self._note("engines_lost", text)

    def _generation(self, engines: list[str]) -> str:
        if self.catalog.server != "vllm" or not self.recognised:
            return ""
        names = self.rows.names
        if "vllm:num_requests_swapped" in names or "vllm:cpu_cache_usage_perc" in names:
            return "v0"
        if any(engines):
            return "v1"
        # V1 has had the engine label since 0.8.3; before that only V0's own names tell them apart.
        return (
            "v0"
            if self.release is None or self.release >= (0, 8, 3, 0, 0) or self.release < (0, 7, 1, 0, 0)
            else ""
        )

    def _unmapped(self) -> tuple[str, ...]:
        known = self.catalog.known_names
        page = self.rows.page
        unknown = {
            self._family_by_name(page.family_of(name))
            for name in self.rows.names
            if not name.startswith(_PASSED_BY) and _family(name, known) is None
        }
        return tuple(sorted(unknown))

    def _family_by_name(self, name: str) -> str:
        """A histogram without its TYPE line is one family all the same."""
        for part in _HISTOGRAM_PARTS:
            base = name.removesuffix(part)
            if base != name and base + "_bucket" in self.rows.names:
                return base
        return name

    def _lora(
        self, found: tuple[Name, list[tuple[Series, float]]] | None
    ) -> tuple[frozenset[str] | None, frozenset[str] | None, int | None]:
        rows = [(s, v) for s, v in found[1] if not math.isnan(v)] if found else []
        if not rows:
            return None, None, None
        newest, stamp = max(rows, key=lambda row: row[1])
        if stamp > _FAR_FUTURE_S:
            self._note(
                "lora_times_summed",
                "lora_requests_info adds up times over processes: the newest set is a guess",
            )
        most = newest.labels.get("max_lora", "")
        return (
            _names(newest.labels.get("running_lora_adapters", "")),
            _names(newest.labels.get("waiting_lora_adapters", "")),
            int(most) if most.isdecimal() and len(most) <= 9 else None,
        )

    @staticmethod
    def _cache_config(found: tuple[Name, list[tuple[Series, float]]] | None) -> dict[str, str]:
        return dict(found[1][0][0].labels) if found else {}

    @staticmethod
    def _sleeping(found: tuple[Name, list[tuple[Series, float]]] | None) -> frozenset[str]:
        rows = found[1] if found else []
        return frozenset(
            series.labels.get("engine", "")
            for series, value in rows
            if series.labels.get("sleep_state") == "awake" and value == 0
        )


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if name in labels:
            return labels[name]
    return ""


def _usable(value: float) -> bool:
    """Not NaN, and not so large that a sum of such values is infinite, as nothing an engine counts is."""
    return abs(value) < _LARGEST


def _selected(series: Series, name: Name) -> bool:
    select = name.select
    return not select or all(series.labels.get(label) == value for label, value in select.items())


def _rising(values: Iterable[float]) -> tuple[float, ...]:
    """Buckets are read one by one while the engine counts on: a later one may look smaller. Never fall."""
    out: list[float] = []
    highest = 0.0
    for value in values:
        highest = max(highest, value)
        out.append(highest)
    return tuple(out)


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())
