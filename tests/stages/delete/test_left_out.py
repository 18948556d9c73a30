"""A plan describes the candidates that the sweep kept because of other objects or of their own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from gc_assets.stages.delete.left_out import describe_kept
from gc_assets.stages.delete.plan_inputs import PlanInputs
from gc_assets.stages.sweep.listings import Listing
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import (
    DEFERRED_SIDE,
    FOREIGN_PREFIXES,
    FOREIGN_PREFIXES_SIDE,
    NAMED_TWICE_SIDE,
    NEAR_MISSES_SIDE,
)
from tests.records import EMPTY_SWEEP, STORAGE, publish_table, run_context_at

JUNK = "db/t/metadata/00004-a.metadata.json"


def keep(*keys: str) -> pa.Table:
    """Return rows of kept candidates of 10 bytes each."""
    return pa.Table.from_pylist([{"key": key, "size_bytes": 10} for key in keys], ORPHAN_FILES.schema)


def sweep_keeps(root: Path, side: dict[str, pa.Table], **summary: Any) -> PlanInputs:
    context = run_context_at(root)
    orphans = publish_table(context, STORAGE, ORPHAN_FILES, side=side, **{**EMPTY_SWEEP, **summary})
    return PlanInputs(context, STORAGE, orphans, cast("Listing", None), [], [], (), ())


def test_files_next_to_unreadable_metadata_are_counted_and_the_object_is_named(tmp_path: Path) -> None:
    prefixes = [{"storage": STORAGE, "prefix": "db/t/", "is_junk": True}, {"storage": STORAGE, "prefix": "db/foreign/", "is_junk": False}]
    side = {
        DEFERRED_SIDE: keep("db/t/data/1.parquet", JUNK, "db/foreign/data/2.parquet", "db/missing/data/3.parquet"),
        FOREIGN_PREFIXES_SIDE: pa.Table.from_pylist(prefixes, FOREIGN_PREFIXES),
    }
    inputs = sweep_keeps(tmp_path, side, junk=[f"{JUNK}: table metadata that cannot be read ({{}})"], junk_count=1)
    assert [str(item) for item in describe_kept(inputs)] == [
        "2 files (20 B) are left out: they may belong to another table, because 1 object is next to them and named like metadata without "
        f"being metadata: {JUNK}: table metadata that cannot be read ({{}}). Repair these objects, or remove them"
    ]


def test_files_with_doubtful_names_are_counted_and_named(tmp_path: Path) -> None:
    side = {NAMED_TWICE_SIDE: keep("db/t/1", "db/t/1"), NEAR_MISSES_SIDE: keep("db/t/A", "db/t/b")}
    twice, near = describe_kept(sweep_keeps(tmp_path, side, near_misses=2, named_twice=2, misspelled=[]))
    assert (twice.files, twice.bytes, near.files, near.bytes) == (2, 20, 2, 20)
    assert "several rows with the same key, so it is unknown which one is right: db/t/1. Correct" in twice.reason
    assert "differ only in spelling from a live file, or from a file that expired history still needs: db/t/A; db/t/b. Del" in near.reason


def test_files_that_may_be_missing_live_files_are_left_to_the_gate(tmp_path: Path) -> None:
    """They must not be deleted manually."""
    inputs = sweep_keeps(tmp_path, {NEAR_MISSES_SIDE: keep("db/t/A")}, near_misses=1, misspelled=["db/t/A"])
    assert list(describe_kept(inputs)) == []
