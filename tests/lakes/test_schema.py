"""The JSON Schema of `lakes.yaml` for editors agrees with the models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import gc_assets
from gc_assets.config.models import StorageConfig
from gc_assets.lakes.kinds import KINDS
from gc_assets.lakes.schema import json_schema
from tests.config.test_config import EXAMPLE

FILE = Path(gc_assets.__file__).parent / "lakes.schema.json"
SCHEMA = json_schema()
ROOT = Path(__file__).parents[2]


def wrong(document: Any) -> list[str]:
    """Return the paths of invalid keys."""
    return sorted(error.json_path for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(document))


def example(**changes: Any) -> dict[str, Any]:
    return yaml.safe_load(EXAMPLE) | changes


def test_packaged_schema_equals_the_models() -> None:
    """Run `gc-assets schema > gc_assets/lakes.schema.json` to update it."""
    assert json.loads(FILE.read_text()) == SCHEMA


def test_schema_is_valid() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_examples_of_the_docs_are_valid() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
    documents = [yaml.safe_load(block) for block in blocks]
    configurations = [document for document in documents if isinstance(document, dict) and {"state", "lakes"} <= document.keys()]
    assert configurations
    assert [paths for document in configurations if (paths := wrong(document))] == []


def test_example_configuration_is_valid() -> None:
    assert wrong(example()) == []


@pytest.mark.parametrize(
    "text",
    ["grace: 1d12h", "gates: {max_delete_bytes: 10TB}", "gates: {max_delete_bytes: 1000}", "location: ${WAREHOUSE}", "quarantine_days: 0"],
)
def test_schema_accepts_all_spellings_of_values(text: str) -> None:
    assert wrong(example(storages=[{"name": "a", "location": "/a", **yaml.safe_load(text)}])) == []


@pytest.mark.parametrize(
    "lake",
    [
        {"kind": "icechunk", "location": "/a", "retention": {"default": "30d"}},
        {"kind": "icechunk", "location": "/a", "retention": {"default": {"max_age": "30d", "keep_last": 3}}},
        {"kind": "nessie", "uri": "${NESSIE}", "token": "${T}", "retention": {"refs": [{"match": "main", "cutoff": 5}]}},
        {"kind": "lakefs", "endpoint": "http://x", "repository": "ml", "access_key_id": "${A}", "secret_access_key": "${B}"},
        {"kind": "iceberg", "catalog": {"type": "rest"}, "retention": {"dangling": "forever"}},
    ],
)
def test_lake_is_validated_by_schema_of_its_kind(lake: dict[str, Any]) -> None:
    assert wrong(example(lakes=[{"name": "a", **lake}])) == []
    assert wrong(example(lakes=[{"name": "a", **lake, "colour": "red"}])) == ["$.lakes[0]"]


@pytest.mark.parametrize(
    "changes, path",
    [
        ({"storage": []}, "$"),
        ({"storages": [{"name": "a"}]}, "$.storages[0]"),
        ({"storages": [{"name": "a", "location": "/a", "grase": "72h"}]}, "$.storages[0]"),
        ({"storages": [{"name": "a", "location": "/a", "quarantine": "shred"}]}, "$.storages[0].quarantine"),
        ({"storages": [{"name": "a", "location": "/a", "gates": {"max_delete_share": 20}}]}, "$.storages[0].gates.max_delete_share"),
        ({"lakes": [{"name": "a", "kind": "hudi"}]}, "$.lakes[0].kind"),
        ({"lakes": [{"name": "a", "kind": "icechunk"}]}, "$.lakes[0]"),
    ],
)
def test_schema_refuses_what_the_models_refuse(changes: dict[str, Any], path: str) -> None:
    assert wrong(example(**changes)) == [path]


def test_schema_contains_descriptions_of_models() -> None:
    grace = SCHEMA["definitions"][StorageConfig.__name__]["properties"]["grace"]
    assert grace["description"] == StorageConfig.model_fields["grace"].description
    assert SCHEMA["definitions"]["LakeConfig"]["properties"]["kind"]["enum"] == list(KINDS)
