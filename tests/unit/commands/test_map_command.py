"""``map``: one page, several pages with their times, JSON, and what a user can get wrong."""

import argparse
import gzip
import json
from pathlib import Path

import pytest

from sidecar.commands import map as map_command
from sidecar.errors import UserError

VLLM = Path(__file__).parents[2] / "fixtures" / "vllm"
BUSY = VLLM / "0.32.0" / "metrics_busy.txt"


def run_map(capsys, *arguments: object) -> str:
    parser = argparse.ArgumentParser()
    map_command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["map", *map(str, arguments)])
    assert args.run(args) == 0
    return capsys.readouterr().out


def test_a_table_of_canonical_names(capsys):
    out = run_map(capsys, BUSY, "--engine-version", "0.32.0")
    assert out.startswith("vllm 0.32.0 (V1 engine)\nengines 0; models tiny-llama\n")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "vllm:generation_tokens_total" in lines["generation_tokens"]
    assert " 25634 " in lines["generation_tokens"]
    assert "410 (length 410)" in lines["success"]
    assert " ".join(lines["e2e"].split()[2:]) == "410 5.518 6.408 (5 to 10) 9.945 (5 to 10) seconds"
    assert "mm_cache_hits" not in lines
    assert "more signals are 0" in out
    assert "unmapped families: 0" in out
    assert "will break you" not in out
    assert "mm_cache_hits" in run_map(capsys, BUSY, "--all")
    assert max(map(len, out.splitlines())) < 170


def test_what_will_break_and_what_is_missing(capsys):
    out = run_map(capsys, VLLM / "0.10.2" / "metrics_mid.txt", "--engine-version", "0.10.2")
    assert "vllm:gpu_cache_usage_perc is deprecated since 0.9.2, hidden from 0.11.0, gone after 0.11.2" in out
    assert "request_tpot: vllm 0.10.2 does not have it" in out


def test_json_holds_everything_and_no_nan(capsys):
    told = json.loads(
        run_map(capsys, BUSY, "--json", "--engine-version", "0.32.0", "--slo", "ttft=0.5,tpot=0.05")
    )
    assert told["server"] == "vllm"
    assert told["signals"]["generation_tokens"]["total"] == 25634
    assert told["signals"]["kv_usage"]["total"] is None
    assert told["histograms"]["e2e"]["quantiles"]["p50"]["low"] == 5.0
    assert told["histograms"]["request_tpot"]["edges"][0] == 0.01
    assert told["missing"] == []
    assert told["window_s"] is None
    low, high = told["goodput"]["good"]
    assert 0 <= low <= high <= 410
    assert not told["hidden_restart_possible"]


def test_several_pages_give_rates_and_quantiles_of_their_time(capsys):
    pages = [f"{VLLM}/0.32.0/{name}.txt@{at}" for name, at in (("metrics_busy", 60), ("metrics_idle", 0))]
    told = json.loads(run_map(capsys, *pages, "--json"))
    assert told["window_s"] == 60
    idle = json.loads(run_map(capsys, VLLM / "0.32.0" / "metrics_idle.txt", "--json"))
    grown = 25634 - idle["signals"]["generation_tokens"]["total"]
    assert told["signals"]["generation_tokens"]["rate"] == pytest.approx(grown / 60)
    assert told["signals"]["running"]["rate"] is None
    out = run_map(capsys, *pages, f"{VLLM}/0.32.0/metrics_after_restart.txt@75", "--slo", "ttft=0.5")
    assert "rates and quantiles over 75 s" in out
    assert "goodput from histograms alone" in out
    assert "counter resets seen" in out


