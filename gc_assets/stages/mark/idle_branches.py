"""Find a lake's idle branches, based on its commits and on the refs that earlier runs recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import replace_columns
from gc_assets.core.errors import GcError, LakeUnreadable, StateError
from gc_assets.core.idle_branches import Branch, BranchKey, IdleRule, Sighting, explain_idle, find_rule, find_unchanged_since
from gc_assets.core.phases import DONE, UNDONE
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.protocol import (
    DELETE_IDLE_BRANCH,
    DELETE_REF,
    EDIT_PARENT,
    PROTECTED,
    REMOVE_SNAPSHOT,
    RETAINED,
    FrozenRefs,
    Lake,
    Ref,
    Retention,
    as_expiring,
    as_filtered,
)
from gc_assets.stages.mark.previous_refs import list_previous_freezes
from gc_assets.stages.records.quarantine_clock import latest_time
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.index import PastRun
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS
from gc_assets.state.summaries import FreezeTime, LakeRefsSummary

_COLUMNS = ["table_uuid", "ref_name", "ref_type", "head_commit_id"]


@dataclass(frozen=True, slots=True)
class BranchLog:
    """Deletions of idle branches by earlier plans, as recorded in `expiry_log`.

    Attributes:
        rows: The newest outcome of each deletion, with the columns of `expiry_log`.
        edited_at: When a branch was last deleted, or its deletion last undone.
    """

    rows: tuple[Mapping[str, Any], ...] = ()
    edited_at: Mapping[BranchKey, datetime] = field(default_factory=dict[BranchKey, datetime])

    @classmethod
    def of(cls, log: Iterable[Mapping[str, Any]]) -> BranchLog:
        """Select branch deletions from rows of `expiry_log`, which are ordered oldest first."""
        newest: dict[tuple[str, str | None, str], Mapping[str, Any]] = {}
        edited_at: dict[BranchKey, datetime] = {}
        for row in log:
            if row["action"] == DELETE_IDLE_BRANCH:
                key = row["table_uuid"], row["ref_name"]
                newest[row["plan_id"], *key] = row
                if row["outcome"] in {DONE, UNDONE}:
                    edited_at[key] = max(row["at"], edited_at.get(key, row["at"]))
        return cls(tuple(newest.values()), edited_at)


@dataclass(frozen=True, slots=True)
class IdleBranchSearch:
    """Branches that match a rule for idle branches, and since when runs saw them unchanged.

    It can be pickled.

    Attributes:
        rules: The rules in order of priority.
        branches: Matching branches that are not protected.
        unchanged_since: For each branch, the time of the first run that saw its current head.
        as_of: Reference time for the ages of branches.
    """

    rules: tuple[IdleRule, ...]
    branches: tuple[Ref, ...]
    unchanged_since: Mapping[BranchKey, datetime]
    as_of: datetime

    def plan(self, commits: pa.Table, expiry: pa.Table, log: BranchLog) -> pa.Table:
        """Plan the deletion of idle branches.

        Args:
            commits: The lake's commit graph (columns of `commit_graph`).
            expiry: Other planned history edits. Branches that they delete are skipped.
            log: Earlier deletions. A branch that exists again was created after its deletion.

        Returns:
            The planned deletions (columns of `expiry_plan`).
        """
        lapsed = expiry.filter(pc.equal(expiry.column("action"), DELETE_REF))
        deleted = set(zip(lapsed.column("table_uuid").to_pylist(), lapsed.column("ref_name").to_pylist(), strict=True))
        times = _find_times(commits, self.branches)
        rows = list[dict[str, Any]]()
        for ref in self.branches:
            key = ref.table_uuid, ref.ref_name
            seen, edited = self.unchanged_since.get(key), log.edited_at.get(key)
            since = seen if seen is None or edited is None else max(seen, edited)
            branch = Branch(ref.ref_name, times.get((ref.table_uuid, ref.head_commit_id)), since)
            reason = explain_idle(branch, self.rules, self.as_of)
            if reason is not None and key not in deleted:
                rows.append(_to_row(ref, reason))
        return pa.Table.from_pylist(rows, EXPIRY_PLAN.schema)


def search_idle_branches(context: RunContext, lake_name: str, refs: FrozenRefs, frozen_at: datetime, as_of: datetime) -> IdleBranchSearch:
    """Find the branches that match a rule for idle branches, and since when they are unchanged.

    If a table is registered several times, its branches are skipped, because each name may have
    different branches.
    """
    rules = context.config.lake(lake_name).idle_rules
    names = dict[str | None, set[str | None]]()
    for ref in refs.refs:
        names.setdefault(ref.table_uuid, set()).add(ref.table_name)
    branches = [ref for ref in refs.refs if _is_candidate(ref, rules) and len(names[ref.table_uuid]) == 1]
    if not branches:
        return IdleBranchSearch(rules, (), {}, as_of)
    heads = {(ref.table_uuid, ref.ref_name): str(ref.head_commit_id) for ref in branches}
    until = as_of - max(rule.after for rule in rules)
    unchanged_since = find_unchanged_since(heads, _sightings(context, lake_name, frozen_at, heads.keys()), until)
    return IdleBranchSearch(rules, tuple(branches), unchanged_since, as_of)


def date_sighting(context: RunContext, lake_name: str, frozen_at: datetime) -> datetime | None:
    """Return when a run read a lake's branches, or None if the lake has no rule for idle branches.

    This is the latest time that this machine's clock or a store's clock shows. If only this
    machine's clock counted, and it were days behind, a branch would seem unchanged for days. Stores
    that do not respond are ignored.
    """
    if not context.config.lake(lake_name).idle_rules:
        return None
    times = [frozen_at]
    for storage in context.config.storages:
        with suppress(GcError, OSError):
            times.append(latest_time(context, storage.name))
    return max(times)


def find_deleted_branches(log: BranchLog, since: datetime, refs: FrozenRefs, commits: pa.Table) -> tuple[Ref, ...]:
    """Return the idle branches deleted by plans since a time, with their old heads.

    Any missing branch counts as deleted unless its deletion was undone. For example, an interrupted
    apply may have deleted it, or an undo may have failed. A branch is skipped if it exists again
    with the same head, or if its head is not in the graph.
    """
    heads = {(ref.table_uuid, ref.ref_name): ref.head_commit_id for ref in refs.refs}
    recent = [row for row in log.rows if row["outcome"] != UNDONE and row["at"] >= since]
    deleted = [row for row in recent if row["outcome"] == DONE or (row["table_uuid"], row["ref_name"]) not in heads]
    known = set(zip(commits.column("table_uuid").to_pylist(), commits.column("commit_id").to_pylist(), strict=True)) if deleted else set()
    table_names = {source.table_uuid: source.table_name for source in refs.sources}
    found: dict[tuple[str | None, str, str], Ref] = {}
    for row in deleted:
        uuid, name, head = row["table_uuid"], row["ref_name"], row["snapshot_id"]
        if (uuid, head) in known and heads.get((uuid, name)) != head:
            properties = json.loads(row["details"]) if row["details"] else {}
            found[uuid, name, head] = Ref(name, "branch", head, uuid, table_names.get(uuid, row["table_name"]), properties)
    return tuple(found.values())


def keep_deleted(
    lake: Lake, refs: FrozenRefs, deleted: Sequence[Ref], commits: pa.Table, retain: Callable[[FrozenRefs], Retention]
) -> Retention:
    """Apply the retention policy, but keep commits as if recently deleted branches still existed.

    The run that deletes a branch must not turn its files into garbage, because the deletion can
    still be undone.

    Raises:
        LakeUnreadable: If the history of a deleted branch is damaged and the lake has no tables. In
            other lakes, the branch's table keeps all its commits instead.
    """
    found = retain(refs)
    if not deleted or as_filtered(lake) is not None:  # these lakes keep deleted refs themselves
        return found
    names = ", ".join(sorted({ref.ref_name for ref in deleted}))
    reason = f"kept: for the grace period after the deletion of idle branches ({names})"
    try:
        before = retain(replace(refs, refs=(*refs.refs, *deleted)))
    except LakeUnreadable as error:
        tables = {ref.table_uuid for ref in deleted}
        if None in tables:
            raise LakeUnreadable(f"{error}. The history of deleted idle branches is kept for the grace period: {names}") from error
        affected = pa.array(sorted(map(str, tables)), pa.string())
        expiry = found.expiry.filter(pc.invert(pc.is_in(found.expiry.column("table_uuid"), affected)))
        note = f"lake {refs.lake}: the history of deleted idle branches ({names}) cannot be read, so their tables keep all commits: {error}"
        found = replace(found, expiry=expiry, notes=(*found.notes, note))
        return _keep(found, pc.is_in(found.reachable.column("table_uuid"), affected), reason)
    expiry = _select_common_edits(found.expiry, before.expiry)
    is_kept = pc.equal(before.reachable.column("state"), RETAINED)
    if as_expiring(lake) is not None and any(ref.table_uuid is None for ref in deleted):  # edits of these lakes remove parts of histories
        needed = _find_ancestors([str(ref.head_commit_id) for ref in deleted], commits, expiry)
        is_kept = pc.or_(is_kept, pc.is_in(before.reachable.column("commit_id"), pa.array(sorted(needed), pa.string())))
    return _keep(replace(found, expiry=expiry), is_kept, reason)


def _keep(found: Retention, is_kept: pa.ChunkedArray, reason: str) -> Retention:
    """Retain further commits, and cancel their planned removals."""
    is_new = pc.and_(is_kept, pc.not_equal(found.reachable.column("state"), RETAINED))
    values = {"state": RETAINED, "reason": reason}
    columns = {name: pc.if_else(is_new, pa.scalar(value, pa.string()), found.reachable.column(name)) for name, value in values.items()}
    reachable = replace_columns(found.reachable, columns)
    rows = reachable.filter(is_new)
    commits = set(zip(rows.column("table_uuid").to_pylist(), rows.column("commit_id").to_pylist(), strict=True))
    stays = [
        row["action"] != REMOVE_SNAPSHOT or (row["table_uuid"], row["snapshot_id"]) not in commits
        for row in found.expiry.select(["action", "table_uuid", "snapshot_id"]).to_pylist()
    ]
    return replace(found, reachable=reachable, expiry=found.expiry.filter(pa.array(stays, pa.bool_())))


def _select_common_edits(edits: pa.Table, others: pa.Table) -> pa.Table:
    """Return the edits that `others` contains too. For edits of parents, branch names are ignored."""

    def keys(rows: pa.Table) -> list[tuple[Any, ...]]:
        columns = ["action", "table_uuid", "snapshot_id", "old_parent_id", "new_parent_id", "ref_name"]
        return [
            tuple(None if name == "ref_name" and row["action"] == EDIT_PARENT else row[name] for name in columns)
            for row in rows.select(columns).to_pylist()
        ]

    known = set(keys(others))
    return edits.filter(pa.array([key in known for key in keys(edits)], pa.bool_()))


def _find_ancestors(heads: Sequence[str], commits: pa.Table, edits: pa.Table) -> set[str]:
    """Return the commits that branch heads will reach after the planned edits."""
    parents = {row["commit_id"]: next(iter(row["parents"] or ()), None) for row in commits.select(["commit_id", "parents"]).to_pylist()}
    parents |= {row["snapshot_id"]: row["new_parent_id"] for row in edits.to_pylist() if row["action"] == EDIT_PARENT}
    found: set[str] = set()
    for head in heads:
        commit: str | None = head
        while commit is not None and commit not in found:
            found.add(commit)
            commit = parents.get(commit)
    return found


def _is_candidate(ref: Ref, rules: Sequence[IdleRule]) -> bool:
    is_open = ref.ref_type == "branch" and ref.head_commit_id is not None and PROTECTED not in ref.properties
    return is_open and find_rule(rules, ref.ref_name) is not None


def _sightings(context: RunContext, lake_name: str, before: datetime, keys: Collection[BranchKey]) -> Iterator[Sighting]:
    """Yield the branch heads in earlier records of refs, newest first.

    All records of the current run date are used, but only the newest one of each other date.
    Only branches in `keys` are included.
    """
    tables = pa.array(list({uuid for uuid, _ in keys}), pa.string())
    names = pa.array(list({name for _, name in keys}), pa.string())
    newest = dict[Any, PastRun]()
    for run in list_previous_freezes(context, lake_name, before):
        newest[run.run_date if run.run_date != context.run_date else run.run_id] = run
    for run in sorted(newest.values(), key=lambda run: run.summary(FreezeTime).frozen_at, reverse=True):
        try:
            opened = context.state.open(run)
            rows = read_rows(context.state, LAKE_REFS, opened, columns=_COLUMNS)
        except StateError:  # the record may have another head, so older ones are not used
            return
        rows = rows.filter(pc.is_in(rows.column("table_uuid"), tables))
        is_selected = pc.and_(pc.equal(rows.column("ref_type"), "branch"), pc.is_in(rows.column("ref_name"), names))
        branches = rows.filter(is_selected).to_pylist()
        seen = {(row["table_uuid"], row["ref_name"]): row["head_commit_id"] for row in branches}
        summary = opened.summary(LakeRefsSummary)
        yield Sighting(summary.seen_at or summary.frozen_at, seen, frozenset(pc.unique(rows.column("table_uuid")).to_pylist()))


def _find_times(commits: pa.Table, branches: Sequence[Ref]) -> dict[tuple[str | None, str | None], datetime]:
    """Return the commit times of branch heads, keyed by table UUID and commit id."""
    if not branches:
        return {}
    heads = pa.array(sorted({str(ref.head_commit_id) for ref in branches}), pa.string())
    rows = commits.filter(pc.is_in(commits.column("commit_id"), heads))
    names = zip(rows.column("table_uuid").to_pylist(), rows.column("commit_id").to_pylist(), strict=True)
    return dict(zip(names, rows.column("committed_at").cast(TIMESTAMP).to_pylist(), strict=True))


def _to_row(ref: Ref, reason: str) -> dict[str, Any]:
    return {
        "table_uuid": ref.table_uuid,
        "table_name": ref.table_name,
        "snapshot_id": ref.head_commit_id,
        "action": DELETE_IDLE_BRANCH,
        "ref_name": ref.ref_name,
        "ref_type": ref.ref_type,
        "reason": reason,
        "details": json.dumps(dict(ref.properties), sort_keys=True) if ref.properties else None,
    }
