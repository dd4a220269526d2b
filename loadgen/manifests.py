"""A plan as objects to apply: HPA, KEDA ScaledObject, ConfigMap, prometheus-adapter rule. Pure, YAML text.

Written as text, not dumped from a tree, so that every number carries the comment that explains it. All texts
that come from outside are written as JSON strings, which YAML reads as they are.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from loadgen.report.text import number, percent
from loadgen.target import Plan
from sidecar.errors import UserError

METRIC = "goodput_saturation"
"""The sidecar's per-pod signal: requests in flight over the load at the measured peak."""

ADMIN_PORT = 9090
PROMETHEUS = "http://prometheus-server.monitoring.svc:80"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the objects go and what they measure."""

    name: str  # of the Deployment that is scaled
    namespace: str
    prometheus: str = PROMETHEUS
    service: str = ""  # for the metrics-api trigger; the Deployment's name when empty
    cold_start_s: float = 120.0  # from "one more" to serving

    def __post_init__(self) -> None:
        """Raise `UserError` for names that Kubernetes would refuse."""
        for key, value in (
            ("--name", self.name),
            ("--namespace", self.namespace),
            ("--service", self.service),
        ):
            if (value or key != "--service") and not _NAME.fullmatch(value):
                raise UserError(
                    f"{key} {value!r}: lower case letters, digits and dashes, at most 63, are expected"
                )
        if not math.isfinite(self.cold_start_s) or not 0 <= self.cold_start_s <= 3600:
            raise UserError(f"--cold-start-s {self.cold_start_s}: 0 to 3600 seconds are expected")


def _q(text: str) -> str:
    """A text as a YAML string that stays a string."""
    return json.dumps(text, ensure_ascii=True)


def _header(plan: Plan) -> str:
    lines = [
        f"{number(plan.rate_rps)} requests/s need {plan.replicas} replicas: each is planned for "
        f"{number(plan.planned_rps)} requests/s,",
        f"{percent(plan.use_share)} of {number(plan.measured_low_rps)} good requests/s, "
        f"the lower end of what one replica does at its {plan.basis}"
        + (f", and {plan.spare} may fail." if plan.spare else "."),
        f"Expected at that count: {percent(plan.expected_attainment)} of the requests good.",
        *(f"Note: {note}." for note in plan.notes),
        *(f"FORCED although {doubt}." for doubt in plan.forced),
    ]
    return "".join(f"# {_one_line(line)}\n" for line in lines)


def _one_line(text: str) -> str:
    """A comment must not end early: no line break of any kind may be in it."""
    return " ".join(text.split())


def _behavior(plan: Plan, place: Place, pad: str) -> str:
    """HPA behaviour from the cold start: at most double per cold start, down slowly and late."""
    up = min(1800, max(15, math.ceil(place.cold_start_s)))
    down = min(3600, max(300, math.ceil(2 * place.cold_start_s)))
    step = max(1, plan.replicas // 4)
    text = f"""behavior:
  scaleUp:
    stabilizationWindowSeconds: 0  # too little capacity costs goodput at once: do not wait
    selectPolicy: Max
    policies:
      - type: Percent
        value: 100  # at most double ...
        periodSeconds: {up}  # ... per cold start, so that replicas still starting are not asked for twice
      - type: Pods
        value: {step}  # or a quarter of the planned count, where that is more
        periodSeconds: {up}
  scaleDown:
    stabilizationWindowSeconds: {down}  # 5 min or twice the cold start: what is let go comes back late
    policies:
      - type: Percent
        value: 10  # slowly: after each step the rest carries more
        periodSeconds: 60
      - type: Pods
        value: 1
        periodSeconds: 60
    selectPolicy: Max
