"""Workloads from files: the recipes that come with the package, and the user's own in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.workload.lengths import Lengths, parse_lengths
from loadgen.workload.mix import Mix
from loadgen.workload.spec import Workload
from loadgen.yaml_file import Entry, read_yaml
from sidecar.errors import UserError
from sidecar.requests.slo import SloClass, parse_slo

RECIPES = Path(__file__).parent / "recipes"
_TOP = ("description", "classes")
_SHARED = ("tokens", "share", "groups")
_CLASS = (
    "name",
    "weight",
    "api",
    "model",
    "prompt_tokens",
    "output_tokens",
    "ignore_eos",
    "shared_prefix",
    "body",
    "prompts",
    "token_ids",
    "turns",
    "think_s",
    "slo",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A mix and the bounds of those classes that bring some."""

    mix: Mix
    slos: tuple[SloClass, ...] = ()


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(name: str) -> Recipe:
    """The recipe of that name, or the file. Raises `UserError` naming file, line and key."""
    path = Path(name)
    if not path.exists() and path.name == name and (RECIPES / f"{name}.yaml").exists():
        path = RECIPES / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"--workload {name}: neither a file nor one of {', '.join(recipe_names())}")
    root = read_yaml(path)
    top = root.mapping((*_TOP, *_CLASS))
    if "classes" not in top:
        known = {key: entry for key, entry in top.items() if key != "description"}
        found = [_class(known, root, path)]
    else:
        for key in top.keys() - set(_TOP):
            top[key].wrong("belongs into a class, not beside classes")
        found = [_class(entry.mapping(_CLASS), entry, path) for entry in top["classes"].items()]
        if not found:
            top["classes"].wrong("at least one class is needed")
    names = [workload.name for workload, _ in found]
    if len(found) > 1 and (len(set(names)) < len(names) or "" in names):
        top["classes"].wrong("each class needs a name of its own")
    return Recipe(
        Mix(tuple(workload for workload, _ in found), path.stem),
        tuple(slo for _, slo in found if slo is not None),
    )


def _class(entries: Mapping[str, Entry], whole: Entry, path: Path) -> tuple[Workload, SloClass | None]:
    values: dict[str, Any] = {}
    for key, entry in entries.items():
        if key in ("name", "model"):
            values[key] = entry.text()
        elif key == "weight":
            values[key] = entry.number(1e-6, 1e9)
        elif key == "api":
            values[key] = entry.text()
            if values[key] not in ("chat", "completions"):
                entry.wrong(f"must be chat or completions, not {values[key]!r}")
        elif key in ("prompt_tokens", "output_tokens", "turns"):
            values[key] = _lengths(entry, path)
        elif key in ("ignore_eos", "token_ids"):
            values[key] = entry.flag()
        elif key == "prompts":
            values[key] = str(path.parent / entry.text())
        elif key == "think_s":
            values[key] = entry.number(0, 3600)
        elif key == "shared_prefix":
            values |= _shared(entry)
        elif key == "body":
            values["extra"] = entry.plain
            if not isinstance(values["extra"], dict):
                entry.wrong("must be a mapping, as {temperature: 0}")
    workload = Workload(**values)
    if not (workload.name.isprintable() and workload.name.isascii()):
        whole.wrong(f"name: {workload.name!r} is sent as a header and must be plain ASCII")
    slo = _slo(entries["slo"], workload.name) if "slo" in entries else None
    return workload, slo


def _lengths(entry: Entry, path: Path) -> Lengths:
    text = entry.text()
    if text.startswith("file:"):  # beside the workload's file, wherever the command runs
        text = f"file:{path.parent / text.removeprefix('file:')}"
    try:
        return parse_lengths(text, entry.key)
    except UserError as error:
        entry.wrong(str(error).removeprefix(f"{entry.key} "))


def _shared(entry: Entry) -> dict[str, Any]:
    parts = entry.mapping(_SHARED)
    if "tokens" not in parts:
        entry.wrong("needs tokens, the depth of the shared prefix")
    values: dict[str, Any] = {"shared_prefix_tokens": int(parts["tokens"].number(1, 100_000, whole=True))}
    if "share" in parts:
        values["shared_share"] = parts["share"].number(0, 1)
    if "groups" in parts:
        values["shared_groups"] = int(parts["groups"].number(1, 1000, whole=True))
    return values


def _slo(entry: Entry, name: str) -> SloClass:
    bounds = [key for key in SloClass.__dataclass_fields__ if key.endswith("_s")]
    parts = entry.mapping([*bounds, *(bound.removesuffix("_s") for bound in bounds)])
    text = ",".join(f"{key}={part.text()}" for key, part in parts.items() if part.plain is not None)
    try:
        slo = parse_slo(text)
    except UserError as error:
        entry.wrong(str(error).removeprefix("--slo: "))
    return replace(slo, name=name or "default")
