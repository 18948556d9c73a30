"""Find the idle branches of a lake, from its commits and from the freezes of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StateError
from gc_assets.core.idle_branches import Branch, BranchKey, IdleRule, Sighting, explain_idle, find_rule, find_unchanged_since
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, DELETE_REF, PROTECTED, FrozenRefs, Ref
from gc_assets.stages.mark.previous_refs import list_previous_freezes
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.index import PastRun
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS
from gc_assets.state.summaries import FreezeTime

_COLUMNS = ["table_uuid", "ref_name", "ref_type", "head_commit_id"]


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

    def plan(self, commits: pa.Table, expiry: pa.Table) -> pa.Table:
        """Return the deletions of idle branches (columns of `expiry_plan`).

        Args:
            commits: The commit graph.
            expiry: The other edits. A branch that they delete has no second deletion.
        """
        lapsed = expiry.filter(pc.equal(expiry.column("action"), DELETE_REF))
        deleted = set(zip(lapsed.column("table_uuid").to_pylist(), lapsed.column("ref_name").to_pylist(), strict=True))
        times = _find_times(commits, self.branches)
        rows = list[dict[str, Any]]()
        for ref in self.branches:
            key = ref.table_uuid, ref.ref_name
            branch = Branch(ref.ref_name, times.get((ref.table_uuid, ref.head_commit_id)), self.unchanged_since.get(key))
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
