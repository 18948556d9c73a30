from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from gc_assets.core.errors import GcError
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.kind import KIND
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, PRUNING, ExpiryAction
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import in_turn
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.expiry_actions import AS_OF, DAY, START, plan_expiry, run_expiry, verdicts
from tests.lakes.iceberg.policy_server import LakekeeperServer, PolarisServer, polaris_policy
from tests.lakes.iceberg.random_evolutions import REMOVE, add_column, plan_all
from tests.lakes.iceberg.rest_server import RestServer, serve_catalog

pytestmark = in_turn

TWO_DAYS = [polaris_policy({"max_snapshot_age_days": 2})]


@pytest.fixture
def builder(tmp_path: Path) -> LakeBuilder:
    """Tables db.t and db.u with four snapshots each, all older than 100 days."""
    found = LakeBuilder(tmp_path)
    for name in ("db.t", "db.u"):
        table = found.table(name, START)
        for day in range(4):
            table.append(START + (day + 1) * DAY)
    return found


@pytest.fixture
def polaris(builder: LakeBuilder) -> Iterator[PolarisServer]:
    with serve_catalog(builder, PolarisServer(builder, {"db.t": TWO_DAYS, "db.u": TWO_DAYS})) as server:
        assert isinstance(server, PolarisServer)
        yield server


def configure(server: RestServer, **retention: Any) -> IcebergLakeConfig:
    path = "/catalog" if isinstance(server, LakekeeperServer) else ""
    catalog = {"type": "rest", "uri": server.uri + path, "token": "hunter2"}
    settings = {"catalog": catalog, "catalog_name": "default", "retention": {"source": "catalog", **retention}}
    return IcebergLakeConfig.model_validate({"name": "sales", "kind": "iceberg", **settings})


def lake(server: RestServer, **retention: Any) -> IcebergLake:
    return IcebergLake(configure(server, **retention), LocalObjects())


def count_removals(reader: IcebergLake) -> dict[str, int]:
    """Return the number of snapshots that a plan removes, by table."""
    names = [str(action.table_name) for action in plan_expiry(reader)]
    return {name: names.count(name) for name in sorted(set(names))}


def describe(server: RestServer, name: str, **retention: Any) -> str:
    """Return the retention of a table as `gc-assets run` shows it."""
    config, reader = configure(server, **retention), lake(server, **retention)
    source = next(source for source in reader.freeze(AS_OF).sources if source.table_name == name)
    return KIND.describe_retention(config, source.properties)


# Polaris


def test_polaris_policy_expires_snapshots_and_appears_in_reason(polaris: PolarisServer) -> None:
    assert count_removals(lake(polaris)) == {"db.t": 3, "db.u": 3}
    assert plan_expiry(lake(polaris))[0].reason == (
        "expired: older than max-snapshot-age 2d (inherited Polaris policy db.expire v3) on branch main and not among its newest 1"
    )
    assert describe(polaris, "db.t") == "the last 2d and at least 1 snapshot (Iceberg's defaults, inherited Polaris policy db.expire v3)"


def test_unreadable_policy_protects_only_affected_table(polaris: PolarisServer) -> None:
    polaris.policies["db.t"] = 403
    refs = lake(polaris).freeze(AS_OF)
    assert count_removals(lake(polaris)) == {"db.u": 3}
    assert {claim.table_name: claim.collect for claim in refs.claims} == {"db.t": False, "db.u": True}
    note = next(note for note in refs.notes if "db.t" in note)
    assert note.startswith("lake sales: all files of table db.t are kept: its policy in the catalog cannot be read: HTTPError: 403")
    assert "hunter2" not in note
    assert describe(polaris, "db.t").startswith("everything (its policy in the catalog cannot be read")


