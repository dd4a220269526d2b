"""The JSON Schema of report.json, made from the data classes themselves so that it cannot drift.

``python -m loadgen.report.schema`` prints it; the copy beside this file is what is published.
"""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from loadgen.report.jsonio import FORMAT
from loadgen.results import SweepReport

_SCALARS: dict[Any, dict[str, Any]] = {
    Any: {},
    str: {"type": "string"},
    float: {"type": "number"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
}


def report_schema() -> dict[str, Any]:
    """JSON Schema (2020-12). Further keys are allowed: a later version with the same format may add some."""
    definitions: dict[str, Any] = {}
    root = _schema(SweepReport, definitions)
    definitions["SweepReport"]["properties"]["format"] = {"const": FORMAT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "goodput-loadgen report.json",
        "description": "Durations are seconds, null is unknown or undefined and never zero.",
        **root,
        "$defs": definitions,
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(a, definitions) for a in args if a is not type(None)] + [{"type": "null"}]}
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is tuple:
        items = [_schema(a, definitions) for a in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is dict:
        inner = _schema(args[1], definitions)
        return {"type": "object", "additionalProperties": inner} if inner else {"type": "object"}
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise TypeError(f"no schema for {kind}")
    if kind.__name__ not in definitions:
        made: dict[str, Any] = {"type": "object", "description": (kind.__doc__ or "").strip()}
        definitions[kind.__name__] = made
        hints = get_type_hints(kind)
        fields = dataclasses.fields(kind)
        made["properties"] = {f.name: _schema(hints[f.name], definitions) for f in fields}
        made["required"] = [
            f.name
            for f in fields
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
    return {"$ref": f"#/$defs/{kind.__name__}"}


def to_text() -> str:
    """The schema as it is published."""
    return json.dumps(report_schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(to_text(), end="")
