"""``gpus``: a page's boards, each once, and what is missing."""

import json
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.gpu.coverage import wanted_fields
from sidecar.gpu.fields import dcgm_fields
from tests.support.exporter import exporter
from tests.support.gpu_pages import FIXTURES, page_bytes

COUNTERS = Path(__file__).parents[3] / "configs" / "dcgm-counters.csv"


def gpus(capsys, *args):
    assert main(["gpus", *args]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "path", sorted([*FIXTURES.glob("dcgm_*.txt"), *FIXTURES.glob("amd_*.txt")]), ids=lambda p: p.stem
)
def test_every_page(capsys, path):
    data = json.loads(gpus(capsys, str(path), "--json"))
    assert data["gpus"] or data["switch_errors"]
    assert gpus(capsys, str(path))


def test_the_board_is_counted_once(capsys):
    assert json.loads(gpus(capsys, str(FIXTURES / "dcgm_mig.txt"), "--json"))["watts"] == pytest.approx(
        992.314
    )
    out = gpus(capsys, str(FIXTURES / "dcgm_mig.txt"))
    assert "2 boards draw 992.3 W" in out
    assert "mig (4)" in out


def test_what_is_missing_and_what_that_costs(capsys):
    full = json.loads(gpus(capsys, str(FIXTURES / "dcgm_h100x8_t0.txt"), "--json"))
    stock = json.loads(gpus(capsys, str(FIXTURES / "dcgm_default_idle_l4.txt"), "--json"))
    lacking = {gap["signal"] for gap in stock["missing"]}
    assert {"dram_active_ratio", "tensor_active_ratio", "clock_event_reasons", "last_xid"} <= lacking
    assert lacking > {gap["signal"] for gap in full["missing"]}
    out = gpus(capsys, str(FIXTURES / "dcgm_default_idle_l4.txt"))
    assert "DCGM_FI_PROF_DRAM_ACTIVE: memory bound and starved by the host cannot be told apart" in out


def test_amd_is_not_asked_for_what_it_cannot_give(capsys):
    data = json.loads(gpus(capsys, str(FIXTURES / "amd_mi300x_t0.txt"), "--json"))
    assert all(gap["field"] == "" for gap in data["missing"])
    assert "last_xid" not in {gap["signal"] for gap in data["missing"]}


def test_throttled_by_name(capsys):
    out = gpus(capsys, str(FIXTURES / "dcgm_h100x8_t0.txt"))
    line = next(x for x in out.splitlines() if "1185 MHz" in x)
    assert "hw_thermal_slowdown" in line


def test_from_a_real_socket(capsys):
    with exporter(lambda: page_bytes("dcgm_h100x8_t0")) as served:
        data = json.loads(gpus(capsys, served.url, "--json"))
    assert len(data["gpus"]) == 8


def test_another_page_is_one_clear_line(capsys, tmp_path):
    path = tmp_path / "page.txt"
    path.write_text("vllm:num_requests_running 1\n")
    assert main(["gpus", str(path)]) == 2
    err = capsys.readouterr().err
    assert "no GPU" in err
    assert err.count("\n") == 1


def test_the_counter_list_names_known_fields_and_all_that_is_wanted():
    names = [
        line.split(",")[0] for line in COUNTERS.read_text().splitlines() if line and not line.startswith("#")
    ]
    known = {*dcgm_fields().by_name, "DCGM_EXP_XID_ERRORS_COUNT"}
    assert set(names) <= known
    assert set(wanted_fields()) <= set(names)
    assert len(names) == len(set(names))
