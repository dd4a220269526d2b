"""``check``: series by family, the budget, and labels without bound."""

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.commands import check as check_command
from sidecar.engine.cardinality import count
from sidecar.engine.exposition import parse
from sidecar.errors import UserError

BUSY = Path(__file__).parents[2] / "fixtures" / "vllm" / "0.32.0" / "metrics_busy.txt"


def run_check(capsys, *arguments: object) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    check_command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["check", *map(str, arguments)])
    status = args.run(args)
    return status, capsys.readouterr().out


def test_a_real_page_by_family(capsys):
    status, out = run_check(capsys, BUSY, "--top", 3)
    assert status == 0
    assert "vllm:time_to_first_token_seconds     histogram  25 " in out
    assert "494 series in 92 families" in out
    assert "and 89 more families with 415 series" in out
    assert "warning" not in out


@pytest.mark.parametrize(
    ("budget", "status", "says"),
    [
        (10_000, 0, None),
        (600, 0, "use 82% of the budget of 600"),
        (400, 1, "494 series break the budget of 400"),
    ],
)
def test_the_budget_warns_before_it_breaks(capsys, budget, status, says):
    got, out = run_check(capsys, BUSY, "--budget", budget)
    assert got == status
    assert (says in out) if says else ("warning" not in out)


def test_json(capsys):
    status, out = run_check(capsys, BUSY, "--json", "--budget", 400)
    told = json.loads(out)
    assert status == 1
    assert told["series"] == 494
    assert sum(family["series"] for family in told["families"]) == 494
    assert told["budget"] == 400


def test_labels_without_bound_many_values_and_duplicates_are_named():
    text = 'a_total{request_id="1"} 1\nb{user="x",prompt="y"} 1\nc{engine="0"} 1\nc{engine="0"} 2\n'
    text += "".join(f'd{{model_name="m{i}"}} 1\n' for i in range(300))
    found = count(parse(text.encode()))
    assert found.series == 304 - 1
    assert found.families[0].family == "d"
    assert found.families[0].labels == (("model_name", 300),)
    warnings = "\n".join(found.warnings)
    for part in (
        "'request_id' has no bound",
        "'user'",
        "'prompt'",
        "'model_name' has 300 values",
        "1 duplicate series",
    ):
        assert part in warnings
    assert "engine" not in warnings


def test_vllms_adapter_labels_are_unbounded():
    text = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters=""} 1\n'
    assert len(count(parse(text.encode())).warnings) == 2


def test_a_bad_budget_and_a_missing_file_are_one_line(capsys):
    with pytest.raises(UserError, match="above 0"):
        run_check(capsys, BUSY, "--budget", 0)
    with pytest.raises(UserError, match=r"nothing\.txt"):
        run_check(capsys, "nothing.txt")


def test_an_empty_page_counts_nothing(capsys, tmp_path):
    page = tmp_path / "empty.txt"
    page.write_text("")
    status, out = run_check(capsys, page)
    assert status == 0
    assert "0 series in 0 families" in out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=30))
def test_distinct_series_are_counted_once(rows):
    text = "".join(f'{name}{{x="{i}"}} 1\n' for name, i in rows)
    found = count(parse(text.encode()))
    assert found.series == len(set(rows))
    assert found.duplicates == len(rows) - len(set(rows))


def test_one_label_in_very_many_families_is_told_in_few_lines():
    page = parse("".join(f'family_{i}{{request_id="x"}} 1\n' for i in range(500)).encode())
    warnings = count(page).warnings
    assert len(warnings) == 11
    assert warnings[-1] == "label 'request_id' likewise in 490 more families"


def test_a_sidecars_own_page_states_its_budget_and_a_given_one_wins(capsys, tmp_path):
    page = tmp_path / "page.txt"
    page.write_text("goodput_series_budget 3\na 1\nb 2\nc 3\n")
    status, out = run_check(capsys, page)
    assert status == 1
    assert "4 series break the budget of 3" in out
    assert run_check(capsys, page, "--budget", 100)[0] == 0
