"""``derive`` from the command line: the published sums, every ratio with its peak, mistakes as one line."""

import json
import random

import pytest

from sidecar.cli import main
from tests.support.gpu_pages import seed_vectors

S = seed_vectors()


def run(capsys, *args):
    assert main(["derive", *args]) == 0
    return capsys.readouterr().out


def test_roofline_table_as_published(capsys):
    out = run(
        capsys, "roofline", "--params", "8.03e9", "--layers", "32", "--kv-heads", "8", "--head-dim", "128",
        "--peak-tflops", "989", "--bandwidth-gb-s", "3350", "--memory-gb", "80",
    )  # fmt: skip
    lines = out.splitlines()
    for row, line in zip(S["roofline"]["printed"], lines[1:6], strict=True):
        assert line.split()[:5] == [
            str(row["batch"]),
            row["step_ms"],
            row["tokens_per_s"],
            row["tensor_busy"],
            row["memory_busy"],
        ]
    assert "never compute bound" in out
    assert "238 sequences" in out
    assert "dense" in out


def test_roofline_json_and_a_device_of_the_table(capsys):
    out = run(
        capsys, "roofline", "--params", "8.03e9", "--kv-bytes-per-token", "131072", "--device",
        "NVIDIA H100 80GB HBM3", "--context", "8192", "--batch", "32", "--json",
    )  # fmt: skip
    data = json.loads(out)
    assert data["rows"][0]["tokens_per_s"] == pytest.approx(2126.151, rel=1e-5)
    assert data["sequences_that_fit"] == 59
    assert "H100-SXM bf16 dense 989.4" in data["divided_by"]["flops"]


def test_training_mfu_as_published(capsys):
    out = run(
        capsys, "mfu", "--training", "--params", "70e9", "--gpus", "1024", "--peak-tflops", "989",
        "--tokens-per-step", "4194304", "--step-s", "5.360496561957865",
    )  # fmt: skip
    assert out.startswith("MFU 32.45%")
    assert "dense" in out
    assert "for dense training that is low" in out


def test_the_slowest_rank_from_a_file(capsys, tmp_path):
    at = S["training_mfu"]["input"]
    rng = random.Random(at["seed"])
    rows = []
    for factor in (1.0, 1.25):
        rows = []
        for _ in range(at["steps"]):
            times = [rng.gauss(at["compute_s_mean"], at["compute_s_sd"]) for _ in range(at["gpus"])]
            times[17] *= factor
            rows.append(times)
    path = tmp_path / "ranks.txt"
    path.write_text("".join(" ".join(map(repr, row)) + "\n" for row in rows))
    out = run(
        capsys, "mfu", "--training", "--params", "70e9", "--gpus", "1024", "--peak-tflops", "989",
        "--tokens-per-step", "4194304", "--rank-times", str(path), "--collective-s", "0.6", "--json",
    )  # fmt: skip
    data = json.loads(out)
    assert f"{data['mfu']:.1%}" == "27.4%"
    assert data["slowest_rank"]["rank"] == 17
    assert data["slowest_rank"]["steps_slowest"] == 50


def test_inference_mfu_and_mbu(capsys):
    out = run(
        capsys, "mfu", "--params", "8.03e9", "--layers", "32", "--hidden", "4096", "--context", "2048",
        "--tokens-per-s", "4348.895920997339", "--peak-tflops", "989", "--bandwidth-gb-s", "3350",
        "--bytes-per-s", "3.35e12", "--json",
    )  # fmt: skip
    data = json.loads(out)
    assert data["mfu"] == pytest.approx(0.07534161772478777)
    assert data["mbu"] == pytest.approx(1.0)
    assert data["attention_share"] == pytest.approx(0.06266826213617634)


def test_cost_as_published(capsys):
    for occupancy, dollars in S["part1_counters"]["printed"]["usd_per_million_tokens"].items():
        out = run(
            capsys, "cost", "--usd-per-gpu-hour", "2.5", "--tokens-per-s", "2426.10057100945",
            "--watts", "597.2820481998698", "--occupancy", occupancy,
        )  # fmt: skip
        assert "$ per million tokens: 0.29 at full use" in out
        assert f"{dollars} at" in out
        assert "4.06 of the boards (597.3 W)" in out


def test_cost_of_good_tokens_and_of_the_facility(capsys):
    out = run(
        capsys, "cost", "--usd-per-gpu-hour", "2.5", "--tokens-per-s", "2426.10057100945",
        "--good-tokens-per-s", "1213.050285504725", "--watts", "597.2820481998698", "--server-factor", "1.25",
        "--pue", "1.3", "--peak-to-mean", "3", "--json",
    )  # fmt: skip
    data = json.loads(out)
    assert data["facility_watts"] == pytest.approx(970.5833283247885)
    assert data["tokens_per_joule_facility"] == pytest.approx(2.4996314074308916)
    assert data["usd_per_million_good_tokens"] == pytest.approx(3 * 2 * 0.28623893532801925)
    assert data["occupancy"] == pytest.approx(1 / 3)


def test_no_tokens_is_undefined_not_infinite(capsys):
    out = run(capsys, "cost", "--usd-per-gpu-hour", "2.5", "--tokens-per-s", "0")
    assert "undefined" in out


def test_devices_are_listed(capsys):
    assert "MI300X" in run(capsys, "mfu", "--list-devices").split()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["mfu", "--tokens-per-s", "5", "--device", "H100-SXM"], "--params"),
        (["mfu", "--params", "8e9", "--tokens-per-s", "5"], "--device or --peak-tflops"),
        (["mfu", "--params", "8e9", "--tokens-per-s", "5", "--device", "A10G"], "no family is guessed"),
        (
            ["mfu", "--params", "8e9", "--device", "A10", "--dtype", "fp8", "--tokens-per-s", "5"],
            "--dtype fp8",
        ),
        (["mfu", "--params", "8e9", "--device", "A10"], "--tokens-per-step"),
        (["mfu", "--params", "8e9", "--device", "A10", "--rank-times", "/nowhere/x"], "cannot be read"),
        (["roofline", "--params", "8e9", "--device", "A10"], "--layers"),
        (
            ["roofline", "--params", "8e9", "--device", "A10", "--kv-bytes-per-token", "1", "--batch", "0"],
            "--batch 0",
        ),
        (["cost", "--tokens-per-s", "5"], "--usd-per-gpu-hour"),
        (["cost", "--tokens-per-s", "5", "--watts", "5", "--occupancy", "2"], "--occupancy 2"),
    ],
)
def test_mistakes_are_one_line(capsys, args, words):
    assert main(["derive", *args]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("bad", ["1 2\n3\n", "1 x\n", ""])
def test_a_bad_rank_file(capsys, tmp_path, bad):
    path = tmp_path / "ranks.txt"
    path.write_text(bad)
    args = ["mfu", "--params", "1", "--device", "A10", "--tokens-per-step", "1", "--rank-times", str(path)]
    assert main(["derive", *args]) == 2
    assert "ranks.txt" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "0", "x"])
def test_numbers_are_checked(capsys, number):
    with pytest.raises(SystemExit) as stopped:
        main(["derive", "mfu", "--params", number])
    assert stopped.value.code == 2
    assert "--params" in capsys.readouterr().err
