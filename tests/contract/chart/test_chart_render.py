"""The chart against what Kubernetes, KEDA and the Prometheus Operator accept, with the real helm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.config import KEYS
from tests.support.chart import CHART, GOLDEN, HOW, Doc, golden_text, of_kind, programs, render, run
from tests.support.kube import VERSIONS, core_errors, crd_errors

HELMS = programs("helm") or [""]
CI = sorted((CHART / "ci").glob("*-values.yaml"))
CUSTOM = ("monitoring.coreos.com/v1", "keda.sh/v1alpha1")

pytestmark = pytest.mark.parametrize("helm", HELMS, ids=lambda p: Path(p).parent.name or "none")


def values(name: str) -> list[object]:
    return ["--values", CHART / "ci" / f"{name}-values.yaml"]


def containers(docs: list[Doc]) -> Iterator[tuple[Doc, Doc]]:
    """Every container with its pod spec."""
    for doc in docs:
        if (template := doc.get("spec", {}).get("template")) is not None:
            pod = template["spec"]
            for container in [*pod.get("initContainers", ()), *pod["containers"]]:
                yield pod, container


@pytest.mark.parametrize("file", CI, ids=lambda p: p.stem)
def test_lint_is_content(helm: str, file: Path) -> None:
    if not helm:
        pytest.skip(HOW)
    ran = run(helm, "lint", "--strict", CHART, "--values", file)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("file", CI, ids=lambda p: p.stem)
def test_objects_pass_their_schemas(helm: str, file: Path) -> None:
    for doc in render(helm, "--values", file):
        if doc["apiVersion"] in CUSTOM:
            assert crd_errors(doc) == [], doc["kind"]
        else:
            for version in VERSIONS:
                assert core_errors(doc, version) is None, (doc["kind"], version)


def test_an_old_cluster_is_refused(helm: str) -> None:
    if not helm:
        pytest.skip(HOW)
    ran = run(helm, "template", "demo", CHART, "--kube-version", "1.28.0")
    assert ran.returncode != 0
    assert ">=1.29.0-0" in ran.stderr


@pytest.mark.parametrize("file", CI, ids=lambda p: p.stem)
def test_the_render_is_the_one_that_was_looked_at(helm: str, file: Path) -> None:
    golden = (GOLDEN / f"{file.stem}.yaml").read_text(encoding="utf-8")
    assert golden_text(helm, file) == golden, (
        "if meant: python -m tests.support.chart, and look at the difference"
    )


@pytest.mark.parametrize("file", CI, ids=lambda p: p.stem)
def test_what_schemas_miss(helm: str, file: Path) -> None:
    docs = render(helm, "--values", file)
    for pod, container in containers(docs):
        ports = {p["containerPort"] for p in container.get("ports", ())}
        assert all(len(p["name"]) <= 15 for p in container.get("ports", ()))
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                asked = container[probe]["httpGet"]["port"]
                # The sidecar's readiness goes through its own proxy port: each probe asks its own container.
                assert asked in ports, (container["name"], probe)
        mounted = {m["name"] for m in container.get("volumeMounts", ())}
        assert mounted <= {v["name"] for v in pod.get("volumes", ())}
        assert container.get("restartPolicy") in (None, "Always")
    deployment, service = of_kind(docs, "Deployment"), of_kind(docs, "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    open_ports = {p["containerPort"] for _, c in containers([deployment]) for p in c["ports"]}
    for port in service["spec"]["ports"]:
        assert isinstance(port["targetPort"], int)
        assert port["targetPort"] in open_ports
    used = [p["containerPort"] for _, c in containers([deployment]) for p in c["ports"]]
    assert len(used) == len(set(used))


@pytest.mark.parametrize("file", CI, ids=lambda p: p.stem)
def test_the_selector_does_not_catch_the_load_test(helm: str, file: Path) -> None:
    docs = render(helm, "--values", file, "--set", "loadTest.enabled=true")
    service, job = of_kind(docs, "Service"), of_kind(docs, "Job")
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= labels.items()


def test_the_sidecar_is_native_and_never_waits_for_vllm(helm: str) -> None:
    docs = render(helm)
    pod = of_kind(docs, "Deployment")["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    (vllm,) = pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["httpGet"] == {"path": "/healthz", "port": 9090}
    assert f"--upstream=http://127.0.0.1:{vllm['ports'][0]['containerPort']}" in sidecar["args"]
    assert f"--port={vllm['ports'][0]['containerPort']}" in vllm["args"]
    assert of_kind(docs, "Service")["spec"]["ports"][0]["targetPort"] == sidecar["ports"][0]["containerPort"]


def test_the_grace_period_holds_the_whole_drain(helm: str) -> None:
    docs = render(
        helm,
        "--set",
        "vllm.preStopSleepSeconds=7,vllm.shutdownTimeoutSeconds=100,sidecar.drainSeconds=12.5",
    )
    pod = of_kind(docs, "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 7 + 100 + 13 + 10
    vllm = pod["containers"][0]
    assert vllm["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert "--shutdown-timeout=100" in vllm["args"]


def test_an_old_vllm_gets_no_flag_it_does_not_know(helm: str) -> None:
    docs = render(helm, "--set", "vllm.shutdownTimeoutSeconds=0")
    assert "shutdown-timeout" not in json.dumps(docs)


def test_ours_is_restricted(helm: str) -> None:
    docs = render(helm, "--set", "loadTest.enabled=true")
    ours = [c for _, c in containers(docs) if c["name"] in ("goodput-sidecar", "sweep")]
    assert len(ours) == 2
    for container in ours:
        security = container["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "nvidia.com/gpu" not in json.dumps(container["resources"])
        assert container["resources"]["limits"].keys() == {"memory"}  # a CPU limit would add latency
    for pod, _ in containers(docs):
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "shareProcessNamespace"} & pod.keys()
        assert all("hostPath" not in v for v in pod.get("volumes", ()))


def test_nothing_extra_is_on_by_default(helm: str) -> None:
    assert sorted(d["kind"] for d in render(helm)) == ["Deployment", "Service"]


def test_keda_reads_a_gap_as_an_error_and_the_sum_as_a_mean(helm: str) -> None:
    docs = render(helm, *values("keda"))
    spec = of_kind(docs, "ScaledObject")["spec"]
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 6, "behavior": "currentReplicasIfHigher"}
    (trigger,) = spec["triggers"]
    assert trigger["metricType"] == "Value"
    assert trigger["metadata"]["aggregationType"] == "average"
    assert trigger["metadata"]["targetValue"] == "0.800"
    service = of_kind(docs, "Service")
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert trigger["metadata"]["url"] == f"http://{host}:9090/autoscale"
    # KEDA asks each pod at the Service's port: both must be the same number.
    admin = next(p for p in service["spec"]["ports"] if p["name"] == "goodput-admin")
    assert admin["port"] == admin["targetPort"] == 9090
    assert "replicas" not in of_kind(docs, "Deployment")["spec"]


def test_the_hpa_follows_the_deployment(helm: str) -> None:
    docs = render(helm, *values("hpa"), "--set", "autoscaling.targetSaturation=0.64")
    hpa, deployment = of_kind(docs, "HorizontalPodAutoscaler"), of_kind(docs, "Deployment")
    assert hpa["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"] == "llama"
    assert hpa["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "640m"
    assert "replicas" not in deployment["spec"]


def test_the_network_policy_closes_vllms_own_port(helm: str) -> None:
    ingress = of_kind(render(helm, *values("keda")), "NetworkPolicy")["spec"]["ingress"]
    assert [p["port"] for rule in ingress for p in rule["ports"]] == [8000, 9090]
    assert ingress[0]["from"] == [{"podSelector": {"matchLabels": {"app": "gateway"}}}]
    assert ingress[1]["from"] == [{"namespaceSelector": {}}]


def test_a_changed_setting_restarts_the_pods(helm: str) -> None:
    def checksum(*args: object) -> str:
        pod = of_kind(render(helm, *args), "Deployment")["spec"]["template"]
        found: str = pod["metadata"]["annotations"]["checksum/config"]
        return found

    peak = "sidecar.capacity.format=1,sidecar.capacity.peak_load_per_replica="
    assert checksum("--set", peak + "20") == checksum("--set", peak + "20")
    assert checksum("--set", peak + "20") != checksum("--set", peak + "21")


def test_the_capacity_arrives_as_the_sidecar_reads_it(helm: str, tmp_path: Path) -> None:
    from sidecar.derive.autoscale import load_capacity

    docs = render(helm, *values("keda"))
    path = tmp_path / "capacity.json"
    (config,) = [d for d in docs if d["kind"] == "ConfigMap" and "capacity.json" in d["data"]]
    path.write_text(config["data"]["capacity.json"])
    assert load_capacity(path).peak_load == 20.0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "sidecar.slow=1"], "slow"),
        (["--set", "sidecar.port=eighty"], "port"),
        (["--set", "sidecar.port=70000"], "port"),
        (["--set", "podMonitor.enabled=yes"], "enabled"),
        (["--set-json", 'sidecar.capacity={"format":1}'], "peak_load_per_replica"),
        (["--set-json", 'sidecar.capacity={"format":2,"peak_load_per_replica":3}'], "format"),
        (["--set", "service.type=Cluster"], "type"),
        (["--set", "autoscaling.targetSaturation=much"], "targetSaturation"),
        (["--set", "sidecar.drainSeconds=0.0"], "drainSeconds"),
        (["--set", "autoscaling.hpa.enabled=true,autoscaling.keda.enabled=true"], "turn on one of them"),
        (["--set", "autoscaling.keda.enabled=true"], "needs the measured peak"),
        (
            ["--set", "autoscaling.hpa.enabled=true,sidecar.capacityConfigMap=x,autoscaling.minReplicas=9"],
            "must not be below",
        ),
    ],
)
def test_wrong_values_fail_and_name_the_key(helm: str, args: list[str], said: str) -> None:
    if not helm:
        pytest.skip(HOW)
    ran = run(helm, "template", "demo", CHART, *args)
    assert ran.returncode != 0
    assert said in ran.stderr


@pytest.mark.parametrize("file", CI, ids=lambda p: p.stem)
def test_the_sidecar_knows_every_flag_it_is_given(helm: str, file: Path) -> None:
    pod = of_kind(render(helm, "--values", file), "Deployment")["spec"]["template"]["spec"]
    flags = [a for a in pod["initContainers"][0]["args"] if a.startswith("--")]
    assert flags
    for flag in flags:
        assert flag[2:].partition("=")[0].replace("-", "_") in KEYS, flag


def test_the_example_for_other_charts_is_what_this_one_renders(helm: str) -> None:
    pod = of_kind(render(helm), "Deployment")["spec"]["template"]["spec"]
    example = yaml.safe_load((CHART / "examples" / "init-container.yaml").read_text())
    assert example == pod["initContainers"]


def test_kustomize_adds_the_same_sidecar(helm: str, tmp_path: Path) -> None:
    kubectls = programs("kubectl")
    if not kubectls:
        pytest.skip(HOW)
    theirs: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "initContainers": [{"name": "fetch", "image": "x"}],
                    "containers": [{"name": "vllm", "image": "y"}],
                    "volumes": [{"name": "models", "emptyDir": {}}],
                },
            },
        },
    }
    (tmp_path / "component").mkdir()
    for file in (CHART / "examples" / "kustomize").iterdir():
        (tmp_path / "component" / file.name).write_text(file.read_text())
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(theirs))
    (tmp_path / "kustomization.yaml").write_text("resources: [deployment.yaml]\ncomponents: [component]\n")
    ran = run(kubectls[0], "kustomize", tmp_path)
    assert ran.returncode == 0, ran.stderr
    pod = yaml.safe_load(ran.stdout)["spec"]["template"]["spec"]
    ours = of_kind(render(helm), "Deployment")["spec"]["template"]["spec"]
    by_name = {c["name"]: c for c in pod["initContainers"]}
    assert by_name["goodput-sidecar"] == ours["initContainers"][0]
    assert by_name["fetch"]["image"] == "x"
    assert {v["name"] for v in pod["volumes"]} == {"models", "goodput-tmp"}
    assert pod["terminationGracePeriodSeconds"] == ours["terminationGracePeriodSeconds"]


def test_the_readme_lists_every_value_with_its_default(helm: str) -> None:
    readme = (CHART / "README.md").read_text()
    listed = dict(re.findall(r"^\| `([A-Za-z.]+)` \| `(.*?)` \|", readme, re.M))

    def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
        documented = path in listed
        if isinstance(node, dict) and node and not documented:
            for key, inner in node.items():
                yield from leaves(inner, f"{path}.{key}".lstrip("."))
        else:
            yield path, node

    found = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    assert {k: json.loads(v) for k, v in listed.items()} == found
