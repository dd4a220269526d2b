"""Every release of the catalogue, both engines: what its page holds is mapped, once, by the right name."""

import pytest

from sidecar.engine.catalog import parse_version, vllm_catalog
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from tests.support.vllm_pages import on_page, page_text, releases, value_of

PAGES = [
    (version, engine)
    for version, families in releases().items()
    for engine in ("v0", "v1")
    if any(engine in family.engines for family in families)
]
FAMILIES = {id(f): f for families in releases().values() for f in families}.values()
SINCE_0_4 = [page for page in PAGES if parse_version(page[0]) >= (0, 4, 0, 0, 0)]


def test_the_table_is_whole():
    assert len(releases()) >= 88
    assert {"0.4.0", "0.8.5.post1", "0.10.2", "0.33.0"} <= set(releases())
    assert ("0.10.2", "v0") in PAGES
    assert ("0.11.0", "v0") not in PAGES


@pytest.mark.parametrize(("version", "engine"), PAGES, ids=["-".join(page) for page in PAGES])
@pytest.mark.parametrize("hidden", [False, True], ids=["", "hidden"])
def test_a_release(version, engine, hidden):
    families = {family.name: family for family in on_page(version, engine, hidden=hidden)}
    view = map_page(parse(page_text(version, engine, hidden=hidden).encode()), version)
    assert view.server == "vllm"
    assert view.unmapped == ()
    labelled = any("engine" in family.labels for family in families.values())
    assert view.generation == engine or (not labelled and view.generation == "")
    for spec in vllm_catalog().signals:
        names = [n for n in spec.names if n.name in families]
        if not names or spec.combine == "state":
            continue
        found = (view.histograms if spec.kind == "histogram" else view.signals)[spec.name]
        # The first name of the catalogue that stands on the page, and its value alone.
        assert found.found == names[0].name
        if spec.kind == "histogram":
            bounds = families[names[0].name].bounds or [1.0, 2.0, 5.0]
            for histogram in found.series.values():
                assert histogram.edges[:-1] == tuple(bounds)
                assert histogram.cumulative[0] == value_of(names[0].name)
        else:
            assert set(found.series.values()) == {value_of(names[0].name)}
    registered = {spec.name for spec in vllm_catalog().signals if any(n.name in families for n in spec.names)}
    assert not registered & {missing.signal for missing in view.missing}


@pytest.mark.parametrize(("version", "engine"), SINCE_0_4, ids=["-".join(page) for page in SINCE_0_4])
def test_core_signals_of_every_release_since_0_4(version, engine):
    release = parse_version(version)
    view = map_page(parse(page_text(version, engine).encode()), version)
    wanted = {"running", "waiting", "kv_usage", "prompt_tokens", "generation_tokens"}
    assert wanted <= view.signals.keys()
    histograms = {"ttft", "itl"} | ({"e2e"} if engine == "v0" or release >= (0, 7, 3, 0, 0) else set())
    histograms |= {"request_tpot"} if release >= (0, 11, 0, 0, 0) else set()
    assert histograms <= view.histograms.keys()
    for missing in view.missing:
        assert missing.why


def test_the_catalogues_spans_are_those_of_the_releases():
    versions = sorted(releases(), key=parse_version)
    for spec in vllm_catalog().signals:
        for name in spec.names:
            said = {v for v in versions if name.in_release(parse_version(v))}
            real = {
                v for v in versions for f in releases()[v] if f.name == name.name and name.engine in f.engines
            }
            assert said == real, (spec.name, name.name, name.engine)
            hidden = {
                v
                for v in versions
                for f in releases()[v]
                if f.name == name.name and name.engine in f.engines and f.hidden
            }
            since = {v for v in real if name.hidden_from is not None and parse_version(v) >= name.hidden_from}
            assert hidden == since, (spec.name, name.name, name.engine)


def test_the_catalogues_labels_are_those_of_the_releases():
    for spec in vllm_catalog().signals:
        if spec.combine == "state" and spec.name != "sleep_state":
            continue  # an info series is read by key, its labels change with most releases
        names = {name.name for name in spec.names}
        real = {label for f in FAMILIES if f.name in names for label in f.labels}
        chosen = {label for name in spec.names for label in name.select}
        assert set(spec.labels) == real - {"engine", "model_name"} - chosen, spec.name


def test_every_family_of_every_release_is_in_the_catalogue():
    known = vllm_catalog().known_names
    assert {family.name for families in releases().values() for family in families} <= known