"""
    return "".join(pad + line + "\n" for line in text.splitlines())


def hpa(plan: Plan, place: Place) -> str:
    """HorizontalPodAutoscaler v2 on the per-pod metric; needs `adapter_rule` in prometheus-adapter.

    A gap is safe: without any answer the HPA does not scale, and pods without a reading count as fully used
    before it scales down and as idle before it scales up.
    """
    milli = max(1, round(plan.target_saturation * 1000))
    share, load = number(plan.target_saturation), number(plan.peak_load_per_replica)
    return f"""{_header(plan)}apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {_q(place.name)}
  namespace: {_q(place.namespace)}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {_q(place.name)}
  minReplicas: {plan.min_replicas}
  maxReplicas: {plan.max_replicas}
  metrics:
    - type: Pods
      pods:
        metric:
          name: {METRIC}
        target:
          type: AverageValue
          # {share} of the {load} requests in flight at which goodput peaks
          averageValue: {milli}m
{_behavior(plan, place, "  ")}"""


def adapter_rule() -> str:
    """The rule of prometheus-adapter (a values fragment of its chart) that the HPA reads through."""
    return f"""# prometheus-adapter: gives the HPA {METRIC}, one value a pod.
# A pod without a value has none: nothing is made 0.
rules:
  custom:
    - seriesQuery: '{METRIC}{{namespace!="",pod!=""}}'
      resources:
        overrides:
          namespace: {{resource: namespace}}
          pod: {{resource: pod}}
      name:
        as: {METRIC}
      metricsQuery: 'avg(<<.Series>>{{<<.LabelMatchers>>}}) by (<<.GroupBy>>)'
"""


def saturation_query(place: Place) -> str:
    """PromQL: the mean over the replicas that report; one series, empty when none does."""
    return f'avg({METRIC}{{namespace="{place.namespace}",pod=~"{place.name}-.*"}})'


def keda(plan: Plan, place: Place, trigger: str = "prometheus") -> str:
    """KEDA ScaledObject with a ``prometheus`` or ``metrics-api`` trigger.

    KEDA turns a missing value into 0 unless told otherwise, and 0 scales down in the middle of an outage. So
    nulls are an error, and errors hold what is there, or the planned count where that is more.
    """
    return f"""{_header(plan)}apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {_q(place.name)}
  namespace: {_q(place.namespace)}
spec:
  scaleTargetRef:
    name: {_q(place.name)}
  minReplicaCount: {plan.min_replicas}
  maxReplicaCount: {plan.max_replicas}
  pollingInterval: 15  # seconds; the signal is a gauge, asking more often tells no more
  fallback:
    failureThreshold: 3  # after more than 3 failed polls ...
    replicas: {plan.replicas}  # ... the count that the planned rate needs ...
    behavior: currentReplicasIfHigher  # ... or what runs now, if that is more: a gap never scales down
  advanced:
    horizontalPodAutoscalerConfig:
{_behavior(plan, place, "      ")}  triggers:
{_prometheus(plan, place) if trigger == "prometheus" else _metrics_api(plan, place)}"""


def _prometheus(plan: Plan, place: Place) -> str:
    return f"""    - type: prometheus
      name: goodput-saturation
      metricType: Value  # the query is already a mean: KEDA's default would divide it by the replicas again
      metadata:
        serverAddress: {_q(place.prometheus)}
        query: {_q(saturation_query(place))}
        threshold: "{plan.target_saturation:.3f}"  # of the load per replica at which goodput peaks
        ignoreNullValues: "false"  # an empty answer is an error (then the fallback holds), not 0
"""


def _metrics_api(plan: Plan, place: Place) -> str:
    host = f"{place.service or place.name}.{place.namespace}.svc"
    return f"""    - type: metrics-api
      name: goodput-saturation
      metricType: Value  # already a mean over the pods
      metadata:
        url: {_q(f"http://{host}:{ADMIN_PORT}/autoscale")}
        format: json
        valueLocation: saturation  # null when unknown, which is an error here, not 0
        targetValue: "{plan.target_saturation:.3f}"  # of the load per replica at which goodput peaks
        aggregateFromKubeServiceEndpoints: "true"  # ask every ready pod of the Service ...
        aggregationType: average  # ... and average: a pod that fails is skipped, a sum would shrink
"""


def config_map(capacity: str, place: Place) -> str:
    """The capacity file in a ConfigMap, key ``capacity.json``, for the sidecar to mount."""
    body = "".join(f"    {line}\n" for line in capacity.splitlines())
    return f"""apiVersion: v1
kind: ConfigMap
metadata:
  name: {_q(f"{place.name[:54].rstrip('-')}-capacity")}
  namespace: {_q(place.namespace)}
data:
  capacity.json: |
{body}"""
