"""Traces: three formats read, replayed at any speed, their shared blocks shared."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.workload.mix import Mix, MixMaker
from loadgen.workload.prompts import Calibration
from loadgen.workload.spec import Workload
from loadgen.workload.traces import SAMPLES, Trace, TraceRow, read_trace, sample_names
from sidecar.errors import UserError
from tests.support.trace_samples import made

REAL = Path(__file__).parents[5] / "shared" / "data" / "traces"


def test_the_samples_are_what_the_generator_makes() -> None:
    assert sample_names() == ["azure", "burstgpt", "mooncake"]
    for name, text in made().items():
        assert (SAMPLES / name).read_text() == text


@pytest.mark.parametrize("name", ["azure", "burstgpt", "mooncake"])
def test_each_format_is_read(name: str) -> None:
    trace = read_trace(name)
    assert trace.kind == name
    assert len(trace.rows) + trace.skipped == 120
    assert trace.rows[0].at_s == 0
    assert [row.at_s for row in trace.rows] == sorted(row.at_s for row in trace.rows)
    assert trace.skipped == (3 if name == "burstgpt" else 0)
    assert (trace.own_hit_rate > 0.1) is (name == "mooncake")


def test_the_same_traffic_in_csv_has_the_same_rows() -> None:
    azure, burst = read_trace("azure"), read_trace("burstgpt")
    shared = {(round(r.at_s - burst.rows[0].at_s, 2), r.prompt_tokens) for r in burst.rows}
    offset = azure.rows[1].at_s - burst.rows[0].at_s  # the first row had no answer in the other
    found = {(round(r.at_s - offset, 2), r.prompt_tokens) for r in azure.rows[1:]}
    assert len(shared & found) > 100


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 50), min_size=1, max_size=20).filter(lambda gaps: sum(gaps) > 0.1),
    rate=st.floats(0.1, 500),
    workers=st.integers(1, 4),
)
def test_a_replay_has_the_rate_asked_for_and_keeps_the_pattern(
    gaps: list[float], rate: float, workers: int
) -> None:
    at, rows = 0.0, [TraceRow(0.0, 1, 1)]
    for gap in gaps:
        at += gap
        rows.append(TraceRow(at, 1, 1))
    trace = Trace(tuple(rows), "azure", "x")
    n = len(rows)
    times = list(islice(trace.times(rate), 3 * n))
    assert times == sorted(times)
    assert times[2 * n] == pytest.approx(2 * n / rate, rel=1e-6)  # two whole laps at that rate
    pace = trace.rate_rps / rate
    assert times[:n] == pytest.approx([row.at_s * pace for row in rows])
    parts = [list(islice(trace.times(rate, worker=i, workers=workers), n)) for i in range(workers)]
    assert sorted(at for part in parts for at in part)[:n] == pytest.approx(times[:n])


def prompts(trace: Trace, serials: range, level: int = 0) -> list[list[str]]:
    maker = MixMaker(
        Mix((Workload(),)),
        model="m",
        seed=3,
        calibration=Calibration(),
        head_of=lambda w: b"",
        trace=trace,
    )
    wires = [maker.make(level, serial).wire for serial in serials]
    return [json.loads(w.partition(b"\r\n\r\n")[2])["messages"][0]["content"].split() for w in wires]


def test_equal_block_ids_are_equal_text_and_no_others() -> None:
    rows = (TraceRow(0, 1300, 5, (0, 1, 2)), TraceRow(1, 1024, 5, (0, 1)), TraceRow(2, 600, 5, (7, 1)))
    trace = Trace(rows, "mooncake", "x")
    first, second, third, again = prompts(trace, range(4))
    assert [len(first), len(second), len(third)] == [1300, 1024, 600]
    assert first[:1024] == second
    assert first[:5] != third[:5]
    assert first[512:600] == third[512:600]  # the same block, though after another
    assert again[:5] != first[:5], "the next lap shares nothing with this one"
    assert prompts(trace, range(1), level=1)[0][:5] != first[:5]
    assert trace.own_hit_rate == pytest.approx(1024 / (1300 + 1024 + 600))


def test_rows_longer_than_the_context_are_cut_and_counted() -> None:
    trace = Trace((TraceRow(0, 9000, 50), TraceRow(1, 10, 5000), TraceRow(2, 10, 5)), "azure", "x")
    fitted = trace.fitted(4096)
    assert fitted.clipped == 2
    assert all(row.prompt_tokens + row.output_tokens <= 4096 for row in fitted.rows)
    assert fitted.rows[2] == trace.rows[2]
    assert trace.fitted(None) is trace


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ":1"),
        ("a,b\n1,2\n", ":1: no trace format"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", ":2: not a time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00,1\n", ":2: not a time"),
        ("Timestamp,Request tokens,Response tokens\nnan,1,1\n", ":2: the time"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 0}\n', ":2: needs"),
        ("Timestamp,Request tokens,Response tokens\n1,0,1\n", "no request"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    with pytest.raises(UserError) as found:
        read_trace(str(path))
    assert words in str(found.value)


def test_a_trace_that_is_not_there() -> None:
    with pytest.raises(UserError, match="azure, burstgpt, mooncake"):
        read_trace("nowhere.csv")


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        ("azure_llm_2023_conv_10min.csv", "azure", 500),
        ("azure_llm_2023_code_10min.csv", "azure", 500),
        ("mooncake_conversation_200.jsonl", "mooncake", 200),
    ],
)
def test_the_real_ones(name: str, kind: str, rows: int) -> None:
    if not (REAL / name).is_file():
        pytest.skip("the published traces are not shipped")
    trace = read_trace(str(REAL / name))
    assert trace.kind == kind
    assert len(trace.rows) + trace.skipped >= rows
    assert trace.own_hit_rate < 1
    assert all(
        len(words) == row.prompt_tokens
        for words, row in zip(prompts(trace, range(5)), trace.rows, strict=False)
    )
