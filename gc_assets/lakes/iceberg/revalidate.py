"""Revalidate a table's approved history edits before they are executed.

They are compared with the table's current registrations (its names in the catalog) and policy.
Edits that the current policy no longer requires are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gc_assets.lakes.iceberg.metadata import Snapshot, SnapshotRef, TableMetadata
from gc_assets.lakes.iceberg.registrations import Registration
from gc_assets.lakes.protocol import DELETE_REF, REMOVE_SNAPSHOT, ExpiryAction, ExpiryOutcome, Retention


@dataclass(frozen=True, slots=True)
class Removal:
    """Snapshots and refs to remove from one registration of a table.

    `base` is the table metadata on which the removal is based. `actions` are the approved edits
    that it executes.
    """

    name: str
    base: TableMetadata
    snapshot_ids: frozenset[str]
    ref_names: frozenset[str]
    actions: frozenset[ExpiryAction]

    @property
    def retained(self) -> tuple[Snapshot, ...]:
        return tuple(snapshot for snapshot in self.base.snapshots if snapshot.snapshot_id not in self.snapshot_ids)

    @property
    def refs(self) -> tuple[SnapshotRef, ...]:
        """Branches and tags that remain after the removal."""
        return tuple(ref for ref in self.base.refs if ref.name not in self.ref_names)


@dataclass(frozen=True, slots=True)
class PendingRemovals:
    """Removals to commit, at most one for each registration of a table.

    `settled` contains the outcomes of actions that do not need a commit, either `absent` or
    `changed`.
    """

    removals: tuple[Removal, ...]
    settled: Mapping[ExpiryAction, ExpiryOutcome]


def revalidate(actions: Sequence[ExpiryAction], registrations: Sequence[Registration], retention: Retention) -> PendingRemovals:
    """Determine which approved history edits are still valid.

    Args:
        actions: Approved edits of one table.
        registrations: Current registrations of the table.
        retention: Decisions of the current policy, computed from all `registrations` together.
    """
    requested = {(row["action"], row["snapshot_id"], row["ref_name"]) for row in retention.expiry.to_pylist()}
    refs = {item.name: {ref.name: ref for ref in item.table.refs} for item in registrations}
    confirmed: dict[str, dict[ExpiryAction, None]] = defaultdict(dict)
    settled: dict[ExpiryAction, ExpiryOutcome] = {}

    def record(action: ExpiryAction, result: ExpiryOutcome | Sequence[str]) -> None:
        if isinstance(result, ExpiryOutcome):
            settled[action] = result
        else:
            for name in result:
                confirmed[name][action] = None

    for action in (action for action in actions if action.action == DELETE_REF):
        record(action, _revalidate_ref_deletion(action, refs, requested))

    heads = _find_kept_heads(refs, confirmed)
    listed = {item.name: {snapshot.snapshot_id for snapshot in item.table.snapshots} for item in registrations}
    reasons = dict(zip(retention.reachable["commit_id"].to_pylist(), retention.reachable["reason"].to_pylist(), strict=True))
    for action in (action for action in actions if action.action == REMOVE_SNAPSHOT):
        holders = [name for name, ids in listed.items() if action.snapshot_id in ids]
        if not holders:
            record(action, ExpiryOutcome(action, "absent"))
        elif (REMOVE_SNAPSHOT, action.snapshot_id, None) not in requested:
            record(action, _report_change(action, reasons[action.snapshot_id]))
        else:
            record(action, _revalidate_snapshot_removal(action, holders, heads.get(action.snapshot_id)))
    return PendingRemovals(tuple(_build_removal(item, confirmed[item.name]) for item in registrations if confirmed[item.name]), settled)


def _revalidate_ref_deletion(
    action: ExpiryAction, refs: Mapping[str, dict[str, SnapshotRef]], requested: set[tuple[str, str, str | None]]
) -> ExpiryOutcome | Sequence[str]:
    """Return the names of the registrations in which to delete a ref, or the final outcome.

    `refs` maps the name of each registration to its refs. `requested` contains the edits that the
    current policy requires.
    """
    found = {name: own[action.ref_name] for name, own in refs.items() if action.ref_name in own}
    same = [name for name, ref in found.items() if (ref.ref_type, ref.snapshot_id) == (action.ref_type, action.snapshot_id)]
    if not found:
        return ExpiryOutcome(action, "absent")
    if not same:
        now = next(iter(found.values()))
        return _report_change(action, f"{now.ref_type} {now.name} points at snapshot {now.snapshot_id} now")
    if (DELETE_REF, action.snapshot_id, action.ref_name) not in requested:
        return _report_change(action, f"the policy keeps {action.ref_type} {action.ref_name} now")
    return same


def _find_kept_heads(
    refs: Mapping[str, dict[str, SnapshotRef]], confirmed: Mapping[str, dict[ExpiryAction, None]]
) -> dict[str, SnapshotRef]:
    """Map each snapshot that is the head of a remaining branch or tag to one such ref."""
    deleted_refs = {(name, action.ref_name) for name, own in confirmed.items() for action in own}
    return {ref.snapshot_id: ref for name, own in refs.items() for ref in own.values() if (name, ref.name) not in deleted_refs}


def _revalidate_snapshot_removal(action: ExpiryAction, holders: Sequence[str], head: SnapshotRef | None) -> ExpiryOutcome | Sequence[str]:
    if head is not None:  # This ref has lapsed as well, but its deletion was not approved.
        return _report_change(action, f"{head.ref_type} {head.name} points at it, and its deletion is not in this plan")
    return holders


def find_damage(removal: Removal, after: TableMetadata) -> str | None:
    """Describe the first snapshot or ref that a commit removed without approval, or return None."""
    listed = {snapshot.snapshot_id for snapshot in after.snapshots}
    refs = {ref.name: ref for ref in after.refs}
    if after.table_uuid != removal.base.table_uuid:
        return f"{after.address} belongs to table {after.table_uuid}, expected {removal.base.table_uuid}"
    if missing := [snapshot.snapshot_id for snapshot in removal.retained if snapshot.snapshot_id not in listed]:
        return f"{after.address} lacks {len(missing):,} snapshots that the plan keeps, for example {missing[0]}"
    for ref in removal.refs:
        now = refs.get(ref.name)
        if now is None or (now.ref_type, now.snapshot_id) != (ref.ref_type, ref.snapshot_id):
            found = "is gone" if now is None else f"is at {now.snapshot_id}"
            return f"{after.address}: the plan keeps {ref.ref_type} {ref.name} at snapshot {ref.snapshot_id}, but it {found}"
    return None


def find_leftovers(removal: Removal, after: TableMetadata) -> str | None:
    """Describe the first approved snapshot or ref that a commit did not remove, or return None."""
    if left := sorted(removal.snapshot_ids & {snapshot.snapshot_id for snapshot in after.snapshots}):
        return f"{after.address} still lists {len(left):,} of the removed snapshots, for example {left[0]}"
    if left := sorted(removal.ref_names & {ref.name for ref in after.refs}):
        return f"{after.address} still has ref {left[0]}"
    return None


def _build_removal(item: Registration, actions: Mapping[ExpiryAction, None]) -> Removal:
    return Removal(
        name=item.name,
        base=item.table,
        snapshot_ids=frozenset(action.snapshot_id for action in actions if action.action == REMOVE_SNAPSHOT),
        ref_names=frozenset(action.ref_name for action in actions if action.action == DELETE_REF and action.ref_name is not None),
        actions=frozenset(actions),
    )


def _report_change(action: ExpiryAction, reason: str) -> ExpiryOutcome:
    return ExpiryOutcome(action, "changed", reason)
