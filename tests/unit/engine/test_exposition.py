"""Pages in, samples out: the shared cases, agreement with prometheus_client, cut pages, odd spellings."""

import contextlib
import gzip
import json
import math
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.engine.exposition import Page, PageError, Parser, parse
from sidecar.engine.line import read_line
from tests.support.engine_cases import body_of, cases, close

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures").rglob("metrics*.txt"))
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def rows(page: Page) -> list[tuple]:
    return sorted((series.name, series.key[1], repr(value)) for series, value in page.samples())


def reference(text: str, reader=parse_text) -> list[tuple]:
    return sorted(
        (s.name, tuple(sorted(s.labels.items())), repr(float(s.value)))
        for family in reader(text)
        for s in family.samples
    )


@pytest.mark.parametrize("case", cases("exposition"))
def test_case(case):
    given_, expect = case["input"], case["expect"]

    def read() -> Page:
        return parse(
            body_of(given_),
            content_type=given_["content_type"],
            content_encoding=given_.get("content_encoding", ""),
            content_length=given_.get("content_length"),
        )

    if not expect["accepted"]:
        with pytest.raises(PageError):
            read()
        return
    started = time.process_time()
    page = read()
    assert time.process_time() - started <= expect.get("within_seconds", math.inf)
    assert len(page) == expect["sample_count"]
    assert page.skipped_count == 0
    if "value_sum" in expect:
        assert close(sum(page.values), expect["value_sum"])
    for wanted in expect.get("samples", ()):
        found = [v for s, v in page.samples() if s.name == wanted["name"] and s.labels == wanted["labels"]]
        assert len(found) == 1
        assert close(found[0], wanted["value"])


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_agrees_with_prometheus_client_on_every_page(path):
    body = path.read_bytes()
    parser = Parser()
    first = parser.parse(body, content_type="text/plain; version=1.0.0")
    again = parser.parse(body, content_type="text/plain; version=1.0.0")
    text = body.decode()
    assert rows(first) == reference(text)
    assert rows(again) == rows(first)
    assert first.skipped_count == 0
    families = {family.name: family for family in parse_text(text)}
    for name, kind in first.metadata.types.items():
        family = families[name.removesuffix("_total") if kind == "counter" else name]
        assert family.type == kind
        assert family.documentation == first.metadata.helps[name].strip()


def test_a_changed_page_is_read_anew_by_a_parser_that_knows_the_old_one():
    parser = Parser()
    parser.parse(b'# TYPE a gauge\na{x="1"} 1\nb 2\n')
    page = parser.parse(b'# TYPE a counter\na{x="1"} 3\na{x="2"} 4\nb 5 1000\n')
    assert rows(page) == [("a", (("x", "1"),), "3.0"), ("a", (("x", "2"),), "4.0"), ("b", (), "5.0")]
    assert page.type_of("a") == "counter"
    assert page.timestamps == {2: 1.0}


def test_known_series_keep_their_object_and_unknown_ones_are_forgotten():
    parser = Parser()
    first = parser.parse(b'a{x="1"} 1\n')
    many = "".join(f'b{{i="{i}"}} 1\n' for i in range(3000)).encode()
    parser.parse(many)
    again = parser.parse(b'a{x="1"} 2\n')
    assert again.series[0] == first.series[0]
    assert len(parser._known) <= 1001


@pytest.mark.parametrize("cut", range(1, 60))
def test_no_cut_of_a_page_yields_a_sample(cut):
    body = b'# TYPE vllm:n gauge\nvllm:n{engine="0"} 48213.0\nvllm:m{engine="0"} 48213.0\n'
    cut_body = body[: len(body) - cut]
    if cut_body.endswith(b"\n"):
        # At a line's end the text itself looks whole: the length or the encoding has to tell.
        with pytest.raises(PageError, match="cut"):
            parse(cut_body, content_length=len(body))
    else:
        with pytest.raises(PageError, match="cut"):
            parse(cut_body)


@pytest.mark.parametrize("cut", range(1, 30))
def test_no_cut_of_a_gzip_page_yields_a_sample(cut):
    whole = gzip.compress(b"a 1\nb 2\nc 3\n")
    with pytest.raises(PageError) as caught:
        parse(whole[:-cut], content_encoding="gzip")
    assert caught.value.code in ("cut", "encoding")


