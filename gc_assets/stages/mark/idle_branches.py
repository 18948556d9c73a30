"""Find the idle branches of a lake, from its commits and from the freezes of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import LakeUnreadable, StateError, StoreError
from gc_assets.core.idle_branches import Branch, BranchKey, IdleRule, Sighting, explain_idle, find_rule, find_unchanged_since
from gc_assets.core.phases import DONE, UNDONE
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.protocol import (
    DELETE_IDLE_BRANCH,
    DELETE_REF,
    PROTECTED,
    REMOVE_SNAPSHOT,
    RETAINED,
    FrozenRefs,
    Lake,
    Ref,
    Retention,
    as_filtered,
)
from gc_assets.stages.mark.previous_refs import list_previous_freezes
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.files import Files
from gc_assets.state.index import PastRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_LOG, EXPIRY_PLAN, LAKE_REFS
from gc_assets.state.summaries import FreezeTime

_COLUMNS = ["table_uuid", "ref_name", "ref_type", "head_commit_id"]


@dataclass(frozen=True, slots=True)
class BranchLog:
    """Deletions of idle branches by plans.

    Attributes:
        rows: Newest outcome of each deletion, with the columns of `expiry_log`.
        edited_at: Time of the newest deletion or undo, by branch.
    """

    rows: tuple[Mapping[str, Any], ...] = ()
    edited_at: Mapping[BranchKey, datetime] = field(default_factory=dict[BranchKey, datetime])

    @classmethod
    def read(cls, files: Files, logs: Sequence[str]) -> BranchLog:
        """Read the parts of `expiry_log`, oldest first."""
        newest: dict[tuple[str, str | None, str], dict[str, Any]] = {}
        edited_at: dict[BranchKey, datetime] = {}
        for path in logs:
            rows = read_parts(files, [path], EXPIRY_LOG.schema)
            for row in rows.filter(pc.equal(rows.column("action"), DELETE_IDLE_BRANCH)).to_pylist():
                key = row["table_uuid"], row["ref_name"]
                newest[row["plan_id"], *key] = row
                if row["outcome"] in {DONE, UNDONE}:
                    edited_at[key] = max(row["at"], edited_at.get(key, row["at"]))
        return cls(tuple(newest.values()), edited_at)


@dataclass(frozen=True, slots=True)
class IdleBranchSearch:
    """Branches that a rule matches, with the evidence of earlier runs. Picklable.

    Attributes:
        rules: The rules in order of priority.
        branches: The branches that are not protected.
        unchanged_since: Time since which runs saw the current head of each branch.
        as_of: Time from which ages are counted.
    """

    rules: tuple[IdleRule, ...]
    branches: tuple[Ref, ...]
    unchanged_since: Mapping[BranchKey, datetime]
    as_of: datetime

    def plan(self, commits: pa.Table, expiry: pa.Table, log: BranchLog) -> pa.Table:
        """Return the deletions of idle branches (columns of `expiry_plan`).

        Args:
            commits: The commit graph.
            expiry: The other edits. A branch that they delete has no second deletion.
            log: Earlier deletions. A branch that exists again was created since.
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
    """Read the evidence of earlier runs for the branches that a rule matches.

    A table that is registered several times keeps its branches, because each name may have its own.
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
    return IdleBranchSearch(rules, tuple(branches), find_unchanged_since(heads, _sightings(context, lake_name, frozen_at), until), as_of)


def find_deleted_branches(log: BranchLog, since: datetime, refs: FrozenRefs, commits: pa.Table) -> tuple[Ref, ...]:
    """Return the idle branches that plans deleted since a time, with their old heads.

    Branches that exist again with this head are left out, and those whose head is not in the graph.
    """
    deleted = [row for row in log.rows if row["outcome"] == DONE and row["at"] >= since]
    known = set(zip(commits.column("table_uuid").to_pylist(), commits.column("commit_id").to_pylist(), strict=True)) if deleted else set()
    heads = {(ref.table_uuid, ref.ref_name): ref.head_commit_id for ref in refs.refs}
    found: dict[tuple[str | None, str, str], Ref] = {}
    for row in deleted:
        uuid, name, head = row["table_uuid"], row["ref_name"], row["snapshot_id"]
        if (uuid, head) in known and heads.get((uuid, name)) != head:
            label = f"{name} (deleted)" if (uuid, name) in heads else name
            properties = json.loads(row["details"]) if row["details"] else {}
            found[uuid, name, head] = Ref(label, "branch", head, uuid, row["table_name"], properties)
    return tuple(found.values())


def keep_deleted(lake: Lake, refs: FrozenRefs, deleted: Sequence[Ref], retain: Callable[[FrozenRefs], Retention]) -> Retention:
    """Apply the policy, and keep what it would keep if recently deleted branches existed.

    So no file becomes garbage in the run that deletes a branch, and the deletion can be undone.
    """
    found = retain(refs)
    if not deleted or as_filtered(lake) is not None:  # these lakes keep deleted refs themselves
        return found
    try:
        before = retain(replace(refs, refs=(*refs.refs, *deleted))).reachable
    except (LakeUnreadable, StoreError) as error:
        return replace(found, notes=(*found.notes, f"lake {refs.lake}: the history of deleted branches is not kept: {error}"))
    kept = pc.and_(pc.equal(before.column("state"), RETAINED), pc.not_equal(found.reachable.column("state"), RETAINED))
    if not pc.any(kept).as_py():
        return found
    names = ", ".join(sorted({ref.ref_name for ref in deleted}))
    reason = f"kept: for the grace period after the deletion of idle branches ({names})"
    reachable = found.reachable
    for name, value in (("state", RETAINED), ("reason", reason)):
        column = pc.if_else(kept, pa.scalar(value, pa.string()), reachable.column(name))
        reachable = reachable.set_column(reachable.schema.get_field_index(name), reachable.schema.field(name), column)
    rows = reachable.filter(kept)
    commits = set(zip(rows.column("table_uuid").to_pylist(), rows.column("commit_id").to_pylist(), strict=True))
    removals = [
        row["action"] == REMOVE_SNAPSHOT and (row["table_uuid"], row["snapshot_id"]) in commits
        for row in found.expiry.select(["action", "table_uuid", "snapshot_id"]).to_pylist()
    ]
    expiry = found.expiry.filter(pc.invert(pa.array(removals, pa.bool_())))
    return replace(found, reachable=reachable, expiry=expiry)


def _is_candidate(ref: Ref, rules: Sequence[IdleRule]) -> bool:
    is_open = ref.ref_type == "branch" and ref.head_commit_id is not None and PROTECTED not in ref.properties
    return is_open and find_rule(rules, ref.ref_name) is not None


def _sightings(context: RunContext, lake_name: str, before: datetime) -> Iterator[Sighting]:
    """Yield the newest freeze of each earlier run date and those of the current one, newest first."""
    newest = dict[Any, PastRun]()
    for run in list_previous_freezes(context, lake_name, before):
        newest[run.run_date if run.run_date != context.run_date else run.run_id] = run
    for run in sorted(newest.values(), key=lambda run: run.summary(FreezeTime).frozen_at, reverse=True):
        try:
            rows = read_rows(context.state, LAKE_REFS, context.state.open(run), columns=_COLUMNS).to_pylist()
        except StateError:  # `gc-assets prune` removed it
            continue
        branches = [row for row in rows if row["ref_type"] == "branch"]
        heads = {(row["table_uuid"], row["ref_name"]): row["head_commit_id"] for row in branches}
        yield Sighting(run.summary(FreezeTime).frozen_at, heads, frozenset(row["table_uuid"] for row in rows))


def _find_times(commits: pa.Table, branches: Sequence[Ref]) -> dict[tuple[str | None, str | None], datetime]:
    """Return the commit times of the heads."""
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
