"""Files that dropped tables adopted (added from other locations) outside of their claims."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gc_assets.core.claims import Claims
from gc_assets.core.dropped_tables import DroppedPrefixes, DroppedTable, RememberedTable, TableSelection
from gc_assets.core.foreign import ClaimAges, ForeignRules
from gc_assets.core.hashing import xxhash64
from gc_assets.engine.tables import merge_written, run_in_process, write_parts
from gc_assets.stages.mark.container_scan import EXTERNAL, KIND_COUNT
from gc_assets.stages.mark.entry_scan import KEYED
from gc_assets.stages.sweep import adopted_files
from gc_assets.stages.sweep.adopted_files import NO_ADOPTED_FILES, AdoptedFiles, FindAdopted, WriteAdopted
from gc_assets.stages.sweep.dropped_tables import NO_DROPPED_TABLES, WAITS, DroppedFinder, DroppedTables
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import ADOPTED_FILES, ADOPTED_SIDE

START = datetime(2026, 1, 1, tzinfo=UTC)
RUN = TableRun("lake", "orphan_files", date(2026, 1, 1), "run")


def adopt(root: Path, *tables: tuple[str, str, Iterable[str]]) -> AdoptedFiles:
    """Write a part for each table, given by lake, uuid and the keys of its files."""
    files, found = Files(str(root)), NO_ADOPTED_FILES
    for lake, uuid, keys in tables:
        columns = {"lake": [lake] * len(list(keys)), "table_uuid": [uuid] * len(list(keys)), "key_hash": xxhash64(pa.array(keys))}
        parts = write_parts(pa.table(columns, ADOPTED_FILES), RUN, files, ADOPTED_SIDE)
        found = found.add(AdoptedFiles.of_parts(files, RUN.path, parts))
    return found


def list_waiting(adopted: AdoptedFiles, tables: Iterable[DroppedTable]) -> set[str]:
    waiting, keys = adopted.find_waiting(tables), pa.array(list("abcd"))
    assert waiting is not None
    return set(keys.filter(pa.array(waiting.contains(xxhash64(keys)))).to_pylist())


def test_adopted_file_is_kept_while_table_that_adopted_it_waits(tmp_path: Path) -> None:
    names = [(lake, uuid) for lake in ("red", "blue") for uuid in ("u1", "u2")]
    tables = [RememberedTable(lake, uuid, None, lake, ("t/",), START, gone_since=START) for lake, uuid in names]
    named = {("red", "u1"): ["a", "b"], ("red", "u2"): ["a"], ("blue", "u1"): ["c"]}
    adopted = adopt(tmp_path, *((lake, uuid, keys) for (lake, uuid), keys in named.items()))
    for waiting in (set(), {("red", "u1")}, {("red", "u2")}, {("blue", "u1"), ("red", "u2")}, {("blue", "u2")}):
        found = [DroppedTable(item, waits_for="its time" if (item.lake, item.table_uuid) in waiting else None) for item in tables]
        expected = {key for table in waiting for key in named.get(table, ())}
        assert list_waiting(adopted, found) == expected
        owners = {key: adopted.find_owner(key, found) for key in "abcd"}
        assert {key for key, owner in owners.items() if owner is not None} == expected
        assert all(owner is None or (owner.table.lake, owner.table.table_uuid) in waiting for owner in owners.values())
    # A table that is not dropped in this run, for example because it cannot be read, is not due.
    for due, expected in (([], "abc"), ([("red", "u1")], "ac"), ([("red", "u1"), ("red", "u2")], "c")):
        found = [DroppedTable(item) for item in tables if (item.lake, item.table_uuid) in due]
        assert list_waiting(adopted, found) == set(expected)
        assert adopted.find_owner("c", found) is None
    assert NO_ADOPTED_FILES.find_waiting(map(DroppedTable, tables)) is None


def test_only_adopted_files_of_unread_tables_are_kept_and_recorded_again(tmp_path: Path) -> None:
    adopted = adopt(tmp_path, ("red", "u1", ["a"]), ("red", "u2", ["b"]), ("blue", "u1", ["c"]), ("blue", "u2", ["d"]))
    unread = replace(adopted, selection=TableSelection(frozenset({("red", "u1"), ("blue", "u1"), ("blue", "u2")})))
    assert list_waiting(unread, ()) == set("acd")
    files, later = Files(str(tmp_path)), replace(RUN, run_id="later")
    parts = unread.write(files, later, [("red", "u1"), ("red", "u2"), ("blue", "u2")])
    assert list_waiting(AdoptedFiles.of_parts(files, later.path, parts), ()) == set("ad")
    assert unread.write(files, later, []) == NO_ADOPTED_FILES.write(files, later, [("red", "u1")]) == ()


def test_executors_write_each_adopted_file_once_and_return_only_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row on the driver counts towards Spark's limit of 2 GiB, and manifests repeat files."""
    monkeypatch.setattr(adopted_files, "MERGED_ROWS", 5)
    tables = [DroppedTable(RememberedTable("red", f"u{at}", None, "red", (f"t{at}/",), START, gone_since=START)) for at in (0, 1)]
    find = FindAdopted(DroppedPrefixes(tuple(tables)), 0, np.array([3, 5]), np.array([0, 1]))
    files = Files(str(tmp_path))
    keys, witnesses = ["x/a", "x/b", "x/a", "t0/c", "x/a"], [3, 3, 3, 3, 5]
    columns = {"storage": [0] * 5, "key": keys, "strongest": [witness * KIND_COUNT for witness in witnesses]}
    batch = pa.RecordBatch.from_pylist(pa.table(columns).to_pylist(), KEYED)
    written = merge_written(run_in_process(WriteAdopted(find, files, RUN, "red"), [batch] * 7))
    rows = read_parts(files, written.paths(RUN, ADOPTED_SIDE), ADOPTED_FILES)
    expected = [(uuid, xxhash64(pa.array([key]))[0]) for uuid, key in (("u0", "x/a"), ("u0", "x/b"), ("u1", "x/a"))]
    assert sorted(zip(rows.column("table_uuid").to_pylist(), rows.column("key_hash").to_pylist(), strict=True)) == sorted(expected)
    assert rows.column("lake").to_pylist() == ["red"] * 3


