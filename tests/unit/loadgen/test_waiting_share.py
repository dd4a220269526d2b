"""TTFT misses told apart by the engine's own means, and the name of a server that pretends to be vLLM."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.preflight import server_name
from loadgen.step import share_out_waiting


@settings(max_examples=80, deadline=None)
@given(
    misses=st.integers(1, 1000),
    decode=st.integers(0, 9),
    queue_s=st.floats(0, 50),
    prefill_s=st.floats(0.01, 9),
)
def test_sharing_out_loses_no_request(misses: int, decode: int, queue_s: float, prefill_s: float) -> None:
    before = {"prefill": misses, "decode": decode}
    after, finding = share_out_waiting(before, {"queue_mean_s": queue_s, "prefill_mean_s": prefill_s})
    assert sum(after.values()) == misses + decode
    assert after.get("decode", 0) == decode
    assert abs(after.get("queue", 0) - misses * queue_s / (queue_s + prefill_s)) <= 0.5
    assert finding is None


def test_misses_that_wait_nine_parts_of_ten_are_mostly_queue() -> None:
    shared, _ = share_out_waiting({"prefill": 20}, {"queue_mean_s": 0.9, "prefill_mean_s": 0.1})
    assert shared == {"queue": 18, "prefill": 2}


def test_without_the_engines_word_the_report_says_that_the_client_cannot_tell() -> None:
    unchanged, finding = share_out_waiting({"prefill": 3}, {"queue_mean_s": 1.0})
    assert unchanged == {"prefill": 3}
    assert finding is not None
    assert "cannot tell" in str(finding)
    assert not finding.voids
    assert share_out_waiting({"decode": 3}, {}) == ({"decode": 3}, None)


def test_a_simulator_is_not_called_vllm() -> None:
    assert server_name({"version": "0.32.0", "simulator": "0.1.0"}) == "goodput simulator 0.1.0"
    assert server_name({"version": "0.32.0"}) == "vLLM 0.32.0"
    assert server_name({"version": "sglang 0.5"}) == "sglang 0.5"
    for nothing in (None, [], "x", {"version": 3}):
        assert server_name(nothing) == "OpenAI-compatible server, version unknown"