def test_one_token_answers_do_not_flatter_the_tpot(capsys, tmp_path):
    page = tmp_path / "page.txt"
    lines = []
    for name, buckets in (
        ("request_time_per_output_token_seconds", (("0.01", 60), ("0.05", 90), ("+Inf", 100))),
        ("request_generation_tokens", (("1.0", 50), ("+Inf", 100))),
    ):
        lines += [f'vllm:{name}_bucket{{engine="0",le="{le}"}} {n}' for le, n in buckets]
    page.write_text("\n".join(lines) + "\n")
    told = json.loads(run_map(capsys, page, "--json"))["histograms"]["request_tpot"]
    assert told["count"] == 100
    assert told["quantiles"]["p50"]["high"] == 0.05
    assert "50 answers of one token" in told["note"]


def test_a_gzip_file_and_an_openmetrics_file_are_told_by_their_bytes(capsys, tmp_path):
    packed = tmp_path / "page.gz"
    packed.write_bytes(gzip.compress(BUSY.read_bytes()))
    assert json.loads(run_map(capsys, packed, "--json"))["signals"]["generation_tokens"]["total"] == 25634
    openmetrics = tmp_path / "page.om"
    openmetrics.write_text(
        '# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{engine="0"} 3\n# EOF\n'
    )
    told = json.loads(run_map(capsys, openmetrics, "--json"))
    assert told["signals"]["generation_tokens"]["total"] == 3
    assert "rust_frontend" in {notice["code"] for notice in told["notices"]}


def test_log_stats_off_is_named(capsys, tmp_path):
    page = tmp_path / "page.txt"
    page.write_text("process_cpu_seconds_total 1\nhttp_requests_total 2\n")
    out = run_map(capsys, page)
    assert out.startswith("no known inference server")
    assert "--disable-log-stats" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("foo 1\nprocess_cpu_seconds_total 1\n", "no family of a known inference server is on the page"),
        ("goodput_engine_up 1\nprocess_cpu_seconds_total 1\n", "this is a sidecar's own page"),
        ("", "the page has no samples"),
    ],
)
def test_a_page_of_something_else_blames_no_flag_and_says_its_reason_once(capsys, tmp_path, text, said):
    page = tmp_path / "page.txt"
    page.write_text(text)
    out = run_map(capsys, page)
    assert "--disable-log-stats" not in out
    missing = out[out.index("missing:") :].split("\n\n")[0].splitlines()
    assert len(missing) == 2
    assert missing[1].startswith("  running, waiting, kv_usage")
    assert said in missing[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-file.txt"], "no-such-file.txt: No such file"),
        ([f"{BUSY}@0", str(BUSY)], "need their times"),
        ([f"{BUSY}@soon"], "'soon' after @ is no number"),
        ([f"{BUSY}@nan", f"{BUSY}@1"], "'nan' after @ is no number"),
        ([f"{BUSY}@0", f"{BUSY}@inf"], "'inf' after @ is no number"),
        ([f"{BUSY}@-1e300", f"{BUSY}@1"], "'-1e300' after @ is no number"),
        ([str(BUSY), "--scrapes", "0"], "must be at least 1"),
        (["http://127.0.0.1:1", "--scrapes", "2", "--every-s", "nan"], "--every-s must be above 0"),
        (["http://127.0.0.1:1", "--timeout-s", "nan"], "must be a number of seconds"),
        (["http://127.0.0.1:1", "--timeout-s", "inf"], "must be a number of seconds"),
        ([f"{BUSY}@1", f"{BUSY}@1"], "two pages of the same time"),
        ([str(BUSY), "--scrapes", "3"], "exactly one URL"),
        ([str(BUSY), "--slo", "speed=3"], "speed=3"),
        (["http://127.0.0.1:1", "--timeout-s", "0"], "above 0"),
        (["http://127.0.0.1:1"], "http://127.0.0.1:1: no connection"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, says):
    with pytest.raises(UserError) as caught:
        run_map(capsys, *arguments)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_or_foreign_file_is_refused_as_a_whole(capsys, tmp_path):
    for name, body in (("cut.txt", BUSY.read_bytes()[:-9]), ("page.html", b"<html></html>\n")):
        page = tmp_path / name
        page.write_bytes(body)
        with pytest.raises(UserError, match=name):
            run_map(capsys, page)
