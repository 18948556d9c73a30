"""Keys of plans and of the quarantine that lakes need."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import frame_from_arrow
from gc_assets.stages.mark import live_hashes
from gc_assets.stages.mark.content_roots import DEAD, HELD, REACHED
from gc_assets.stages.sweep import needed_keys
from gc_assets.stages.sweep.needed_keys import find_needed
from gc_assets.state.journal import PublishedTable
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


def find_respelled(spark: SparkSession, context: RunContext, live: PublishedTable, *keys: str) -> set[tuple[str, bool, str | None]]:
    """Return key, is_live and the needed spelling of the rows of these keys."""
    rows = find_needed(spark, context, STORAGE, [live], pa.table({"key": keys})).collect()
    return {(row["key"], row["is_live"], row["respelled"]) for row in rows if row["key"] in keys}


@pytest.mark.parametrize("module, bound", [(live_hashes, "MAX_LOCAL_HASHES"), (needed_keys, "MAX_MATCHED"), (needed_keys, None)])
@pytest.mark.parametrize("limit", [0, 100])
@pytest.mark.parametrize("rank, is_live", [(REACHED, True), (HELD, False), (DEAD, None)])
def test_keys_needed_under_another_spelling_are_found(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    rank: int,
    is_live: bool | None,
    module: ModuleType,
    bound: str | None,
) -> None:
    """Iceberg Java writes a path with `%3A` to an Azure blob with `:`, and disks may ignore case.

    Executors search if there are many live files, or many keys.
    """
    monkeypatch.setattr(needed_keys, "MAX_KEYS", limit)
    if bound is not None:
        monkeypatch.setattr(module, bound, -1)
    context = run_context_at(tmp_path, other=f"file://{tmp_path}/other/")
    live = publish_live_set(context, LAKE, {STORAGE: ["ts=00%3A00/a", "B", "plain"], "other": ["c%20d"]}, rank)
    expected = set() if is_live is None else {("ts=00:00/a", is_live, "ts=00%3A00/a"), ("b", is_live, "B")}
    assert find_respelled(spark, context, live, "ts=00:00/a", "b", "ts=00:00/b", "c d") == expected


@pytest.mark.parametrize("limit", [0, 100])
def test_needed_key_has_no_other_spelling(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(needed_keys, "MAX_KEYS", limit)
    context = run_context_at(tmp_path)
    live = publish_live_set(context, LAKE, {STORAGE: ["a b", "a%20b"]})
    found = find_respelled(spark, context, live, "a b", "a%20b", "a%2520b")
    assert {row for row in found if row[0] != "a%2520b"} == {("a b", True, None), ("a%20b", True, None)}
    assert {row for row in found if row[0] == "a%2520b"} == {("a%2520b", True, "a b"), ("a%2520b", True, "a%20b")}


def test_case_is_only_another_spelling_on_disks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed_keys, "ignores_case", lambda *_: False)
    context = run_context_at(tmp_path)
    live = publish_live_set(context, LAKE, {STORAGE: ["A", "c%20D"]})
    assert find_respelled(spark, context, live, "a", "c D") == {("c D", True, "c%20D")}


def test_absence_of_other_spellings_reads_no_entries(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at the keys themselves is only made for hits."""
    context = run_context_at(tmp_path)
    live = publish_live_set(context, LAKE, {STORAGE: ["a", "b"]})
    monkeypatch.setattr(needed_keys, "find_twins", None)
    assert find_respelled(spark, context, live, "a", "c") == {("a", True, None)}
