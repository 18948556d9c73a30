from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.exceptions import CommitFailedException

from benchmarks.iceberg_history import HistoryWriter, Snap
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import ExpiringLake, ExpiryAction
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, DAY, GRACE_CUTOFF, START, lake, plan_expiry, run_expiry, verdicts
from tests.lakes.iceberg.rest_server import RestServer, serve_catalog

pytestmark = in_turn


@pytest.fixture
def builder(tmp_path: Path) -> LakeBuilder:
    return LakeBuilder(tmp_path)


@pytest.fixture
def server(builder: LakeBuilder) -> Iterator[RestServer]:
    with serve_catalog(builder) as server:
        yield server


@dataclass(frozen=True, slots=True)
class RecordingObjects(LocalObjects):
    """Objects that record which manifest lists are read."""

    reads: list[str] = field(default_factory=list)

    def read(self, address: str) -> bytes:
        if "/snap-" in address:
            self.reads.append(address)
        return LocalObjects.read(self, address)


def over_rest(server: RestServer, objects: LocalObjects | None = None) -> IcebergLake:
    catalog = {"type": "rest", "uri": server.uri, "token": "hunter2"}
    config = server.builder.config().model_validate({"name": "sales", "kind": "iceberg", "catalog": catalog, "catalog_name": "default"})
    return IcebergLake(config, objects or LocalObjects())


def chain(builder: LakeBuilder, name: str = "db.t", count: int = 4, **settings: Any) -> tuple[TableBuilder, list[str]]:
    """Create a table with `count` snapshots on main, one per day and long before `AS_OF`.

    All except the newest are expired.
    """
    table = builder.table(name, START, **settings)
    return table, [table.append(START + (day + 1) * DAY) for day in range(count)]


def listed_ids(table: TableBuilder) -> list[str]:
    return [str(snapshot.snapshot_id) for snapshot in table.table.metadata.snapshots]


def heads(table: TableBuilder) -> dict[str, str]:
    return {name: str(ref.snapshot_id) for name, ref in table.table.metadata.refs.items()}


def versions(table: TableBuilder) -> int:
    return len(table.table.metadata.metadata_log)


@dataclass(frozen=True, slots=True)
class InterruptingObjects(LocalObjects):
    """Objects that run `callback` after the second read of the table's metadata, on which the commit is based."""

    name: str
    callback: Callable[[], object]
    reads: list[str] = field(default_factory=list)

    def read(self, address: str) -> bytes:
        raw = LocalObjects.read(self, address)
        if address.endswith(".metadata.json") and self.name in address:
            self.reads.append(address)
            if len(self.reads) == 2:
                self.callback()
        return raw


def open_interrupted_lake(builder: LakeBuilder, callback: Callable[[], object]) -> IcebergLake:
    return IcebergLake(builder.config(), InterruptingObjects("/db/t/", callback))


def second_client(builder: LakeBuilder, name: str = "db.t") -> Any:
    """Open the table through another catalog client, as another process would."""
    return type(builder.catalog)(builder.catalog_name, **builder.properties).load_table(name)


# Edits


