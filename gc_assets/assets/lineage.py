"""Column lineage of the published tables, for Dagster.

It only contains columns that are copied from a single column of an input table. For example, the
keys in `live_files` have several origins and are therefore omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import dagster as dg

from gc_assets.assets.names import asset_key
from gc_assets.config.models import Config
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.state.schemas import (
    COMMIT_GRAPH,
    CURRENT_RULES,
    DELETION_LOG,
    DELETION_PLAN,
    EXPIRY_LOG,
    EXPIRY_PLAN,
    LIVE_CONTENTS,
    LIVE_FILES,
    MANIFEST_ENTRIES,
    ORPHAN_FILES,
    POLICY_TABLE,
    REACHABLE_SNAPSHOTS,
    STORAGE_INVENTORY,
    Table,
)

Origin = tuple[Table, str]


def _same(table: Table, *names: str) -> dict[str, Origin]:
    return {name: (table, name) for name in names}


ORIGINS: Final[Mapping[str, Mapping[str, Origin]]] = {
    CURRENT_RULES.name: _same(POLICY_TABLE, "rule_id", "prefix", "branch", "date_to_be_deleted", "scope"),
    REACHABLE_SNAPSHOTS.name: _same(COMMIT_GRAPH, "table_uuid", "commit_id", "table_name"),
    EXPIRY_PLAN.name: {"snapshot_id": (COMMIT_GRAPH, "commit_id"), **_same(COMMIT_GRAPH, "table_uuid", "table_name")},
    EXPIRY_LOG.name: _same(
        EXPIRY_PLAN,
        "table_uuid",
        "snapshot_id",
        "action",
        "ref_name",
        "ref_type",
        "old_parent_id",
        "new_parent_id",
        "reason",
        "table_name",
    ),
    LIVE_CONTENTS.name: _same(COMMIT_GRAPH, "commit_id"),
    table_with(TableRole.HISTORY).name: {
        "snapshot_id": (COMMIT_GRAPH, "commit_id"),
        **_same(COMMIT_GRAPH, "table_uuid", "table_name", "committed_at"),
        **_same(REACHABLE_SNAPSHOTS, "refs"),
    },
    LIVE_FILES.name: {**_same(REACHABLE_SNAPSHOTS, "commit_id", "table_uuid"), **_same(MANIFEST_ENTRIES, "container")},
    ORPHAN_FILES.name: _same(STORAGE_INVENTORY, "key", "size_bytes", "last_modified", "etag", "version_id"),
    DELETION_PLAN.name: _same(ORPHAN_FILES, "held_by", "held_by_table", "dangling_commits"),
    DELETION_LOG.name: _same(DELETION_PLAN, "key", "size_bytes", "etag", "source_plan_id", "quarantine", "kind"),
}


def column_lineage(config: Config, group: str, table: Table) -> dict[str, dg.TableColumnLineage]:
    """Return the metadata that shows the column lineage of a table, if it has any."""
    origins = ORIGINS.get(table.name)
    if origins is None:
        return {}
    deps = {name: [dg.TableColumnDep(asset_key(config, group, source), column)] for name, (source, column) in origins.items()}
    return {"dagster/column_lineage": dg.TableColumnLineage(deps)}
