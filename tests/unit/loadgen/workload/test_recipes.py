"""Workload files: the recipes that are shipped, and mistakes named by file, line and key."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from loadgen.workload.mix import Mix, MixMaker, mix_from
from loadgen.workload.prompts import Calibration
from loadgen.workload.recipes import load_recipe, recipe_names
from loadgen.workload.spec import Workload
from sidecar.errors import UserError

CONFIGS = Path(__file__).parents[4] / "configs" / "workloads"


def test_all_recipes_can_be_had_by_name_and_lie_among_the_configs() -> None:
    assert recipe_names() == ["agent", "batch", "chat", "code-completion", "rag", "summarise"]
    for name in recipe_names():
        by_name = load_recipe(name)
        assert by_name == load_recipe(str(CONFIGS / f"{name}.yaml"))
        assert {slo.name for slo in by_name.slos} == {w.name for w in by_name.mix.classes}
        rate = by_name.mix.own_hit_rate
        assert rate is not None
        assert 0 <= rate < 1


def test_a_file_says_what_each_class_is(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("10\n\n30\n")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "classes:\n"
        "  - {name: a, weight: 3, prompt_tokens: 'file:lengths.txt', model: lora-a, body: {temperature: 0}}\n"
        "  - {name: b, shared_prefix: {tokens: 50, share: 0.5, groups: 3}, ignore_eos: false,"
        " slo: {ttft: 500ms}}\n"
    )
    recipe = load_recipe(str(path))
    first, second = recipe.mix.classes
    assert (first.weight, first.model, first.extra) == (3, "lora-a", {"temperature": 0})
    assert first.prompt_tokens.values == (10, 30)
    assert first.prompt_tokens.mean == 20
    assert (second.shared_prefix_tokens, second.shared_share, second.shared_groups) == (50, 0.5, 3)
    assert not second.ignore_eos
    assert [(slo.name, slo.ttft_s) for slo in recipe.slos] == [("b", 0.5)]


def test_one_class_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("output_tokens: 9\n")
    assert load_recipe(str(path)).mix.classes[0].output_tokens.a == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("classes:\n - {name: a, wieght: 2}\n", ("bad.yaml:2", "wieght", "did you mean weight")),
        ("classes:\n - {name: a, weight: 0}\n", ("bad.yaml:2", "weight", "from")),
        ("classes:\n - {name: a}\n - {name: a}\n", ("bad.yaml", "classes", "name of its own")),
        ("classes: []\n", ("bad.yaml:1", "classes")),
        ("classes:\n - {name: a, prompt_tokens: many}\n", ("bad.yaml:2", "prompt_tokens", "many")),
        ("classes:\n - {name: a, prompt_tokens: 'file:none.txt'}\n", ("bad.yaml:2", "none.txt")),
        ("classes:\n - {name: a, slo: {ttft: soon}}\n", ("bad.yaml:2", "slo", "soon")),
        ("classes:\n - {name: a, slo: {tft: 1}}\n", ("bad.yaml:2", "tft")),
        ("api: chat\nclasses:\n - {name: a}\n", ("bad.yaml:1", "api", "class")),
        ("api: soap\n", ("bad.yaml:1", "api", "soap")),
        ("shared_prefix: {share: 1}\n", ("bad.yaml:1", "shared_prefix", "tokens")),
        ("body: 3\n", ("bad.yaml:1", "body", "mapping")),
        ('name: "a\\nb"\n', ("bad.yaml", "name", "header")),
        ("a: [\n", ("bad.yaml:2", "YAML")),
        ("", ("bad.yaml", "empty")),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as found:
        load_recipe(str(path))
    assert "\n" not in str(found.value)
    for word in words:
        assert word in str(found.value)


def test_a_recipe_that_is_not_there_is_told_from_those_that_are() -> None:
    with pytest.raises(UserError, match="chat, code-completion"):
        load_recipe("chit-chat")


def test_classes_come_by_weight_and_the_same_on_any_worker() -> None:
    mix = Mix((Workload(name="a", weight=3), Workload(name="b", api="completions", weight=1)), "x")
    makers = [
        MixMaker(mix, model="m", seed=5, calibration=Calibration(), head_of=lambda w: w.name.encode())
        for _ in range(2)
    ]
    made = [makers[serial % 2].make(1, serial) for serial in range(2000)]
    counts = Counter(request.request_class for request in made)
    assert counts["a"] / 2000 == pytest.approx(0.75, abs=0.04)
    assert made[7] == makers[0].make(1, 7)
    for request in made[:50]:
        assert request.wire.startswith(request.request_class.encode())
        assert (b'"messages"' in request.wire) is (request.request_class == "a")
    assert mix_from({"classes": [asdict(w) for w in mix.classes], "name": "x"}) == mix


def test_prefixes_are_shared_by_the_stated_share_in_the_stated_groups() -> None:
    workload = Workload(shared_prefix_tokens=40, shared_share=0.6, shared_groups=3)
    maker = MixMaker(Mix((workload,)), model="m", seed=1, calibration=Calibration(), head_of=lambda w: b"")
    openings = Counter(
        b" ".join(maker.make(0, serial).wire.partition(b'"content": "')[2].split()[:12])
        for serial in range(1500)
    )
    shared = [count for count in openings.values() if count > 1]
    assert len(shared) == 3
    assert sum(shared) / 1500 == pytest.approx(0.6, abs=0.05)
    assert workload.own_hit_rate == pytest.approx(0.6 * 40 / 128)
