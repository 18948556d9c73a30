from __future__ import annotations

import gzip
import json
import os
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg.catalog import CatalogClient
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import Commit, CommitSource, Container, FrozenRefs, Lake
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def builder(tmp_path: Path) -> LakeBuilder:
    return LakeBuilder(tmp_path)


def lake(builder: LakeBuilder, **settings: Any) -> IcebergLake:
    return IcebergLake(builder.config(**settings), LocalObjects())


def read_refs(builder: LakeBuilder, **settings: Any) -> FrozenRefs:
    return lake(builder, **settings).freeze(START)


def commits(builder: LakeBuilder) -> dict[str, Commit]:
    reader = lake(builder)
    return {commit.commit_id: commit for source in reader.freeze(START).sources for commit in reader.commits(source)}


def create_table(builder: LakeBuilder, name: str = "db.t", **settings: Any) -> TableBuilder:
    table = builder.table(name, START, **settings)
    table.append(START + DAY)
    return table


def list_files(builder: LakeBuilder, commit: Commit) -> Iterator[dict[str, Any]]:
    """Yield all entries of a commit, by decoding its containers as the stage does."""
    objects, reader = LocalObjects(), lake(builder)
    pending = [Container(root.address, root.kind, root.size_bytes) for root in commit.content_roots if root.is_container]
    while pending:
        container = pending.pop()
        for row in reader.decode(container, objects.read(container.address)).to_pylist():
            yield row
            if row["is_container"]:
                pending.append(Container(row["address"], row["kind"], row["size_bytes"], row["expected_entries"], row["snapshot_id"]))


def test_pickled_lake_reads_commits_without_catalog(builder: LakeBuilder) -> None:
    """An executor reads commits and containers, and never opens the catalog."""
    create_table(builder)
    copy = pickle.loads(pickle.dumps(lake(builder)))  # noqa: S301 - made here
    assert isinstance(copy, Lake)
    refs = read_refs(builder)
    assert {commit.commit_id: commit for source in refs.sources for commit in copy.commits(source)} == commits(builder)
    with pytest.raises(LakeUnreadable, match="list of tables"):
        copy.freeze(START)


# Freeze


