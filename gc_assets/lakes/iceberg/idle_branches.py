"""Delete idle branches of a table, or create them again, in one atomic commit."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.typedef import Identifier

from gc_assets.core.errors import GcError
from gc_assets.lakes.iceberg.catalog import CatalogClient, CatalogTable, CommitDenied, CommitRejected, NotLoadable
from gc_assets.lakes.iceberg.metadata import REF_SETTINGS, SnapshotRef, TableMetadata
from gc_assets.lakes.iceberg.registrations import Registration, find_protection
from gc_assets.lakes.iceberg.removal import BranchCreation
from gc_assets.lakes.iceberg.revalidate import Removal, find_damage
from gc_assets.lakes.iceberg.table_expiry import FIRST_WAIT_SECONDS, MAX_ATTEMPTS, ReadRegistration
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome, ExpiryVerdict


@dataclass(slots=True)
class BranchEdits:
    """Deletion or creation of branches of one table.

    Attributes:
        catalog: The client of the catalog.
        read_registration: Reads the registration of a name and a metadata address.
        uuid: The uuid of the table.
        locations: Its names.
        actions: The deletions to make, or to undo.
        creates: True to create the deleted branches again.
        is_committed: True if a commit was sent.
        damage: Unplanned changes of a commit, or None.
    """

    catalog: CatalogClient
    read_registration: ReadRegistration
    uuid: str
    locations: Sequence[Identifier]
    actions: Sequence[ExpiryAction]
    creates: bool
    is_committed: bool = field(default=False)
    damage: str | None = field(default=None)

    def run(self) -> list[ExpiryOutcome]:
        """Change the branches and return one outcome per action. Errors become outcomes."""
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
            if registration.table.table_uuid != self.uuid:
                return self._report(
                    "changed", f"table {loaded.name} has the uuid {registration.table.table_uuid} now, expected {self.uuid}"
                )
            found = {action: self._settle(action, registration) for action in self.actions}
            pending = [action for action, outcome in found.items() if outcome is None]
            settled = [outcome for outcome in found.values() if outcome is not None]
            if not pending:
                return settled
            if self.is_committed:
                ignored = self.damage or "the catalog accepted the commit, but the table did not change; apply again"
                return [*settled, *(ExpiryOutcome(action, "failed", ignored, damaged=self.damage is not None) for action in pending)]
            try:
                self._commit(loaded, registration.table, pending)
            except CommitRejected as error:
                attempt += 1
                if attempt == MAX_ATTEMPTS:
                    return [*settled, *(ExpiryOutcome(action, "failed", str(error)) for action in pending)]
                time.sleep(FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries

    def _settle(self, action: ExpiryAction, registration: Registration) -> ExpiryOutcome | None:
        """Return the outcome of an action that needs no commit, otherwise None."""
        refs = {ref.name: ref for ref in registration.table.refs}
        ref = refs.get(str(action.ref_name))
        is_same = ref is not None and (ref.ref_type, ref.snapshot_id) == ("branch", action.snapshot_id)
        if is_same if self.creates else ref is None:
            if self.is_committed and self.damage is not None:
                return ExpiryOutcome(action, "failed", self.damage, damaged=True)
            return ExpiryOutcome(action, "done" if self.is_committed else "absent")
        if self.creates:
            if ref is not None:
                used = f"the name is in use: {ref.ref_type} {ref.name} points at snapshot {ref.snapshot_id} now"
                return ExpiryOutcome(action, "changed", f"{used}; create a branch with another name at snapshot {action.snapshot_id}")
            if action.snapshot_id not in {snapshot.snapshot_id for snapshot in registration.table.snapshots}:
                gone = f"table {registration.name} has no snapshot {action.snapshot_id} any more"
                return ExpiryOutcome(action, "failed", f"{gone}, because a later plan or another program expired it")
            return None
        if ref is not None and not is_same:
            return ExpiryOutcome(action, "changed", f"{ref.ref_type} {ref.name} points at snapshot {ref.snapshot_id} now")
        protected = find_protection(registration, str(action.ref_name), ref.settings if ref is not None else {})
        return ExpiryOutcome(action, "changed", f"branch {action.ref_name} is kept: {protected}") if protected else None

    def _commit(self, loaded: CatalogTable, table: TableMetadata, pending: Sequence[ExpiryAction]) -> None:
        names = frozenset(str(action.ref_name) for action in pending)
        removal = Removal(loaded.name, table, frozenset(), names, frozenset(pending))
        change = BranchCreation(table, tuple(map(_read_branch, pending))) if self.creates else removal
        try:
            address = self.catalog.commit(loaded, change)
        except (CommitRejected, CommitDenied):
            raise
        except GcError:  # it may have taken effect: the next load of the table shows that
            self.is_committed = True
            raise
        self.is_committed = True
        if not self.creates and (damage := find_damage(removal, self.read_registration(loaded.name, address).table)):
            self.damage = f"the catalog accepted the commit, but {damage}"

    def _report(self, verdict: ExpiryVerdict, reason: str) -> list[ExpiryOutcome]:
        return [ExpiryOutcome(action, verdict, reason) for action in self.actions]


def _read_branch(action: ExpiryAction) -> SnapshotRef:
    """Return the deleted branch with its settings."""
    properties: dict[str, str] = json.loads(action.details) if action.details else {}
    settings = {key: properties[key] for key in REF_SETTINGS if key in properties}
    return SnapshotRef(str(action.ref_name), "branch", action.snapshot_id, settings)
