"""``xid FILE``: a log read, advice shown, nothing decided."""

import io
import json

import pytest

from sidecar.cli import main
from tests.support.gpu_pages import FIXTURES

LOG = str(FIXTURES / "kmsg_samples.txt")


def test_json(capsys):
    assert main(["xid", LOG, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["refused_lines"] == 1
    assert data["driver"] == "535.183.01"
    assert sum(data["xids"].values()) + sum(data["sxids"].values()) == len(data["events"])
    contained = next(e for e in data["events"] if e["code"] == 94 and e["process"])
    assert contained["advisory"] == "restart_app"
    assert contained["containment"] == "contained"
    assert contained["process"] == "VLLM::EngineCor"
    assert contained["cause_candidate"] is False
    page_fault = next(e for e in data["events"] if e["code"] == 31)
    assert page_fault["undetermined"] is True
    assert "recurrence_same_gpu" in page_fault["look_beside"]
    nvlink = next(e for e in data["events"] if e["code"] == 145)
    assert nvlink["nvlink5"]["severity"] == "Nonfatal"


def test_for_a_person(capsys):
    assert main(["xid", LOG]) == 0
    out = capsys.readouterr().out
    assert "Xid 13" in out
    assert "(3 lines)" in out
    assert "scope undetermined: app or driver or gpu" in out
    assert "recovery action: None -> Drain and Reset" in out
    assert "1 lines that the kernel did not write were refused" in out
    assert " RMA" not in out


def test_a_log_without_any(capsys, tmp_path):
    path = tmp_path / "dmesg"
    path.write_bytes(b"hello\n\xff\xfe\x00broken\n")
    assert main(["xid", str(path)]) == 0
    assert "No Xid" in capsys.readouterr().out


def test_standard_input(capsys, monkeypatch):
    line = b"NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
    assert main(["xid", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["xids"] == {"79": 1}


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_a_file_that_cannot_be_read(capsys, tmp_path, name):
    assert main(["xid", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("goodput-sidecar: error: ")
    assert err.count("\n") == 1
