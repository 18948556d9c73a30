"""The files that dropped tables adopted outside of their claims."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from gc_assets.core.claims import Claims
from gc_assets.core.dropped_tables import AdoptedFiles, DroppedPrefixes, DroppedTable, RememberedTable
from gc_assets.core.foreign import ClaimAges, ForeignRules
from gc_assets.core.hashing import xxhash64
from gc_assets.stages.mark.container_scan import EXTERNAL, KIND_COUNT
from gc_assets.stages.mark.entry_scan import KEYED
from gc_assets.stages.sweep.adopted_files import NO_ADOPTED_FILES, FindAdopted
from gc_assets.stages.sweep.dropped_tables import NO_DROPPED_TABLES, WAITS, DroppedFinder, DroppedTables
from gc_assets.state.side_tables import ADOPTED_FILES

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_only_files_of_the_tables_in_this_storage_outside_their_claims_or_shared_are_found() -> None:
    claims = [(f"t{at}/", f"s{at}/") for at in (0, 1)]
    tables = [DroppedTable(RememberedTable("red", f"u{at}", None, "red", claims[at], START, gone_since=START)) for at in (0, 1)]
    find = FindAdopted(DroppedPrefixes(tuple(tables), frozenset({"s0/", "s1/"})), 1, np.array([3, 5, 8]), np.array([0, 1, 0]))
    # The columns are the storage, the key, the witness, and the table that adopted the file.
    cases = [
        (1, "t0/a", 3, None),
        (1, "t1/a", 3, 0),
        (1, "t0/b", 5, 1),
        (1, "t1/b", 5, None),
        (1, "s0/a", 3, 0),
        (1, "s1/a", 3, 0),
        (0, "s0/b", 3, None),
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
    rows = [(key, table) for key, table in zip(keys, adopters, strict=True) if table is not None]
    expected = {(table, xxhash64(pa.array([key]))[0]) for key, table in rows}
    assert set(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    assert found.num_rows == 5


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


@pytest.mark.parametrize(
    "since, is_alone",
    [(None, False), (START - timedelta(microseconds=1), False), (START, True), (START + timedelta(days=1), True)],
)
@pytest.mark.parametrize("last_run", [START, None], ids=["recorded", "earlier release"])
def test_older_file_belongs_to_the_dropped_table_alone_if_the_claim_is_newer(
    since: datetime | None, is_alone: bool, last_run: datetime | None
) -> None:
    """Without a recorded run, the start of the day counts on which the table was seen."""
    gone_since = START + timedelta(days=2)
    table = RememberedTable("red", "u1", None, "red", ("t/",), START + timedelta(hours=12), gone_since=gone_since, last_run=last_run)
    rules = ForeignRules(Claims({}), {}, ages=ClaimAges({"t/": {"u2": since}}))
    found = DroppedPrefixes((DroppedTable(table, waits_for="its time"),), frozenset({"t/"}))
    finder = DroppedFinder.of(found, None, rules, NO_ADOPTED_FILES)
    times = pa.array([START - timedelta(days=1), START + timedelta(days=1), None], pa.timestamp("us", "UTC"))
    states, only = finder.find_states(pa.array(["t/a", "t/b", "t/c"]), times)
    assert (states.to_pylist(), only.to_pylist()) == ([WAITS, WAITS, None], [is_alone, False, False])
