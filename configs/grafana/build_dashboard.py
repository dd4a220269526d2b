"""Writes the Grafana dashboard beside this file: ``python configs/grafana/build_dashboard.py``.

Import ``goodput.json`` into Grafana 10 or later and choose the Prometheus that scrapes the sidecars.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PICKED = '{model=~"$model",class=~"$class"}'
ENGINE = '{model=~"$model"}'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def rate(metric: str, by: str, labels: str = PICKED) -> str:
    """Per-second increase, summed."""
    return f"sum by ({by}) (rate({metric}{labels}[$__rate_interval]))"


def latency(name: str) -> list[tuple[str, str]]:
    """Median and 99th percentile of one of our histograms, with the classes' bounds where they have one."""
    found = []
    for share in (0.5, 0.99):
        buckets = f"sum by (le, class) (rate(goodput_{name}_seconds_bucket{PICKED}[$__rate_interval]))"
        found.append((f"histogram_quantile({share:g}, {buckets})", f"p{share * 100:g} {{{{class}}}}"))
    bound = {"itl": "itl_p99|max_gap"}.get(name, name)
    query = f'max by (class, bound) (goodput_slo_bound_seconds{{class=~"$class",bound=~"{bound}"}})'
    return [*found, (query, "bound {{class}} {{bound}}")]


# (title, what it shows, unit, stacked, queries with legends)
PANELS: list[tuple[str, str, str, bool, list[tuple[str, str]]]] = [
    (
        "Goodput",
        "Requests per second that met every bound of their SLO class.",
        "reqps",
        False,
        [(rate("goodput_good_requests_total", "model, class"), "{{model}} {{class}}")],
    ),
    (
        "Attainment",
        "Good requests / eligible requests, with the objective. Absent while nothing is eligible.",
        "percentunit",
        False,
        [
            (
                f"{rate('goodput_good_requests_total', 'model, class')}"
                f" / ({rate('goodput_eligible_requests_total', 'model, class')} > 0)",
                "{{model}} {{class}}",
            ),
            ('max by (class) (goodput_slo_objective_ratio{class=~"$class"})', "objective {{class}}"),
        ],
    ),
    (
        "Badput by cause",
        "Eligible requests that were not good, each in one bucket.",
        "reqps",
        True,
        [(rate("goodput_badput_requests_total", "bucket"), "{{bucket}}")],
    ),
    (
        "Tokens",
        "Output tokens per second of all and of good requests.",
        "short",
        False,
        [
            (rate("goodput_output_tokens_total", "model"), "all {{model}}"),
            (rate("goodput_good_output_tokens_total", "model"), "good {{model}}"),
        ],
    ),
    ("Time to first token", "TTFT against its bound.", "s", False, latency("ttft")),
    ("Time per output token", "TPOT against its bound.", "s", False, latency("tpot")),
    ("Gaps between chunks", "Inter-token latency against the bounds on gaps.", "s", False, latency("itl")),
    ("Whole request", "Time from request to the end of its answer.", "s", False, latency("e2e")),
    (
        "Saturation",
        "Requests in flight / load at the measured peak, by replica and on average. Needs a capacity file.",
        "percentunit",
        False,
        [("goodput_saturation", "{{instance}}"), ("avg(goodput_saturation)", "mean")],
    ),
    (
        "Engine load",
        "Requests running and waiting in the engines.",
        "short",
        True,
        [
            (f"sum by (model) (goodput_engine_running_requests{ENGINE})", "running {{model}}"),
            (f"sum by (model) (goodput_engine_waiting_requests{ENGINE})", "waiting {{model}}"),
        ],
    ),
    (
        "KV cache",
        "Share of the KV cache in use, of each engine.",
        "percentunit",
        False,
        [(f"goodput_engine_kv_usage_ratio{ENGINE}", "{{instance}} {{engine}}")],
    ),
    (
        "Preemptions",
        "Requests per second that lost their KV space and are computed again.",
        "reqps",
        False,
        [(rate("goodput_engine_preemptions_total", "instance, engine", ENGINE), "{{instance}} {{engine}}")],
    ),
    (
        "Error budget left",
        "Share of the 30-day budget left, as each replica counts it; negative when overdrawn.",
        "percentunit",
        False,
        [(f"goodput_error_budget_left_ratio{PICKED}", "{{instance}} {{class}}")],
    ),
    (
        "Burn rate",
        "How many times faster than allowed the budget is used, over 5 minutes and an hour.",
        "short",
        False,
        [
            (
                f'max by (class, window) (goodput_error_budget_burn_rate{PICKED[:-1]},window=~"5m|1h"}})',
                "{{class}} {{window}}",
            )
        ],
    ),
    (
        "Engine pages",
        "1 while a sidecar can read its engine's metrics.",
        "short",
        False,
        [("goodput_engine_up", "{{instance}}")],
    ),
    (
        "The sidecars' processor time",
        "Cores used by each sidecar.",
        "short",
        False,
        [
            (
                "sum by (instance) (rate(process_cpu_seconds_total[$__rate_interval]) "
                "* on (instance) group_left () (goodput_build_info))",
                "{{instance}}",
            )
        ],
    ),
]


def panel(
    number: int, title: str, text: str, unit: str, stacked: bool, queries: list[tuple[str, str]]
) -> Any:
    """One time series, two in a row."""
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": SOURCE,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "custom": {
                    "fillOpacity": 40 if stacked else 0,
                    "stacking": {"mode": "normal" if stacked else "none"},
                    "showPoints": "never",
                },
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + i), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for i, (query, legend) in enumerate(queries)
        ],
    }


def variable(name: str, query: str) -> Any:
    """A choice of label values."""
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }


def dashboard() -> Any:
    """The whole dashboard."""
    return {
        "uid": "goodput",
        "title": "Goodput",
        "description": "Goodput of vLLM pods, as their sidecars measure it.",
        "tags": ["vllm", "goodput"],
        "editable": False,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                variable("model", "label_values(goodput_eligible_requests_total, model)"),
                variable("class", "label_values(goodput_eligible_requests_total, class)"),
            ]
        },
        "panels": [panel(i, *one) for i, one in enumerate(PANELS)],
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("goodput.json").write_text(text(), "utf-8")
    sys.exit(0)