def test_unknown_policy_key_protects_table_and_is_reported(polaris: PolarisServer) -> None:
    polaris.policies["db.t"] = [polaris_policy({"max_snapshot_age_days": 2, "until": "2030"})]
    assert count_removals(lake(polaris)) == {"db.u": 3}
    assert next(note for note in lake(polaris).freeze(AS_OF).notes if "db.t" in note) == (
        "lake sales: all files of table db.t are kept: inherited Polaris policy db.expire v3 has the key 'config.until', which gc-assets "
        "does not support; correct it in the catalog, or set retention.source to table"
    )


def test_table_without_policy_or_configured_limit_keeps_all_history(polaris: PolarisServer) -> None:
    polaris.policies["db.t"] = []
    assert count_removals(lake(polaris)) == {"db.u": 3}
    assert describe(polaris, "db.t") == "everything (its catalog has no policy for snapshots)"
    assert count_removals(lake(polaris, max_snapshot_age="30d")) == {"db.t": 3, "db.u": 3}
    assert describe(polaris, "db.t", max_snapshot_age="30d") == "the last 30d and at least 1 snapshot (Iceberg's defaults, lakes.yaml)"
    assert describe(polaris, "db.u", max_snapshot_age="30d").startswith("the last 2d")


def test_min_snapshots_in_lakes_yaml_limits_policy(polaris: PolarisServer) -> None:
    polaris.policies["db.u"] = [polaris_policy({"max_snapshot_age_days": 0, "min_snapshots_to_keep": 3})]
    assert count_removals(lake(polaris, min_snapshots_to_keep=2)) == {"db.t": 2, "db.u": 1}
    assert describe(polaris, "db.t", min_snapshots_to_keep=2) == (
        "the last 2d and at least 2 snapshots (inherited Polaris policy db.expire v3, lakes.yaml)"
    )


def test_ref_rule_in_lakes_yaml_replaces_policy(polaris: PolarisServer) -> None:
    assert count_removals(lake(polaris, refs=[{"match": "main", "keep": "forever"}])) == {}


def test_what_if_replaces_policy(polaris: PolarisServer) -> None:
    changed = configure(polaris).with_retention("3650d")
    assert count_removals(IcebergLake(changed, LocalObjects())) == {}
    properties = lake(polaris).freeze(AS_OF).sources[0].properties
    found = KIND.describe_retention(changed, properties, "--retention 3650d")
    assert (found.startswith("the last 3650d and"), "--retention 3650d" in found, "lakes.yaml" in found) == (True, True, False)


def test_edit_is_skipped_if_policy_changed_after_plan(polaris: PolarisServer) -> None:
    actions = plan_expiry(lake(polaris))
    polaris.policies |= {"db.t": [polaris_policy({"max_snapshot_age_days": 3650})], "db.u": 500}
    assert verdicts(run_expiry(lake(polaris), actions)) == {"changed": 6}
    polaris.policies |= {"db.t": TWO_DAYS, "db.u": TWO_DAYS}
    assert verdicts(run_expiry(lake(polaris), actions)) == {"done": 6}


def test_branch_is_kept_if_new_policy_protects_table_after_plan(builder: LakeBuilder, polaris: PolarisServer) -> None:
    table = builder.table("db.v", START)
    head = table.append(START + DAY)
    table.branch(START + DAY, "tmp", head)
    polaris.policies["db.v"] = [polaris_policy(kind="orphan-file-removal", enable=False)]
    action = ExpiryAction(DELETE_IDLE_BRANCH, head, "idle", "branch", "tmp", table_uuid=table.uuid, table_name="db.v")
    (outcome,) = lake(polaris).delete_branches([action])
    assert (outcome.verdict, outcome.error) == (
        "changed",
        "branch tmp is kept: table db.v is not collected: inherited Polaris policy db.expire v3 is disabled",
    )
    del polaris.policies["db.v"]
    assert [item.verdict for item in lake(polaris).delete_branches([action])] == ["done"]
    polaris.policies["db.v"] = 500
    assert [item.verdict for item in lake(polaris).recreate_branches([action])] == ["done"]


