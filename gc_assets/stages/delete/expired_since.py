"""Count live files of the last accepted run that the retention policy has expired since then.

The `live_drop` gate does not count these files as lost. Because a wrong count could hide a real
loss, a file is counted as expired only if both runs agree:

- in the accepted run, the file was live and a commit that needs it was recorded,
- in this run, the file is in expired history and the policy has expired that commit,
- every ref that reached the commit in the accepted run still reaches it, unless that run's plan
  deleted the ref.

A file is therefore not counted if a ref is missing or its commit is still retained. Files that were
both written and expired between the two runs are not counted either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.plan import LiveCount
from gc_assets.core.printable import show_list
from gc_assets.core.sorted_hashes import is_in_sorted, sort_distinct
from gc_assets.engine.progress import log_activity
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import collect, read_rows
from gc_assets.lakes.file_kinds import FILE_KINDS, Kind
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, DELETE_REF, EXPIRED
from gc_assets.stages.mark.container_scan import KIND_COUNT
from gc_assets.stages.mark.live_hashes import LiveHashes
from gc_assets.stages.mark.live_set import LiveSet
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, LIVE_FILES, REACHABLE_SNAPSHOTS, Table
from gc_assets.state.side_tables import EXPIRED_SIDE
from gc_assets.state.summaries import LiveFilesSummary

# A table UUID and a commit id. The UUID is None if the lake is a single repository.
CommitName = tuple[str | None, str]
# A table UUID and the name of a ref.
RefName = tuple[str | None, str]

_NOT_IN_STATE: Final = "expired files of lake {lake} count as a drop, because the state no longer has {table} of the last accepted run"
_STATE_COLUMNS: Final = ["table_uuid", "commit_id", "state", "refs", "refs_count"]


@dataclass(frozen=True, slots=True)
class ExpiredSince:
    """Number of live files in the accepted run that the policy has expired since then.

    Attributes:
        files: Number of files by lake.
        notes: Why more expired files could not be counted.
        by_table: Number of files by lake and table UUID.
    """

    files: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: tuple[str, ...] = ()
    by_table: Mapping[tuple[str, str | None], int] = field(default_factory=dict[tuple[str, str | None], int])

    @property
    def count(self) -> LiveCount:
        return LiveCount(sum(self.files.values()), self.files)


@dataclass(frozen=True, slots=True)
class CommitState:
    """The state of a commit in one run, as recorded in `reachable_snapshots`.

    Attributes:
        refs: Names of refs that reach the commit, at most 100.
        refs_count: Total number of refs that reach the commit.
    """

    state: str
    refs: frozenset[str] = frozenset()
    refs_count: int = 0

    @property
    def has_all_refs(self) -> bool:
        return len(self.refs) == self.refs_count


@dataclass(frozen=True, slots=True)
class ExpiredCommits:
    """Decides whether the policy has expired a commit since the accepted run.

    Attributes:
        before: States of the commits in the accepted run.
        now: States of the same commits in this run.
        deleted_refs: Refs deleted by the accepted run's plan.
        lost_refs: Refs that have disappeared since the accepted run, without `deleted_refs`.
    """

    before: Mapping[CommitName, CommitState]
    now: Mapping[CommitName, CommitState]
    deleted_refs: frozenset[RefName] = frozenset()
    lost_refs: frozenset[RefName] = frozenset()

    def contains(self, commit: CommitName) -> bool:
        """Return True if the commit has expired since the accepted run because of the policy alone."""
        before, now = self.before.get(commit), self.now.get(commit)
        return before is not None and now is not None and now.state == EXPIRED and not self.missing_refs(commit)

    def missing_refs(self, commit: CommitName) -> list[str]:
        """Return refs that reached the commit in the accepted run but no longer do."""
        before, now, table = self.before[commit], self.now[commit], commit[0]
        lost = {name for of, name in self.lost_refs if of == table}
        if not before.has_all_refs or not before.refs:  # not all refs are known, so each lost ref may have reached it
            return sorted(lost)
        if not now.has_all_refs:
            return sorted(before.refs & lost)
        return sorted(name for name in before.refs - now.refs if (table, name) not in self.deleted_refs)


def count_expired_since(
    spark: SparkSession, context: RunContext, storage_name: str, accepted: PublishedTable, live: Iterable[PublishedTable]
) -> ExpiredSince:
    """Count live files of the accepted run that the policy has expired since then.

    Args:
        accepted: `deletion_plan` of the last accepted run.
        live: `live_files` of all lakes in this run.
    """
    log_activity("counting the files that expired since the last accepted run")
    counts, notes, by_table = dict[str, int](), list[str](), Counter[tuple[str, str | None]]()
    for now in live:
        lake = now.receipt.owner
        earlier = find_input(context, accepted, LIVE_FILES, lake)
        if earlier is None:
            notes.append(_NOT_IN_STATE.format(lake=lake, table=LIVE_FILES.name))
            continue
        try:
            by_commit = _expired_by_commit(spark, context, storage_name, earlier, now)
        except StateError as error:
            notes.append(f"expired files of lake {lake} count as a drop: {error}")
            continue
        if not by_commit:
            continue
        expired = _read_expired_commits(context, earlier, now, by_commit)
        if isinstance(expired, str):
            notes.append(_NOT_IN_STATE.format(lake=lake, table=expired))
            continue
        mine = {commit: count for commit, count in by_commit.items() if expired.contains(commit)}
        for (table, _), count in mine.items():
            by_table[lake, table] += count
        if files := sum(mine.values()):
            counts[lake] = files
        notes += _describe_missing_refs(lake, expired, by_commit)
    return ExpiredSince(counts, tuple(notes), by_table)


def _expired_by_commit(
    spark: SparkSession, context: RunContext, storage_name: str, earlier: PublishedTable, now: PublishedTable
) -> Counter[CommitName]:
    """Count files that were live in `earlier` and are now in expired history.

    Returns:
        The number of files by their witness (the commit that needs them) in `earlier`.
    """
    if not now.summary(LiveFilesSummary).expired_files:
        return Counter()
    accepted, current = LiveSet(context, earlier), LiveSet(context, now)
    if accepted.is_view and current.is_view:
        hashes_before, hashes_now = accepted.hashes(spark), current.hashes(spark)
        if hashes_before.runs_in_process and hashes_now.runs_in_process:
            return _count_hashes(storage_name, hashes_before, hashes_now)
    session, in_storage = choose_session(spark, accepted.entries + current.entries, 2), F.col("storage") == storage_name
    before = accepted.read(session).filter(in_storage).filter(F.col("kind") != Kind.POSSIBLE_OBJECT)
    expired = current.read(session, EXPIRED_SIDE).filter(in_storage).select("key")
    rows = collect(before.join(expired, "key", "left_semi").groupBy("table_uuid", "commit_id").count())
    return Counter({(row["table_uuid"], row["commit_id"]): row["count"] for row in rows if row["commit_id"] is not None})


def _count_hashes(storage_name: str, before: LiveHashes, now: LiveHashes) -> Counter[CommitName]:
    """Count the files for `_expired_by_commit` in the driver, comparing hashes of keys.

    If two keys have the same hash, one file too many is counted.
    """
    expired = [keys.column("key_hash").to_numpy() for keys in now.files_of(storage_name, EXPIRED_SIDE)]
    hashes = sort_distinct(np.concatenate([np.empty(0, np.int64), *expired]))
    witnesses = before.states.witnesses.sort_by("witness")
    counts = np.zeros(witnesses.num_rows, np.int64)
    for keys in before.files_of(storage_name, ""):
        witness, kind = np.divmod(keys.column("strongest").to_numpy(), KIND_COUNT)
        counted = is_in_sorted(keys.column("key_hash").to_numpy(), hashes) & (kind != FILE_KINDS.index(Kind.POSSIBLE_OBJECT))
        counts += np.bincount(witness[counted], minlength=len(counts))
    found = np.flatnonzero(counts)
    names = (witnesses.column(name).take(pa.array(found)).to_pylist() for name in ("table_uuid", "commit_id"))
    total = Counter[CommitName]()
    for table_uuid, commit_id, count in zip(*names, counts[found].tolist(), strict=True):
        if commit_id is not None:
            total[table_uuid, commit_id] += count
    return total


def _read_expired_commits(
    context: RunContext, earlier: PublishedTable, now: PublishedTable, commits: Iterable[CommitName]
) -> ExpiredCommits | str:
    """Read the states of commits in both runs.

    Returns:
        The states, or the name of a table that is missing from the state.
    """
    names, lake = frozenset(commits), now.receipt.owner
    tables = {table.name: find_input(context, earlier, table, lake) for table in (REACHABLE_SNAPSHOTS, LAKE_REFS, EXPIRY_PLAN)}
    before = {name: table for name, table in tables.items() if table is not None}
    if missing := tables.keys() - before.keys():
        return min(missing)
    actions = read_rows(context.state, EXPIRY_PLAN, before[EXPIRY_PLAN.name], columns=["table_uuid", "action", "ref_name"])
    deleted = _ref_names(actions.filter(pc.is_in(actions.column("action"), pa.array([DELETE_REF, DELETE_IDLE_BRANCH]))))
    refs_before, refs_now = (_read_refs(context, table) for table in (before[LAKE_REFS.name], context.table(LAKE_REFS, lake)))
    return ExpiredCommits(
        _read_states(context, before[REACHABLE_SNAPSHOTS.name], names),
        _read_states(context, context.table(REACHABLE_SNAPSHOTS, lake), names),
        deleted,
        refs_before - refs_now - deleted,
    )


def _read_states(context: RunContext, reachable: PublishedTable, commits: frozenset[CommitName]) -> dict[CommitName, CommitState]:
    rows = read_rows(context.state, REACHABLE_SNAPSHOTS, reachable, columns=_STATE_COLUMNS)
    wanted = rows.filter(pc.is_in(rows.column("commit_id"), pa.array(sorted({commit_id for _, commit_id in commits}))))
    found = ((row["table_uuid"], row["commit_id"], row) for row in wanted.to_pylist())
    return {
        (uuid, commit_id): CommitState(row["state"], frozenset(row["refs"] or ()), row["refs_count"])
        for uuid, commit_id, row in found
        if (uuid, commit_id) in commits
    }


def _read_refs(context: RunContext, refs: PublishedTable) -> frozenset[RefName]:
    return _ref_names(read_rows(context.state, LAKE_REFS, refs, columns=["table_uuid", "ref_name"]))


def _ref_names(rows: pa.Table) -> frozenset[RefName]:
    return frozenset(zip(rows.column("table_uuid").to_pylist(), rows.column("ref_name").to_pylist(), strict=True))


def find_input(context: RunContext, table: PublishedTable, wanted: Table, lake: str) -> PublishedTable | None:
    """Open one of the tables that a published table was computed from.

    Returns:
        The input, or None if it is damaged, or not in the state any more.
    """
    try:
        return context.state.open_input(table, lake, wanted.name)
    except StateError:
        return None


def _describe_missing_refs(lake: str, expired: ExpiredCommits, by_commit: Mapping[CommitName, int]) -> Iterator[str]:
    """Yield a note if expired files count as a drop because refs to their commits are missing."""
    files, names = 0, set[str]()
    for commit, count in by_commit.items():
        before, now = expired.before.get(commit), expired.now.get(commit)
        if before is not None and now is not None and now.state == EXPIRED and (missing := expired.missing_refs(commit)):
            files += count
            names.update(missing)
    if files:
        lost = show_list(sorted(names))
        yield f"{files:,} expired files of lake {lake} count as a drop, because refs that reached them are missing: {lost}"
