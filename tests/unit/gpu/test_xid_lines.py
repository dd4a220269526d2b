"""Kernel and fabric manager log lines of every driver generation."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.gpu.xid import (
    Continuation,
    DriverHint,
    Refused,
    Sxid,
    SxidData,
    UuidHint,
    Xid,
    parse_line,
)
from tests.support.gpu_pages import FIXTURES

SAMPLES = json.loads((FIXTURES / "kmsg_expected.json").read_text("utf-8"))["lines"]
KINDS = {
    "xid": Xid,
    "sxid": Sxid,
    "sxid_data": SxidData,
    "uuid_hint": UuidHint,
    "driver_hint": DriverHint,
    "refused": Refused,
    "continuation": Continuation,
}
OURS = {"name": "process"}
ASIDE = {"kind", "event_group", "unknown", "gpc", "tpc", "sm", "nvlink5", "recovery"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s['n']}-{s['note'][:40]}")
def test_sample(sample):
    parsed = parse_line(sample["line"])
    expect = sample["expect"]
    if expect is None:
        assert parsed is None
        return
    assert type(parsed) is KINDS[expect["kind"]]
    for key, value in expect.items():
        if key in ("seq", "usec", "level", "facility") and isinstance(parsed, Xid):
            assert getattr(parsed.record, key) == value
        elif key not in ASIDE:
            assert getattr(parsed, OURS.get(key, key)) == value, key
    if "sm" in expect:
        assert parsed.sm == (expect["gpc"], expect["tpc"], expect["sm"])
    if "nvlink5" in expect:
        assert {k: getattr(parsed.nvlink5, k) for k in expect["nvlink5"]} == expect["nvlink5"]
    if "recovery" in expect:
        r = parsed.recovery
        assert [r.old, r.old_name, r.new, r.new_name] == expect["recovery"]


def test_the_text_file_holds_the_same_lines():
    lines = (FIXTURES / "kmsg_samples.txt").read_text("utf-8").splitlines()
    assert [x for x in lines if not x.startswith("#")] == [s["line"] for s in SAMPLES]


@pytest.mark.parametrize(
    ("prefix", "clock"),
    [
        ("", None),
        ("[ 1234.567890] ", "boot"),
        ("[Wed Jul 31 23:14:18 2024] ", "wall"),
        ("2026-11-30T19:55:07,123456+00:00 ", "wall"),
        ("2026-11-30T19:55:07.123456+00:00 gpu-node-07 kernel: ", "wall"),
        ("Nov 30 19:55:07 gpu-node-07 kernel: ", "wall"),
        ("Nov  3 19:55:07 gpu-node-07 kernel: [55600.000000] ", "wall"),
        ("kern  :warn  : [ 1234.567890] ", "boot"),
        ("kern  :err   : [Wed Jul 31 23:14:18 2024] ", "wall"),
        ("kernel: ", None),
        ("3,1,99,-;", "boot"),
        ("6,1,99,-,caller=T1;", "boot"),
    ],
)
def test_every_prefix(prefix, clock):
    parsed = parse_line(prefix + "NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=python3, Ch 00000008")
    assert isinstance(parsed, Xid)
    assert (parsed.code, parsed.pci, parsed.pid, parsed.process) == (31, "0000:05:00", 7, "python3")
    assert (parsed.at.clock if parsed.at else None) == clock


@pytest.mark.parametrize(
    "line",
    [
        "12,5,99,-;NVRM: Xid (PCI:0000:05:00): 95, forged",
        "user  :notice: [ 1234.567890] NVRM: Xid (PCI:0000:05:00): 95, forged",
    ],
)
def test_what_user_space_wrote_is_refused(line):
    assert isinstance(parse_line(line), Refused)


@pytest.mark.parametrize(
    "line",
    [
        "Nov 30 19:55:08 host app[1]: NVRM: Xid (PCI:0000:c3:00): 31, x",
        "Nov 30 19:55:08 host app[1]: kernel: NVRM: Xid (PCI:0000:c3:00): 31, x",
        "Nov 30 19:55:08 host app[1]: detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id "
        "00000000:86:00.0 physical id 3 port 33",
        "NVRM: Xid (PCI:0000:05:00): ",
        "NVRM: Xid (PCI:0000:05",
    ],
)
def test_no_event(line):
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("line", "severity", "code", "link"),
    [
        (
            "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on "
            "NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33",
            "Fatal",
            20034,
            33,
        ),
        (
            "Mar 03 18:39:57 node-7 nv-fabricmanager[5183]: detected NVSwitch non-fatal error 22013 on "
            "NodeId 0 on NVSwitch pci bus id 00000000:08:00.0 physical id 3 port 60",
            "Non-fatal",
            22013,
            60,
        ),
    ],
)
def test_fabric_manager(line, severity, code, link):
    parsed = parse_line(line)
    assert isinstance(parsed, Sxid)
    assert (parsed.source, parsed.severity, parsed.code, parsed.link, parsed.switch) == (
        "fabric_manager",
        severity,
        code,
        link,
        3,
    )


def test_escapes_of_a_record_are_read():
    parsed = parse_line("3,1,99,-;NVRM: Xid (PCI:0000:05:00): 43, pid=9, name=a\\x20b, Ch 00000018")
    assert isinstance(parsed, Xid)
    assert parsed.process == "a b"


def test_a_mig_instance_is_named():
    parsed = parse_line("NVRM: Xid (PCI:0000:05:00 GPU-I:05): 94, pid=9, name=x, Contained")
    assert isinstance(parsed, Xid)
    assert (parsed.gpu_instance, parsed.pci) == ("05", "0000:05:00")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_never_raises(text):
    parse_line(text)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([s["line"] for s in SAMPLES]), st.data())
def test_a_cut_or_spoilt_line_never_raises(line, data):
    at = data.draw(st.integers(0, len(line)))
    spoilt = line[:at] + data.draw(st.characters()) + line[at + 1 :]
    parse_line(line[:at])
    parse_line(spoilt)