@pytest.mark.parametrize("cut", range(1, 20))
def test_no_cut_of_an_openmetrics_page_yields_a_sample(cut):
    body = b"# TYPE a gauge\na 1\nb 2\n# EOF\n"
    if cut == 1:
        assert len(parse(body[:-cut], content_type=OPENMETRICS)) == 2  # only the optional last newline
    else:
        with pytest.raises(PageError, match="cut"):
            parse(body[:-cut], content_type=OPENMETRICS)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<html></html>\n", ""),
        (b"  <!doctype html>\n", "text/plain"),
        (b'{"error": "not found"}\n', "text/plain"),
        (b'[{"a": 1}]\n', ""),
        (b"Not Found\n", "text/plain; charset=utf-8"),
        (b"a 1\n", "text/html"),
        (b"a 1\n", "application/json; charset=utf-8"),
        (b"\x0a\x05", "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily"),
    ],
)
def test_other_pages_are_refused_as_a_whole(body, content_type):
    with pytest.raises(PageError) as caught:
        parse(body, content_type=content_type)
    assert caught.value.code == "not_metrics"


def test_a_malformed_line_is_skipped_counted_and_named():
    page = parse(b'a 1\nb{x="1} 2\nc 3\nd{x="1"} four\ne{x="1",x="2"} 5\nf 1_000\n g 7\nh 1 2 3\n')
    assert [s.name for s in page.series] == ["a", "c", "g"]
    assert page.skipped_count == 5
    assert [line.number for line in page.skipped] == [2, 4, 5, 6, 8]
    assert "'four' is no number" in page.skipped[1].reason
    assert "twice" in page.skipped[2].reason


def test_bytes_that_are_not_utf8_cost_their_line_and_no_other():
    page = parse(b'a{m="\xff"} 1\nb{m="\xc3\xa4"} 2\n')
    assert [(s.name, dict(s.labels)) for s in page.series] == [("b", {"m": "ä"})]
    assert page.skipped[0].number == 1


def test_openmetrics_exemplars_units_created_and_quoted_names():
    body = (
        "# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n# HELP a_seconds two\\nlines\n"
        'a_seconds_bucket{le="1.0"} 4 1.5 # {trace_id="x"} 0.5 9.5\na_seconds_bucket{le="+Inf"} 5\n'
        "a_seconds_created 12.5\n"
        '# TYPE "my.metric" counter\n{"my.metric_total",path="a b"} 3\nb{"odd.label"="v"} 2\n# EOF\n'
    )
    page = parse(body.encode(), content_type=OPENMETRICS)
    assert page.skipped_count == 0
    assert page.metadata.units == {"a_seconds": "seconds"}
    assert page.metadata.helps == {"a_seconds": "two\nlines"}
    assert page.timestamps == {0: 1.5}
    assert (page.exemplars[0].labels, page.exemplars[0].value, page.exemplars[0].timestamp_s) == (
        {"trace_id": "x"},
        0.5,
        9.5,
    )
    assert page.type_of("a_seconds_bucket") == "histogram"
    assert page.type_of("my.metric_total") == "counter"
    assert [(s.name, dict(s.labels)) for s in page.series[-2:]] == [
        ("my.metric_total", {"path": "a b"}),
        ("b", {"odd.label": "v"}),
    ]


def test_openmetrics_agrees_with_prometheus_client():
    text = (
        '# HELP a x\n# TYPE a counter\na_total{x="1"} 3 # {t="y"} 0.5\na_created{x="1"} 5\n'
        '# TYPE h histogram\nh_bucket{le="1.0"} 1\nh_bucket{le="+Inf"} 2\nh_count 2\nh_sum 3\n# EOF\n'
    )
    assert rows(parse(text.encode(), content_type=OPENMETRICS)) == reference(text, parse_openmetrics)


def test_deflate_identity_and_members_are_read_and_others_refused():
    assert len(parse(zlib.compress(b"a 1\n"), content_encoding="deflate")) == 1
    assert len(parse(b"a 1\n", content_encoding="identity")) == 1
    assert len(parse(gzip.compress(b"a 1\n") + gzip.compress(b"b 1\n"), content_encoding="gzip")) == 2
    for body, encoding in ((b"a 1\n", "br"), (b"a 1\n", "gzip")):
        with pytest.raises(PageError) as caught:
            parse(body, content_encoding=encoding)
        assert caught.value.code == "encoding"


def test_a_page_that_unpacks_without_end_is_refused():
    with pytest.raises(PageError) as caught:
        Parser(max_bytes=10_000).parse(gzip.compress(b"a" * 1_000_000), content_encoding="gzip")
    assert caught.value.code == "too_large"


