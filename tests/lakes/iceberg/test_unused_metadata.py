"""Only schemas and partition specs that no retained snapshot needs are removed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from gc_assets.core.errors import StoreError
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import PRUNING, ExpiryAction, ExpiryOutcome
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import example_count, in_turn
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.expiry_actions import DAY, START, run_expiry
from tests.lakes.iceberg.random_evolutions import (
    REMOVE,
    add_column,
    evolve,
    lake_with_pruning,
    partition_by,
    plan_all,
    schema_ids,
    spec_ids,
)
from tests.lakes.iceberg.rest_server import RestServer, serve_catalog

pytestmark = in_turn


@pytest.fixture
def builder(tmp_path: Path) -> LakeBuilder:
    return LakeBuilder(tmp_path)


def prunings_of(actions: list[ExpiryAction]) -> set[tuple[str, str]]:
    return {(action.action, action.snapshot_id) for action in actions if action.action in PRUNING}


def apply(read: IcebergLake, actions: list[ExpiryAction]) -> dict[ExpiryAction, ExpiryOutcome]:
    return run_expiry(read, actions)


@pytest.fixture
def evolved(builder: LakeBuilder) -> TableBuilder:
    """A table with snapshots of schema 0 and spec 0 that expire, and a newest one that rewrote all data with schema 2 and spec 1."""
    table = builder.table("db.t", START)
    table.append(START + DAY)
    add_column(table, START + 2 * DAY, "colour")
    add_column(table, START + 3 * DAY, "shape")
    partition_by(table, START + 4 * DAY, "part", "by_part")
    table.overwrite(START + 5 * DAY)
    return table


def test_schema_and_spec_of_expired_snapshots_are_removed(builder: LakeBuilder, evolved: TableBuilder) -> None:
    read = lake_with_pruning(builder)
    actions, _ = plan_all(read)
    assert prunings_of(actions) == {("remove_schema", "0"), ("remove_schema", "1"), ("remove_spec", "0")}
    outcomes = apply(read, actions)
    assert {outcome.verdict for outcome in outcomes.values()} == {"done"}
    assert (schema_ids(evolved.table), spec_ids(evolved.table)) == ({2}, {1})
    assert evolved.table.scan().to_arrow().num_rows > 0


def test_no_schema_or_spec_is_removed_by_default(builder: LakeBuilder, evolved: TableBuilder) -> None:
    actions, _ = plan_all(IcebergLake(builder.config(), LocalObjects()))
    assert actions
    assert prunings_of(actions) == set()


def test_schema_of_a_tagged_snapshot_is_kept(builder: LakeBuilder, evolved: TableBuilder) -> None:
    first = evolved.table.metadata.snapshots[0].snapshot_id
    evolved.tag(START + 6 * DAY, "release", str(first))
    actions, _ = plan_all(lake_with_pruning(builder))
    assert prunings_of(actions) == {("remove_schema", "1")}


def test_spec_of_a_manifest_that_a_new_snapshot_inherits_is_kept(builder: LakeBuilder) -> None:
    table = builder.table("db.t", START)
    table.append(START + DAY)
    partition_by(table, START + 2 * DAY, "part", "by_part")
    table.append(START + 3 * DAY)
    actions, _ = plan_all(lake_with_pruning(builder))
    assert prunings_of(actions) == set()


def test_schema_is_kept_if_its_snapshot_did_not_expire(builder: LakeBuilder, evolved: TableBuilder) -> None:
    read = lake_with_pruning(builder)
    actions, _ = plan_all(read)
    only_pruning = [action for action in actions if action.action in PRUNING]
    outcomes = apply(read, only_pruning)
    assert {(action.snapshot_id, action.action): outcome.verdict for action, outcome in outcomes.items()} == {
        ("0", "remove_schema"): "changed",
        ("1", "remove_schema"): "done",
        ("0", "remove_spec"): "changed",
    }
    assert (schema_ids(evolved.table), spec_ids(evolved.table)) == ({0, 2}, {0, 1})


def test_schema_that_became_current_after_plan_is_kept(builder: LakeBuilder, evolved: TableBuilder) -> None:
    read = lake_with_pruning(builder)
    actions, _ = plan_all(read)
    with builder.at(START + 7 * DAY), evolved.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("shape")
        update.delete_column("colour")
    current = evolved.table.metadata.current_schema_id
    outcomes = apply(read, actions)
    assert current in schema_ids(evolved.table)
    verdicts = {action.snapshot_id: outcome.verdict for action, outcome in outcomes.items() if action.action == "remove_schema"}
    assert verdicts.get(str(current), "changed") == "changed"


def test_second_apply_removes_no_schema_or_spec(builder: LakeBuilder, evolved: TableBuilder) -> None:
    read = lake_with_pruning(builder)
    actions, _ = plan_all(read)
    apply(read, actions)
    before = evolved.table.metadata_location
    assert {outcome.verdict for outcome in apply(read, actions).values()} == {"absent"}
    assert evolved.table.metadata_location == before
    assert prunings_of(plan_all(read)[0]) == set()


def test_all_schemas_are_kept_if_retained_snapshot_has_no_schema_id(builder: LakeBuilder, evolved: TableBuilder) -> None:
    """The schema of the snapshot is unknown. Old writers did not record it."""
    path = Path(evolved.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    for snapshot in document["snapshots"]:
        snapshot.pop("schema-id", None)
    path.write_text(json.dumps(document))
    assert prunings_of(plan_all(lake_with_pruning(builder))[0]) == {("remove_spec", "0")}


def drop_deleted_column(builder: LakeBuilder) -> TableBuilder:
    """Return a table with equality deletes on a column that was dropped after them."""
    table = builder.table("db.t", START)
    table.append(START + DAY)
    table.equality_deletes(START + 2 * DAY)
    with builder.at(START + 3 * DAY), table.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")
    with builder.at(START + 4 * DAY):
        table.table.append(pa.table({"part": ["a"]}))
    return table


def test_equality_deletes_on_a_dropped_column_keep_its_schema(builder: LakeBuilder) -> None:
    """Readers find the type of the column in former schemas. Without them, Spark cannot read the table."""
    table = drop_deleted_column(builder)
    read = lake_with_pruning(builder)
    actions, _ = plan_all(read)
    assert [action.action for action in actions] == ["remove_snapshot", "remove_snapshot"]
    # The deletes may be committed after the plan.
    removal = ExpiryAction("remove_schema", "0", reason="unused", table_uuid=table.uuid, table_name="db.t")
    assert [outcome.verdict for outcome in apply(read, [removal]).values()] == ["changed"]


def test_all_schemas_are_kept_if_summary_totals_omit_equality_deletes(builder: LakeBuilder) -> None:
    """An append of iceberg-rust up to 0.9.1 counts only its own files, so the totals of inherited deletes are 0 (#2390, #2576)."""
    table = drop_deleted_column(builder)
    path = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    totals = ("total-delete-files", "total-equality-deletes", "total-position-deletes")
    document["snapshots"][-1]["summary"].update(dict.fromkeys(totals, "0"))
    path.write_text(json.dumps(document))
    read = lake_with_pruning(builder)
    actions, _ = plan_all(read)
    assert [action.action for action in actions] == ["remove_snapshot", "remove_snapshot"]
    removal = ExpiryAction("remove_schema", "0", reason="unused", table_uuid=table.uuid, table_name="db.t")
    assert {outcome.verdict for outcome in apply(read, [*actions, removal]).values()} == {"done", "changed"}
    assert schema_ids(table.table) == {0, 1}


@pytest.mark.parametrize("total", ["total-equality-deletes", "total-delete-files"])
def test_all_schemas_are_kept_if_retained_snapshot_has_no_totals(builder: LakeBuilder, evolved: TableBuilder, total: str) -> None:
    """The snapshot may have equality deletes. A total of 0 proves that it has none."""
    path = Path(evolved.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    for snapshot in document["snapshots"]:
        for name in {"total-equality-deletes", "total-delete-files"} - {total}:
            snapshot["summary"].pop(name)
    path.write_text(json.dumps(document))
    assert prunings_of(plan_all(lake_with_pruning(builder))[0]) == {("remove_schema", "0"), ("remove_schema", "1"), ("remove_spec", "0")}
    for snapshot in document["snapshots"]:
        snapshot["summary"].pop(total)
    path.write_text(json.dumps(document))
    assert prunings_of(plan_all(lake_with_pruning(builder))[0]) == {("remove_spec", "0")}


def test_specs_are_kept_if_manifest_list_is_missing(builder: LakeBuilder, evolved: TableBuilder) -> None:
    newest = evolved.table.metadata.snapshots[-1].manifest_list
    path = Path(newest.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(b"not Avro")
    actions, notes = plan_all(lake_with_pruning(builder))
    path.write_bytes(content)
    assert prunings_of(actions) == set()
    assert any("a manifest list cannot be read" in note for note in notes)


def test_unreadable_manifest_list_keeps_specs(builder: LakeBuilder, evolved: TableBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the address of the list has a scheme that no store supports."""
    read = LocalObjects.read

    def fail(objects: LocalObjects, address: str) -> bytes:
        if "/snap-" in address:
            raise StoreError(f"{address}: the scheme is not supported")
        return read(objects, address)

    monkeypatch.setattr(LocalObjects, "read", fail)
    actions, notes = plan_all(lake_with_pruning(builder))
    assert prunings_of(actions) == set()
    assert any("a manifest list cannot be read" in note for note in notes)


def test_table_with_two_registered_names_keeps_schemas_and_specs(builder: LakeBuilder, evolved: TableBuilder) -> None:
    builder.register("db.copy", evolved.metadata_location)
    actions, notes = plan_all(lake_with_pruning(builder))
    assert prunings_of(actions) == set()
    assert any("is registered 2 times" in note for note in notes)


@pytest.mark.parametrize("damage", ["format version", "truncated"])
def test_schemas_and_specs_are_kept_if_second_registration_is_unreadable(builder: LakeBuilder, evolved: TableBuilder, damage: str) -> None:
    builder.table("db.other", START)
    path = Path(evolved.metadata_location.removeprefix("file://"))
    copy = path.with_name("90000-copy.metadata.json")
    text = path.read_text()
    copy.write_text(text)
    builder.register("db.copy", f"file://{copy}")
    copy.write_text(text.replace('"format-version":2', '"format-version":9') if damage == "format version" else text[:100])
    actions, notes = plan_all(lake_with_pruning(builder))
    assert prunings_of(actions) == set()
    assert any("table db.copy cannot be read and may be another registration of it" in note for note in notes)


def test_unreadable_table_does_not_stop_removal_in_other_tables(builder: LakeBuilder, evolved: TableBuilder) -> None:
    other = builder.table("db.other", START)
    Path(other.metadata_location.removeprefix("file://")).write_text("{")
    actions, _ = plan_all(lake_with_pruning(builder))
    assert prunings_of(actions) == {("remove_schema", "0"), ("remove_schema", "1"), ("remove_spec", "0")}


def test_table_with_gc_disabled_keeps_schemas_and_specs(builder: LakeBuilder, evolved: TableBuilder) -> None:
    evolved.set_properties(START + 8 * DAY, {"gc.enabled": "false"})
    assert prunings_of(plan_all(lake_with_pruning(builder))[0]) == set()


def test_schemas_are_kept_if_gc_was_disabled_after_plan(builder: LakeBuilder, evolved: TableBuilder) -> None:
    read = lake_with_pruning(builder)
    actions = [action for action in plan_all(read)[0] if action.action in PRUNING]
    evolved.set_properties(START + 8 * DAY, {"gc.enabled": "false"})
    assert {outcome.verdict for outcome in apply(read, actions).values()} == {"changed"}
    assert (schema_ids(evolved.table), spec_ids(evolved.table)) == ({0, 1, 2}, {0, 1})


def test_apply_reports_table_dropped_after_plan(builder: LakeBuilder, evolved: TableBuilder) -> None:
    read = lake_with_pruning(builder)
    actions = [action for action in plan_all(read)[0] if action.action in PRUNING]
    builder.catalog.drop_table("db.t")
    assert {outcome.verdict for outcome in apply(read, actions).values()} == {"changed"}


def test_schemas_and_specs_are_removed_over_rest(builder: LakeBuilder, evolved: TableBuilder) -> None:
    with serve_catalog(builder) as server:
        read = over_rest(server)
        outcomes = apply(read, plan_all(read)[0])
    assert {outcome.verdict for outcome in outcomes.values()} == {"done"}
    assert (schema_ids(evolved.table), spec_ids(evolved.table)) == ({2}, {1})


def over_rest(server: RestServer) -> IcebergLake:
    catalog = {"type": "rest", "uri": server.uri, "token": "hunter2"}
    config = server.builder.config().model_validate({"name": "sales", "kind": "iceberg", "catalog": catalog, "retention": REMOVE})
    return IcebergLake(config, LocalObjects())


def outcomes_of_pruning(outcomes: dict[ExpiryAction, ExpiryOutcome]) -> set[str]:
    return {outcome.verdict for action, outcome in outcomes.items() if action.action in PRUNING}


def test_removal_fails_after_one_commit_that_catalog_ignores(builder: LakeBuilder, evolved: TableBuilder) -> None:
    with serve_catalog(builder) as server:
        read = over_rest(server)
        actions = plan_all(read)[0]

        def ignore_second(commit: Callable[[], int]) -> int:
            return commit() if server.commits == 1 else 200

        server.on_commit = ignore_second
        outcomes = apply(read, actions)
        assert server.commits == 2
    assert outcomes_of_pruning(outcomes) == {"failed"}
    assert {outcome.verdict for action, outcome in outcomes.items() if action.action not in PRUNING} == {"done"}


def test_snapshots_expire_if_catalog_does_not_support_schema_removal(builder: LakeBuilder, evolved: TableBuilder) -> None:
    with serve_catalog(builder) as server:
        read = over_rest(server)
        actions = plan_all(read)[0]
        server.on_commit = lambda commit: commit() if server.commits == 1 else 400
        outcomes = apply(read, actions)
    assert outcomes_of_pruning(outcomes) == {"denied"}
    assert {outcome.verdict for action, outcome in outcomes.items() if action.action not in PRUNING} == {"done"}
    assert len(evolved.table.metadata.snapshots) == 1


def test_rejected_commit_is_retried(builder: LakeBuilder, evolved: TableBuilder) -> None:
    with serve_catalog(builder) as server:
        read = over_rest(server)
        actions = plan_all(read)[0]
        server.on_commit = lambda commit: 409 if server.commits == 2 else commit()
        outcomes = apply(read, actions)
    assert {outcome.verdict for outcome in outcomes.values()} == {"done"}


def test_commit_applies_limit_of_metadata_log(builder: LakeBuilder, evolved: TableBuilder) -> None:
    evolved.set_properties(START + 8 * DAY, {"write.metadata.previous-versions-max": "2"})
    read = lake_with_pruning(builder)
    apply(read, plan_all(read)[0])
    assert len(evolved.table.metadata.metadata_log) <= 2


def oracle(table: Table, kept: set[int]) -> set[tuple[str, str]]:
    """Return what no kept snapshot uses, by pyiceberg's own readers."""
    metadata = table.metadata
    snapshots = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in kept]
    schemas = {snapshot.schema_id for snapshot in snapshots} | {metadata.current_schema_id}
    specs = {manifest.partition_spec_id for snapshot in snapshots for manifest in snapshot.manifests(table.io)} | {metadata.default_spec_id}
    return {("remove_schema", str(number)) for number in schema_ids(table) - schemas} | {
        ("remove_spec", str(number)) for number in spec_ids(table) - specs
    }


def histories(count: int) -> Iterator[random.Random]:
    yield from (random.Random(seed) for seed in range(count))


def test_schema_and_spec_removal_matches_oracle_on_random_histories(tmp_path: Path) -> None:
    found = 0
    for index, chance in enumerate(histories(example_count(6, 30))):
        builder = LakeBuilder(tmp_path / str(index))
        table = builder.table("db.t", START)
        for day in range(1, 10):
            evolve(table, chance, START + day * DAY)
        read = lake_with_pruning(builder)
        actions, _ = plan_all(read)
        removed = {int(action.snapshot_id) for action in actions if action.action == "remove_snapshot"}
        kept = {snapshot.snapshot_id for snapshot in table.table.metadata.snapshots} - removed
        assert prunings_of(actions) == oracle(table.table, kept), index
        assert {outcome.verdict for outcome in apply(read, actions).values()} <= {"done"}
        assert oracle(table.table, kept) == set()
        found += len(prunings_of(actions))
    assert found > timedelta(days=example_count(6, 30)).days
