"""The step time against the published table; the shape of the curve; its statistics by brute force."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.model import (
    _renewal_variance,
    find_profile,
    step_cost,
    true_curve,
    true_peak,
    true_point,
)
from loadgen.simulator.profile import Bounds, Profile, Span, Workload

ROOFLINE: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "fixtures/roofline/h100_llama_8b.json").read_text()
)
H100 = find_profile("h100-8b")
DEMO = find_profile("demo")


def test_the_h100_profile_is_the_published_machine_and_model() -> None:
    model, constants = ROOFLINE["model"], ROOFLINE["constants"]
    assert H100.params == model["params"]
    assert H100.weight_bytes == model["weight_bytes"]
    assert H100.kv_bytes_per_token == model["kv_bytes_per_token"]
    assert H100.peak_flops == constants["peak_bf16_flops"]
    assert H100.bandwidth_bytes_per_s == constants["hbm_bytes_per_s"]
    assert 8192 * H100.kv_bytes_per_token == ROOFLINE["kv_bytes_per_sequence_at_8192"]


@pytest.mark.parametrize(
    "row", ROOFLINE["rows"] + ROOFLINE["long_context_rows"], ids=lambda r: f"{r['batch']}x{r['context']}"
)
def test_step_time_is_the_published_one(row: dict[str, Any]) -> None:
    cost = step_cost(
        H100, tokens=row["batch"], kv_tokens=row["batch"] * row["context"], sequences=row["batch"]
    )
    assert cost.memory_s == pytest.approx(row["memory_s"], rel=1e-9)
    assert cost.compute_s == pytest.approx(row["compute_s"], rel=1e-9)
    assert cost.step_s * 1e3 == pytest.approx(row["step_ms"], rel=1e-9)
    assert row["batch"] / cost.step_s == pytest.approx(row["tokens_per_s"], rel=1e-9)
    assert cost.compute_s / cost.step_s == pytest.approx(row["tensor_busy"], rel=1e-9)
    assert cost.memory_bound == (row["bound"] == "memory")


@pytest.mark.parametrize("row", ROOFLINE["printed"], ids=lambda r: f"batch {r['batch']}")
def test_step_time_prints_as_the_published_table(row: dict[str, Any]) -> None:
    batch = row["batch"]
    cost = step_cost(H100, tokens=batch, kv_tokens=batch * 2048, sequences=batch)
    assert f"{cost.step_s * 1e3:.2f}" == row["step_ms"]
    assert f"{batch / cost.step_s:,.0f}" == row["tokens_per_s"]
    assert f"{cost.compute_s / cost.step_s:.1%}" == row["tensor_busy"]
    assert f"{cost.memory_s / cost.step_s:.1%}" == row["memory_busy"]


def test_without_context_the_step_turns_compute_bound_where_the_table_says() -> None:
    edge = ROOFLINE["batch_compute_bound_at_context_0"]
    assert step_cost(H100, tokens=int(edge), kv_tokens=0, sequences=1).memory_bound
    assert not step_cost(H100, tokens=int(edge) + 1, kv_tokens=0, sequences=1).memory_bound


def test_overhead_comes_on_top_of_the_roofline() -> None:
    plain = step_cost(H100, tokens=7, kv_tokens=700, sequences=7).step_s
    slower = replace(H100, step_overhead_s=0.003, sequence_overhead_s=0.0001)
    assert step_cost(slower, tokens=7, kv_tokens=700, sequences=7).step_s == pytest.approx(plain + 0.0037)


def test_fixed_lengths_alone_give_the_exact_curve() -> None:
    """One user, fixed lengths: nothing is random, the truth is plain arithmetic."""
    workload = Workload(Span(300, 300), Span(1, 1))
    point = true_point(DEMO, workload, Bounds(), 1)
    step = step_cost(DEMO, tokens=300, kv_tokens=301, sequences=1).step_s
    assert point.ttft_s == pytest.approx(step, rel=1e-3)  # the last token's own KV apart
    assert point.throughput_rps == pytest.approx(1 / step, rel=1e-3)
    assert (point.attainment, point.waiting) == (1.0, 0)


def test_demo_peaks_inside_its_range_while_throughput_still_rises() -> None:
    curve = true_curve(DEMO, DEMO.workload, DEMO.slo, range(1, 49))
    best = max(curve, key=lambda p: p.goodput_rps)
    assert 12 <= best.load <= 20
    assert best == true_peak(DEMO, DEMO.workload, DEMO.slo, range(1, 49))
    assert best.attainment > 0.9
    by_load = {p.load: p for p in curve}
    assert by_load[32].throughput_rps > 1.15 * best.throughput_rps
    assert by_load[48].throughput_rps == pytest.approx(
        by_load[32].throughput_rps, rel=0.01
    )  # the batch is full
    assert by_load[32].goodput_rps < 0.05 * best.goodput_rps
    assert DEMO.slo.ttft_s is not None
    assert by_load[48].ttft_s > DEMO.slo.ttft_s > by_load[32].ttft_s  # then it queues
    assert not any(p.kv_limited for p in curve)


@settings(max_examples=60, deadline=None)
@given(
    load=st.integers(1, 80),
    low=st.integers(1, 300),
    more=st.integers(0, 200),
    out_low=st.integers(1, 60),
    out_more=st.integers(0, 60),
    tpot_s=st.none() | st.floats(0.001, 0.2),
    ttft_s=st.none() | st.floats(0.001, 5),
    gap_s=st.none() | st.floats(0.001, 0.5),
    e2e_s=st.none() | st.floats(0.01, 20),
)
def test_every_point_is_consistent(
    load: int,
    low: int,
    more: int,
    out_low: int,
    out_more: int,
    tpot_s: float | None,
    ttft_s: float | None,
    gap_s: float | None,
    e2e_s: float | None,
) -> None:
    workload = Workload(Span(low, low + more), Span(out_low, out_low + out_more))
    slo = Bounds(ttft_s, tpot_s, gap_s, e2e_s)
    point = true_point(DEMO, workload, slo, load)
    assert 0 <= point.attainment <= 1
    assert point.goodput_rps == pytest.approx(point.throughput_rps * point.attainment)
    assert point.running + point.waiting == load
    assert point.running <= DEMO.max_batch
    assert 0 < point.kv_usage <= 1
    assert point.output_tps == pytest.approx(point.throughput_rps * workload.output_tokens.mean)
    # Little's law over everybody: each user is always waiting, in its prefill or decoding.
    cycle_s = point.ttft_s + (workload.output_tokens.mean - 1) * point.tpot_s
    assert load / point.throughput_rps == pytest.approx(cycle_s, rel=1e-6)
    looser = true_point(DEMO, workload, Bounds(), load)
    assert looser.attainment == 1.0


@pytest.mark.parametrize(("low", "high", "steps"), [(10, 10, 7), (10, 10, 10), (16, 64, 39), (24, 56, 20)])
def test_renewal_variance_is_what_counting_gives(low: int, high: int, steps: int) -> None:
    rng = random.Random(5)
    counts = []
    for _ in range(4000):
        # A user caught at a random step: long outputs are caught more often, anywhere inside.
        length = rng.choices(range(low, high + 1), weights=range(low, high + 1))[0]
        at, count = rng.randint(1, length), 0
        while at <= steps:
            count += 1
            at += rng.randint(low, high)
        counts.append(count)
    mean = sum(counts) / len(counts)
    variance = sum((c - mean) ** 2 for c in counts) / len(counts)
    assert mean == pytest.approx(steps / ((low + high) / 2), abs=0.03)
    assert _renewal_variance(steps, low, high) == pytest.approx(variance, abs=0.04)


def test_the_peak_of_a_flat_curve_is_its_lowest_load() -> None:
    flat: Profile = replace(DEMO, max_batch=1)
    assert true_peak(flat, DEMO.workload, Bounds(), [4, 2, 3]).load == 2