def test_expiry_makes_one_commit_per_table(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    other, others = chain(builder, "db.u")
    table.tag(START + 9 * DAY, "old", ids[1], max_ref_age_ms=1)
    read = lake(builder)
    before = versions(table), versions(other)
    outcomes = run_expiry(read, plan_expiry(read))
    assert isinstance(read, ExpiringLake)
    assert verdicts(outcomes) == {"done": 7}
    assert (listed_ids(table), heads(table)) == ([ids[3]], {"main": ids[3]})
    assert listed_ids(other) == [others[3]]
    assert (versions(table), versions(other)) == (before[0] + 1, before[1] + 1)


def test_second_expiry_makes_no_commit(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    table.tag(START + 9 * DAY, "old", ids[1], max_ref_age_ms=1)
    read = lake(builder)
    actions = plan_expiry(read)
    run_expiry(read, actions)
    location = table.metadata_location
    assert verdicts(run_expiry(read, actions)) == {"absent": 4}
    assert table.metadata_location == location


def test_expiry_makes_only_approved_edits(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    read = lake(builder)
    some = [action for action in plan_expiry(read) if action.snapshot_id == ids[1]]
    assert verdicts(run_expiry(read, some)) == {"done": 1}
    assert listed_ids(table) == [ids[0], ids[2], ids[3]]


def test_expiry_without_actions_opens_no_catalog(builder: LakeBuilder) -> None:
    builder.properties["uri"] = f"sqlite:///{builder.root / 'other.db'}"
    assert run_expiry(lake(builder), []) == {}
    assert not (builder.root / "other.db").exists()


def test_expiry_supports_format_version_1(builder: LakeBuilder) -> None:
    table, ids = chain(builder, properties={"format-version": "1"})
    read = lake(builder)
    assert table.table.metadata.format_version == 1
    assert verdicts(run_expiry(read, plan_expiry(read))) == {"done": 3}
    assert (listed_ids(table), table.table.scan().count()) == ([ids[3]], 8)


def test_expiry_accepts_table_uuid_in_capitals(builder: LakeBuilder) -> None:
    table, _ = chain(builder)
    path = Path(table.metadata_location.removeprefix("file://"))
    uuid = str(table.table.metadata.table_uuid)
    path.write_text(path.read_text().replace(uuid, uuid.upper()))
    read = lake(builder)
    assert {ref.table_uuid for ref in read.freeze(AS_OF).refs} == {uuid}
    assert verdicts(run_expiry(read, plan_expiry(read))) == {"done": 3}


def test_retained_snapshot_keeps_id_of_removed_parent(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    read = lake(builder)
    run_expiry(read, plan_expiry(read))
    [snapshot] = table.table.metadata.snapshots
    assert str(snapshot.parent_snapshot_id) == ids[2]
    assert sorted(table.table.scan().to_arrow()["id"].to_pylist()) == [1, 1, 1, 1, 2, 2, 2, 2]
    table.append(START + 30 * DAY)  # the table is still writable


def test_expiry_deletes_no_files(builder: LakeBuilder) -> None:
    table, _ = chain(builder)
    before = builder.files()
    read = lake(builder)
    run_expiry(read, plan_expiry(read))
    assert builder.files() - before == {table.path(table.metadata_location)}
    assert before <= builder.files()


def test_tagged_snapshot_is_kept(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    table.tag(START + 9 * DAY, "v1", ids[0])
    read = lake(builder)
    run_expiry(read, plan_expiry(read))
    assert listed_ids(table) == [ids[0], ids[3]]
    assert heads(table) == {"main": ids[3], "v1": ids[0]}


def test_closing_outcome_generator_cancels_pending_tables(builder: LakeBuilder) -> None:
    writer, count = HistoryWriter(builder, START), 24
    for index in range(count):
        writer.table(f"t{index}", [Snap(1, None, START), Snap(2, 1, START + DAY)], {"main": {"snapshot-id": 2, "type": "branch"}})
    read = lake(builder)
    outcomes = read.expire(plan_expiry(read), AS_OF, GRACE_CUTOFF)
    next(outcomes)
    outcomes.close()
    left = [name for name in range(count) if len(builder.catalog.load_table(f"db.t{name}").metadata.snapshots) == 2]
    assert len(left) > count / 2


# Changes between plan and apply


def test_snapshot_tagged_after_the_plan_is_kept(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    table.tag(START + 9 * DAY, "audit", ids[0])
    outcomes = run_expiry(read, actions)
    assert verdicts(outcomes) == {"changed": 1, "done": 2}
    [changed] = [outcome for outcome in outcomes.values() if outcome.verdict == "changed"]
    assert (changed.action.snapshot_id, changed.error) == (ids[0], "kept: head of tag audit")
    assert heads(table)["audit"] == ids[0]


def test_snapshot_is_kept_if_expired_tag_was_added_after_plan(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    table.tag(START + 9 * DAY, "short", ids[0], max_ref_age_ms=1)
    outcomes = run_expiry(read, actions)
    assert "its deletion is not in this plan" in (outcomes[actions[0]].error or "")
    assert heads(table)["short"] == ids[0]


def test_ref_that_changed_after_plan_is_kept(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    for name in ("moved", "renewed", "gone"):
        table.tag(START + 9 * DAY, name, ids[0], max_ref_age_ms=1)
    read = lake(builder)
    actions = plan_expiry(read)
    table.tag(START + 10 * DAY, "moved", ids[1], max_ref_age_ms=1)
    table.tag(START + 10 * DAY, "renewed", ids[0])
    table.table.manage_snapshots().remove_tag("gone").commit()
    outcomes = {action.ref_name: outcome for action, outcome in run_expiry(read, actions).items() if action.ref_name}
    assert {name: outcome.verdict for name, outcome in outcomes.items()} == {"moved": "changed", "renewed": "changed", "gone": "absent"}
    assert outcomes["moved"].error == f"tag moved points at snapshot {ids[1]} now"
    assert heads(table) == {"main": ids[3], "moved": ids[1], "renewed": ids[0]}
    assert listed_ids(table) == [ids[0], ids[1], ids[3]]


@pytest.mark.parametrize("properties", [{"gc.enabled": "false"}, {"history.expire.max-snapshot-age-ms": str(2**62)}])
def test_retention_extended_after_plan_is_respected(builder: LakeBuilder, properties: dict[str, str]) -> None:
    table, ids = chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    table.set_properties(START + 9 * DAY, properties)
    assert verdicts(run_expiry(read, actions)) == {"changed": 3}
    assert listed_ids(table) == ids


def test_expiry_finds_renamed_table_by_uuid(builder: LakeBuilder) -> None:
    _, ids = chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    builder.catalog.rename_table("db.t", "db.renamed")
    assert verdicts(run_expiry(read, actions)) == {"done": 3}
    assert listed_ids(TableBuilder(builder, "db.renamed")) == [ids[3]]


@pytest.mark.parametrize("recreated", [False, True])
def test_expiry_skips_table_dropped_or_recreated_after_plan(builder: LakeBuilder, recreated: bool) -> None:
    chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    builder.catalog.drop_table("db.t")
    new = chain(builder) if recreated else None
    outcomes = run_expiry(read, actions)
    assert verdicts(outcomes) == {"changed": 3}
    assert all(f"no longer has a table with uuid {actions[0].table_uuid} (db.t)" in (item.error or "") for item in outcomes.values())
    assert new is None or listed_ids(new[0]) == new[1]


def test_expiry_edits_table_under_all_registered_names(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    copy = builder.register("db.copy", table.metadata_location)
    copy.tag(START + 9 * DAY, "v1", ids[0])
    read = lake(builder)
    outcomes = run_expiry(read, plan_expiry(read))
    assert verdicts(outcomes) == {"done": 2}
    assert listed_ids(table) == listed_ids(copy) == [ids[0], ids[3]]


# Other clients between load and commit


def test_tag_created_between_load_and_commit_is_kept(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    actions = plan_expiry(lake(builder))

    def tag() -> None:
        second_client(builder).manage_snapshots().create_tag(int(ids[1]), "audit").commit()

    outcomes = run_expiry(open_interrupted_lake(builder, tag), actions)
    assert verdicts(outcomes) == {"changed": 1, "done": 2}
    assert heads(table) == {"main": ids[3], "audit": ids[1]}
    assert listed_ids(table) == [ids[1], ids[3]]
    assert table.table.scan(snapshot_id=int(ids[1])).count() == 4


def test_branch_moved_between_load_and_commit_is_kept(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    actions = plan_expiry(lake(builder))
    newer: list[str] = []
    outcomes = run_expiry(open_interrupted_lake(builder, lambda: newer.append(table.append(AS_OF))), actions)
    assert verdicts(outcomes) == {"done": 3}
    assert heads(table) == {"main": newer[0]}
    assert listed_ids(table) == [ids[3], newer[0]]


@pytest.mark.parametrize(
    "change",
    [
        lambda table, ids: table.set_properties(START + 9 * DAY, {"gc.enabled": "false"}),
        lambda table, ids: table.branch(START + 9 * DAY, "main", ids[3], min_snapshots_to_keep=4),
    ],
    ids=["gc.enabled", "a ref's settings"],
)
def test_table_settings_changed_between_load_and_commit_are_respected(builder: LakeBuilder, change: Callable[..., None]) -> None:
    table, ids = chain(builder)
    actions = plan_expiry(lake(builder))
    assert verdicts(run_expiry(open_interrupted_lake(builder, lambda: change(table, ids)), actions)) == {"changed": 3}
    assert listed_ids(table) == ids


@pytest.mark.parametrize("recreated", [False, True])
def test_expiry_skips_table_recreated_between_load_and_commit(builder: LakeBuilder, recreated: bool) -> None:
    chain(builder)
    actions = plan_expiry(lake(builder))

    def drop() -> None:
        builder.catalog.drop_table("db.t")
        if recreated:
            chain(builder)

    assert verdicts(run_expiry(open_interrupted_lake(builder, drop), actions)) == {"changed": 3}
    assert not recreated or len(listed_ids(TableBuilder(builder, "db.t"))) == 4


def test_commit_retry_checks_snapshots_added_since(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    actions = plan_expiry(lake(builder))
    newer: list[str] = []

    def append_and_delete_list() -> None:
        newer.append(table.append(AS_OF))
        manifest_list(table, newer[0]).unlink()

    outcomes = run_expiry(open_interrupted_lake(builder, append_and_delete_list), actions)
    assert verdicts(outcomes) == {"failed": 3}  # the commit was rejected, and the second attempt checked again
    assert f"of snapshot {newer[0]} does not exist" in (outcomes[actions[0]].error or "")
    assert listed_ids(table) == [*ids, *newer]


def test_concurrent_expiries_make_each_edit_once(builder: LakeBuilder) -> None:
    names = [f"db.t{index}" for index in range(6)]
    tables = [chain(builder, name, 3) for name in names]
    actions = plan_expiry(lake(builder))
    found: list[dict[ExpiryAction, Any]] = []
    threads = [threading.Thread(target=lambda: found.append(run_expiry(lake(builder), actions))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for action in actions:
        assert sorted(outcomes[action].verdict for outcomes in found) in (["absent", "done"], ["done", "done"])
    assert [listed_ids(table) for table, _ in tables] == [ids[-1:] for _, ids in tables]


def test_expiry_loses_no_concurrently_created_tag(builder: LakeBuilder) -> None:
    count = 40
    snapshots = [Snap(index + 1, index or None, START + index * DAY) for index in range(count)]
    HistoryWriter(builder, START).table("t", snapshots, {"main": {"snapshot-id": count, "type": "branch"}})
    actions = plan_expiry(lake(builder))
    tagged: list[int] = []

    def tag_from_the_newest() -> None:
        for snapshot_id in range(count - 1, 0, -1):
            try:
                second_client(builder).manage_snapshots().create_tag(snapshot_id, f"t{snapshot_id}").commit()
            except (CommitFailedException, ValueError):
                continue  # the table moved or the snapshot was removed, so the client knows that the tag was not created
            tagged.append(snapshot_id)

    tagger = threading.Thread(target=tag_from_the_newest)
    tagger.start()
    outcomes = [run_expiry(lake(builder), actions[index : index + 4]) for index in range(0, len(actions), 4)]
    tagger.join()
    assert {outcome.verdict for group in outcomes for outcome in group.values()} <= {"done", "changed", "failed"}
    metadata = builder.catalog.load_table("db.t").metadata
    assert tagged
    assert {f"t{snapshot_id}": snapshot_id for snapshot_id in tagged} == {
        name: ref.snapshot_id for name, ref in metadata.refs.items() if name != "main"
    }
    assert set(tagged) <= {snapshot.snapshot_id for snapshot in metadata.snapshots}


# Unreadable and unwritable tables


def manifest_list(table: TableBuilder, snapshot_id: str) -> Path:
    snapshot = table.table.metadata.snapshot_by_id(int(snapshot_id))
    assert snapshot is not None
    return table.path(snapshot.manifest_list)


def manifest(table: TableBuilder) -> Path:
    snapshot = table.table.metadata.current_snapshot()
    assert snapshot is not None
    return table.path(snapshot.manifests(table.table.io)[0].manifest_path)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-20])], ids=["missing", "truncated"])
@pytest.mark.parametrize(
    "which", [lambda table, ids: manifest_list(table, ids[3]), lambda table, ids: manifest(table)], ids=["manifest list", "manifest"]
)
def test_expiry_fails_if_retained_metadata_is_unreadable(
    builder: LakeBuilder, damage: Callable[[Path], object], which: Callable[[TableBuilder, list[str]], Path]
) -> None:
    table, ids = chain(builder)
    readable, _ = chain(builder, "db.fine")
    read = lake(builder)
    actions = plan_expiry(read)
    path = which(table, ids)
    damage(path)
    location = table.metadata_location
    outcomes = run_expiry(read, actions)
    assert {(action.table_name, outcome.verdict) for action, outcome in outcomes.items()} == {("db.t", "failed"), ("db.fine", "done")}
    [error] = {outcome.error for outcome in outcomes.values() if outcome.verdict == "failed"}
    assert error is not None
    assert error.startswith("table db.t: ")
    assert str(path) in error
    assert "no snapshot was removed" in error
    assert table.metadata_location == location
    assert len(listed_ids(readable)) == 1


def test_unreadable_expired_snapshot_is_removed(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    manifest_list(table, ids[0]).unlink()
    assert verdicts(run_expiry(read, actions)) == {"done": 3}


def test_unreadable_table_does_not_fail_other_tables(builder: LakeBuilder) -> None:
    table, _ = chain(builder, "db.broken")
    readable, _ = chain(builder, "db.fine")
    read = lake(builder)
    actions = plan_expiry(read)
    table.path(table.metadata_location).write_bytes(b"{")
    outcomes = run_expiry(read, actions)
    assert {(action.table_name, outcome.verdict) for action, outcome in outcomes.items()} == {("db.broken", "failed"), ("db.fine", "done")}
    assert all("table db.broken could not be read" in outcome.error for outcome in outcomes.values() if outcome.error)
    assert len(listed_ids(readable)) == 1


def test_expiry_fails_if_metadata_of_renamed_table_is_unreadable(builder: LakeBuilder) -> None:
    table, _ = chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    builder.catalog.rename_table("db.t", "db.renamed")
    renamed = TableBuilder(builder, "db.renamed")
    table.path(renamed.metadata_location).unlink()
    outcomes = run_expiry(read, actions)
    assert verdicts(outcomes) == {"failed": 3}
    assert "db.renamed could not be read" in (outcomes[actions[0]].error or "")


def test_unreachable_catalog_fails_all_actions_and_hides_secrets(builder: LakeBuilder) -> None:
    chain(builder)
    actions = plan_expiry(lake(builder))
    builder.properties["uri"] = "postgresql://me:hunter2@nowhere.invalid/catalog"
    outcomes = run_expiry(lake(builder), actions)
    assert verdicts(outcomes) == {"failed": 3}
    assert all("could not be read" in (item.error or "") and "hunter2" not in (item.error or "") for item in outcomes.values())


@contextmanager
def run_as_other_user(root: Path) -> Iterator[None]:
    """Run as another user, because nothing is read-only for the superuser."""
    if os.geteuid() != 0:
        yield
        return
    other_uid = 65534
    for path in [root, *root.rglob("*")]:
        os.chown(path, other_uid, other_uid)
    os.seteuid(other_uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_read_only_metadata_directory_denies_only_affected_table() -> None:
    with tempfile.TemporaryDirectory() as directory:  # other users cannot read pytest's directories
        builder = LakeBuilder(Path(directory))
        table, ids = chain(builder)
        chain(builder, "db.fine")
        read = lake(builder)
        actions = plan_expiry(read)
        metadata = table.path(table.metadata_location).parent
        metadata.chmod(0o555)
        with run_as_other_user(builder.root):
            outcomes = run_expiry(read, actions)
        metadata.chmod(0o755)
        assert {(action.table_name, outcome.verdict) for action, outcome in outcomes.items()} == {("db.t", "denied"), ("db.fine", "done")}
        assert all("ermission" in outcome.error for outcome in outcomes.values() if outcome.error)
        assert listed_ids(table) == ids


def test_table_of_unwritable_format_version_keeps_history(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    actions = plan_expiry(lake(builder))
    path = table.path(table.metadata_location)
    path.write_text(path.read_text().replace('"format-version":2', '"format-version":3,"next-row-id":0'))
    outcomes = run_expiry(lake(builder), actions)
    assert verdicts(outcomes) == {"changed": 3}
    assert "pyiceberg cannot commit to it (it supports format version 3 only over REST" in (outcomes[actions[0]].error or "")
    assert listed_ids(table) == ids
    assert plan_expiry(lake(builder)) == []


@pytest.mark.parametrize(
    "kind, versions", [("sql", {2}), ("glue", {2}), ("REST", {2, 3}), ("dynamodb", set[int]()), ("bigquery", set[int]())]
)
def test_registration_is_writable_only_if_pyiceberg_can_commit(builder: LakeBuilder, kind: str, versions: set[int]) -> None:
    table, _ = chain(builder)
    config = builder.config("sales")
    of_kind = IcebergLake(config.model_copy(update={"catalog": {**config.catalog, "type": SecretStr(kind)}}), LocalObjects())
    address, found = table.metadata_location, set[int]()
    path = table.path(address)
    text = path.read_text()
    for version in (2, 3):
        path.write_text(text.replace('"format-version":2', f'"format-version":{version},"next-row-id":0'))
        if of_kind.read_registration("db.t", address).writable:
            found.add(version)
    assert found == versions


# REST catalogs


def test_expiry_over_rest_sends_update_requests(builder: LakeBuilder, server: RestServer) -> None:
    table, ids = chain(builder)
    table.statistics(START + 9 * DAY, ids[0])
    table.tag(START + 9 * DAY, "old", ids[1], max_ref_age_ms=1)
    table.tag(START + 9 * DAY, "v1", ids[2])
    read = over_rest(server)
    assert verdicts(run_expiry(read, plan_expiry(read))) == {"done": 3}
    assert (listed_ids(table), heads(table)) == ([ids[2], ids[3]], {"main": ids[3], "v1": ids[2]})
    assert table.table.metadata.statistics == table.table.metadata.partition_statistics == []
    assert server.commits == 1


def test_rest_commit_keeps_concurrently_moved_branch(builder: LakeBuilder, server: RestServer) -> None:
    table, _ = chain(builder)
    read = over_rest(server)
    actions = plan_expiry(read)
    newer: list[str] = []

    def callback(commit: Callable[[], int]) -> int:
        if not newer:
            newer.append(table.append(AS_OF))
        return commit()

    server.on_commit = callback
    assert verdicts(run_expiry(read, actions)) == {"done": 3}
    assert heads(table) == {"main": newer[0]}
    assert server.commits == 2


def test_tag_dropped_by_rest_server_is_reported_as_damage(builder: LakeBuilder, server: RestServer) -> None:
    table, ids = chain(builder)
    read = over_rest(server)
    actions = plan_expiry(read)

    def callback(commit: Callable[[], int]) -> int:
        table.tag(START + 9 * DAY, "audit", ids[1])
        return commit()

    server.on_commit = callback
    outcomes = run_expiry(read, actions)
    assert verdicts(outcomes) == {"failed": 3}
    assert f"the catalog dropped tag audit with snapshot {ids[1]}" in (outcomes[actions[0]].error or "")
    assert all(outcome.damaged for outcome in outcomes.values())
    assert verdicts(run_expiry(read, actions)) == {"failed": 3}  # the next apply reports it again
    table.append(AS_OF)
    assert verdicts(run_expiry(read, actions)) == {"failed": 3}


def test_snapshot_expired_by_another_tool_has_outcome_absent(builder: LakeBuilder) -> None:
    table, ids = chain(builder)
    read = lake(builder)
    actions = plan_expiry(read)
    table.table.maintenance.expire_snapshots().by_ids([int(snapshot_id) for snapshot_id in ids[:3]]).commit()
    for entry in table.table.metadata.metadata_log:
        table.path(entry.metadata_file).unlink()
    assert verdicts(run_expiry(read, actions)) == {"absent": 3}


def test_rejected_commit_fails_after_maximum_attempts(builder: LakeBuilder, server: RestServer) -> None:
    table, ids = chain(builder)
    listing = RecordingObjects()
    read = over_rest(server, listing)
    actions = plan_expiry(read)
    server.on_commit = lambda commit: 409
    outcomes = run_expiry(read, actions)
    assert len(listing.reads) == len(set(listing.reads)) == 1  # retained snapshots are checked once, regardless of the number of attempts
    assert verdicts(outcomes) == {"failed": 3}
    assert "injected error" in (outcomes[actions[0]].error or "")
    assert "hunter2" not in (outcomes[actions[0]].error or "")
    assert listed_ids(table) == ids
    assert 1 < server.commits <= 5


@pytest.mark.parametrize("took_effect", [False, True])
@pytest.mark.parametrize("status", [500, 504])
def test_unknown_commit_state_is_resolved_from_the_table(builder: LakeBuilder, server: RestServer, status: int, took_effect: bool) -> None:
    table, ids = chain(builder)
    read = over_rest(server)
    actions = plan_expiry(read)

    def answer_unknown_state(commit: Callable[[], int]) -> int:
        if took_effect:
            commit()
        return status

    server.on_commit = answer_unknown_state
    outcomes = run_expiry(read, actions)
    assert verdicts(outcomes) == {"done" if took_effect else "failed": 3}
    assert listed_ids(table) == (ids[3:] if took_effect else ids)
    assert server.commits == 1
    if not took_effect:
        assert "the catalog did not confirm the commit: CommitStateUnknownException" in (outcomes[actions[0]].error or "")


def test_commit_accepted_by_catalog_without_effect_fails(builder: LakeBuilder, server: RestServer) -> None:
    table, ids = chain(builder)
    read = over_rest(server)
    actions = plan_expiry(read)

    def undo_commit(commit: Callable[[], int]) -> int:
        status = commit()
        builder.catalog.drop_table("db.t")
        builder.register("db.t", location)
        return status

    location = table.metadata_location
    server.on_commit = undo_commit
    outcomes = run_expiry(read, actions)
    assert verdicts(outcomes) == {"failed": 3}
    assert outcomes[actions[0]].error == "the catalog accepted the commit, but the table did not change; apply again"
    assert not any(outcome.damaged for outcome in outcomes.values())
    assert listed_ids(table) == ids


# Cost


def test_expiry_time_for_8000_snapshots_and_tags_is_not_quadratic(builder: LakeBuilder) -> None:
    count = 8_000
    snapshots = [Snap(index + 1, index or None, START + index * DAY / 100) for index in range(count)]
    refs: dict[str, dict[str, Any]] = {"main": {"snapshot-id": count, "type": "branch"}}
    refs |= {f"t{index}": {"snapshot-id": index, "type": "tag", "max-ref-age-ms": 1} for index in range(1, count)}
    HistoryWriter(builder, START).table("long", snapshots, refs, without_lists=range(1, count))
    read = lake(builder)
    actions = plan_expiry(read)
    started = time.process_time()
    outcomes = run_expiry(read, actions)
    assert time.process_time() - started < 20
    assert verdicts(outcomes) == {"done": 2 * (count - 1)}


def test_action_of_another_lake_kind_fails(builder: LakeBuilder) -> None:
    chain(builder)
    read = lake(builder)
    foreign = replace(plan_expiry(read)[0], action="edit_parent")
    assert verdicts(run_expiry(read, [foreign])) == {"failed": 1}
