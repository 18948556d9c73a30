"""JSON Schema of `lakes.yaml` for editors, also published as `gc_assets/lakes.schema.json`.

The schema describes keys, types and choices. Only `load_config` checks rules that involve several
keys.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic.json_schema import models_json_schema

from gc_assets.config.models import Config, LakeConfig
from gc_assets.lakes.kinds import KINDS

SCHEMA_NAME: Final = "lakes.schema.json"
# yaml-language-server finds the schema through this line.
FIRST_LINE: Final = f"# yaml-language-server: $schema={SCHEMA_NAME}"
_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
# Fields with a custom validator record their limits under Python's names instead of JSON Schema's.
_LIMITS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_VARIABLE: Final = r"\$\{"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `lakes.yaml`, in which every string may be a `${NAME}` variable."""
    models = [Config, *(kind.config for kind in KINDS.values())]
    names, document = models_json_schema([(model, "validation") for model in models], ref_template="#/definitions/{model}")
    definitions: dict[str, Any] = document["$defs"]
    lakes = {name: names[kind.config, "validation"] for name, kind in KINDS.items()}
    definitions[LakeConfig.__name__] = {
        "type": "object",
        "required": ["name", "kind"],
        "properties": {"kind": {"enum": list(lakes), "description": "The system of the lake."}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": reference} for name, reference in lakes.items()
        ],
    }
    root = definitions.pop(Config.__name__)
    return {"$schema": _DIALECT, **_for_editors(root), "title": "lakes.yaml", "definitions": _for_editors(definitions)}


def _for_editors(node: Any) -> Any:
    """Drop redundant titles from a schema node, and accept a variable in place of every string."""
    if isinstance(node, list):
        return [_for_editors(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _for_editors(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    for ours, theirs in _LIMITS.items():
        if ours in found:
            found[theirs] = found.pop(ours)
    if found.get("type") == "string":
        found.pop("minLength", None)
        if "pattern" in found:
            found["pattern"] = f"{found['pattern']}|{_VARIABLE}"
    return found
