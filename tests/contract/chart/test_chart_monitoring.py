"""The chart's alerts and dashboard: the project's own ones, untouched, and accepted by the real promtool."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.chart import CHART, COPIES, HOW, Doc, of_kind, programs, render, run

PROMTOOL = shutil.which("promtool")


def rendered(*args: object) -> list[Doc]:
    helms = programs("helm")
    if not helms:
        pytest.skip(HOW)
    return render(helms[-1], *args)


def rule_object(*args: object) -> Doc:
    return of_kind(rendered("--values", CHART / "ci" / "keda-values.yaml", *args), "PrometheusRule")


@pytest.mark.parametrize("source", COPIES, ids=lambda p: p.name)
def test_what_the_chart_ships_is_what_the_project_has(source: Path) -> None:
    assert COPIES[source].read_bytes() == source.read_bytes(), "run: python -m tests.support.chart"


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH (Debian: prometheus)")
def test_promtool_accepts_the_rendered_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_object()["spec"]))
    ran = run(PROMTOOL, "check", "rules", tmp_path / "rules.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_helm_leaves_the_rules_and_their_templates_alone() -> None:
    own = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    groups = rule_object()["spec"]["groups"]
    assert groups[: len(own)] == own
    (extra,) = groups[len(own) :]
    (rule,) = extra["rules"]
    assert rule["expr"] == 'absent(goodput_saturation{namespace="serving",pod=~"demo-goodput-sidecar-.*"})'


def test_without_a_capacity_no_alert_waits_for_its_signal() -> None:
    rules = of_kind(rendered("--set", "prometheusRule.enabled=true"), "PrometheusRule")
    assert "GoodputNoSignal" not in json.dumps(rules)


def test_the_config_map_holds_the_dashboard_untouched() -> None:
    docs = rendered("--values", CHART / "ci" / "keda-values.yaml")
    (config,) = [d for d in docs if d["kind"] == "ConfigMap" and "goodput.json" in d["data"]]
    own = json.loads((CHART / "files" / "goodput.json").read_text())
    assert json.loads(config["data"]["goodput.json"]) == own
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
