"""Simulator, sidecar and client through real processes: their books of a level agree, or say why not."""

from __future__ import annotations

from pathlib import Path

from loadgen.report.jsonio import load
from tests.support.loadgen_runs import loadgen, simulator
from tests.support.sidecar_process import sidecar_process

QUICK = ("--concurrency", "4", "--prompt-tokens", "30", "--output-tokens", "8", "--warmup-s", "0.3")


def test_client_sidecar_and_engine_agree_to_the_token(tmp_path: Path) -> None:
    with simulator("--profile", "fast") as url, sidecar_process(url) as sidecar:
        ran = loadgen(
            *("run", "--url", sidecar.proxy, "--admin-url", sidecar.admin, *QUICK, "--window-s", "1.5"),
            *("--out", str(tmp_path)),
        )
    assert ran.status == 0, ran.out + ran.err
    (level,) = load(tmp_path / "report.json").levels
    assert set(level.books) == {"client", "sidecar", "engine"}
    sent = {name: (side["requests"], side["output_tokens"]) for name, side in level.books.items()}
    assert sent["client"] == sent["sidecar"] == sent["engine"], level.books_notes
    assert level.books["client"]["requests"] >= level.sent
    assert any("mean TTFT: client" in note for note in level.books_notes)
    assert not any(flag.startswith("unaccounted") for flag in level.flags)
    assert "accounted for in 1 of 1 levels" in ran.out


def test_requests_that_fail_on_the_way_are_the_difference(tmp_path: Path) -> None:
    with simulator("--profile", "fast", "--fault", "drop=0.4,drop_after=2") as url:
        for _ in range(5):  # the fault may strike the first request, which is then refused
            ran = loadgen("run", "--url", url, *QUICK, "--window-s", "1.5", "--out", str(tmp_path))
            if ran.status == 0:
                break
    assert ran.status == 0, ran.out + ran.err
    (level,) = load(tmp_path / "report.json").levels
    assert level.books["client"]["failed"] > 0
    assert level.books["engine"]["output_tokens"] >= level.books["client"]["output_tokens"]
    assert not any(flag.startswith("unaccounted") for flag in level.flags), level.books_notes


def test_an_admin_address_where_no_sidecar_is(tmp_path: Path) -> None:
    with simulator("--profile", "fast") as url:
        ran = loadgen("run", "--url", url, "--admin-url", url, *QUICK, "--out", str(tmp_path))
    assert ran.status == 2
    assert "--admin-url" in ran.err
