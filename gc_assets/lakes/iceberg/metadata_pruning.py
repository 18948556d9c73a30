"""Remove approved schemas and partition specs from a table, in one atomic commit.

It runs after the expiry of the table, in a commit of its own: a catalog that cannot remove schemas
still removes snapshots.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.typedef import Identifier

from gc_assets.core.errors import GcError
from gc_assets.lakes.iceberg.catalog import CatalogClient, CatalogTable, CommitDenied, CommitRejected, NotLoadable
from gc_assets.lakes.iceberg.metadata import TableMetadata
from gc_assets.lakes.iceberg.removal import Pruning
from gc_assets.lakes.iceberg.table_expiry import FIRST_WAIT_SECONDS, MAX_ATTEMPTS, ReadRegistration
from gc_assets.lakes.iceberg.unused_metadata import SCHEMA_ID, ReadSpecs, UsedMetadata, find_used
from gc_assets.lakes.protocol import REMOVE_SCHEMA, REMOVE_SPEC, ExpiryAction, ExpiryOutcome, ExpiryVerdict


@dataclass(slots=True)
class MetadataPruning:
    """Removal of unused schemas and specs of one table.

    Attributes:
        catalog: The client of the catalog.
        read_registration: Reads the registration of a name and a metadata address.
        read_specs: Reads the partition specs of manifest lists.
        uuid: The uuid of the table.
        locations: Its names.
        actions: The approved removals.
        is_committed: True if a commit was sent.
    """

    catalog: CatalogClient
    read_registration: ReadRegistration
    read_specs: ReadSpecs
    uuid: str
    locations: Sequence[Identifier]
    actions: Sequence[ExpiryAction]
    is_committed: bool = field(default=False)

    def run(self) -> list[ExpiryOutcome]:
        """Remove what is still unused and return one outcome per action. Errors become outcomes."""
        try:
            return self._run()
        except Exception as error:  # noqa: BLE001 - an error of a catalog or store fails only this table
            reason = str(error) if isinstance(error, GcError) else f"{type(error).__name__}: {error}"
            if self.is_committed:
                reason = f"a commit was sent, but its outcome is unknown: {reason}; apply again"
            return self._report("denied" if isinstance(error, CommitDenied | NotLoadable) and not self.is_committed else "failed", reason)

    def _run(self) -> list[ExpiryOutcome]:
        if len(self.locations) != 1:
            return self._report("changed", f"the catalog has {len(self.locations)} tables with uuid {self.uuid} now, expected 1")
        attempt = 0
        while True:
            loaded = self.catalog.load(self.locations[0])
            if loaded is None or loaded.table_uuid not in {self.uuid, None}:
                return self._report("changed", f"the catalog no longer has a table with uuid {self.uuid}: it was dropped or re-created")
            registration = self.read_registration(loaded.name, loaded.metadata_location)
            if not registration.collect and not self.is_committed:
                return self._report("changed", f"table {loaded.name} is no longer collected: {registration.exclusion}")
            table = registration.table
            settled, unused = self._revalidate(table)
            if not unused:
                return settled
            if self.is_committed:
                ignored = "the catalog accepted the commit, but the table still has it; apply again"
                return [*settled, *(ExpiryOutcome(action, "failed", ignored) for action in unused)]
            try:
                self._commit(loaded, table, unused)
            except CommitRejected as error:
                attempt += 1
                if attempt == MAX_ATTEMPTS:
                    return [*settled, *(ExpiryOutcome(action, "failed", str(error)) for action in unused)]
                time.sleep(FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries

    def _revalidate(self, table: TableMetadata) -> tuple[list[ExpiryOutcome], list[ExpiryAction]]:
        """Return outcomes of the actions that need no commit, and the others.

        An action that an own commit executed is `done`.
        """
        used = self._find_used(table)
        settled, unused = list[ExpiryOutcome](), list[ExpiryAction]()
        for action in self.actions:
            number = int(action.snapshot_id)
            is_schema = action.action == REMOVE_SCHEMA
            if number not in (table.evolution.schemas if is_schema else table.evolution.specs):
                settled.append(ExpiryOutcome(action, "done" if self.is_committed else "absent"))
            elif number in (used.schemas if is_schema else used.specs):
                settled.append(ExpiryOutcome(action, "changed", "a listed snapshot uses it now, or it is the current one"))
            else:
                unused.append(action)
        return settled, unused

    def _find_used(self, table: TableMetadata) -> UsedMetadata:
        snapshots = sorted(table.snapshots, key=lambda snapshot: snapshot.committed_at)
        schema_ids = [snapshot.summary.get(SCHEMA_ID) for snapshot in snapshots]
        return find_used(table.evolution, schema_ids, [snapshot.manifest_list for snapshot in snapshots], self.read_specs)

    def _commit(self, loaded: CatalogTable, table: TableMetadata, unused: Sequence[ExpiryAction]) -> None:
        schemas = frozenset(int(item.snapshot_id) for item in unused if item.action == REMOVE_SCHEMA)
        specs = frozenset(int(item.snapshot_id) for item in unused if item.action == REMOVE_SPEC)
        try:
            self.catalog.commit(loaded, Pruning(table, schemas, specs))
        except (CommitRejected, CommitDenied):
            raise
        except GcError:  # it may have taken effect: the next load of the table shows that
            self.is_committed = True
            raise
        self.is_committed = True

    def _report(self, verdict: ExpiryVerdict, reason: str) -> list[ExpiryOutcome]:
        return [ExpiryOutcome(action, verdict, reason) for action in self.actions]
