"""Lines joined to events and incidents; advice from the catalogue, never a decision."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.gpu.advice import ADVISORIES, advice_for, raised, sxid_advice, words
from sidecar.gpu.incidents import Incidents, read_log
from sidecar.gpu.xid import parse_line
from tests.support.gpu_pages import FIXTURES, seed_vectors

SAMPLES = json.loads((FIXTURES / "kmsg_expected.json").read_text("utf-8"))["lines"]


def line_of(n):
    return SAMPLES[n]["line"]


def test_the_sample_log_as_a_whole():
    found = read_log((FIXTURES / "kmsg_samples.txt").read_text("utf-8").splitlines())
    want = Counter(s["expect"]["code"] for s in SAMPLES if s["expect"] and s["expect"]["kind"] == "xid")
    want[13] -= 2  # three lines of one event
    assert found.xids == want
    assert found.sxids == {20034: 1, 12028: 1, 22013: 1}
    assert found.refused == 1
    assert found.driver == "535.183.01"
    by_pci = {event.report.pci: event.uuid for event in found.events}
    assert by_pci["0000:01:00"] == "GPU-8a47641b-dff6-f09f-618c-c3eb58fb430d"


def test_thirteen_logs_three_lines_and_is_one_event():
    found = read_log([line_of(11), line_of(12), line_of(13)])
    assert [(e.code, e.lines) for e in found.events] == [(13, 3)]


def test_ecc_events_of_one_board_are_one_incident():
    found = read_log([line_of(29), line_of(30), line_of(31)])
    assert [e.code for e in found.events] == [48, 63, 94]
    assert {e.incident for e in found.events} == {1}
    assert [e.cause for e in found.events] == [True, False, False]


def test_a_consequence_is_no_cause_even_when_it_comes_first():
    found = read_log([line_of(18)])
    assert found.events[0].code == 45
    assert found.events[0].cause is False
    assert found.events[0].report.caused_by == 149


def test_fell_off_the_bus_with_and_without_number_is_one_event():
    found = read_log(
        [
            "[100.1] NVRM: Xid (PCI:0000:91:00): 79, pid=7, name=x, GPU has fallen off the bus.",
            "[100.2] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        ]
    )
    assert [(e.code, e.lines) for e in found.events] == [(79, 2)]


def test_154_raises_but_never_lowers():
    fell = "[10.0] NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x0)"
    changed = "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from"
    up, down = f"[10.1] {changed} 0x0 (None) to 0x2 (Node)", f"[10.2] {changed} 0x2 (Node) to 0x0 (None)"
    assert read_log([fell]).events[0].advisory == "check_fabric"
    assert read_log([fell, up]).events[0].advisory == "drain_and_diagnose"
    assert read_log([fell, up, down]).events[0].advisory == "drain_and_diagnose"
    for advisory in ADVISORIES:
        for action in range(9):
            assert ADVISORIES.index(raised(advisory, action)) >= ADVISORIES.index(advisory)


def test_a_flood_is_a_few_events_and_little_memory():
    tracker = Incidents()
    texts = [f"Uncontained: LTC TAG (0x{i:x},0x0) in unit U{chr(65 + i)}" for i in range(29)]
    reports = [parse_line(f"NVRM: Xid (PCI:0000:1a:00): 95, pid=51020, name=python3, {t}") for t in texts]
    for i in range(29_000):
        tracker.add(reports[i % 29], i / 1e4)
    assert tracker.xids[95] == 29
    assert tracker.repeats == 29_000 - 29


def test_the_same_again_later_is_a_new_event():
    tracker = Incidents()
    report = parse_line(line_of(8))
    assert tracker.add(report, 0.0) is not None
    assert tracker.add(report, 4.0) is None
    assert tracker.add(report, 60.0) is not None
    assert tracker.xids == {43: 2}


def test_counts_by_code_are_bounded():
    tracker = Incidents()
    for code in range(1000, 2000):
        tracker.add(parse_line(f"NVRM: Xid (PCI:0000:05:00): {code}, x"), float(code))
    assert len(tracker.xids) == 257
    assert tracker.xids[-1] == 1000 - 256
    assert len(tracker.events) == 200


def test_a_hint_after_the_event_still_names_the_gpu():
    found = read_log(["NVRM: Xid (PCI:0000:01:00): 13, x", line_of(3)])
    assert found.events[0].uuid == "GPU-8a47641b-dff6-f09f-618c-c3eb58fb430d"


def test_seed_scope_rules():
    facts = next(f for f in seed_vectors()["seed_facts"] if f["fact"] == "Xid scope rules")
    for vector in facts["vectors"]:
        advice = advice_for(vector["xid"])
        if "containment" in vector:
            assert advice.containment == vector["containment"]
        if vector.get("owner") == "undetermined":
            assert advice.undetermined
            assert advice.look_beside
    assert advice_for(94).advisory == "restart_app"
    assert advice_for(95).advisory == "reset_gpu"
    assert advice_for(48).advisory == advice_for(79).advisory == "drain_and_diagnose"


def test_no_advice_speaks_of_an_rma_or_an_action_taken():
    for advisory in ADVISORIES:
        assert "rma" not in words(advisory).lower().split()
    for code in range(1, 180):
        advice = advice_for(code)
        assert advice.advisory in ADVISORIES
        assert " rma" not in f" {advice.note} {advice.name}".lower()


def test_codes_of_an_application_never_ask_to_drain():
    for code in (13, 31, 43, 45):
        assert advice_for(code).advisory in ("informational", "restart_app")
        assert "recurrence_same_gpu" in advice_for(code).look_beside or code in (43, 45)


def test_unknown_codes_advise_nothing():
    assert (advice_for(999).known, advice_for(999).advisory) == (False, "unknown")
    assert "unused" in advice_for(1).name


def test_a_switch_error_never_gives_a_boundary():
    for code in (20034, 12028, 424242):
        assert sxid_advice(code).advisory == "check_fabric"
        assert sxid_advice(code).containment == "depends"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([s["line"] for s in SAMPLES]), max_size=40))
def test_events_never_outnumber_lines_and_every_line_is_somewhere(lines):
    found = read_log(lines)
    reports = [p for p in map(parse_line, lines) if type(p).__name__ in ("Xid", "Sxid")]
    assert sum(event.lines for event in found.events) == len(reports)
    assert sum(found.xids.values()) + sum(found.sxids.values()) == len(found.events)
    assert found.lines == len(lines)


@pytest.mark.parametrize("n", [0, 2, 8, 25])
def test_lines_without_time_follow_at_once(n):
    found = read_log([line_of(n)] * 3)
    assert [event.lines for event in found.events] == [3]
