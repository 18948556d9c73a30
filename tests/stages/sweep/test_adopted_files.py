"""The files that dropped tables adopted outside of their claims."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from gc_assets.core.claims import Claims
from gc_assets.core.dropped_tables import AdoptedFiles, DroppedPrefixes, DroppedTable, RememberedTable
from gc_assets.core.foreign import ForeignRules
from gc_assets.core.hashing import xxhash64
from gc_assets.stages.mark.container_scan import EXTERNAL, KIND_COUNT
from gc_assets.stages.mark.entry_scan import KEYED
from gc_assets.stages.sweep.adopted_files import FindAdopted
from gc_assets.stages.sweep.dropped_tables import NO_DROPPED_TABLES, WAITS, DroppedTables
from gc_assets.state.side_tables import ADOPTED_FILES

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_only_files_of_the_tables_in_this_storage_outside_their_claims_are_found() -> None:
    tables = [DroppedTable(RememberedTable("red", f"u{at}", None, "red", (f"t{at}/",), START, gone_since=START)) for at in (0, 1)]
    find = FindAdopted(DroppedPrefixes(tuple(tables)), 1, np.array([3, 5, 8]), np.array([0, 1, 0]))
    # The columns are the storage, the key, the witness, and the table that adopted the file.
    cases = [
        (1, "t0/a", 3, None),
        (1, "t1/a", 3, 0),
        (1, "t0/b", 5, 1),
        (1, "t1/b", 5, None),
        (1, "u/a", 8, 0),
        (0, "u/b", 8, None),
        (EXTERNAL, "u/c", 8, None),
        (1, "u/d", 4, None),
        (1, "u/e", 0, None),
        (1, "u/f", 9, None),
    ]
    storages, keys, witnesses, adopters = zip(*cases, strict=True)
    columns = {"storage": storages, "key": keys, "strongest": [witness * KIND_COUNT + KIND_COUNT - 1 for witness in witnesses]}
    batch = pa.RecordBatch.from_pylist([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], KEYED)
    found = pa.Table.from_batches(find(iter([batch, batch.slice(0, 0)])))
    expected = {(table, xxhash64(pa.array([key]))[0]) for key, table in zip(keys, adopters, strict=True) if table is not None}
    assert set(zip(found.column("table").to_pylist(), found.column("key_hash").to_pylist(), strict=True)) == expected
    assert found.num_rows == 3


def test_adopted_file_waits_if_no_table_is_dropped_any_more() -> None:
    """A table that was dropped can be listed again and unreadable."""
    rules = ForeignRules(Claims({}), {})
    assert NO_DROPPED_TABLES.find_files(None, rules) is None
    keys = pa.array(["k/a", "k/b"])
    row = {"lake": "red", "table_uuid": "u1", "key_hash": xxhash64(keys)[0]}
    finder = DroppedTables(adopted=AdoptedFiles(pa.Table.from_pylist([row], ADOPTED_FILES))).find_files(None, rules)
    assert finder is not None
    states, is_alone = finder.find_states(keys, pa.array([START] * 2, pa.timestamp("us", "UTC")))
    assert (states.to_pylist(), is_alone.to_pylist()) == ([WAITS, None], [True, False])
    assert finder.find_written(keys).to_pylist() == [False, False]
