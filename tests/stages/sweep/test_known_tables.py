"""The newest known time of a table on a server, and foreign metadata."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import Commit, ContentRoot
from gc_assets.stages.mark.commit_rows import build_commit_rows
from gc_assets.stages.records.dead_tables import DeadTable
from gc_assets.stages.sweep.foreign_metadata import MetadataClassifier, metadata_patterns
from gc_assets.stages.sweep.known_tables import KnownTable, newest_commit_times
from gc_assets.state.side_tables import LOCATIONS
from gc_assets.stores.local.objects import LocalObjects

START = datetime(2026, 1, 1, tzinfo=UTC)
MILLISECONDS = int(START.timestamp()) * 1000


def locations(**tables: str) -> pa.Table:
    """The table uuid of each metadata file."""
    rows = [{"container": f"/{file}", "address": f"urn:uuid:{uuid}", "kind": Kind.TABLE_UUID} for file, uuid in tables.items()]
    return pa.Table.from_pylist([*rows, {"container": "/a1", "address": "file:///t/", "kind": Kind.TABLE_LOCATION}], schema=LOCATIONS)


def history(*puts: list[str]) -> pa.Table:
    """One commit per minute that puts these metadata files."""
    commits = [
        Commit(
            str(minute), (), START + timedelta(minutes=minute), tuple(ContentRoot(f"/{file}", Kind.METADATA_JSON, True) for file in files)
        )
        for minute, files in enumerate(puts)
    ]
    return pa.Table.from_batches([build_commit_rows(commits, KeyResolver([]))])


def known_tables(contents: list[str]) -> dict[str, KnownTable]:
    graph = history(["a1"], ["a2", "b1"], [], ["c1"], ["a1"], [])
    return newest_commit_times(
        locations(a1="A", a2="A", b1="B", gone="D"), graph, pa.chunked_array([[f"/{file}" for file in contents]], pa.string())
    )


def minute(number: int) -> int:
    return MILLISECONDS + number * 60_000


def test_table_on_no_branch_has_time_of_its_newest_commit() -> None:
    assert known_tables([]) == {"A": KnownTable(minute(4), False), "B": KnownTable(minute(1), False), "D": KnownTable(0, False)}


def test_table_on_branch_has_time_of_its_newest_commit() -> None:
    """Commits of other tables do not show that it is still written there."""
    assert known_tables(["a2"]) == {"A": KnownTable(minute(4), True), "B": KnownTable(minute(1), False), "D": KnownTable(0, False)}


@pytest.mark.parametrize(
    "known, is_old, foreign",
    [
        (KnownTable(minute(9), False), False, True),  # it left its catalog and is still written to
        (KnownTable(minute(9), False), True, True),
        (KnownTable(minute(10), False), True, False),
        (KnownTable(minute(9), True), False, False),  # perhaps a commit that is under way
        (KnownTable(minute(9), True), True, True),
        (KnownTable(minute(10), True), True, False),
    ],
)
def test_metadata_newer_than_known_table_is_foreign(tmp_path: Path, known: KnownTable, is_old: bool, foreign: bool) -> None:
    (tmp_path / "1.metadata.json").write_text(
        json.dumps({"table-uuid": "A", "snapshots": [{"snapshot-id": 1, "timestamp-ms": minute(10)}]})
    )
    classifier = MetadataClassifier("w", KeyResolver([("w", f"file://{tmp_path}/")]), LocalObjects(), {"A": known}, metadata_patterns())
    rows = pa.RecordBatch.from_pydict({"key": ["1.metadata.json"], "last_modified": [START], "is_old": [is_old], "lake": ["sales"]})
    assert [batch.num_rows for batch in classifier(iter([rows]))] == [int(foreign)]


def test_files_next_to_metadata_with_damaged_log_are_kept(tmp_path: Path) -> None:
    (tmp_path / "1.metadata.json").write_text(json.dumps({"table-uuid": "A", "metadata-log": [{"metadata-file": "0.metadata.json"}]}))
    known = {"A": KnownTable(minute(9))}
    classifier = MetadataClassifier("w", KeyResolver([("w", f"file://{tmp_path}/")]), LocalObjects(), known, metadata_patterns())
    rows = pa.RecordBatch.from_pydict({"key": ["1.metadata.json"], "last_modified": [START], "is_old": [True], "lake": ["sales"]})
    (row,) = [row for batch in classifier(iter([rows])) for row in batch.to_pylist()]
    assert row["is_junk"]
    assert "damaged log" in row["reason"]


@pytest.mark.parametrize("location", ["ns/t", "file:///lake/../t", "file://nas/t", "file:///{loop}/t"])
def test_unknown_empty_table_with_unresolvable_location_is_foreign(tmp_path: Path, location: str) -> None:
    """For example, pyiceberg created the table with a relative `warehouse`, in the directory of a
    known table.
    """
    (tmp_path / "loop").symlink_to("loop")
    document = {"table-uuid": "B", "format-version": 2, "location": location.format(loop=tmp_path / "loop"), "snapshots": []}
    (tmp_path / "w/t/metadata").mkdir(parents=True)
    (tmp_path / "w/t/metadata/0.metadata.json").write_text(json.dumps(document))
    resolver = KeyResolver([("w", f"file://{tmp_path}/w/")])
    classifier = MetadataClassifier("w", resolver, LocalObjects(), {}, metadata_patterns(), own_directories={"t/metadata": True})
    rows = pa.RecordBatch.from_pydict(
        {"key": ["t/metadata/0.metadata.json"], "last_modified": [START], "is_old": [True], "lake": ["sales"]}
    )
    (reason,) = [row["reason"] for batch in classifier(iter([rows])) for row in batch.to_pylist()]
    assert "is in no configured catalog" in reason


@pytest.mark.parametrize("has_setting", [True, False])
def test_failed_table_creation_suggests_setting_only_if_lake_has_it(tmp_path: Path, has_setting: bool) -> None:
    document = {"table-uuid": "B", "format-version": 2, "location": f"file://{tmp_path}/t", "snapshots": []}
    (tmp_path / "t/metadata").mkdir(parents=True)
    (tmp_path / "t/metadata/0.metadata.json").write_text(json.dumps(document))
    classifier = MetadataClassifier(
        "w",
        KeyResolver([("w", f"file://{tmp_path}/")]),
        LocalObjects(),
        {},
        metadata_patterns(),
        own_directories={"t/metadata": False if has_setting else None},
    )
    rows = pa.RecordBatch.from_pydict(
        {"key": ["t/metadata/0.metadata.json"], "last_modified": [START], "is_old": [True], "lake": ["sales"]}
    )
    (reason,) = [row["reason"] for batch in classifier(iter([rows])) for row in batch.to_pylist()]
    assert "is in no configured catalog" in reason
    assert ("`failed_creations`" in reason) == has_setting


@pytest.mark.parametrize(
    "uuid, prefix, newest, modified, message",
    [
        ("A", "db/t/", 10, 10, None),
        ("A", "db/t/", 21, 10, "written to after that"),
        ("A", "db/t/", 10, 21, "written to after that"),
        ("A", "db/t/", 2**40, 10, "written to after that"),  # no date of the calendar
        ("A", "db/t/", 2**50, 10, "is outside 64 bits"),
        ("B", "db/t/", 10, 10, "is in no configured catalog"),
        ("A", "db/other/", 10, 10, "is in no configured catalog"),
        ("A", "db/t/metadata/x/", 10, 10, "is in no configured catalog"),
    ],
)
def test_accepted_dead_table_counts_as_foreign_only_after_later_write(
    tmp_path: Path, uuid: str, prefix: str, newest: int, modified: int, message: str | None
) -> None:
    metadata = tmp_path / "db/t/metadata/1.metadata.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps({"table-uuid": "A", "snapshots": [{"timestamp-ms": minute(newest)}]}))
    record = DeadTable(table_uuid=uuid.lower(), prefix=prefix, by="ada", at=START + timedelta(minutes=20))
    classifier = MetadataClassifier("w", KeyResolver([("w", f"file://{tmp_path}/")]), LocalObjects(), {}, metadata_patterns(), (record,))
    rows = {
        "key": ["db/t/metadata/1.metadata.json"],
        "last_modified": [START + timedelta(minutes=modified)],
        "is_old": [True],
        "lake": ["sales"],
    }
    found = [row["reason"] for batch in classifier(iter([pa.RecordBatch.from_pydict(rows)])) for row in batch.to_pylist()]
    assert len(found) == (message is not None)
    assert all((message or "") in why for why in found)
    if message == "is in no configured catalog":
        assert found[0].endswith(f"if it is dead: `gc-assets accept A file://{tmp_path}/db/t/ --by WHO`")


@pytest.mark.parametrize("modified, reasons", [(10, 0), (21, 1)])
def test_commit_in_the_future_does_not_revive_table_accepted_as_dead(tmp_path: Path, modified: int, reasons: int) -> None:
    """The time of the object shows when its metadata was written. Otherwise, no acceptance would have an effect for years."""
    metadata = tmp_path / "db/t/metadata/1.metadata.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps({"table-uuid": "A", "snapshots": [{"timestamp-ms": minute(10_000_000)}]}))
    record = DeadTable(table_uuid="a", prefix="db/t/", by="ada", at=START + timedelta(minutes=20))
    resolver, settled = KeyResolver([("w", f"file://{tmp_path}/")]), START + timedelta(minutes=60)
    classifier = MetadataClassifier("w", resolver, LocalObjects(), {}, metadata_patterns(), (record,), settled=settled)
    times = {"last_modified": [START + timedelta(minutes=modified)], "is_old": [True]}
    rows = pa.RecordBatch.from_pydict({"key": ["db/t/metadata/1.metadata.json"], "lake": ["sales"], **times})
    assert [batch.num_rows for batch in classifier(iter([rows]))] == [reasons]
