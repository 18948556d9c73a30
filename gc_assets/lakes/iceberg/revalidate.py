"""Decides which approved edits of one table are still right, given its registrations and policy as
they are now.

Pure: no catalog, no pyiceberg. It never asks for more than was approved, nor for anything that the
fresh policy does not ask for.
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
    """What leaves one registration. It was decided on the metadata `before`. `actions` are the
    edits that the removal carries out.
    """

    name: str
    before: TableMetadata
    snapshot_ids: frozenset[str]
    ref_names: frozenset[str]
    actions: frozenset[ExpiryAction]

    @property
    def retained(self) -> tuple[Snapshot, ...]:
        return tuple(snapshot for snapshot in self.before.snapshots if snapshot.snapshot_id not in self.snapshot_ids)

    @property
    def refs(self) -> tuple[SnapshotRef, ...]:
        """The refs that stay."""
        return tuple(ref for ref in self.before.refs if ref.name not in self.ref_names)


@dataclass(frozen=True, slots=True)
class Decision:
    """The removals to commit, at most one per registration, and the actions that need none:
    `absent` or `changed`.
    """

    removals: tuple[Removal, ...]
    settled: Mapping[ExpiryAction, ExpiryOutcome]


def decide(actions: Sequence[ExpiryAction], registrations: Sequence[Registration], retention: Retention) -> Decision:
    """Decides which actions to carry out. `retention` is the policy over all `registrations` of the
    table together.
    """
    asked = {(row["action"], row["snapshot_id"], row["ref_name"]) for row in retention.expiry.to_pylist()}
    refs = {item.name: {ref.name: ref for ref in item.table.refs} for item in registrations}
    to_do: dict[str, dict[ExpiryAction, None]] = defaultdict(dict)
    settled: dict[ExpiryAction, ExpiryOutcome] = {}

    for action in (action for action in actions if action.action == DELETE_REF):
        found = {name: own[action.ref_name] for name, own in refs.items() if action.ref_name in own}
        same = [name for name, ref in found.items() if (ref.ref_type, ref.snapshot_id) == (action.ref_type, action.snapshot_id)]
        if not found:
            settled[action] = ExpiryOutcome(action, "absent")
        elif not same:
            now = next(iter(found.values()))
            settled[action] = _changed(action, f"{now.ref_type} {now.name} points at snapshot {now.snapshot_id} now")
        elif (DELETE_REF, action.snapshot_id, action.ref_name) not in asked:
            settled[action] = _changed(action, f"the policy keeps {action.ref_type} {action.ref_name} now")
        else:
            for name in same:
                to_do[name][action] = None

    leaving = {(name, action.ref_name) for name, own in to_do.items() for action in own}
    heads = {ref.snapshot_id: ref for name, own in refs.items() for ref in own.values() if (name, ref.name) not in leaving}
    listed = {item.name: {snapshot.snapshot_id for snapshot in item.table.snapshots} for item in registrations}
    reasons = dict(zip(retention.reachable["commit_id"].to_pylist(), retention.reachable["reason"].to_pylist(), strict=True))
    for action in (action for action in actions if action.action == REMOVE_SNAPSHOT):
        holders = [name for name, ids in listed.items() if action.snapshot_id in ids]
        head = heads.get(action.snapshot_id)
        if not holders:
            settled[action] = ExpiryOutcome(action, "absent")
        elif (REMOVE_SNAPSHOT, action.snapshot_id, None) not in asked:
            settled[action] = _changed(action, reasons[action.snapshot_id])
        elif head is not None:  # a ref that lapses too, but whose deletion nobody approved
            settled[action] = _changed(action, f"{head.ref_type} {head.name} points at it, and its deletion is not in this plan")
        else:
            for name in holders:
                to_do[name][action] = None
    return Decision(tuple(_removal(item, to_do[item.name]) for item in registrations if to_do[item.name]), settled)


def damage_after(removal: Removal, after: TableMetadata) -> str | None:
    """Returns what was to stay and is missing from metadata that the removal's commit wrote, or
    null where nothing is missing.
    """
    listed = {snapshot.snapshot_id for snapshot in after.snapshots}
    refs = {ref.name: ref for ref in after.refs}
    if after.table_uuid != removal.before.table_uuid:
        return f"{after.address} is of table {after.table_uuid}, expected {removal.before.table_uuid}"
    if lost := [snapshot.snapshot_id for snapshot in removal.retained if snapshot.snapshot_id not in listed]:
        return f"{after.address} lacks {len(lost):,} snapshots that were to stay, see {lost[0]}"
    for ref in removal.refs:
        now = refs.get(ref.name)
        if now is None or (now.ref_type, now.snapshot_id) != (ref.ref_type, ref.snapshot_id):
            found = "is gone" if now is None else f"is at {now.snapshot_id}"
            return f"{after.address}: {ref.ref_type} {ref.name} was to stay at snapshot {ref.snapshot_id} and {found}"
    return None


def left_after(removal: Removal, after: TableMetadata) -> str | None:
    """Returns what was to go and is still in metadata that the removal's commit wrote, or null
    where all of it went.
    """
    if left := sorted(removal.snapshot_ids & {snapshot.snapshot_id for snapshot in after.snapshots}):
        return f"{after.address} still lists {len(left):,} of the removed snapshots, see {left[0]}"
    if left := sorted(removal.ref_names & {ref.name for ref in after.refs}):
        return f"{after.address} still has ref {left[0]}"
    return None


def _removal(item: Registration, actions: Mapping[ExpiryAction, None]) -> Removal:
    return Removal(
        name=item.name,
        before=item.table,
        snapshot_ids=frozenset(action.snapshot_id for action in actions if action.action == REMOVE_SNAPSHOT),
        ref_names=frozenset(action.ref_name for action in actions if action.action == DELETE_REF and action.ref_name is not None),
        actions=frozenset(actions),
    )


def _changed(action: ExpiryAction, why: str) -> ExpiryOutcome:
    return ExpiryOutcome(action, "changed", why)
