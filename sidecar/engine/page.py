"""A parsed metrics page: series, values, and what its comments say. Plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created", "_info", "_gcount", "_gsum")


class Series:
    """A metric name and its labels. Treat as immutable; one object lives as long as its series is known."""

    __slots__ = ("_label_names", "_label_text", "_labels", "name")

    def __init__(
        self,
        name: str,
        labels: Mapping[str, str] | None,
        label_names: Sequence[str] = (),
        label_text: str = "",
    ) -> None:
        """Without ``labels`` their values are read from ``label_text`` (what follows the brace, known to be
        plain, without escapes, and to have ``label_names``) when first asked for."""
        self.name = name
        self._labels = labels
        self._label_names = label_names
        self._label_text = label_text

    @property
    def labels(self) -> Mapping[str, str]:
        """Label name -> value, unescaped."""
        found = self._labels
        if found is None:
            values = self._label_text.split('"')[1::2]
            found = self._labels = dict(zip(self._label_names, values, strict=True))
        return found

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Name and sorted labels: the same for the same series, however its labels were ordered."""
        return self.name, tuple(sorted(self.labels.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Series({self.name!r}, {dict(self.labels)!r})"


@dataclass(frozen=True, slots=True)
class Exemplar:
    """An OpenMetrics exemplar: a label set and the one observation it stands for. Never a sample."""

    labels: Mapping[str, str]
    value: float
    timestamp_s: float | None


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A malformed line of an otherwise whole page. ``number`` counts from 1."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the comment lines say: family name -> type, help, unit, exactly as on the page."""

    types: Mapping[str, str]
    helps: Mapping[str, str]
    units: Mapping[str, str]


class Page:
    """A whole, readable metrics page. ``series[i]`` has the value ``values[i]``.

    ``timestamps`` (seconds) and ``exemplars`` are sparse, by sample index. ``skipped_count`` counts all
    malformed lines, ``skipped`` names the first 20.
    """

    __slots__ = (
        "_by_name",
        "byte_count",
        "exemplars",
        "line_count",
        "metadata",
        "openmetrics",
        "series",
        "skipped",
        "skipped_count",
        "timestamps",
        "values",
    )

    def __init__(self, *, openmetrics: bool, byte_count: int, line_count: int) -> None:
        self.openmetrics = openmetrics
        self.byte_count = byte_count
        self.line_count = line_count
        self.series: list[Series] = []
        self.values: list[float] = []
        self.timestamps: dict[int, float] = {}
        self.exemplars: dict[int, Exemplar] = {}
        self.metadata = Metadata({}, {}, {})
        self.skipped: list[SkippedLine] = []
        self.skipped_count = 0
        self._by_name: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def samples(self) -> Iterator[tuple[Series, float]]:
        """Every sample in page order."""
        return zip(self.series, self.values, strict=True)

    @property
    def by_name(self) -> Mapping[str, list[int]]:
        """Sample name -> indices of its samples, in page order."""
        if self._by_name is None:
            index: dict[str, list[int]] = {}
            for i, one in enumerate(self.series):
                found = index.get(one.name)
                if found is None:
                    index[one.name] = [i]
                else:
                    found.append(i)
            self._by_name = index
        return self._by_name

    def family_of(self, sample_name: str) -> str:
        """The family a sample belongs to: the name its TYPE line uses, or the sample's own name."""
        types = self.metadata.types
        if sample_name in types:
            return sample_name
        for suffix in _SUFFIXES:
            if sample_name.endswith(suffix) and sample_name[: -len(suffix)] in types:
                return sample_name[: -len(suffix)]
        return sample_name

    def type_of(self, sample_name: str) -> str:
        """The declared type of the sample's family, ``"unknown"`` where the page declares none."""
        return self.metadata.types.get(self.family_of(sample_name), "unknown")
