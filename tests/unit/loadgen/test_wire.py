"""Records and orders survive the way between processes; durations never change."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.address import Target
from loadgen.arrivals import Arrivals
from loadgen.orders import Setup, level_order, plan_from, setup_from, setup_order
from loadgen.plan import LevelPlan
from loadgen.wire import pack, rebase, unpack
from loadgen.workload.lengths import Lengths
from loadgen.workload.mix import Mix
from loadgen.workload.prompts import Calibration
from loadgen.workload.spec import Workload
from sidecar.requests.records import Api, ChoiceRecord, ErrorKind, Outcome, RequestRecord

MOMENTS = st.integers(0, 2**60)
MAYBE = st.none() | MOMENTS


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    choices = draw(
        st.lists(
            st.builds(
                ChoiceRecord,
                index=st.integers(0, 3),
                output_chunks=st.integers(0, 999),
                first_ns=MAYBE,
                last_ns=MAYBE,
                tokens=st.none() | st.integers(0, 999),
                tokens_estimated=st.booleans(),
                finish_reason=st.none() | st.text(max_size=9),
            ),
            max_size=3,
        )
    )
    return RequestRecord(
        api=draw(st.sampled_from(list(Api))),
        model=draw(st.text(max_size=9)),
        streamed=draw(st.booleans()),
        start_ns=draw(MOMENTS),
        end_ns=draw(MOMENTS),
        outcome=draw(st.sampled_from(list(Outcome))),
        status=draw(st.none() | st.integers(100, 599)),
        error_kind=draw(st.none() | st.sampled_from(list(ErrorKind))),
        first_ns=draw(MAYBE),
        last_ns=draw(MAYBE),
        scheduled_ns=draw(MAYBE),
        sent_ns=draw(MAYBE),
        choices=tuple(choices),
        gaps_ns=tuple(draw(st.lists(st.integers(0, 2**60), max_size=9))),
        token_gaps_ns=tuple(draw(st.lists(st.tuples(st.floats(0, 1e12), st.integers(1, 9)), max_size=3))),
        chunk_tokens=draw(st.none() | st.just((1, 2, 3))),
        warnings=tuple(draw(st.lists(st.text(max_size=9), max_size=2))),
        extra=draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(records(), max_size=4))
def test_records_come_over_unchanged(sent: list[RequestRecord]) -> None:
    assert unpack(pack(sent)) == sent


@settings(max_examples=60, deadline=None)
@given(record=records(), origin=MOMENTS)
def test_rebasing_moves_moments_and_no_duration(record: RequestRecord, origin: int) -> None:
    moved = rebase(record, origin)
    assert moved.start_ns == record.start_ns - origin
    assert (moved.e2e_ns, moved.ttft_ns, moved.tpot_ns) == (record.e2e_ns, record.ttft_ns, record.tpot_ns)
    assert moved.gaps_ns == record.gaps_ns
    assert rebase(moved, -origin) == record


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version"):
        unpack(msgpack.packb([["only", "these"], []]))


def test_orders_come_over_unchanged() -> None:
    setup = Setup(
        target=Target("example.invalid", 8000, "/x", True, False, None),
        mix=Mix(
            (
                Workload("completions", Lengths("uniform", 5, 9), extra={"temperature": 0}),
                Workload(name="b", weight=2.0, output_tokens=Lengths("file", 2, values=(1, 3), source="f")),
            ),
            "x",
        ),
        model="m",
        seed=7,
        calibration=Calibration(1.25, 3.0, "tokenize"),
        workers=2,
        api_key="secret",
    )
    plan = LevelPlan(8, Arrivals("gamma", 4.0), 1.0, 2.0, 3.0, seed=7, max_in_flight=5, number=2)
    assert setup_from(msgpack.unpackb(msgpack.packb(setup_order(setup)))) == setup
    assert plan_from(msgpack.unpackb(msgpack.packb(level_order(plan)))["plan"]) == plan
    assert "secret" not in repr(setup)
