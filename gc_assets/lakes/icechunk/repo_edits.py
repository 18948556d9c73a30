"""Edit the content of the `repo` object for expiry and restore.

All functions are pure. They follow the rules in the library's `ops/gc.rs` and `repo_info.rs`:

- If a snapshot gets a new parent, it takes over the transaction logs of the snapshots between the
  two.
- The operations log gets a new entry with a later time. The previous entry gets the name of the
  backup copy in `overwritten/`.

Unlike the library, an edit preserves everything else, including reserved bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk.ids import is_object_id
from gc_assets.lakes.icechunk.repo_info import MAIN, RepoInfo, SnapshotInfo
from gc_assets.lakes.icechunk.repo_updates import Update, UpdateKind
from gc_assets.lakes.protocol import RefType

# The library's default for `num_updates_per_repo_info_file`.
MAX_UPDATES: Final = 1000

RefKey = tuple[RefType, str]
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RepoEdits:
    """Changes to make in the object `repo`.

    Attributes:
        parents: New parents of listed snapshots. These snapshots take over the transaction logs of
            the ancestors that are cut off.
        removed: Snapshots to remove from the list.
        deleted_refs: Refs to delete.
        restored: Snapshot entries to list again, or to replace because their parent differs.
        created_branches: Branches to create, with their head snapshots.
    """

    parents: Mapping[str, str] = field(default_factory=dict[str, str])
    removed: Collection[str] = ()
    deleted_refs: Collection[RefKey] = ()
    restored: Mapping[str, SnapshotInfo] = field(default_factory=dict[str, SnapshotInfo])
    created_branches: Mapping[str, str] = field(default_factory=dict[str, str])

    def __bool__(self) -> bool:
        return bool(self.parents or self.removed or self.deleted_refs or self.restored or self.created_branches)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """New entry for the operations log.

    Attributes:
        kind: Kind of operation.
        now_us: Current time in microseconds since 1970. The library requires increasing times, so
            if this is not later than the newest entry, the entry gets the next microsecond.
        backup: Name of the copy in `overwritten/` of the `repo` object that is replaced.
        max_updates: Maximum number of entries in `repo`. Older entries are only kept in copies.
    """

    kind: UpdateKind
    now_us: int
    backup: str
    max_updates: int = MAX_UPDATES


def apply_edits(source: str, info: RepoInfo, edits: RepoEdits, entry: LogEntry) -> RepoInfo:
    """Apply edits to the content of `repo` and return the new content.

    Args:
        source: Name of the object for error messages.
        info: Current content.
        edits: Changes to make.
        entry: New entry for the operations log.

    Raises:
        FormatError: If the edits do not fit the content, or would leave a ref or parent that refers
            to an unlisted snapshot.
    """
    snapshots = dict(info.snapshots)
    for snapshot_id, parent in edits.parents.items():
        snapshots[snapshot_id] = _with_parent(source, info, snapshot_id, parent)
    for snapshot_id in edits.removed:
        snapshots.pop(snapshot_id, None)
    snapshots |= edits.restored
    deleted = {name for ref_type, name in edits.deleted_refs if ref_type == "tag" and name in info.tags}
    branches = {name: head for name, head in info.branches.items() if ("branch", name) not in edits.deleted_refs}
    edited = replace(
        info,
        branches=_sort_names({**branches, **edits.created_branches}),
        tags=_sort_names({name: head for name, head in info.tags.items() if name not in deleted}),
        deleted_tags=tuple(sorted({*info.deleted_tags, *deleted})),
        snapshots=_sort_names(snapshots),
        **_log(source, info, entry),
    )
    verify(source, edited)
    return edited


def verify(source: str, info: RepoInfo) -> None:
    """Raise `FormatError` if the Icechunk library could not read this content of `repo`."""
    if MAIN not in info.branches:
        raise FormatError(f"{source}: the edit would leave no branch {MAIN!r}; nothing was changed")
    for ref_type, refs in (("branch", info.branches), ("tag", info.tags)):
        for name, head in refs.items():
            if head not in info.snapshots:
                raise FormatError(
                    f"{source}: the edit would leave {ref_type} {name!r} at snapshot {head}, which is not listed; nothing was changed"
                )
    for entry in info.snapshots.values():
        if entry.parent_id is not None and entry.parent_id not in info.snapshots:
            raise FormatError(
                f"{source}: the edit would leave snapshot {entry.snapshot_id} with the parent {entry.parent_id}, which is not listed; "
                "nothing was changed"
            )
    _verify_no_ring(source, info)


def _verify_no_ring(source: str, info: RepoInfo) -> None:
    known: set[str] = set()
    for start in info.snapshots:
        line: dict[str, None] = {}
        at: str | None = start
        while at is not None and at not in known:
            if at in line:
                raise FormatError(f"{source}: the edit would make snapshot {at} its own ancestor; nothing was changed")
            line[at] = None
            at = info.snapshots[at].parent_id
        known |= line.keys()


def needed_snapshots(info: RepoInfo, edits: RepoEdits) -> set[str]:
    """Return the ids of the snapshots that `repo` must still list after the edits.

    These are the heads of remaining refs, the entries that are not removed, and all their
    ancestors. If one of them were removed, a ref or parent would refer to a missing entry.
    """
    removed = set(edits.removed)
    heads = [head for name, head in info.branches.items() if ("branch", name) not in edits.deleted_refs]
    heads += [head for name, head in info.tags.items() if ("tag", name) not in edits.deleted_refs]
    needed: set[str] = set()
    for start in (*heads, *(snapshot for snapshot in info.snapshots if snapshot not in removed)):
        at: str | None = start
        while at is not None and at not in needed:
            needed.add(at)
            at = edits.parents.get(at, info.snapshots[at].parent_id)
    return needed


def entry_document(entry: SnapshotInfo) -> str:
    """Serialize a snapshot's entry as JSON, without its id and parent."""
    metadata = [[name, base64.b64encode(value).decode()] for name, value in entry.metadata]
    document: dict[str, Any] = {"flushed_us": entry.flushed_us, "message": entry.message}
    document |= {"metadata": metadata} if metadata else {}
    document |= {"pruned_logs": list(entry.pruned_logs)} if entry.pruned_logs else {}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def parse_entry(snapshot_id: str, parent_id: str | None, document: str) -> SnapshotInfo:
    """Parse the result of `entry_document`.

    Raises:
        FormatError: If the document does not have the format of `entry_document`.
    """
    try:
        fields: dict[str, Any] = json.loads(document)
        return SnapshotInfo(
            snapshot_id=_id(snapshot_id),
            parent_id=None if parent_id is None else _id(parent_id),
            flushed_us=int(fields["flushed_us"]),
            message=str(fields["message"]),
            metadata=tuple((str(name), base64.b64decode(value, validate=True)) for name, value in fields.get("metadata", ())),
            pruned_logs=tuple(map(_id, fields.get("pruned_logs", ()))),
        )
    except (binascii.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"snapshot {snapshot_id}: the plan has damaged details ({error!r}); restore the state from a backup") from error


