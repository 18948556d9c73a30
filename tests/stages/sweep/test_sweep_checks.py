"""Checks of live files that a listing lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.claims import Owner
from gc_assets.core.hashing import xxhash64
from gc_assets.core.plan import LiveCount
from gc_assets.engine.tables import frame_from_arrow
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.sweep.sweep_checks import MissingLiveFiles, find_other_names, find_unlisted
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import MISSING_LIVE

pytestmark = pytest.mark.spark
A1, A2, B = Owner("a", "t1"), Owner("a", "t2"), Owner("b", None)


@pytest.mark.parametrize(
    "missing, selected",
    [
        ({A1: 1}, {A1}),
        ({A1: 1, A2: 1}, {Owner("a", None)}),
        ({A1: 1, B: 1}, {A1, B}),
        ({A1: 10, A2: 1}, {Owner("a", None)}),
        ({A1: 1, B: 100}, {Owner("a", None), B}),
    ],
)
def test_lake_is_selected_as_a_whole_if_too_many_of_its_files_are_missing(missing: dict[Owner, int], selected: set[Owner]) -> None:
    live = LiveCount(50_000, {"a": 1_000, "b": 49_000})
    assert MissingLiveFiles(sum(missing.values()), owners=missing).select_owners(live) == selected


def test_small_lake_is_selected_in_large_storage() -> None:
    live = LiveCount(50_000, {"a": 5, "b": 49_995})
    assert MissingLiveFiles(1, owners={A1: 1}).select_owners(live) == {Owner("a", None)}


@dataclass(frozen=True)
class RecordedLookUps:
    """Find these objects, and write the keys of all look-ups to a file."""

    existing: frozenset[str]
    log: Path

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        with self.log.open("a") as log:
            log.writelines(f"{key}\n" for key in keys)
        return [8 if key in self.existing else None for key in keys]


def test_other_spellings_are_looked_up_only_for_unlisted_files(spark: SparkSession, tmp_path: Path) -> None:
    """The other spelling of a virtual file such as `a 1.nc` does not exist. Before, each cost a
    request if a live file was missing.
    """
    names = [(f"{name}{space}1.nc", kind) for name in "abc" for space, kind in ((" ", Kind.OBJECT), ("%20", Kind.POSSIBLE_OBJECT))]
    rows = [{"key": key, "lake": "weather", "kind": kind, "must_exist": kind == Kind.OBJECT} for key, kind in names]
    listed, none = (frame_from_arrow(spark, pa.table({"key": pa.array(keys, pa.string())})) for keys in (["a 1.nc"], []))
    lister = RecordedLookUps(frozenset({"b%201.nc"}), tmp_path / "look-ups")
    found = find_other_names(frame_from_arrow(spark, pa.Table.from_pylist(rows)), {"weather": KINDS["icechunk"]}, listed, none, lister)
    assert found.to_pylist() == [{"key": "b 1.nc", "lake": "weather"}]
    assert sorted(lister.log.read_text().splitlines()) == ["b%201.nc", "c%201.nc"]


def test_missing_file_is_counted_once_with_all_tables_that_need_it(spark: SparkSession, tmp_path: Path) -> None:
    def frame(**columns: list[str | None] | list[bool]) -> DataFrame:
        return frame_from_arrow(spark, pa.table(columns))

    keys = frame(
        key=["shared", "shared", "shared", "mine", "listed", "moved", "ruled", "ruled", "there", "optional"],
        lake=["a", "b", "b", "a", "a", "a", "a", "b", "a", "a"],
        table_uuid=["t1", None, "t2", "t1", "t3", "t3", "t4", "t5", "t3", "t3"],
        must_exist=[True] * 9 + [False],
    )
    look_ups = RecordedLookUps(frozenset({"there"}), tmp_path / "log")
    files, run = Files(str(tmp_path)), TableRun("storage", "orphan_files", date(2026, 1, 1), "run")
    missing = find_unlisted(keys, frame(key=["listed"]), frame(key=["moved"]), frame(key=["ruled"], lake=["a"]), look_ups, files, run)
    owners = {Owner("a", "t1"): 2, Owner("b", None): 1, Owner("b", "t2"): 1, Owner("b", "t5"): 1}
    assert missing == MissingLiveFiles(3, ("mine", "ruled", "shared"), owners)
    assert set(look_ups.log.read_text().split()) == {"shared", "mine", "ruled", "there"}
    recorded = read_parts(files, [f"{run.path}/{part.name}" for part in missing.parts], MISSING_LIVE).to_pylist()
    names = {xxhash64(pa.array([key]))[0]: key for key in ("shared", "mine", "ruled")}
    assert {(row["lake"], names[row["key_hash"]]) for row in recorded} == {("a", "shared"), ("b", "shared"), ("a", "mine"), ("b", "ruled")}
