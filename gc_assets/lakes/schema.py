"""The JSON Schema of `lakes.yaml`, for editors. `gc_assets/lakes.schema.json` is what it says.

It knows keys, types and choices. What keys say about each other, `load_config` alone knows.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic.json_schema import models_json_schema

from gc_assets.config.models import Config, LakeConfig
from gc_assets.lakes.kinds import KINDS

SCHEMA_NAME: Final = "lakes.schema.json"
# How an editor finds the schema of a YAML file (yaml-language-server, in VS Code and others).
FIRST_LINE: Final = f"# yaml-language-server: $schema={SCHEMA_NAME}"
_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
# Limits behind a validator of our own have Python's names.
_LIMITS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_VARIABLE: Final = r"\$\{"


def json_schema() -> dict[str, Any]:
    """Returns the schema of this release's models. Every text may be a variable, `${NAME}`."""
    models = [Config, *(kind.config for kind in KINDS.values())]
    names, document = models_json_schema([(model, "validation") for model in models], ref_template="#/definitions/{model}")
    definitions: dict[str, Any] = document["$defs"]
    lakes = {name: names[kind.config, "validation"] for name, kind in KINDS.items()}
    definitions[LakeConfig.__name__] = {
        "type": "object",
        "required": ["name", "kind"],
        "properties": {"kind": {"enum": list(lakes), "description": "What system the lake is of."}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": reference} for name, reference in lakes.items()
        ],
    }
    whole = definitions.pop(Config.__name__)
    return {"$schema": _DIALECT, **_for_editors(whole), "title": "lakes.yaml", "definitions": _for_editors(definitions)}


def _for_editors(node: Any) -> Any:
    """Leaves out titles, which repeat the keys, and lets a variable stand for a text of any form."""
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
