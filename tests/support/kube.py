"""Kubernetes objects against their schemas, without a cluster. Skips, saying why, where a part is missing."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

VERSIONS = ("1.29", "1.33", "1.35")
CRDS = Path(__file__).parents[3] / "shared" / "data" / "crds"


def core_errors(doc: dict[str, Any], version: str) -> str | None:
    """What the schema of a built-in kind says against ``doc`` (strictly: unknown fields too), or ``None``."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    try:
        validate.validate(doc, version, strict=True)
    except validate.ValidationError as error:
        return str(error)
    return None


def crd_errors(doc: dict[str, Any]) -> list[str]:
    """What the custom resource's own schema, and its CEL rules, say against ``doc``."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = _crd_schema(doc["apiVersion"], doc["kind"])
    errors = [
        f"{'.'.join(map(str, e.absolute_path))}: {e.message}"
        for e in jsonschema.Draft202012Validator(_strict(schema)).iter_errors(doc)
    ]
    return errors + _cel_errors(schema, doc)


def _crd_schema(api_version: str, kind: str) -> dict[str, Any]:
    if not CRDS.is_dir():
        pytest.skip("the folder with the custom resource definitions is not beside this checkout")
    group, version = api_version.split("/")
    for path in CRDS.glob(f"{group}_*.yaml"):
        crd = _read(path)
        if crd["spec"]["names"]["kind"] == kind:
            found: dict[str, Any] = next(
                v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == version
            )
            return found
    pytest.fail(f"no custom resource definition for {api_version} {kind}")


@cache
def _read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def _strict(node: Any) -> Any:
    """A CRD's schema node as JSON Schema that refuses unknown fields."""
    if not isinstance(node, dict):
        return node
    out = {k: v for k, v in node.items() if k not in ("format", "default", "description")}
    if "properties" in node:
        out["properties"] = {name: _strict(p) for name, p in node["properties"].items()}
        if "additionalProperties" not in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            # A metadata without properties of its own stays open, as the API server leaves it.
            out["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if key in node:
            out[key] = _strict(node[key])
    if node.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if node.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    if "pattern" in node:  # Go writes ^(?i), Python wants the flag first
        out["pattern"] = node["pattern"].replace("^(?i)", "(?i)^")
    return out


def _cel_errors(schema: Any, value: Any) -> list[str]:
    try:
        cel = importlib.import_module("cel")
    except ImportError:
        return []
    found: list[str] = []
    if not isinstance(schema, dict):
        return found
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and cel.evaluate(rule["rule"], {"self": value}) is not True:
            found.append(rule.get("message", rule["rule"]))
    if isinstance(value, dict):
        for name, inner in value.items():
            found += _cel_errors(schema.get("properties", {}).get(name), inner)
    if isinstance(value, list):
        for inner in value:
            found += _cel_errors(schema.get("items"), inner)
    return found