def with_old_parent(source: str, entry: SnapshotInfo, parent: str, details: str) -> SnapshotInfo:
    """Return a snapshot's entry as it was before an edit, with its old parent and logs.

    Icechunk 2.0 drops the logs of expired ancestors from `repo` with every commit. If they are
    missing, the plan's entry is used.

    Args:
        source: Name of the object for error messages.
        entry: Current entry.
        parent: Old parent.
        details: The entry before the edit, as written by `entry_document`.

    Raises:
        FormatError: If the logs are missing and the entry differs from that in the plan.
    """
    if parent in entry.pruned_logs:
        own = entry.pruned_logs[entry.pruned_logs.index(parent) + 1 :]
        return replace(entry, parent_id=parent, pruned_logs=own)
    planned = parse_entry(entry.snapshot_id, parent, details)
    if planned != replace(entry, parent_id=parent, pruned_logs=planned.pruned_logs):
        raise FormatError(
            f"{source}: the logs of snapshot {entry.snapshot_id} do not contain {parent} (icechunk 2.0 drops them), and its time, "
            "message or metadata differ from those in the plan; left unchanged"
        )
    return planned


def _id(name: str) -> str:
    if not is_object_id(name):
        raise ValueError(f"expected an object id, found {name!r}")
    return name


def _with_parent(source: str, info: RepoInfo, snapshot_id: str, parent: str) -> SnapshotInfo:
    """Give a snapshot's entry another parent, and the logs of the ancestors that this cuts off."""
    entry = info.snapshots[snapshot_id]
    between = list(_ancestors_until(source, info, entry, parent))
    logs = [log for ancestor in reversed(between) for log in (*ancestor.pruned_logs, ancestor.snapshot_id)]
    return replace(entry, parent_id=parent, pruned_logs=(*logs, *entry.pruned_logs))


def _ancestors_until(source: str, info: RepoInfo, entry: SnapshotInfo, end: str) -> Iterator[SnapshotInfo]:
    at = entry.parent_id
    while at != end:
        if at is None:
            raise FormatError(f"{source}: snapshot {end} is not an ancestor of snapshot {entry.snapshot_id}; nothing was changed")
        yield info.snapshots[at]
        at = info.snapshots[at].parent_id


def _log(source: str, info: RepoInfo, entry: LogEntry) -> dict[str, Any]:
    """Return the operations log with the new entry, as fields of `RepoInfo`.

    After `max_updates` entries, the log continues in the backup copy to which the first dropped
    entry refers. As in the Icechunk library, entries without such a copy are kept.
    """
    if not info.updates or info.updates[0].backup_path is not None:
        raise FormatError(f"{source}: expected an operations log whose newest operation has no copy; nothing was changed")
    newest = replace(info.updates[0], backup_path=entry.backup)
    updates = [Update(entry.kind, {}, max(entry.now_us, newest.updated_us + 1))]
    for update in (newest, *info.updates[1:]):
        if len(updates) >= entry.max_updates and update.backup_path is not None:
            return {"updates": tuple(updates), "repo_before_updates": update.backup_path}
        updates.append(update)
    return {"updates": tuple(updates)}


def _sort_names(items: Mapping[str, V]) -> dict[str, V]:
    # Sorting by code points is the same as sorting by UTF-8 bytes. Ids sort like their bytes.
    return dict(sorted(items.items()))
