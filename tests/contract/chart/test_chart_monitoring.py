"""The chart's alerts and dashboard: real promtool, and names that the sidecar really publishes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.publish.catalog import BY_NAME
from tests.support.chart import CHART, HOW, Doc, of_kind, programs, render, run

PROMTOOL = shutil.which("promtool")
NEEDS_PROMTOOL = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH (Debian: prometheus)")
DASHBOARD = json.loads((CHART / "dashboards" / "goodput.json").read_text())


def rule_object(*args: object) -> Doc:
    helms = programs("helm")
    if not helms:
        pytest.skip(HOW)
    docs = render(helms[-1], "--values", CHART / "ci" / "keda-values.yaml", *args)
    return of_kind(docs, "PrometheusRule")


def known(name: str) -> bool:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return name in BY_NAME or (base in BY_NAME and BY_NAME[base].kind == "histogram")


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bgoodput_[a-z_]+", expression))


@NEEDS_PROMTOOL
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_object()["spec"]))
    ran = run(PROMTOOL, "check", "rules", tmp_path / "rules.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_alerts_ask_only_for_what_the_sidecar_publishes() -> None:
    rules = rule_object()["spec"]["groups"][0]["rules"]
    assert len(rules) == 6
    for rule in rules:
        names = names_in(rule["expr"])
        assert names
        assert all(known(n) for n in names), names
        assert rule["annotations"].keys() == {"summary", "description"}


def test_without_a_capacity_no_alert_waits_for_its_signal() -> None:
    helms = programs("helm")
    if not helms:
        pytest.skip(HOW)
    docs = render(helms[-1], "--set", "prometheusRule.enabled=true")
    assert "goodput_saturation" not in json.dumps(of_kind(docs, "PrometheusRule"))


SERIES = '{namespace="serving",pod="demo-goodput-sidecar-7-x",model="m",class="default"'


@NEEDS_PROMTOOL
@pytest.mark.parametrize(
    ("bad_per_minute", "fires"),
    [(10, True), (0.5, False)],
    ids=["all-bad-and-never-a-good-one", "within-budget"],
)
def test_the_burn_alert_fires_for_bad_requests_and_only_then(
    tmp_path: Path, bad_per_minute: float, fires: bool
) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_object()["spec"]))
    expected: dict[str, Any] = {
        "exp_labels": {"severity": "critical", "namespace": "serving", "model": "m", "class": "default"},
        "exp_annotations": {
            "summary": "m, class default: requests miss the SLO 14.4 times faster than the budget allows",
            "description": "See goodput_badput_requests_total by bucket for the cause.",
        },
    }
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f'goodput_badput_requests_total{SERIES},bucket="queue"}}',
                        "values": f"0+{bad_per_minute}x120",
                    },
                    {
                        "series": f"goodput_eligible_requests_total{SERIES}}}",
                        "values": "0+10x120",
                    },
                ],
                "alert_rule_test": [
                    {
                        "eval_time": "90m",
                        "alertname": "GoodputBudgetBurnsFast",
                        "exp_alerts": [expected] if fires else [],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    ran = run(PROMTOOL, "test", "rules", tmp_path / "test.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_objective_sets_the_budget() -> None:
    rules = rule_object("--set", "prometheusRule.objective=0.95")["spec"]["groups"][0]["rules"]
    assert "> 14.4 * 0.05\n" in rules[0]["expr"]


def panels() -> list[Doc]:
    found: list[Doc] = DASHBOARD["panels"]
    return found


@pytest.mark.parametrize("panel", panels(), ids=lambda p: p["title"])
def test_each_panel_keeps_the_rules_of_a_good_dashboard(panel: Doc) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        expression = target["expr"]
        assert target["datasource"]["uid"] == "${datasource}"
        names = names_in(expression)
        assert names
        assert all(known(n) for n in names), names
        for name in names:
            if name.endswith(("_total", "_bucket")):
                assert re.search(rf"rate\({name}{{[^}}]*}}\[\$__rate_interval\]\)", expression), name


def test_the_dashboard_as_a_whole() -> None:
    assert DASHBOARD["editable"] is False
    assert [v["name"] for v in DASHBOARD["templating"]["list"] if v["type"] == "datasource"] == ["datasource"]
    ids = [p["id"] for p in panels()]
    assert len(ids) == len(set(ids))
    squares = [
        (x, y)
        for p in panels()
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + 12)
        for y in [p["gridPos"]["y"]]
    ]
    assert len(squares) == len(set(squares))


def test_the_config_map_holds_the_dashboard_untouched() -> None:
    helms = programs("helm")
    if not helms:
        pytest.skip(HOW)
    docs = render(helms[-1], "--values", CHART / "ci" / "keda-values.yaml")
    (config,) = [d for d in docs if d["kind"] == "ConfigMap" and "goodput.json" in d["data"]]
    assert json.loads(config["data"]["goodput.json"]) == DASHBOARD
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
