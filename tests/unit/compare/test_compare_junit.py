from __future__ import annotations

import xml.etree.ElementTree as ET

from loadgen.compare import Rule, Ruling
from loadgen.junit import to_junit


def test_each_rule_is_a_case_with_its_result() -> None:
    rulings = [
        Ruling(Rule("goodput", 0.05), "fail", "-9 % <worse> & sure"),
        Ruling(Rule("ttft_p99", 0.1), "pass", "+1 %"),
        Ruling(Rule("tokens", 0.1), "undecided", "not known in B"),
    ]
    suite = ET.fromstring(to_junit(rulings).encode())
    assert suite.attrib | {"name": ""} == {"name": "", "tests": "3", "failures": "1", "errors": "1"}
    assert [[inner.tag for inner in case] for case in suite] == [["failure"], ["system-out"], ["error"]]
    assert suite[0][0].attrib["message"] == "-9 % <worse> & sure"
    assert suite[0].attrib["name"] == "goodput worse by at most 0.05"
