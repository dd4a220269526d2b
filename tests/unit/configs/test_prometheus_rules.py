"""Recording and alert rules: run by promtool over invented series, and held against the metrics catalogue."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from sidecar.publish.catalog import BY_NAME

RULES = Path(__file__).parents[3] / "configs" / "prometheus" / "rules.yaml"
CASES = (Path(__file__).with_name("rules_cases.yaml"), Path(__file__).with_name("rules_slow_cases.yaml"))
needs_promtool = pytest.mark.skipif(
    which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


@needs_promtool
@pytest.mark.parametrize("command", [["check", "rules", str(RULES)], ["test", "rules", *map(str, CASES)]])
def test_promtool_agrees(command: list[str]) -> None:
    ran = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_says_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) >= 12
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]
        assert len(alert["annotations"]["runbook"]) > 30, alert["alert"]
        assert alert["annotations"]["summary"], alert["alert"]


def test_every_alert_is_tested() -> None:
    cases = "".join(path.read_text("utf-8") for path in CASES)
    assert [rule["alert"] for rule in rules() if "alert" in rule and rule["alert"] not in cases] == []


def test_every_name_is_one_that_the_sidecar_publishes() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        for name in re.findall(r"goodput[a-z0-9_:A-Z]*", re.sub(r'"[^"]*"', "", rule["expr"])):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert base in BY_NAME or name in recorded, name
