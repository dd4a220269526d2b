"""Which SLO class a request falls under; SLO files and flags, with errors that name the line and key."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import yaml

from sidecar.errors import SettingsError
from sidecar.requests.judge import DEFAULT_SLO, SloClass
from sidecar.requests.records import RequestRecord
from sidecar.requests.text import shown
from sidecar.user_yaml import parse_node, read_text

_BOUNDS = tuple(f.name for f in fields(SloClass) if f.name.endswith("_s"))
_RULE_KEYS = ("class", "model", "request_class", "route")
_TOP_KEYS = ("default", "classes", "rules")
_DURATION = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(us|ms|s|m)?")
_MAX_S = 1e9  # thirty years: what is meant as no bound at all is written null
_UNITS = {None: 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class SloRule:
    """Patterns (``*`` and ``?``) that must all match; an empty one matches anything."""

    slo: SloClass
    model: str = ""
    request_class: str = ""
    route: str = ""

    def matches(self, model: str, request_class: str, path: str) -> bool:
        """Whether a request of this model, class header and path falls under the rule."""
        return (
            (not self.model or fnmatch.fnmatchcase(model, self.model))
            and (not self.request_class or fnmatch.fnmatchcase(request_class, self.request_class))
            and (not self.route or fnmatch.fnmatchcase(path.partition("?")[0], self.route))
        )


@dataclass(frozen=True, slots=True)
class SloPolicy:
    """The first rule that matches decides; else the class its header names; else the default."""

    default: SloClass = DEFAULT_SLO
    classes: tuple[SloClass, ...] = ()
    rules: tuple[SloRule, ...] = ()

    def class_for(
        self, record: RequestRecord | None = None, *, model: str = "", request_class: str = "", path: str = ""
    ) -> SloClass:
        """The class of a finished request, or of one given by its model, class header and path."""
        if record is not None:
            model, request_class, path = record.model, record.request_class, record.path
        for rule in self.rules:
            if rule.matches(model, request_class, path):
                return rule.slo
        for slo in self.classes:
            if slo.name == request_class:
                return slo
        return self.default

    def all_classes(self) -> tuple[SloClass, ...]:
        """Every class of the policy, the default first."""
        return (self.default, *(slo for slo in self.classes if slo.name != self.default.name))


def parse_slo(text: str, *, name: str = "default") -> SloClass:
    """An SLO class from a flag: ``ttft=0.5,tpot=50ms,max_gap=2``; seconds unless a unit says otherwise.

    Raises SettingsError naming the part that is wrong.
    """
    values: dict[str, Any] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        bound = _bound_name(key.strip())
        if not equals or bound is None:
            known = ", ".join(b.removesuffix("_s") for b in _BOUNDS)
            hint = _hint(key.strip(), [b.removesuffix("_s") for b in _BOUNDS])
            raise SettingsError(f"--slo: {part.strip()!r} is not BOUND=SECONDS with one of {known}{hint}")
        if bound in values:
            raise SettingsError(f"--slo: {key.strip()} stands twice")
        values[bound] = _seconds(value.strip(), f"--slo: {key.strip()}")
    if not values:
        raise SettingsError("--slo: no bound given; write for example ttft=0.5,tpot=0.05")
    if "ttft_per_prompt_token_s" in values and "ttft_s" not in values:
        raise SettingsError("--slo: ttft_per_prompt_token needs ttft beside it")
    return SloClass(name=name, **values)


def load_slo(path: str | Path) -> SloPolicy:
    """An SLO policy from a YAML file (configs/slo.yaml). Raises SettingsError with file, line and key."""
    where = str(path)
    root = parse_node(read_text(path), where)
    if root is None:
        raise SettingsError(f"{where}: is empty; it should hold bounds, or classes and rules")
    return _Reader(where).policy(root)


class _Reader:
    """Reads the composed nodes, for these know their lines."""

    def __init__(self, where: str) -> None:
        self._where = where

    def policy(self, root: yaml.Node) -> SloPolicy:
        top = self._mapping(root, "the file")
        if not any(key in _TOP_KEYS for key in top):
            # The short form: the bounds of the only class.
            slo = self._slo("default", root)
            return SloPolicy(slo, (slo,))
        self._known(top, _TOP_KEYS, "")
        classes: dict[str, SloClass] = {}
        if "classes" in top:
            for name, (_, value) in self._mapping(top["classes"][1], "classes").items():
                classes[name] = self._slo(name, value)
        if not classes:
            raise SettingsError(f"{self._where}: classes: at least one class is needed")
        default = next(iter(classes.values()))
        if "default" in top:
            default = self._class_named(top["default"][1], "default", classes)
        rules = []
        if "rules" in top:
            listed = top["rules"][1]
            if not isinstance(listed, yaml.SequenceNode):
                self._wrong(listed, "rules", "must be a list")
            rules = [self._rule(item, classes, i) for i, item in enumerate(listed.value, 1)]
        return SloPolicy(default, tuple(classes.values()), tuple(rules))

    def _slo(self, name: str, node: yaml.Node) -> SloClass:
        entries = self._mapping(node, f"class {name}")
        values: dict[str, Any] = {}
        for key, (key_node, value_node) in entries.items():
            label = f"{name}: {key}"
            if key == "client_errors_eligible":
                if value_node.tag != "tag:yaml.org,2002:bool":
                    self._wrong(value_node, label, "must be true or false")
                values[key] = value_node.value.lower() in ("true", "yes", "on")
                continue
            bound = _bound_name(key)
            if bound is None:
                self._wrong(
                    key_node, label, f"is not known{_hint(key, [*_BOUNDS, 'client_errors_eligible'])}"
                )
            if bound in values:
                self._wrong(key_node, label, "stands twice")
            if not isinstance(value_node, yaml.ScalarNode):
                self._wrong(value_node, label, "must be a number of seconds, or null for no bound")
            if value_node.tag == "tag:yaml.org,2002:null":
                values[bound] = None
                continue
            values[bound] = _seconds(value_node.value, f"{self._at(value_node)}: {label}")
        if values.get("ttft_per_prompt_token_s") and values.get("ttft_s") is None:
            self._wrong(node, f"{name}: ttft_per_prompt_token_s", "needs ttft_s beside it")
        return SloClass(name=name, **values)

    def _rule(self, node: yaml.Node, classes: Mapping[str, SloClass], number: int) -> SloRule:
        entries = self._mapping(node, f"rule {number}")
        self._known(entries, _RULE_KEYS, f"rule {number}: ")
        if "class" not in entries:
            self._wrong(node, f"rule {number}", "has no class")
        slo = self._class_named(entries["class"][1], f"rule {number}: class", classes)
        patterns = {}
        for key in _RULE_KEYS[1:]:
            if key in entries:
                value = entries[key][1]
                if not isinstance(value, yaml.ScalarNode) or not value.value:
                    self._wrong(value, f"rule {number}: {key}", "must be a text, with * and ? as wildcards")
                patterns[key] = value.value
        return SloRule(slo, **patterns)

    def _class_named(self, node: yaml.Node, label: str, classes: Mapping[str, SloClass]) -> SloClass:
        if not isinstance(node, yaml.ScalarNode) or node.value not in classes:
            name = node.value if isinstance(node, yaml.ScalarNode) else "this"
            self._wrong(
                node,
                label,
                f"{name!r} is none of the classes ({', '.join(classes)}){_hint(str(name), classes)}",
            )
        return classes[node.value]

    def _mapping(self, node: yaml.Node, label: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, label, "must be a mapping of keys to values")
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._wrong(key, label, "has a key that is not a text")
            if key.value in entries:
                self._wrong(key, key.value, "stands twice")
            entries[key.value] = (key, value)
        return entries

    def _known(
        self, entries: Mapping[str, tuple[yaml.Node, yaml.Node]], known: Iterable[str], label: str
    ) -> None:
        for key, (node, _) in entries.items():
            if key not in known:
                self._wrong(
                    node, f"{label}{key}", f"is not known{_hint(key, known)}; known: {', '.join(known)}"
                )

    def _at(self, node: yaml.Node) -> str:
        return f"{self._where}:{node.start_mark.line + 1}"

    def _wrong(self, node: yaml.Node, label: str, what: str) -> NoReturn:
        raise SettingsError(f"{self._at(node)}: {label} {what}")


def _bound_name(key: str) -> str | None:
    """``ttft`` and ``ttft_s`` both name the bound ``ttft_s``."""
    for bound in (key, f"{key}_s"):
        if bound in _BOUNDS:
            return bound
    return None


def _seconds(text: str, label: str) -> float:
    match = _DURATION.fullmatch(text)
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < value <= _MAX_S:
        raise SettingsError(
            f"{label} must be seconds above 0 (or with a unit: 50ms), at most {_MAX_S:g}, not {shown(text)}"
        )
    return value


def _hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
