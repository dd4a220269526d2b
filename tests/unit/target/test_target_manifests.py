from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from loadgen import manifests
from loadgen.manifests import Place
from loadgen.target import Plan, Wish, capacity_file, plan
from sidecar.errors import UserError
from tests.support import reports
from tests.support.kube import VERSIONS, core_errors, crd_errors

PLACE = Place("llama-8b", "serving", cold_start_s=200.0)


def made(**wish: Any) -> Plan:
    return plan(reports.sweep(), Wish(30.0, min_replicas=2, max_replicas=16, **wish))


def parsed(text: str) -> dict[str, Any]:
    doc: dict[str, Any] = yaml.safe_load(text)
    return doc


@pytest.mark.parametrize("version", VERSIONS)
def test_the_hpa_and_the_config_map_pass_the_api_schema(version: str) -> None:
    capacity = capacity_file(reports.sweep(), made())
    for text in (manifests.hpa(made(), PLACE), manifests.config_map(capacity, PLACE)):
        assert core_errors(parsed(text), version) is None


def test_the_schema_check_can_fail() -> None:
    doc = parsed(manifests.hpa(made(), PLACE))
    doc["spec"]["maxReplica"] = 3
    assert core_errors(doc, VERSIONS[0]) is not None


@pytest.mark.parametrize("trigger", ["prometheus", "metrics-api"])
def test_the_scaled_object_passes_kedas_schema(trigger: str) -> None:
    assert crd_errors(parsed(manifests.keda(made(), PLACE, trigger))) == []


def test_kedas_schema_check_can_fail() -> None:
    doc = parsed(manifests.keda(made(), PLACE))
    wrong = copy.deepcopy(doc)
    wrong["spec"]["pollingIntervall"] = 5
    assert any("pollingIntervall" in e for e in crd_errors(wrong))
    wrong = copy.deepcopy(doc)
    wrong["spec"]["triggers"][0]["metadata"]["threshold"] = 0.8
    assert any("threshold" in e for e in crd_errors(wrong))


def test_the_hpa_holds_the_target_within_its_bounds() -> None:
    spec = parsed(manifests.hpa(made(), PLACE))["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-8b"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 16)
    (metric,) = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == "goodput_saturation"
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "800m"}


def test_scaling_waits_for_the_cold_start_and_hurries_down_never() -> None:
    behavior = parsed(manifests.hpa(made(), PLACE))["spec"]["behavior"]
    assert {p["periodSeconds"] for p in behavior["scaleUp"]["policies"]} == {200}
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 400
    slow = parsed(manifests.hpa(made(), replace(PLACE, cold_start_s=3600.0)))["spec"]["behavior"]
    assert slow["scaleUp"]["policies"][0]["periodSeconds"] == 1800  # the API's limits
    assert slow["scaleDown"]["stabilizationWindowSeconds"] == 3600


@pytest.mark.parametrize("trigger", ["prometheus", "metrics-api"])
def test_a_gap_never_scales_down(trigger: str) -> None:
    spec = parsed(manifests.keda(made(), PLACE, trigger))["spec"]
    assert spec["fallback"] == {
        "failureThreshold": 3,
        "replicas": made().replicas,
        "behavior": "currentReplicasIfHigher",
    }
    (found,) = spec["triggers"]
    assert found["type"] == trigger
    assert found["metricType"] == "Value"  # the signal is a mean already
    assert all(isinstance(v, str) for v in found["metadata"].values())
    if trigger == "prometheus":
        assert found["metadata"]["ignoreNullValues"] == "false"
        assert found["metadata"]["query"] == (
            'avg(goodput_saturation{namespace="serving",pod=~"llama-8b-.*"})'
        )
        assert found["metadata"]["threshold"] == "0.800"
    else:
        assert found["metadata"]["aggregationType"] == "average"
        assert "?" not in found["metadata"]["url"]  # KEDA drops a query when it asks each pod
        assert found["metadata"]["url"] == "http://llama-8b.serving.svc:9090/autoscale"
        assert found["metadata"]["targetValue"] == "0.800"


def test_the_adapter_rule_asks_for_the_metric_of_the_hpa() -> None:
    (rule,) = parsed(manifests.adapter_rule())["rules"]["custom"]
    assert rule["name"]["as"] == manifests.METRIC
    assert rule["seriesQuery"].startswith(manifests.METRIC)
    assert rule["metricsQuery"] == "avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"


def test_the_config_map_holds_the_capacity_file_as_it_is() -> None:
    capacity = capacity_file(reports.sweep(), made())
    data = parsed(manifests.config_map(capacity, PLACE))["data"]
    assert json.loads(data["capacity.json"]) == json.loads(capacity)


def test_each_number_has_its_reason_beside_it() -> None:
    text = manifests.keda(made(), PLACE)
    for key in ("replicas", "failureThreshold", "threshold", "pollingInterval", "stabilizationWindowSeconds"):
        assert re.search(rf"^ *{key}: .*# ", text, re.M), key
    assert "30 requests/s need 10 replicas" in text


def test_words_from_a_report_cannot_leave_their_comment() -> None:
    report = reports.sweep(flags=("x\nspec: {maxReplicaCount: 1}\r\u2028y",))
    text = manifests.keda(plan(report, Wish(30.0)), PLACE)
    assert parsed(text)["spec"]["maxReplicaCount"] == 20
    assert "\n# Note: x spec: {maxReplicaCount: 1} y.\n" in text


@pytest.mark.parametrize("name", ["", "UPPER", "a b", "-a", "a-", "x" * 64, 'a"}) or vector(1'])
def test_names_that_kubernetes_refuses_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="--name"):
        Place(name, "default")
    with pytest.raises(UserError, match="--namespace"):
        Place("vllm", name)


@pytest.mark.parametrize("seconds", [-1.0, 3601.0, float("nan")])
def test_a_cold_start_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(UserError, match="--cold-start-s"):
        Place("vllm", "default", cold_start_s=seconds)
