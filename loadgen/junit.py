"""The rulings of a comparison as a JUnit file, which CI systems show as tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from loadgen.compare import Ruling


def to_junit(rulings: Sequence[Ruling]) -> str:
    """One test case a rule: a broken one is a failure, one that cannot be decided an error."""
    results = [r.result for r in rulings]
    suite = ET.Element(
        "testsuite",
        name="goodput-loadgen compare",
        tests=str(len(rulings)),
        failures=str(results.count("fail")),
        errors=str(results.count("undecided")),
    )
    for ruling in rulings:
        name = f"{ruling.rule.metric} worse by at most {ruling.rule.margin:.4g}"
        case = ET.SubElement(suite, "testcase", classname="goodput", name=name)
        if ruling.result == "pass":
            ET.SubElement(case, "system-out").text = ruling.why
        else:
            tag = "failure" if ruling.result == "fail" else "error"
            ET.SubElement(case, tag, message=ruling.why)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
