"""Peaks: exact names, dense figures, doubts shown."""

import json

import pytest

from sidecar.gpu.peaks import all_peaks, find_peak_of


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM"),
        ("nvidia h100 80gb hbm3", "H100-SXM"),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA L40", None),
        ("NVIDIA H20-3e", "H20"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA H800", None),
        ("Tesla T4", None),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("H100-SXM", "H100-SXM"),
        ("", None),
    ],
)
def test_names_match_whole(name, key):
    peak = find_peak_of(name)
    assert (peak.key if peak else None) == key


def test_a_variant_has_its_own_memory():
    plain, variant = find_peak_of("NVIDIA H20"), find_peak_of("NVIDIA H20-3e")
    assert plain is not None
    assert variant is not None
    assert (plain.memory_bytes, variant.memory_bytes) == (96e9, 141e9)
    assert variant.bandwidth_bytes_per_s == 4.8e12


def test_dense_and_sparse_are_never_mixed():
    for peak in all_peaks():
        for dtype, dense in peak.dense_flops.items():
            sparse = peak.sparse_flops.get(dtype)
            if dense is not None and sparse is not None:
                assert dense < sparse
    b300 = find_peak_of("NVIDIA B300")
    assert b300 is not None
    assert b300.dense_flops["fp4"] == 0.75 * b300.sparse_flops["fp4"]


def test_dtype_and_doubt_are_said():
    h100 = find_peak_of("H100-SXM")
    assert h100 is not None
    assert h100.dense("float16") == h100.dense("bf16") == 989.4e12
    assert h100.describe("auto") == "H100-SXM bf16 dense 989.4 TFLOPS"
    assert h100.dense("fp4") is None
    b200 = find_peak_of("NVIDIA B200")
    assert b200 is not None
    assert b200.describe("fp8").endswith("doubtful")
    assert json.dumps(b200.doubtful)
