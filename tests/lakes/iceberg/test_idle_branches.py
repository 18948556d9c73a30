from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, PROTECTED, ExpiryAction, ExpiryOutcome, as_branch_lake
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, DAY, START, plan_expiry
from tests.lakes.iceberg.expiry_actions import lake as open_lake
from tests.lakes.iceberg.rest_server import serve_catalog

RULES: Any = {"delete_idle": [{"match": ".*", "after": "30d"}]}


@pytest.fixture(params=["sqlite", "rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LakeBuilder, IcebergLake]]:
    builder = LakeBuilder(tmp_path)
    if request.param == "sqlite":
        yield builder, IcebergLake(builder.config(retention=RULES), LocalObjects())
        return
    with serve_catalog(builder) as server:
        document = {"name": "sales", "kind": "iceberg", "catalog": {"type": "rest", "uri": server.uri}, "catalog_name": "default"}
        yield builder, IcebergLake(builder.config().model_validate({**document, "retention": RULES}), LocalObjects())


def write_table(builder: LakeBuilder, **settings: int) -> tuple[TableBuilder, str]:
    """Write a table with the branch `tmp` at a snapshot that main does not reach."""
    table = builder.table("db.t", START)
    first = table.append(START + DAY)
    table.branch(START + DAY, "tmp", first)
    head = table.append(START + 2 * DAY, branch="tmp")
    table.branch(START + 2 * DAY, "tmp", head, **settings)  # a commit of pyiceberg removes the settings of a branch
    table.append(START + 3 * DAY)
    return table, head


def deletion(table: TableBuilder, head: str, name: str = "tmp", details: str | None = None) -> ExpiryAction:
    return ExpiryAction(DELETE_IDLE_BRANCH, head, "idle", "branch", name, table_uuid=table.uuid, table_name="db.t", details=details)


def delete(lake: IcebergLake, action: ExpiryAction) -> ExpiryOutcome:
    (outcome,) = lake.delete_branches([action])
    return outcome


def recreate(lake: IcebergLake, action: ExpiryAction) -> ExpiryOutcome:
    (outcome,) = lake.recreate_branches([action])
    return outcome


def refs(table: TableBuilder) -> dict[str, str]:
    return {name: str(ref.snapshot_id) for name, ref in table.table.metadata.refs.items()}


def protections(lake: IcebergLake) -> dict[str, str | None]:
    return {ref.ref_name: ref.properties.get(PROTECTED) for ref in lake.freeze(AS_OF).refs}


def test_deleted_branch_keeps_its_snapshots_and_can_be_created_again(lake: tuple[LakeBuilder, IcebergLake]) -> None:
    builder, read = lake
    table, head = write_table(builder, min_snapshots_to_keep=3)
    before = table.table.metadata
    (ref,) = (ref for ref in read.freeze(AS_OF).refs if ref.ref_name == "tmp")
    action = deletion(table, head, details='{"min-snapshots-to-keep": "3"}')
    assert dict(ref.properties) == {"min-snapshots-to-keep": "3"}
    assert delete(read, action).verdict == "done"
    assert delete(read, action).verdict == "absent"
    assert "tmp" not in refs(table)
    assert table.table.metadata.snapshots == before.snapshots
    assert recreate(read, action).verdict == "done"
    assert recreate(read, action).verdict == "absent"
    assert table.table.metadata.refs == before.refs


def test_branch_that_moved_after_plan_is_kept(lake: tuple[LakeBuilder, IcebergLake]) -> None:
    builder, read = lake
    table, head = write_table(builder)
    moved = table.append(START + 4 * DAY, branch="tmp")
    outcome = delete(read, deletion(table, head))
    assert (outcome.verdict, outcome.error) == ("changed", f"branch tmp points at snapshot {moved} now")
    assert refs(table)["tmp"] == moved


def test_branch_that_moves_during_the_commit_is_kept(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    table, head = write_table(builder)
    moved: list[str] = []

    class Objects(LocalObjects):
        def read(self, address: str) -> bytes:
            raw = LocalObjects.read(self, address)
            if "/db/t/" in address and not moved:
                moved.append(table.append(START + 4 * DAY, branch="tmp"))
            return raw

    outcome = delete(IcebergLake(builder.config(retention=RULES), Objects()), deletion(table, head))
    assert (outcome.verdict, refs(table)["tmp"]) == ("changed", moved[0])


def test_another_branch_at_deleted_head_is_kept(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    table, head = write_table(builder)
    table.branch(START + 4 * DAY, "other", head)
    read = IcebergLake(builder.config(retention=RULES), LocalObjects())
    assert delete(read, deletion(table, head)).verdict == "done"
    assert refs(table)["other"] == head


def test_main_and_branch_with_max_ref_age_are_protected(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    table, head = write_table(builder, max_ref_age_ms=int(timedelta(days=90).total_seconds() * 1000))
    read = IcebergLake(builder.config(retention=RULES), LocalObjects())
    assert protections(read) == {"main": "it is the main branch", "tmp": "its own max-ref-age-ms applies"}
    outcomes = [delete(read, deletion(table, refs(table)[name], name)) for name in ("main", "tmp")]
    assert [(item.verdict, item.error) for item in outcomes] == [
        ("changed", "branch main is kept: it is the main branch"),
        ("changed", "branch tmp is kept: its own max-ref-age-ms applies"),
    ]
    outside = IcebergLake(builder.config(retention=RULES, tables=["other.*"]), LocalObjects())
    assert protections(outside)["tmp"] == "its own max-ref-age-ms applies"
    assert refs(table)["tmp"] == head


def test_table_outside_patterns_keeps_all_branches(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    write_table(builder)
    read = IcebergLake(builder.config(retention=RULES, tables=["other.*"]), LocalObjects())
    assert protections(read)["tmp"] == "table db.t is not collected: no pattern of `tables` matches it"


def test_branch_protections_are_read_without_idle_branch_rules(tmp_path: Path) -> None:
    """A rule that is added later on the same date applies to the refs that were already read."""
    builder = LakeBuilder(tmp_path)
    write_table(builder)
    assert protections(IcebergLake(builder.config(), LocalObjects())) == {"main": "it is the main branch", "tmp": None}


def test_snapshots_still_expire_with_idle_branch_rules(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    table, _ = write_table(builder, max_ref_age_ms=2**62)
    table.append(START + 4 * DAY)
    plans = [plan_expiry(open_lake(builder, retention={"max_snapshot_age": "5d", **rules})) for rules in ({}, RULES)]
    assert {action.action for action in plans[0]} == {"remove_snapshot"}
    assert plans[0] == plans[1]


def test_undo_refuses_lost_snapshot_and_branch_name_in_use(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    table, head = write_table(builder)
    read = IcebergLake(builder.config(retention=RULES), LocalObjects())
    action = deletion(table, head)
    assert delete(read, action).verdict == "done"
    assert recreate(read, deletion(table, "42")).error == (
        "table db.t has no snapshot 42 any more, because a later plan or another program expired it"
    )
    main = refs(table)["main"]
    table.branch(START + 5 * DAY, "tmp", main)
    outcome = recreate(read, action)
    assert (outcome.verdict, refs(table)["tmp"]) == ("changed", main)
    assert (outcome.error or "").startswith(f"the name is in use: branch tmp points at snapshot {main} now")


def test_deleting_branch_of_dropped_table_changes_nothing(tmp_path: Path) -> None:
    builder = LakeBuilder(tmp_path)
    table, head = write_table(builder)
    action = deletion(table, head)
    builder.catalog.drop_table("db.t")
    read = IcebergLake(builder.config(retention=RULES), LocalObjects())
    assert as_branch_lake(read) is not None
    assert delete(read, action).verdict == "changed"