def test_freeze_returns_refs_with_their_settings(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    first, second = table.append(START + DAY), table.append(START + 2 * DAY)
    table.tag(START + 3 * DAY, "v1", first, max_ref_age_ms=86_400_000)
    table.branch(START + 3 * DAY, "dev", first, min_snapshots_to_keep=3, max_snapshot_age_ms=5)
    refs = {ref.ref_name: (ref.ref_type, ref.head_commit_id, ref.properties) for ref in read_refs(builder).refs}
    assert refs == {
        "main": ("branch", second, {"protected": "it is the main branch"}),
        "v1": ("tag", first, {"max-ref-age-ms": "86400000"}),
        "dev": ("branch", first, {"min-snapshots-to-keep": "3", "max-snapshot-age-ms": "5"}),
    }
    assert {(ref.table_uuid, ref.table_name) for ref in read_refs(builder).refs} == {(table.uuid, "db.t")}


def test_freeze_finds_tables_of_nested_namespaces(builder: LakeBuilder) -> None:
    for name in ("a.t", "a.b.t", "a.b.c.d.t"):
        create_table(builder, name)
    assert [source.table_name for source in read_refs(builder).sources] == ["a.b.c.d.t", "a.b.t", "a.t"]


def test_table_without_snapshots_has_main_without_head(builder: LakeBuilder) -> None:
    builder.table("db.empty", START)
    assert [(ref.ref_name, ref.head_commit_id) for ref in read_refs(builder).refs] == [("main", None)]


def test_freeze_of_empty_catalog_adds_a_note(builder: LakeBuilder) -> None:
    refs = read_refs(builder)
    assert (refs.refs, refs.sources, refs.claims, refs.pinned) == ((), (), (), ())
    assert refs.notes == ("lake sales: the catalog has no tables, so no location is claimed",)


def test_freeze_returns_retention_settings_of_the_table(builder: LakeBuilder) -> None:
    properties = {"history.expire.max-snapshot-age-ms": "7", "history.expire.min-snapshots-to-keep": "2", "owner": "me"}
    create_table(builder, properties=properties)
    [source] = read_refs(builder).sources
    properties.pop("owner")
    assert source.properties == {**properties, "collect": "true"}


def test_only_current_metadata_file_is_required(builder: LakeBuilder) -> None:
    table = create_table(builder)
    pinned = {root.address: root for root in read_refs(builder).pinned}
    current = pinned.pop(table.metadata_location)
    assert (current.kind, current.must_exist) == (Kind.METADATA_JSON, True)
    assert current.size_bytes == table.path(current.address).stat().st_size
    logged = {entry.metadata_file for entry in table.table.metadata.metadata_log}
    hint = table.table.location() + "/metadata/version-hint.text"
    assert len(logged) == 1
    assert {address: (root.kind, root.must_exist) for address, root in pinned.items()} == {
        **dict.fromkeys(logged, (Kind.METADATA_JSON, False)),
        hint: (Kind.VERSION_HINT, False),
    }


# Claims


def test_table_location_and_write_paths_are_claimed(builder: LakeBuilder) -> None:
    paths = {
        "write.data.path": f"file://{builder.warehouse}/elsewhere/data/",
        "write.metadata.path": f"file://{builder.warehouse}/elsewhere/meta",
        "write.object-storage.path": f"file://{builder.warehouse}/legacy/objects",
        "write.folder-storage.path": f"file://{builder.warehouse}/legacy/folder",
    }
    table = create_table(builder, properties=paths)
    claims = [claim.address for claim in read_refs(builder).claims]
    assert claims == [f"{table.table.location()}/", *(f"{path.rstrip('/')}/" for path in paths.values())]


@pytest.mark.parametrize("settings", [{"tables": ["other.*"]}, {"tables": []}])
def test_location_of_table_outside_the_patterns_is_not_collected(builder: LakeBuilder, settings: dict[str, Any]) -> None:
    create_table(builder)
    refs = read_refs(builder, **settings)
    assert [claim.collect for claim in refs.claims] == [False]
    assert refs.sources[0].properties["collect"] == "false"
    assert len(refs.refs) == 1
    assert refs.notes == ("table db.t: no pattern of `tables` matches it, so all its files are kept",)


def test_patterns_match_namespace_and_table(builder: LakeBuilder) -> None:
    for name in ("db.orders", "db.orders_2", "dbx.orders"):
        create_table(builder, name)
    collected = [source.table_name for source in read_refs(builder, tables=["db.order?"]).sources if source.properties["collect"] == "true"]
    assert collected == ["db.orders"]


def test_location_of_table_with_gc_disabled_is_not_collected(builder: LakeBuilder) -> None:
    create_table(builder, properties={"gc.enabled": "false"})
    refs = read_refs(builder)
    assert [claim.collect for claim in refs.claims] == [False]
    assert refs.sources[0].properties == {"gc.enabled": "false", "collect": "false"}
    assert refs.notes == ("table db.t: gc.enabled is false, so all its files are kept",)


def test_table_registered_twice_is_read_under_both_names(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    older = table.append(START + DAY)
    builder.register("db.copy", table.metadata_location)
    stale = table.metadata_location
    newer = table.append(START + 2 * DAY)
    refs = read_refs(builder)
    assert [(ref.table_name, ref.head_commit_id, ref.table_uuid) for ref in refs.refs] == [
        ("db.copy", older, table.uuid),
        ("db.t", newer, table.uuid),
    ]
    assert len(refs.claims) == 1
    pinned = {root.address: root.must_exist for root in refs.pinned}
    assert len(pinned) == len(refs.pinned)
    assert pinned[stale]  # in the log of one registration, current in the other
    assert sum("registered 2 times" in note for note in refs.notes) == 2


def test_location_is_not_collected_if_one_registered_name_disables_gc(builder: LakeBuilder) -> None:
    table = create_table(builder)
    builder.register("db.copy", table.metadata_location)
    table.set_properties(START + 2 * DAY, {"gc.enabled": "false"})
    assert [claim.collect for claim in read_refs(builder).claims] == [False]


def test_location_shared_by_two_tables_is_protected_if_one_disables_gc(builder: LakeBuilder) -> None:
    shared = f"file://{builder.warehouse}/shared"
    create_table(builder, "db.collected", location=shared)
    create_table(builder, "db.kept", location=shared, properties={"gc.enabled": "false"})
    assert [(claim.address, claim.table_name, claim.collect) for claim in read_refs(builder).claims] == [
        (f"{shared}/", "db.collected", False),
        (f"{shared}/", "db.kept", False),
    ]


# The commit graph


def test_every_snapshot_in_metadata_becomes_commit(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    first = table.append(START + DAY)
    second = table.append(START + 2 * DAY)
    staged = table.append(START + 3 * DAY, branch=None)
    table.rollback(START + 4 * DAY, first)
    found = commits(builder)
    assert {commit.commit_id: commit.parents for commit in found.values()} == {first: (), second: (first,), staged: (second,)}
    assert [commit.committed_at for commit in found.values()] == [START + DAY, START + 2 * DAY, START + 3 * DAY]
    assert {commit.message for commit in found.values()} == {"append"}
    assert found[first].summary["sequence-number"] == "1"
    assert found[first].summary["schema-id"] == "0"
    assert found[first].summary["added-data-files"] == "1"


def test_snapshot_references_its_statistics_files(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    first, second = table.append(START + DAY), table.append(START + 2 * DAY)
    statistics, partitions = table.statistics(START + 3 * DAY, first)
    found = commits(builder)
    assert [(root.address, root.kind, root.size_bytes) for root in found[first].content_roots[1:]] == [
        (statistics, Kind.STATISTICS, table.path(statistics).stat().st_size),
        (partitions, Kind.PARTITION_STATISTICS, table.path(partitions).stat().st_size),
    ]
    assert len(found[second].content_roots) == 1


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("layout", [{}, {"write.object-storage.enabled": "true"}], ids=["plain", "object storage"])
def test_containers_reference_the_same_files_as_pyiceberg(builder: LakeBuilder, partitioned: bool, layout: dict[str, str]) -> None:
    table = builder.table("db.t", START, partitioned=partitioned, properties=layout)
    for day in range(1, 4):
        table.append(START + day * DAY, ids=[day, day + 10], part=f"p {day}/ü")
    table.position_deletes(START + 5 * DAY)
    table.deletion_vector(START + 6 * DAY, 1)
    table.equality_deletes(START + 7 * DAY)
    table.overwrite(START + 8 * DAY)
    rows = [row for commit in commits(builder).values() for row in list_files(builder, commit)]
    live = {row["address"] for row in rows if row["entry_status"] in {"added", "existing"}}
    assert live == set(table.table.inspect.all_files()["file_path"].to_pylist())
    assert {row["address"] for row in rows if row["is_container"]} == set(table.table.inspect.all_manifests()["path"].to_pylist())
    assert {row["kind"] for row in rows} == {"manifest", "data", "position_deletes", "equality_deletes", "deletion_vector"}
    sizes = {row["address"]: row["size_bytes"] for row in rows}
    assert sizes == {address: table.path(address).stat().st_size for address in sizes}


def test_all_files_except_leftovers_are_reachable(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    snapshot = table.append(START + DAY)
    table.statistics(START + 2 * DAY, snapshot)
    leftovers = table.leftovers(START + 3 * DAY)
    named = {root.address for root in read_refs(builder).pinned}
    for commit in commits(builder).values():
        named |= {root.address for root in commit.content_roots} | {row["address"] for row in list_files(builder, commit)}
    assert builder.files() - {table.path(address) for address in named} == set(leftovers)


# Errors


def unreadable_reasons(builder: LakeBuilder, **settings: Any) -> dict[str | None, str]:
    return {item.table_name: item.reason for item in read_refs(builder, **settings).unreadable}


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbage", "fifo", "bomb"])
def test_unreadable_table_does_not_stop_the_freeze(builder: LakeBuilder, damage: str) -> None:
    create_table(builder, "db.fine")
    table = create_table(builder, "db.broken")
    path = table.path(table.metadata_location)
    content = path.read_bytes()
    path.unlink()
    if damage == "fifo":
        os.mkfifo(path)
    elif damage != "missing":
        bomb = gzip.compress(bytes(70_000_000))
        path.write_bytes({"empty": b"", "truncated": content[:-40], "garbage": b"\x00" * 200, "bomb": bomb}[damage])
    refs = read_refs(builder)
    assert {ref.table_name for ref in refs.refs} == {claim.table_name for claim in refs.claims if claim.collect} == {"db.fine"}
    [broken] = refs.unreadable
    assert broken.table_name == "db.broken"
    assert broken.reason.startswith("lake sales: table db.broken could not be read: ")


def test_relative_path_is_not_claimed_and_adds_a_note(builder: LakeBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # pyiceberg resolves the path against this directory
    table = create_table(builder, properties={"write.data.path": "objects/"})
    refs = read_refs(builder)
    assert [claim.address for claim in refs.claims] == [f"{table.table.location()}/"]
    assert [note for note in refs.notes if "table db.t: write.data.path is the relative path 'objects/'" in note]


def test_table_with_ambiguous_address_is_unreadable(builder: LakeBuilder) -> None:
    table = create_table(builder)
    path = table.path(table.metadata_location)
    path.write_text(path.read_text().replace('"location":"', '"location":"file:///a/../b","old":"'))
    assert "contains `..`" in unreadable_reasons(builder)["db.t"]


def test_table_without_namespace_is_read(builder: LakeBuilder, tmp_path: Path) -> None:
    """Iceberg's JDBC catalog creates such tables, and pyiceberg cannot load them."""
    location = create_table(builder).metadata_location
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        database.execute("update iceberg_tables set table_namespace = ''")
    refs = read_refs(builder)
    assert {ref.table_name for ref in refs.refs} == {"t"}
    assert [source.address for source in refs.sources] == [location]
    assert not refs.unreadable


def test_table_with_ref_to_missing_snapshot_is_unreadable(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    first = table.append(START + DAY)
    table.append(START + 2 * DAY)
    table.tag(START + 3 * DAY, "v1", first)
    path = table.path(table.metadata_location)
    document = json.loads(path.read_text())
    document["snapshots"] = document["snapshots"][1:]
    path.write_text(json.dumps(document))
    assert f"tag 'v1' points at snapshot {first}" in unreadable_reasons(builder)["db.t"]


def test_v1_table_with_embedded_manifests_is_unreadable(builder: LakeBuilder) -> None:
    table = create_table(builder)
    path = table.path(table.metadata_location)
    document = json.loads(path.read_text())
    document["format-version"] = 1
    document["snapshots"][0]["manifests"] = [document["snapshots"][0].pop("manifest-list")]
    path.write_text(json.dumps(document))
    assert "manifest-list" in unreadable_reasons(builder)["db.t"]


def test_unreadable_table_that_matches_no_pattern_is_reported(builder: LakeBuilder) -> None:
    table = create_table(builder)
    table.path(table.metadata_location).unlink()
    assert "db.t" in unreadable_reasons(builder, tables=["other.*"])


def test_error_reports_metadata_deleted_after_freeze(builder: LakeBuilder) -> None:
    table = create_table(builder)
    [source] = read_refs(builder).sources
    table.path(source.address).unlink()
    with pytest.raises(LakeUnreadable, match=r"table db\.t could not be read: its metadata file:.* was deleted after this run"):
        list(lake(builder).commits(source))


def test_error_reports_metadata_damaged_after_freeze(builder: LakeBuilder, tmp_path: Path) -> None:
    damaged = tmp_path / "x.metadata.json"
    damaged.write_bytes(b"{")
    with pytest.raises(LakeUnreadable, match=r"table db\.t could not be read: .*x\.metadata\.json.*not a complete JSON"):
        list(lake(builder).commits(CommitSource(f"file://{damaged}", "u", "db.t")))


def test_catalog_that_hides_snapshots_is_refused(builder: LakeBuilder) -> None:
    builder.properties["snapshot-loading-mode"] = "refs"
    with pytest.raises(LakeUnreadable, match="snapshot-loading-mode=refs hides snapshots"):
        read_refs(builder)


@pytest.mark.parametrize("uri", ["sqlite:///{}", "sqlite:///file:{}?uri=true"])
def test_missing_catalog_file_is_not_created(builder: LakeBuilder, tmp_path: Path, uri: str) -> None:
    mistyped = tmp_path / "catalogue.db"
    builder.properties["uri"] = uri.format(mistyped)
    with pytest.raises(LakeUnreadable, match=r"its catalog .*catalogue\.db.* does not exist"):
        read_refs(builder)
    assert not mistyped.exists()


def test_catalog_tables_are_not_created_in_another_database(builder: LakeBuilder, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("create table orders (id integer)")
    before = other.read_bytes()
    builder.properties["uri"] = f"sqlite:///{other}"
    with pytest.raises(LakeUnreadable, match="no such table"):
        read_refs(builder)
    assert other.read_bytes() == before


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "sql", "uri": "postgresql+nodriver://me:hunter2@localhost/x"},
        {"type": "rest", "uri": "http://me:hunter2@localhost:1", "token": "hunter2"},
        {"type": "hunter2", "uri": "x", "s3.secret-access-key": "hunter2"},
    ],
)
def test_error_of_unreachable_catalog_contains_no_secrets(builder: LakeBuilder, properties: dict[str, str]) -> None:
    builder.properties = properties
    with pytest.raises(LakeUnreadable, match="lake sales: the list of tables of catalog 'default' could not be read") as caught:
        read_refs(builder)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "properties, text, redacted",
    [
        ({"credential": "id-7:hun:ter2s"}, "401 for id-7 with ter2s", "401 for *** with ***"),
        ({"uri": "http://me:p%40ss@host", "x": "y"}, "p@ss and p%40ss", "*** and ***"),
        ({"uri": "postgresql://host/db?password=sesame&sslmode=require"}, "sesame require", "*** require"),
        ({"type": "sql", "uri": "sqlite:///x.db"}, "sqlite: sql and x.db", "sqlite: sql and x.db"),
        ({"type": "glue", "s3.secret-access-key": "a/b+c"}, "glue a%2Fb%2Bc a/b+c", "glue *** ***"),
    ],
)
def test_catalog_errors_contain_no_secrets(properties: dict[str, str], text: str, redacted: str) -> None:
    for wrapped in (properties, {key: SecretStr(value) for key, value in properties.items()}):
        assert redacted in str(CatalogClient("sales", "default", wrapped).unreadable("table x", text))


# The builder


def test_pyiceberg_applies_delete_files_written_by_builder(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    table.append(START + DAY, ids=[1, 2, 3])
    table.position_deletes(START + 2 * DAY, 0)
    table.deletion_vector(START + 3 * DAY, 2)
    assert table.table.scan().to_arrow()["id"].to_pylist() == [2]


def test_builder_sets_file_times_to_commit_times(builder: LakeBuilder) -> None:
    table = create_table(builder)
    table.append(START + 9 * DAY)
    assert {path.stat().st_mtime for path in builder.files()} == {(START + n * DAY).timestamp() for n in (0, 1, 9)}
    assert table.table.metadata.last_updated_ms == (START + 9 * DAY).timestamp() * 1000


def test_sqlite_catalog_is_closed_after_each_call(builder: LakeBuilder) -> None:
    """A writer of the catalog does not wait for Python's garbage collection in this process."""
    create_table(builder)
    builder.catalog.close()
    settings = dict(builder.config().catalog)
    client = CatalogClient("sales", "default", settings)
    calls: list[Callable[[], object]] = [
        client.check_access,
        lambda: [*client.list_pointers(), *client.list_views()],
        lambda: client.load(("db", "t")),
        lambda: client.find_default_locations("db.t"),
        lambda: lake(builder).freeze(START),
    ]
    database = builder.root / "catalog.db"
    for call in calls:
        call()
        assert [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and link.readlink() == database] == []


def test_wrong_catalog_name_note_lists_names_in_database(builder: LakeBuilder) -> None:
    create_table(builder)
    wrong = IcebergLake(builder.config().model_copy(update={"catalog_name": "prod"}), LocalObjects())
    note = wrong.freeze(START).notes[0]
    assert "catalog 'prod' has no tables, but its database has tables of 'default'; set `catalog_name`" in note
    assert "names" not in "".join(read_refs(builder).notes)
