from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest

from loadgen.report.html import to_html
from loadgen.results import SweepReport
from tests.support import reports

ALL = (reports.sweep, reports.with_repeats, reports.not_bracketed, reports.no_peak, reports.awkward)
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Checker(HTMLParser):
    """Collects tags, ids and texts; notes a tag that is closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if (ident := found.get("id")) is not None:
            self.ids.append(ident)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def checked(report: SweepReport) -> tuple[str, Checker]:
    page = to_html(report)
    checker = Checker()
    checker.feed(page)
    checker.close()
    return page, checker


EMPTY = replace(reports.sweep(), levels=(), peak=reports.no_peak().peak, flags=("nothing was measured",))


@pytest.mark.parametrize("report", [*(make() for make in ALL), EMPTY])
def test_the_page_is_well_formed_and_stands_alone(report: SweepReport) -> None:
    page, got = checked(report)
    assert got.wrong == []
    assert got.open == []
    assert len(got.ids) == len(set(got.ids))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in got.tags}
    for tag, attributes in got.tags:
        for name, value in attributes.items():
            assert name not in ("src", "href", "srcset", "onload"), (tag, name, value)
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\b(nan|inf|None)\b", page)


@pytest.mark.parametrize("make", ALL)
def test_each_chart_is_sound_xml_with_title_and_description(make: Any) -> None:
    page = to_html(make())
    charts = re.findall(r"<svg xmlns=.*?</svg>", page, re.S)
    assert len(charts) >= 14
    for chart in charts:
        root = ET.fromstring(chart)
        title, desc = root[0], root[1]
        assert (title.tag.rpartition("}")[2], desc.tag.rpartition("}")[2]) == ("title", "desc")
        assert title.text
        assert desc.text
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-labelledby"] == f"{title.attrib['id']} {desc.attrib['id']}"
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for element in root.iter():
            for x in ("x", "x1", "x2", "cx"):
                assert -1 <= float(element.attrib.get(x, "0")) <= width + 1
            for y in ("y", "y1", "y2", "cy"):
                assert -1 <= float(element.attrib.get(y, "0")) <= height + 1


def test_what_a_server_calls_itself_cannot_break_the_page() -> None:
    page, got = checked(reports.awkward())
    assert "<script" not in page
    assert "</title><script>alert(1)</script>" in " ".join(got.texts)
    assert "cosmic <rays>" in " ".join(got.texts)


def text_of(report: SweepReport) -> str:
    return re.sub(r"\s+", " ", " ".join(checked(report)[1].texts))


def test_the_first_screen_answers_how_much_how_sure_and_what_breaks() -> None:
    text = text_of(reports.sweep())
    head = text[text.index("How much one replica takes") :][:1200]
    assert "4.53 good requests/s at 20 requests in flight" in head
    assert "The 95 % interval is 3.94 to 5.13 good requests/s." in head
    assert "Loads from 16 to 20 cannot be told apart" in head
    assert "What breaks first decode" in head
    assert "TTFT ≤ 500 ms" in head


def test_a_lower_bound_is_called_one() -> None:
    text = text_of(reports.not_bracketed())
    assert "at least 3.23 good requests/s" in text
    assert "The peak is a lower bound" in text


def test_no_peak_is_no_number() -> None:
    text = text_of(reports.no_peak())
    assert "No goodput peak was found No request met the SLO at any load." in text
    assert "no load reached it" in text


def test_doubts_stand_above_the_figures() -> None:
    text = text_of(reports.awkward())
    warnings, facts = text.index("Before you rely on this"), text.index("What breaks first")
    assert warnings < text.index("token counts are estimated") < facts
    assert "The sweep was interrupted" in text[warnings:facts]
    assert "Left out of the search because they do not count: load 32" in text[warnings:facts]


def test_without_doubts_there_is_no_warning() -> None:
    assert "Before you rely on this" not in text_of(reports.sweep())


def test_a_level_that_does_not_count_is_crossed_out_not_drawn_as_a_value() -> None:
    page = to_html(reports.awkward())
    goodput = re.search(r'<svg xmlns=[^>]*aria-labelledby="goodput-w.*?</svg>', page, re.S)
    assert goodput is not None
    root = ET.fromstring(goodput.group())
    by_class = [e.attrib.get("class", "") for e in root.iter()]
    judged = 6  # of the eight levels, one is invalid and one had nothing to judge
    assert by_class.count("dot goodput") == judged
    assert by_class.count("invalid") == 2


def test_only_bounds_that_the_slo_has_are_drawn() -> None:
    page = to_html(reports.sweep())
    assert page.count("SLO TTFT 500") == 2  # wide and narrow
    assert "SLO E2E" not in page
    with_e2e = replace(reports.sweep(), slo={**reports.SLO, "e2e_s": 6.0})
    assert "SLO E2E 6 s" in to_html(with_e2e)


def test_the_table_has_every_level_and_marks_what_breaks_the_slo() -> None:
    page = to_html(reports.sweep())
    table = page[page.index("All levels") :]
    assert table.count("<tr") - 1 >= len(reports.LOADS)
    assert '<td class="over">2.77 s</td>' in table
    assert '<td class="over">84 ms</td>' not in table


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_lines_stand_out_in_light_and_dark(theme: int) -> None:
    css = resources.files("loadgen.report").joinpath("report.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    colors = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", blocks[theme]))
    for name in ("ink", "soft", "good", "peak", "slo"):
        assert contrast(colors[name], colors["card"]) >= 4.5, name
        assert contrast(colors[name], colors["page"]) >= 4.5, name
    assert contrast(colors["warn-ink"], colors["warn"]) >= 4.5
    for name in ("through", "p95", "p99", "engine"):
        assert contrast(colors[name], colors["card"]) >= 3, name
