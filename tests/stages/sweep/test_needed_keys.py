"""Keys of plans and of the quarantine that lakes need."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.tables import frame_from_arrow
from gc_assets.stages.mark.content_roots import DEAD, HELD, REACHED
from gc_assets.stages.sweep import needed_keys
from gc_assets.stages.sweep.needed_keys import find_needed
from tests.records import LAKE, STORAGE, run_context_at
from tests.stages.live_sets import publish_live_set

pytestmark = pytest.mark.spark

KEYS = pa.table({"key": ["a", "b", "b", "unknown"]})


@pytest.mark.parametrize("limit", [0, 1, 100])
@pytest.mark.parametrize("rank, is_live", [(REACHED, True), (HELD, False), (DEAD, None)])
def test_keys_of_live_and_not_yet_expired_files_are_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, rank: int, is_live: bool | None
) -> None:
    """If there are more keys than the limit, all live files are joined, which are more than the
    given ones.
    """
    monkeypatch.setattr(needed_keys, "MAX_KEYS", limit)
    context = run_context_at(tmp_path, other=f"file://{tmp_path}/other/")
    live = publish_live_set(context, LAKE, {STORAGE: ["a", "b", "c"], "other": ["unknown"]}, rank)
    expected = set() if is_live is None else {(key, LAKE, is_live) for key in ("a", "b")}
    for keys in (KEYS, frame_from_arrow(spark, KEYS)):
        found = {(row["key"], row["lake"], row["is_live"]) for row in find_needed(spark, context, STORAGE, [live], keys).collect()}
        assert {row for row in found if row[0] in KEYS["key"].to_pylist()} == expected


def test_empty_key_list_needs_no_live_set(spark: SparkSession, tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    live = publish_live_set(context, LAKE, {STORAGE: ["a"]})
    (tmp_path / "state" / live.paths("_states")[0]).unlink()
    assert find_needed(spark, context, STORAGE, [live], KEYS.slice(0, 0)).collect() == []