def test_adopted_files_are_in_this_storage_and_outside_claims_or_shared() -> None:
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


def test_adopted_file_is_kept_if_no_table_is_dropped_now(tmp_path: Path) -> None:
    """A table that was dropped can be listed again and unreadable."""
    rules = ForeignRules(Claims({}), {})
    assert NO_DROPPED_TABLES.find_files(None, rules) is None
    keys = pa.array(["k/a", "k/b"])
    finder = DroppedTables(adopted=adopt(tmp_path, ("red", "u1", ["k/a"]))).find_files(None, rules)
    assert finder is not None
    states, is_alone = finder.find_states(keys, pa.array([START] * 2, pa.timestamp("us", "UTC")))
    assert (states.to_pylist(), is_alone.to_pylist()) == ([WAITS, None], [True, False])
    assert finder.find_written(keys).to_pylist() == [False, False]


@pytest.mark.parametrize(
    "since, is_alone",
    [(None, False), (START - timedelta(microseconds=1), False), (START, True), (START + timedelta(days=1), True)],
)
@pytest.mark.parametrize("last_run", [START, None], ids=["recorded", "earlier release"])
def test_older_file_has_one_owner_if_claim_is_newer(since: datetime | None, is_alone: bool, last_run: datetime | None) -> None:
    """Without a recorded run, the claim is compared with the start of the day on which the table
    was seen.
    """
    gone_since = START + timedelta(days=2)
    table = RememberedTable("red", "u1", None, "red", ("t/",), START + timedelta(hours=12), gone_since=gone_since, last_run=last_run)
    rules = ForeignRules(Claims({}), {}, ages=ClaimAges({"t/": {"u2": since}}))
    found = DroppedPrefixes((DroppedTable(table, waits_for="its time"),), frozenset({"t/"}))
    finder = DroppedFinder.of(found, None, rules, NO_ADOPTED_FILES)
    times = pa.array([START - timedelta(days=1), START + timedelta(days=1), None], pa.timestamp("us", "UTC"))
    states, only = finder.find_states(pa.array(["t/a", "t/b", "t/c"]), times)
    assert (states.to_pylist(), only.to_pylist()) == ([WAITS, WAITS, None], [is_alone, False, False])
