"""Delete or recreate idle branches of a table in a single atomic commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gc_assets.lakes.iceberg.metadata import REF_SETTINGS, SnapshotRef, TableMetadata
from gc_assets.lakes.iceberg.registrations import Registration, find_protection
from gc_assets.lakes.iceberg.removal import BranchCreation
from gc_assets.lakes.iceberg.revalidate import Removal, find_damage
from gc_assets.lakes.iceberg.table_commit import TableChange, TableCommit
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome


@dataclass(slots=True)
class BranchEdits(TableCommit):
    """Commit that deletes or recreates branches of one table.

    Attributes:
        creates: True to recreate deleted branches, False to delete branches.
    """

    creates: bool

    def settle(self, registration: Registration) -> tuple[list[ExpiryOutcome], list[ExpiryAction]]:
        """Return the outcomes of actions without a commit, and the actions that need one."""
        found = {action: self._settle(action, registration) for action in self.actions}
        settled = [outcome for outcome in found.values() if outcome is not None]
        return settled, [action for action, outcome in found.items() if outcome is None]

    def _settle(self, action: ExpiryAction, registration: Registration) -> ExpiryOutcome | None:
        """Return an action's outcome if it does not need a commit, otherwise None."""
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

    def build_change(self, name: str, table: TableMetadata, pending: Sequence[ExpiryAction]) -> TableChange:
        """Build the commit that deletes or recreates the branches."""
        if self.creates:
            return BranchCreation(table, tuple(map(_read_branch, pending)))
        return Removal(name, table, frozenset(), frozenset(str(action.ref_name) for action in pending), frozenset(pending))

    def find_damage(self, change: TableChange, name: str, address: str) -> str | None:
        """Describe an unintended change in the new metadata, or return None."""
        return find_damage(change, self.read_registration(name, address).table) if isinstance(change, Removal) else None


def _read_branch(action: ExpiryAction) -> SnapshotRef:
    """Read a deleted branch and its settings from the action that deleted it."""
    properties: dict[str, str] = json.loads(action.details) if action.details else {}
    settings = {key: properties[key] for key in REF_SETTINGS if key in properties}
    return SnapshotRef(str(action.ref_name), "branch", action.snapshot_id, settings)