def test_schema_is_kept_if_new_policy_protects_table_after_plan(builder: LakeBuilder, polaris: PolarisServer) -> None:
    table = builder.table("db.v", START)
    table.append(START + DAY)
    add_column(table, START + 2 * DAY, "colour")
    table.overwrite(START + 3 * DAY)
    polaris.policies["db.v"] = TWO_DAYS
    actions = [action for action in plan_all(lake(polaris, **REMOVE))[0] if action.table_name == "db.v"]
    assert verdicts(run_expiry(lake(polaris), [action for action in actions if action.action not in PRUNING])) == {"done": 2}
    pruning = [action for action in actions if action.action in PRUNING]
    polaris.policies["db.v"] = 403
    (outcome,) = run_expiry(lake(polaris, **REMOVE), pruning).values()
    assert outcome.verdict == "changed"
    assert (outcome.error or "").startswith("table db.v is no longer collected: its policy in the catalog cannot be read: HTTPError: 403")
    polaris.policies["db.v"] = TWO_DAYS
    assert verdicts(run_expiry(lake(polaris, **REMOVE), pruning)) == {"done": 1}


def list_as(server: PolarisServer, *identifiers: tuple[str, ...]) -> None:
    """Let the server list the table db.t under these identifiers, and no other table."""
    document = server.get(["main", "namespaces", "db", "tables", "t"], {})

    def answer(path: list[str]) -> tuple[int, Any] | None:
        match path:
            case ["main", "namespaces"]:
                return 200, {"namespaces": [list(identifier[:-1]) for identifier in identifiers]}
            case ["main", "namespaces", namespace, "tables"]:
                levels = unquote(namespace).split("\x1f")
                found = [identifier for identifier in identifiers if list(identifier[:-1]) == levels]
                return 200, {"identifiers": [{"namespace": levels, "name": identifier[-1]} for identifier in found]}
            case ["main", "namespaces", _, "tables", _]:
                return 200, document
            case _:
                return None

    server.on_get = answer


def test_policy_is_read_for_right_namespace_if_names_contain_dots(polaris: PolarisServer) -> None:
    polaris.policies = {"a.b.t": TWO_DAYS, "a\x1fb.t": [polaris_policy({"max_snapshot_age_days": 9})]}
    list_as(polaris, ("a.b", "t"))
    assert describe(polaris, "a.b.t").startswith("the last 2d")
    list_as(polaris, ("a", "b", "t"))
    assert describe(polaris, "a.b.t").startswith("the last 9d")


def test_tables_with_ambiguous_dotted_name_are_protected(polaris: PolarisServer) -> None:
    polaris.policies = {"a.b.t": TWO_DAYS, "a\x1fb.t": TWO_DAYS}
    list_as(polaris, ("a.b", "t"), ("a", "b", "t"))
    assert not any(claim.collect for claim in lake(polaris).freeze(AS_OF).claims)
    assert describe(polaris, "a.b.t").startswith(
        "everything (its policy in the catalog cannot be read: the catalog has 2 tables with this name, because dots separate the levels "
        "of a namespace and are also part of names; rename all but one of them, or set retention.source to table"
    )
    assert polaris.requests == []


def test_orphan_policy_sets_minimum_file_age_or_protects_table(polaris: PolarisServer) -> None:
    polaris.policies["db.t"] = [polaris_policy(kind="orphan-file-removal", max_orphan_file_age_in_days=30)]
    polaris.policies["db.u"] = [polaris_policy(kind="orphan-file-removal", enable=False)]
    refs = lake(polaris).freeze(AS_OF)
    assert refs.min_age_seconds == 30 * 86_400
    assert {claim.table_name: claim.collect for claim in refs.claims} == {"db.t": True, "db.u": False}
    assert "lake sales: no file younger than 30d is a candidate, because the catalog's policy for table db.t requires it" in refs.notes


def test_server_without_policy_api_protects_all_tables_and_adds_one_note(builder: LakeBuilder) -> None:
    with serve_catalog(builder) as server:
        refs = lake(server, max_snapshot_age="1d").freeze(AS_OF)
    assert not any(claim.collect for claim in refs.claims)
    assert [note for note in refs.notes if "set retention.source to table" in note] == [
        "lake sales: all files of 2 tables, for example db.t are kept: its policy in the catalog cannot be read: the server has neither "
        "the policy API of Polaris (its ENABLE_POLICY_STORE) nor the management API of Lakekeeper; set retention.source to table"
    ]


