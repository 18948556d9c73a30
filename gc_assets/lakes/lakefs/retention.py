"""Apply the retention policy to lakeFS commits, and explain why each is kept or expired.

The rules come either from the server (`source: server`) or from the configuration. Two differences
from lakeFS's own garbage collection are deliberate: tags protect their commits, and a repository
without rules keeps everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.graph import CYCLE, MISSING_PARENT, CommitGraph
from gc_assets.core.units import Cutoff, count_of
from gc_assets.lakes.lakefs.active_commits import Start, find_active_commits, find_dangling
from gc_assets.lakes.lakefs.config import DEFAULT_RETENTION_DAYS, LakeFsLakeConfig
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED, CommitState, FrozenRefs, Ref, Retention
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS

# Key in `Ref.properties`: days in the rule for this branch.
RETENTION_DAYS: Final = "retention_days"
_FOREVER: Final = Cutoff(forever=True)


def retain(refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime, config: LakeFsLakeConfig) -> Retention:
    """Apply the policy to the commit graph.

    The rows of `reachable` have the order of `commits`. `expiry` is empty, because history in
    lakeFS is never edited.

    Raises:
        LakeUnreadable: If the refs dump is incomplete, i.e. a head or a parent is not among the
            commits.
    """
    graph = CommitGraph.build(commits["commit_id"], commits["parents"], commits["committed_at"])
    for problem in graph.problems:
        if problem.what in {MISSING_PARENT, CYCLE}:
            raise LakeUnreadable(f"lake {refs.lake}: the refs dump contains inconsistent commits: {problem}; run again")
    policy = _Policy(refs, config)
    committed_at: list[datetime] = commits["committed_at"].cast(TIMESTAMP).to_pylist()
    branches = {ref.ref_name for ref in refs.refs if ref.ref_type == "branch"}
    head_of = {_ref_label(ref, branches): ref.head_commit_id or "" for ref in refs.refs}
    reaching, counts = graph.reaching_refs(head_of)
    starts = list(policy.starts(graph))
    activity = find_active_commits(graph, committed_at, starts, as_of)
    tagged = policy.protecting_tags()
    heads = {ref.head_commit_id: ref.ref_name for ref in refs.refs if ref.ref_type == "branch"}
    rows: list[dict[str, Any]] = []
    for index, (commit_id, names, count) in enumerate(
        zip(graph.commit_ids.to_pylist(), reaching.to_pylist(), counts.to_pylist(), strict=True)
    ):
        state: CommitState = RETAINED
        until = None
        if commit_id in heads:
            reason = f"kept: head of branch {heads[commit_id]}"
        elif commit_id in tagged:
            reason = f"kept: tag {tagged[commit_id]} points to it"
        elif activity.active[index]:
            until = activity.until[index]
            reason = f"kept: {policy.explain(activity.held_by[index] or '')}"
        elif committed_at[index] >= grace_cutoff:
            reason = "kept: younger than the grace period"
        else:
            state = EXPIRED if count else DANGLING
            who = "it was not a branch head" if count else "no ref reaches it, and it was not a branch head"
            reason = f"{who} within the retention time"
        rows.append({"commit_id": commit_id, "state": state, "refs": names, "refs_count": count, "keep_until": until, "reason": reason})
    return Retention(
        reachable=pa.Table.from_pylist(rows, schema=REACHABLE_SNAPSHOTS.schema),
        expiry=EXPIRY_PLAN.schema.empty_table(),
        notes=tuple(policy.notes(committed_at)),
    )


class _Policy:
    """Retention rules for the refs read by a run. They come from the server or lakes.yaml."""

    def __init__(self, refs: FrozenRefs, config: LakeFsLakeConfig) -> None:
        self._refs = refs
        self._retention = config.retention
        self._server = config.retention.source == "server"
        days = {source.properties.get(DEFAULT_RETENTION_DAYS) for source in refs.sources}
        self._default_days: str | None = next(iter(days), None)
        self._refs_by_label = {f"{ref.ref_type} {ref.ref_name}": ref for ref in refs.refs}

    def starts(self, graph: CommitGraph) -> Iterator[Start]:
        """Yield the commits from which the retention rule follows first parents.

        They are the heads of branches, those of tags if `tags` is `policy`, and dangling commits.
        """
        walked = [ref for ref in self._refs.refs if ref.ref_type == "branch" or self._retention.tags == "policy"]
        heads = graph.index_of([ref.head_commit_id or "" for ref in walked]).tolist()
        for ref, head in zip(walked, heads, strict=True):
            yield Start(head, self._cutoff(ref), f"{ref.ref_type} {ref.ref_name}")
        for commit in find_dangling(graph, heads):
            yield Start(commit, self._dangling_cutoff(), "", dangling=True)

    def _cutoff(self, ref: Ref) -> Cutoff:
        if not self._server:
            return self._retention.cutoff_for(ref.ref_name)[0]
        own = ref.properties.get(RETENTION_DAYS)
        return self._default() if own is None else Cutoff.of_days(int(own))

    def _default(self) -> Cutoff:
        if not self._server:
            return self._retention.default.as_cutoff()
        return _FOREVER if self._default_days is None else Cutoff.of_days(int(self._default_days))

    def _dangling_cutoff(self) -> Cutoff:
        return self._retention.dangling_cutoff() or self._default()

    def explain(self, held_by: str) -> str:
        if self._server and self._default_days is None:
            return "the repository has no garbage collection rules"
        if not held_by:
            which = "default retention" if self._retention.dangling is None else "retention of dangling commits"
            return f"no branch has it as head, and it is within the {which} ({self._dangling_cutoff()})"
        return f"it was the head of {held_by} within its retention ({self._cutoff(self._refs_by_label[held_by])})"

    def protecting_tags(self) -> Mapping[str | None, str]:
        if self._retention.tags == "ignore":
            return {}
        return {ref.head_commit_id: ref.ref_name for ref in self._refs.refs if ref.ref_type == "tag"}

    def notes(self, committed_at: list[datetime]) -> Iterator[str]:
        lake = self._refs.lake
        if self._retention.tags == "ignore":
            yield f"lake {lake}: tags do not protect commits (retention.tags is `ignore`), so reads of an old tag will fail"
        early = sum(moment < datetime(1990, 1, 1, tzinfo=UTC) for moment in committed_at)
        if early:
            yield f"lake {lake}: {count_of(early, 'commit', 'are')} dated before 1990. Retention uses commit dates, which users can set"


def _ref_label(ref: Ref, branches: Collection[str]) -> str:
    """Return a ref's name. If a tag has the same name as a branch, prefix it with `tag`."""
    return f"tag {ref.ref_name}" if ref.ref_type == "tag" and ref.ref_name in branches else ref.ref_name
