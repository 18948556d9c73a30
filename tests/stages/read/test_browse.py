"""Tables of other releases are read, or refused with the missing columns. Damaged ones are refused too."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gc_assets.core.errors import StateError
from gc_assets.stages.read.browse import batches, read_matching_rows
from gc_assets.state.journal import State
from gc_assets.state.parts import PartWriter
from gc_assets.state.schemas import ORPHAN_FILES
from tests.state.test_damage import DAMAGE, REPAIR

PART = "warehouse/orphan_files/run_date=2026-01-01/run/part-0.parquet"


@pytest.fixture
def older(tmp_path: Path) -> State:
    """A table of a release without the columns `kind` and `held_by`."""
    state, sink = State.at(str(tmp_path)), pa.BufferOutputStream()
    pq.write_table(ORPHAN_FILES.schema.empty_table().drop_columns(["kind", "held_by"]), sink)
    state.files.replace(PART, sink.getvalue().to_pybytes())
    return state


def test_error_lists_columns_missing_in_older_release(older: State) -> None:
    message = r"orphan_files of 2026-01-01: an older release of gc-assets wrote it without the columns held_by, kind.*Run that date again"
    with pytest.raises(StateError, match=message):
        read_matching_rows(older, ORPHAN_FILES.schema, [PART], "key", ["x"])
    with pytest.raises(StateError, match=message):
        list(batches(older, ORPHAN_FILES.schema, [PART]))


def test_unrequested_columns_may_be_missing(older: State) -> None:
    assert list(batches(older, ORPHAN_FILES.schema, [PART], ["key", "lake"])) == []


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_error_names_damaged_part_and_next_step(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    state, writer = State.at(str(tmp_path)), PartWriter(State.at(str(tmp_path)).files, PART.rpartition("/")[0], ORPHAN_FILES.schema)
    writer.write(pa.RecordBatch.from_pylist([{"key": f"key {number}"} for number in range(1_000)], schema=ORPHAN_FILES.schema))
    path = f"{PART.rpartition('/')[0]}/{writer.close()[0].name}"
    damage(tmp_path / path)
    with pytest.raises(StateError, match=f"{re.escape(path)}.*{REPAIR}"):
        read_matching_rows(state, ORPHAN_FILES.schema, [path], "key", ["key 1"])
    with pytest.raises(StateError, match=f"{re.escape(path)}.*{REPAIR}"):
        list(batches(state, ORPHAN_FILES.schema, [path]))
