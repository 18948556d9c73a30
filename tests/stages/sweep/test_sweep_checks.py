"""Checks of live files that a listing lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.tables import frame_from_arrow
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.sweep.sweep_checks import find_other_names

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class RecordedLookUps:
    """Find these objects, and write the keys of all look-ups to a file."""

    existing: frozenset[str]
    log: Path

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        with self.log.open("a") as log:
            log.writelines(f"{key}\n" for key in keys)
        return [8 if key in self.existing else None for key in keys]


def test_only_names_of_unlisted_files_are_looked_up(spark: SparkSession, tmp_path: Path) -> None:
    """The other name of each virtual file such as `a 1.nc` is no object. Each cost a request if any live file was missing."""
    names = [(f"{name}{space}1.nc", kind) for name in "abc" for space, kind in ((" ", Kind.OBJECT), ("%20", Kind.POSSIBLE_OBJECT))]
    rows = [{"key": key, "lake": "weather", "kind": kind, "must_exist": kind == Kind.OBJECT} for key, kind in names]
    listed, none = (frame_from_arrow(spark, pa.table({"key": pa.array(keys, pa.string())})) for keys in (["a 1.nc"], []))
    lister = RecordedLookUps(frozenset({"b%201.nc"}), tmp_path / "look-ups")
    found = find_other_names(frame_from_arrow(spark, pa.Table.from_pylist(rows)), {"weather": KINDS["icechunk"]}, listed, none, lister)
    assert found.to_pylist() == [{"key": "b 1.nc", "lake": "weather"}]
    assert sorted(lister.log.read_text().splitlines()) == ["b%201.nc", "c%201.nc"]