def test_policy_of_uncollected_table_is_not_requested(polaris: PolarisServer) -> None:
    config = configure(polaris).model_copy(update={"tables": ("db.u",)})
    IcebergLake(config, LocalObjects()).freeze(AS_OF)
    assert polaris.requests == ["db.u"]


# Lakekeeper


def test_lakekeeper_queue_expires_snapshots_and_appears_in_description(builder: LakeBuilder) -> None:
    queues = {"expire_snapshots": {"enable-expire-snapshots": True, "max-snapshot-age-ms": 86_400_000, "min-snapshots-to-keep": 2}}
    with serve_catalog(builder, LakekeeperServer(builder, queues)) as server:
        assert count_removals(lake(server)) == {"db.t": 2, "db.u": 2}
        assert describe(server, "db.t") == "the last 1d and at least 2 snapshots (Lakekeeper's queue expire_snapshots)"
        queues["expire_snapshots"]["enable-expire-snapshots"] = False
        assert count_removals(lake(server, max_snapshot_age="1d")) == {}
        del queues["expire_snapshots"]
        assert describe(server, "db.t") == "everything (its catalog has no policy for snapshots)"


def test_lakekeeper_queue_is_read_again_before_each_edit(builder: LakeBuilder) -> None:
    queues = {"expire_snapshots": {"enable-expire-snapshots": True, "max-snapshot-age-ms": 86_400_000}}
    server = LakekeeperServer(builder, queues)

    def reject(commit: Callable[[], int]) -> int:
        queues["expire_snapshots"]["enable-expire-snapshots"] = False
        return 409

    with serve_catalog(builder, server):
        actions = [action for action in plan_expiry(lake(server)) if action.table_name == "db.t"]
        server.on_commit = reject
        assert verdicts(run_expiry(lake(server), actions)) == {"changed": 3}
    assert server.commits == 1


@pytest.mark.parametrize("source", ["table", "catalog"])
def test_table_that_lakekeeper_can_restore_is_reported(builder: LakeBuilder, source: str) -> None:
    server = LakekeeperServer(builder, {})
    server.deleted = [{"id": uuid, "expiration-date": "2026-07-01T00:00:00Z"} for uuid in ("x", "Y")]
    with serve_catalog(builder, server):
        opened = lake(server, source=source)
        assert opened.find_recoverable({"y", "z"}) == {"y": "Lakekeeper can restore it until 2026-07-01T00:00:00Z"}
        assert opened.find_listed({"y": "db.gone"}) == {}


def test_deleted_lakekeeper_table_without_id_raises_error(builder: LakeBuilder) -> None:
    server = LakekeeperServer(builder, {})
    server.deleted = [{"expiration-date": "2026-07-01T00:00:00Z"}]
    with serve_catalog(builder, server), pytest.raises(GcError, match="the list tabulars has an item without an id"):
        lake(server).find_recoverable({"y"})


def test_catalog_without_soft_deletion_reports_no_recoverable_table(builder: LakeBuilder, polaris: PolarisServer) -> None:
    assert lake(polaris).find_recoverable({"y"}) == {}
    assert IcebergLake(builder.config(), LocalObjects()).find_recoverable({"y"}) == {}


def test_refs_frozen_before_policies_were_enabled_keep_all_history(polaris: PolarisServer) -> None:
    """`retention.source` was changed after the first run of the date."""
    config = configure(polaris)
    by_tables = config.model_copy(update={"retention": config.retention.model_copy(update={"source": "table"})})
    frozen = IcebergLake(by_tables, LocalObjects()).freeze(AS_OF)
    assert {KIND.describe_retention(config, source.properties) for source in frozen.sources} == {
        "everything (the policies of its catalog were not read when the refs were frozen)"
    }
