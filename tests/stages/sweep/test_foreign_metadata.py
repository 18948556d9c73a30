"""Tasks classify metadata of unconfigured tables and repositories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.stages.sweep import foreign_metadata
from gc_assets.stages.sweep.foreign_metadata import OTHERS, MetadataClassifier, metadata_patterns
from gc_assets.stores.local.objects import LocalObjects

WRITTEN = datetime(2026, 11, 1, tzinfo=UTC)


def find_prefixes(root: Path, documents: list[dict[str, Any]], directories: Sequence[str] = ()) -> list[set[tuple[str, str]]]:
    """Classify these metadata files in storage `a`, and return the prefixes of each finding.

    The files are in `directories`, or in one directory each.
    """
    resolver = KeyResolver([(name, f"file://{root}/{name}/") for name in "abc"])
    directories = directories or [f"t{number}" for number in range(len(documents))]
    keys = [f"{directory}/metadata/v{number}.metadata.json" for number, directory in enumerate(directories)]
    for key, document in zip(keys, documents, strict=True):
        path = root / "a" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", **document}))
    suspects = [{"key": key, "last_modified": WRITTEN, "is_old": True, "lake": "x"} for key in keys]
    classify = MetadataClassifier("a", resolver, LocalObjects(), {}, metadata_patterns())
    found = pa.Table.from_batches(classify(iter([pa.RecordBatch.from_pylist(suspects)])))
    return [{(item["storage"], item["prefix"]) for item in prefixes} for prefixes in found.column("prefixes").to_pylist()]


def test_foreign_metadata_affects_prefixes_of_locations_and_manifest_lists(tmp_path: Path) -> None:
    root = f"file://{tmp_path}"
    listed = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": f"{root}/b/m/snap-1.avro"}
    found = find_prefixes(
        tmp_path,
        [
            {"location": f"{root}/a/t", "metadata-log": [{"metadata-file": f"{root}/b/t/metadata/v0.metadata.json", "timestamp-ms": 1}]},
            {"location": f"{root}/a/t", "properties": {"write.data.path": f"{root}/c/t", "write.metadata.path": f"{root}/b/t"}},
            {"location": f"{root}/c", "snapshots": [listed]},
            {"location": "s3://elsewhere/t"},
        ],
    )
    assert found == [
        {("a", "t0/"), ("a", "t/")},
        {("a", "t1/"), ("a", "t/"), ("b", "t/"), ("c", "t/")},
        {("a", "t2/"), ("b", "m/"), ("c", "")},
        {("a", "t3/")},
    ]


def test_many_foreign_files_do_not_hide_one_that_references_another_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_metadata, "MAX_REASONS", 2)
    documents = [*({"location": f"file://{tmp_path}/a/t"} for _ in range(5)), {"location": f"file://{tmp_path}/b/t"}]
    one = {("a", "t/")}
    assert find_prefixes(tmp_path, documents, ["t", "t", "t", "t", "u", "t"]) == [one, one, {*one, ("a", "u/")}, {*one, ("b", "t/")}]


def test_many_foreign_files_in_one_lake_do_not_hide_another_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_metadata, "MAX_REASONS", 2)
    rows = [(f"x/t/_delta_log/0000000000000000000{number}.json", "x") for number in range(5)] + [
        ("y/t/_delta_log/00000000000000000000.json", "y")
    ]
    suspects = [{"key": key, "last_modified": WRITTEN, "is_old": True, "lake": lake} for key, lake in rows]
    classify = MetadataClassifier("main", KeyResolver([]), LocalObjects(), {}, (OTHERS,))
    found = pa.Table.from_batches(classify(iter([pa.RecordBatch.from_pylist(suspects)])))
    assert found.column("lake").to_pylist() == ["x", "x", "y"]
