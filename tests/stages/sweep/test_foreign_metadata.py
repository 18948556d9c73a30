"""Tasks classify metadata of unconfigured tables and repositories."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.stages.sweep import foreign_metadata
from gc_assets.stages.sweep.foreign_metadata import OTHERS, MetadataClassifier
from gc_assets.stores.local.objects import LocalObjects


def test_many_findings_of_one_lake_do_not_hide_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_metadata, "MAX_REASONS", 2)
    rows = [(f"x/t{number}/_delta_log/00000000000000000000.json", "x") for number in range(5)] + [
        ("y/t/_delta_log/00000000000000000000.json", "y")
    ]
    suspects = [{"key": key, "last_modified": datetime(2026, 11, 1, tzinfo=UTC), "is_old": True, "lake": lake} for key, lake in rows]
    classify = MetadataClassifier("main", KeyResolver([]), LocalObjects(), {}, (OTHERS,))
    found = pa.Table.from_batches(classify(iter([pa.RecordBatch.from_pylist(suspects)])))
    assert found.column("lake").to_pylist() == ["x", "x", "y"]
