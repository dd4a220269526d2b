"""The server's own signals, joined to a level."""

from __future__ import annotations

import pytest

from loadgen.engine_watch import joined
from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.engine.scrape import EngineSnapshot

LABELS = '{engine="0",model_name="m"}'


def snapshot(at_s: float, **values: float) -> EngineSnapshot:
    """A scrape of a small but real vLLM page; without values a failed one."""
    if not values:
        return EngineSnapshot(round(at_s * 1e9), False, "refused", None, None, 0.0)
    lines = []
    for name, kind in (
        ("num_requests_running", "gauge"),
        ("num_requests_waiting", "gauge"),
        ("kv_cache_usage_perc", "gauge"),
        ("num_preemptions_total", "counter"),
        ("generation_tokens_total", "counter"),
        ("prefix_cache_queries_total", "counter"),
        ("prefix_cache_hits_total", "counter"),
    ):
        if name in values:
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{LABELS} {values[name]}"]
    view = map_page(parse(("\n".join(lines) + "\n").encode()))
    return EngineSnapshot(round(at_s * 1e9), True, "", None, view, 0.0)


def test_gauges_are_averaged_and_counters_differenced() -> None:
    found, findings = joined(
        [
            snapshot(
                at,
                num_requests_running=running,
                num_requests_waiting=at,
                kv_cache_usage_perc=0.1 * at,
                num_preemptions_total=at,
                generation_tokens_total=1000 + 100 * at,
                prefix_cache_queries_total=500 + 50 * at,
                prefix_cache_hits_total=10 * at,
            )
            for at, running in ((1, 4), (2, 8), (3, 6))
        ]
    )
    assert findings == []
    assert found["running_mean"] == pytest.approx(6)
    assert found["running_max"] == 8
    assert found["waiting_mean"] == pytest.approx(2)
    assert found["kv_usage_mean"] == pytest.approx(0.2)
    assert found["preemptions_increase"] == 2
    assert found["generation_tokens_increase"] == 200
    assert found["prefix_hit_rate"] == pytest.approx(0.2)


def test_a_restart_voids_the_level() -> None:
    pages = [
        snapshot(at, generation_tokens_total=tokens, num_preemptions_total=p, num_requests_running=1)
        for at, tokens, p in ((1, 1000, 5), (2, 10, 0), (3, 60, 0))
    ]
    found, findings = joined(pages)
    assert found["generation_tokens_increase"] == 60
    assert [finding.code for finding in findings] == ["server_restarted"]
    assert findings[0].voids


def test_what_the_page_lacks_is_absent() -> None:
    assert joined([]) == ({}, [])
    assert joined([snapshot(1), snapshot(2)]) == ({}, [])
    found, _ = joined([snapshot(1), snapshot(2, num_requests_running=3)])
    assert found == {"running_mean": 3, "running_max": 3}
