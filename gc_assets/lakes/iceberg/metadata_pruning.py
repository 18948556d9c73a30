"""Remove approved schemas and partition specs from a table in a single atomic commit.

Snapshots are removed in an earlier, separate commit, so that they can also be removed in a catalog
that cannot remove schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gc_assets.lakes.iceberg.metadata import TableMetadata
from gc_assets.lakes.iceberg.registrations import Registration
from gc_assets.lakes.iceberg.removal import Pruning
from gc_assets.lakes.iceberg.table_commit import TableChange, TableCommit
from gc_assets.lakes.iceberg.unused_metadata import ReadLists, UsedMetadata, find_used, read_needed_schema
from gc_assets.lakes.protocol import REMOVE_SCHEMA, REMOVE_SPEC, ExpiryAction, ExpiryOutcome


@dataclass(slots=True)
class MetadataPruning(TableCommit):
    """Commit that removes unused schemas and specs from one table.

    Attributes:
        read_lists: Reads manifest lists, given their addresses, and summarizes them.
    """

    read_lists: ReadLists

    def settle(self, registration: Registration) -> tuple[list[ExpiryOutcome], list[ExpiryAction]]:
        """Return outcomes of actions that need no commit, and the actions that are still possible.

        Actions executed by an earlier commit get the outcome `done`.
        """
        if not registration.collect and not self.is_committed:
            return self.report("changed", f"table {registration.name} is no longer collected: {registration.exclusion}"), []
        table = registration.table
        used = self._find_used(table)
        settled, unused = list[ExpiryOutcome](), list[ExpiryAction]()
        for action in self.actions:
            number = int(action.snapshot_id)
            is_schema = action.action == REMOVE_SCHEMA
            if number not in (table.evolution.schemas if is_schema else table.evolution.specs):
                settled.append(ExpiryOutcome(action, "done" if self.is_committed else "absent"))
            elif number in (used.schemas if is_schema else used.specs):
                settled.append(ExpiryOutcome(action, "changed", "a snapshot uses this schema or spec now, or it is the current one"))
            else:
                unused.append(action)
        return settled, unused

    def _find_used(self, table: TableMetadata) -> UsedMetadata:
        snapshots = sorted(table.snapshots, key=lambda snapshot: snapshot.committed_at)
        schema_ids = [read_needed_schema(snapshot.summary) for snapshot in snapshots]
        return find_used(table.evolution, schema_ids, [snapshot.manifest_list for snapshot in snapshots], self.read_lists)

    def build_change(self, name: str, table: TableMetadata, pending: Sequence[ExpiryAction]) -> TableChange:
        """Build the commit that removes the schemas and specs."""
        del name
        schemas = frozenset(int(item.snapshot_id) for item in pending if item.action == REMOVE_SCHEMA)
        specs = frozenset(int(item.snapshot_id) for item in pending if item.action == REMOVE_SPEC)
        return Pruning(table, schemas, specs)