def test_a_number_that_python_takes_but_the_format_does_not_is_malformed_even_for_a_known_series():
    parser = Parser()
    parser.parse(b"a 1\nb 1\n")
    page = parser.parse(b"a 1_0\nb 1\n")
    assert [s.name for s in page.series] == ["b"]
    assert page.skipped_count == 1


_label_value = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_labels = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True), _label_value, max_size=4
)
_samples = st.lists(
    st.tuples(st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True), _labels, st.floats()),
    max_size=12,
)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def written(samples) -> bytes:
    lines = []
    for name, labels, value in samples:
        text = ",".join(f'{k}="{_escape(v)}"' for k, v in labels.items())
        number = repr(value).replace("inf", "Inf").replace("nan", "NaN")
        lines.append(f"{name}{{{text}}} {number}\n")
    return "".join(lines).encode()


@settings(max_examples=60, deadline=None)
@given(_samples)
def test_whatever_is_written_is_read_back(samples):
    parser = Parser()
    for page in (parser.parse(written(samples)), parser.parse(written(samples))):
        assert page.skipped_count == 0
        assert [(s.name, dict(s.labels), repr(v)) for s, v in page.samples()] == [
            (name, labels, repr(value)) for name, labels, value in samples
        ]


_gap = st.sampled_from(["", " ", "\t", "  "])
_end = st.sampled_from(["", " 1796066234000", "\t12"])
_value = st.sampled_from(["1", "2.5", "-3", "1e-6", "+Inf", "-Inf", "NaN", "0", "1.7960661922834406e+09"])
_loose = st.lists(
    st.tuples(st.sampled_from(["a", "b_total", "vllm:c"]), _labels, _value, _gap, _gap, _end, st.booleans()),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(_loose)
def test_loose_spelling_is_read_as_prometheus_client_reads_it(samples):
    lines = []
    for name, labels, value, before, inside, end, comma in samples:
        pairs = [f'{k}{inside}={inside}"{_escape(v)}"' for k, v in labels.items()]
        text = f"{inside},{inside}".join(pairs) + ("," if comma and pairs else "")
        lines.append(f"{name}{before}{{{inside}{text}{inside}}} {value}{end}\n")
    body = "".join(lines)
    page = parse(body.encode())
    assert page.skipped_count == 0
    assert rows(page) == reference(body)
    stamps = sorted(
        s.timestamp for family in parse_text(body) for s in family.samples if s.timestamp is not None
    )
    assert sorted(page.timestamps.values()) == stamps


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_page_or_a_page_error(body):
    for content_type in ("text/plain", OPENMETRICS):
        with contextlib.suppress(PageError):
            page = Parser().parse(body, content_type=content_type)
            assert len(page.series) == len(page.values)


def test_json_that_starts_like_a_quoted_name_is_told_apart():
    assert len(parse(b'{"a.b"} 1\n')) == 1
    with pytest.raises(PageError):
        parse(json.dumps({"a.b": 1}).encode() + b"\n")


_LINES = (
    'vllm:x{engine="0",le="+Inf",model_name="m"} 3.5',
    'a{b="c",} 5 1700000000000',
    'a{b="{}#, ="} NaN',
    'a{b="x\\"y\\\\z\\nw"} 4',
    "a 1",
    'a { b = "c" , d="" } 7',
)
_edits = st.lists(st.tuples(st.integers(0, 60), st.sampled_from('{}",=\\ #_ab1.+-\t')), max_size=3)


def read_alone(line: str) -> tuple[object, str] | None:
    """What the careful reader says of a line."""
    try:
        _, series, value, _, _ = read_line(line, False)
    except ValueError:
        return None
    return series.key, repr(value)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_LINES), _edits), min_size=1, max_size=3))
@example([('a{b="c",}" 5', [])])
@example([('a{b="c",}"x} 5', []), ('a{b="c",}"x} 5', [])])
def test_the_quick_way_takes_a_line_only_as_the_careful_reader_does(edited):
    lines = []
    for line, edits in edited:
        for at, text in edits:
            line = line[: at % (len(line) + 1)] + text + line[at % (len(line) + 1) :]
        lines.append(line)
    wanted = [one for line in lines if line.lstrip(" \t")[:1] != "#" and (one := read_alone(line))]
    page = Parser().parse("\n".join(["ok 1", *lines, ""]).encode())
    assert [(series.key, repr(value)) for series, value in page.samples()][1:] == wanted
