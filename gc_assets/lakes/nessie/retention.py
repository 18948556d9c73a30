"""Apply the retention policy to Nessie commits, and find their live contents.

All functions are pure: they do not use a server or a clock. History is never edited, because each
metadata file in the catalog lists a single snapshot, and readers find old versions of a table
through the commit log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.moments import LATEST_MICROS, MICROSECOND, to_micros
from gc_assets.core.units import Cutoff, count_of
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.lakes.nessie.contents import Operations, live_contents, state_digest
from gc_assets.lakes.nessie.cutoffs import RetainedLog, retain_log
from gc_assets.lakes.nessie.log_forest import Bools, LogForest
from gc_assets.lakes.nessie.operations import OPERATIONS, row_lines
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED, CommitState, FrozenRefs, PreviousRef, Ref, Retention
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS

# Summary keys of a commit, besides its operations. For a head, they contain the digest and the
# number of entries of the state that the server lists. `LOG_ENDS` is set if the log ends at this
# commit although the commit has a parent (`cut-history` of the server's admin tool).
STATE_DIGEST = "state_digest"
STATE_ENTRIES = "state_entries"
LOG_ENDS = "log_ends"
# Property of a ref: the server's count of the commits in its log.
TOTAL_COMMITS = "total_commits"
# Maximum number of previous refs to list in a report. The rest is only counted.
MAX_LISTED_REFS = 5
_SummaryColumns = Mapping[str, Sequence[str | None]]


@dataclass(frozen=True, slots=True, eq=False)
class _RefLog:
    """A ref, and the part of its commit log that is retained.

    `head` is the position of its head commit. `rule` is the configuration key that sets its
    cut-off.
    """

    ref: Ref
    head: int
    cutoff: Cutoff
    rule: str
    retained: RetainedLog

    @property
    def label(self) -> str:
        return _label(self.ref)

    @property
    def head_id(self) -> str:
        return self.ref.head_commit_id or ""


@dataclass(frozen=True, slots=True, eq=False)
class _PreviousLog:
    """A ref from an earlier run that was deleted or moved, and the commits that it would keep.

    `retained` is None if the commits are not known.
    """

    previous: PreviousRef
    retained: RetainedLog | None

    @property
    def description(self) -> str:
        ref, missed_at = self.previous.ref, self.previous.missed_at.isoformat()
        change = "deleted" if self.previous.moved_to is None else "moved"
        return f"{_label(ref)} pointed to {ref.head_commit_id} and was {change} before {missed_at}"


def _label(ref: Ref) -> str:
    return f"{ref.ref_type} {ref.ref_name}"


def retain(refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime, config: NessieLakeConfig) -> Retention:
    """Apply the cut-offs to the commit logs of all refs.

    If no ref reaches a young commit, the commit is kept with its complete state. If a ref was moved
    or deleted, its old log is kept for the grace period after the run that noticed this, so that a
    user can recreate the ref. During this time, `refs.previous` contains the ref.

    The server silently omits anything that the principal may not read. To detect this, the number
    of commits in each log is compared with the server's count. The state at each head is compared
    with the digest of the entries that the server lists, if the summary of the head commit contains
    such a digest.

    Returns:
        One row per commit in the order of `commits`, no expiry actions, and the live contents.

    Raises:
        LakeUnreadable: If the head of a ref is missing from `commits`, or one of the comparisons
            fails.
    """
    summary = {name: _read_summary(commits, name) for name in (OPERATIONS, STATE_DIGEST, STATE_ENTRIES, LOG_ENDS)}
    history = _build_forest(refs.lake, commits)
    operations = Operations.of(history, summary[OPERATIONS])
    logs = _build_logs(refs, history, as_of, config)
    _check_visibility(refs.lake, history, operations, logs, summary, config)

    previous_logs = list(_build_previous_logs(refs, history, as_of, config))
    kept_by_previous = [item.retained for item in previous_logs if item.retained is not None]
    retained = _union_commits(history, [log.retained for log in logs])
    names, counts = history.graph.reaching_refs({log.ref.ref_name: log.head_id for log in logs})
    reached = counts.to_numpy() > 0
    young = ~reached & ((history.times >= to_micros(grace_cutoff)) | _select_unreferenced(history, as_of, config))
    protected = young | _union_commits(history, kept_by_previous)
    ref_names = names.to_pylist()
    rows = pa.table(
        {
            "table_uuid": pa.nulls(len(history), pa.string()),
            "commit_id": commits["commit_id"],
            "state": _states(retained | protected, reached),
            "refs": names,
            "refs_count": counts,
            "keep_until": pa.array(_keep_until(history, logs, retained), TIMESTAMP),
            "reason": _reasons(logs, previous_logs, retained, young, ref_names, config),
            "table_name": pa.nulls(len(history), pa.string()),
        }
    )
    contents = live_contents(
        history,
        operations,
        retained | protected,
        {log.retained.oldest: log.ref.ref_name for log in reversed(logs)},
        {log.head: log.ref.ref_name for log in reversed(logs)},
        [reaching[0] if reaching else None for reaching in ref_names],
        branches={log.head for log in logs if log.ref.ref_type == "branch"},
        unreferenced={*_find_young_roots(history, young), *(item.oldest for item in kept_by_previous)},
    )
    return Retention(
        reachable=rows.select(REACHABLE_SNAPSHOTS.schema.names).cast(REACHABLE_SNAPSHOTS.schema),
        expiry=EXPIRY_PLAN.schema.empty_table(),
        notes=tuple(_build_notes(refs, history, summary[LOG_ENDS], previous_logs)),
        contents=contents,
    )


def _build_forest(lake: str, commits: pa.Table) -> LogForest:
    times = commits["committed_at"].cast(TIMESTAMP).cast(pa.int64()).combine_chunks().to_numpy()
    return LogForest.of(lake, commits["commit_id"].combine_chunks(), commits["parents"].combine_chunks(), times)


def _states(kept: Bools, reached: Bools) -> list[CommitState]:
    return [RETAINED if keep else EXPIRED if reach else DANGLING for keep, reach in zip(kept, reached, strict=True)]


def _build_logs(refs: FrozenRefs, history: LogForest, as_of: datetime, config: NessieLakeConfig) -> list[_RefLog]:
    """Return the retained log of every ref that has commits, sorted by ref name."""
    pointing = [(ref.ref_name, ref.head_commit_id, ref) for ref in refs.refs if ref.head_commit_id is not None]
    pointing.sort(key=lambda item: item[0])
    heads = history.graph.index_of([head for _, head, _ in pointing]).tolist()
    logs: list[_RefLog] = []
    known: dict[tuple[int, Cutoff], RetainedLog] = {}
    for (_, _, ref), head in zip(pointing, heads, strict=True):
        cutoff, rule = config.retention.cutoff_for(ref.ref_name)
        if (head, cutoff) not in known:
            known[head, cutoff] = retain_log(history, head, cutoff, as_of, state_at_cutoff=config.retention.state_at_cutoff)
        logs.append(_RefLog(ref, head, cutoff, rule, known[head, cutoff]))
    return logs


def _build_previous_logs(refs: FrozenRefs, history: LogForest, as_of: datetime, config: NessieLakeConfig) -> Iterator[_PreviousLog]:
    """Yield the old logs of moved or deleted refs, except for refs that only moved forward."""
    known = dict(zip(history.graph.commit_ids.to_pylist(), range(len(history)), strict=True)) if refs.previous else {}
    for previous in refs.previous:
        head, moved_to = known.get(previous.ref.head_commit_id), known.get(previous.moved_to)
        if head is None:
            yield _PreviousLog(previous, None)
            continue
        if moved_to is not None and history.select_log(moved_to)[head]:
            continue
        cutoff, _ = config.retention.cutoff_for(previous.ref.ref_name)
        yield _PreviousLog(previous, retain_log(history, head, cutoff, as_of, state_at_cutoff=config.retention.state_at_cutoff))


def _union_commits(history: LogForest, kept_logs: Sequence[RetainedLog]) -> Bools:
    commits = np.zeros(len(history), np.bool_)
    for item in kept_logs:
        commits |= item.commits
    return commits


def _find_young_roots(history: LogForest, young: Bools) -> list[int]:
    """Return the oldest commit of each connected group of young commits.

    The complete state at this commit, together with the contents that the other commits of the
    group put, includes the states at all commits of the group.
    """
    parent = np.full(len(history), -1, np.int32)
    parent[history.graph.child] = history.graph.parent
    return np.flatnonzero(young & ((parent < 0) | ~young[parent])).tolist()


def _check_empty_commits(lake: str, history: LogForest, operations: Sequence[str | None]) -> None:
    empty = [index for index, text in enumerate(operations) if not text]
    if empty:
        raise LakeUnreadable(
            f"lake {lake}: {count_of(len(empty), 'commit', 'show')} no operation, for example {history.graph.commit_ids[empty[0]]}. "
            "The server omits operations that the principal may not read, and their files would be planned for deletion. "
            "Grant READ_CONTENT_KEY on everything; if an old server created empty commits, set `empty_commits: allow`"
        )


def _check_visibility(
    lake: str,
    history: LogForest,
    operations: Operations,
    logs: Sequence[_RefLog],
    summary: _SummaryColumns,
    config: NessieLakeConfig,
) -> None:
    """Raise `LakeUnreadable` if the server hides any commits, operations or entries."""
    if config.empty_commits == "refuse":
        _check_empty_commits(lake, history, summary[OPERATIONS])
    for log in logs:
        _check_commit_count(lake, history, log, summary[LOG_ENDS])
    for log in {log.head: log for log in logs}.values():
        _check_state(lake, history, operations, log, summary)


def _check_commit_count(lake: str, history: LogForest, log: _RefLog, log_ends: Sequence[str | None]) -> None:
    total = log.ref.properties.get(TOTAL_COMMITS)
    found = int(history.depth[log.head]) + 1
    oldest = int(np.flatnonzero(history.select_log(log.head) & (history.depth == 0))[0])
    if total is not None and int(total) != found and log_ends[oldest] is None:
        raise LakeUnreadable(
            f"lake {lake}: {log.label} has {int(total):,} commits by the server's count, but its log shows {found:,}. The principal may "
            "not see everything, and hidden files would be planned for deletion; grant LIST_COMMIT_LOG on every ref"
        )


def _check_state(lake: str, history: LogForest, operations: Operations, log: _RefLog, summary: _SummaryColumns) -> None:
    listed = summary[STATE_DIGEST][log.head]
    if listed is None:
        return
    lines = row_lines(operations.rows.take(pa.array(operations.state_rows(history, log.head))))
    if state_digest(lines) != listed:
        raise LakeUnreadable(
            f"lake {lake}: the log of {log.label} yields {len(lines):,} entries at its head {log.head_id}, but the server lists "
            f"{summary[STATE_ENTRIES][log.head]}, or the same number of different entries. The principal may not see everything, and "
            "hidden files would be planned for deletion; grant READ_ENTRIES, READ_CONTENT_KEY and READ_ENTITY_VALUE on everything"
        )


def _select_unreferenced(history: LogForest, as_of: datetime, config: NessieLakeConfig) -> Bools:
    """Select commits that no ref reaches and that are young enough to be kept.

    The cut-off is `retention.dangling`. If that is not set, `retention.default` applies.
    """
    cutoff = config.retention.dangling_cutoff() or config.retention.default.as_cutoff()
    moment = cutoff.moment_micros(as_of)
    return np.full(len(history), cutoff.forever) if moment is None else history.times >= moment


def _keep_until(history: LogForest, logs: Sequence[_RefLog], retained: Bools) -> pa.Array:
    """Return how long each commit is kept, as an Arrow column.

    If several refs keep a commit, the latest time counts. The value is missing unless age is the
    only reason to keep the commit.
    """
    until = np.zeros(len(history), np.int64)
    otherwise = ~retained
    for log in logs:
        otherwise[[log.head, *([log.retained.at_cutoff] if log.retained.at_cutoff is not None else [])]] = True
        if log.cutoff.max_age is None or log.cutoff.keep_last is not None:
            otherwise |= log.retained.commits
        else:
            ends = np.minimum(history.times + log.cutoff.max_age // MICROSECOND, LATEST_MICROS)
            until = np.where(log.retained.commits, np.maximum(until, ends), until)
    return pa.array(until, mask=otherwise)


def _reasons(
    logs: Sequence[_RefLog],
    previous_logs: Sequence[_PreviousLog],
    retained: Bools,
    young: Bools,
    ref_names: Sequence[Sequence[str]],
    config: NessieLakeConfig,
) -> pa.Array:
    """Return the reason why each commit is kept or expired.

    If several refs keep a commit, the first of them by name determines the reason.
    """
    rule = "retention.default" if config.retention.dangling is None else "retention.dangling"
    reasons = [
        f"dangling: no ref reaches it, and it is older than {rule} and the grace period",
        f"kept: no ref reaches it, and it is within {rule} or younger than the grace period",
    ]
    reason_numbers = np.where(young, 1, 0)
    number = {log.ref.ref_name: index for index, log in enumerate(logs)}
    expired = np.flatnonzero(~retained & ~young).tolist()
    reasons += [f"expired: {log.cutoff.expired_text} ({log.rule}) on {log.label}" for log in logs]
    reason_numbers[expired] = [2 + number[ref_names[index][0]] if ref_names[index] else 0 for index in expired]
    for item in previous_logs:
        if item.retained is not None:
            reason_numbers[item.retained.commits & ~young] = len(reasons)
        reasons.append(f"kept for the grace period: {item.description}")
    for text, commits in _list_keep_reasons(logs):
        reason_numbers[commits] = len(reasons)
        reasons.append(text)
    return pa.array(reasons).take(pa.array(reason_numbers))


def _list_keep_reasons(logs: Sequence[_RefLog]) -> Iterator[tuple[str, Bools | int]]:
    """Yield reasons with the commits to which they apply. A later reason replaces an earlier one."""
    for log in reversed(logs):
        yield f"kept: {log.cutoff.retained_text} ({log.rule}) on {log.label}", log.retained.commits
        if log.retained.at_cutoff is not None:
            yield f"kept: current at the cut-off {log.cutoff} ({log.rule}) on {log.label}", log.retained.at_cutoff
    for log in reversed(logs):
        yield f"kept: head of {log.label}", log.head


def _read_summary(commits: pa.Table, name: str) -> list[str | None]:
    found: pa.ChunkedArray = pc.map_lookup(commits["summary"], pa.scalar(name), "first")
    return found.to_pylist()


def _build_notes(
    refs: FrozenRefs, history: LogForest, log_ends: Sequence[str | None], previous_logs: Sequence[_PreviousLog]
) -> Iterator[str]:
    for item in previous_logs[:MAX_LISTED_REFS]:
        consequence = "are kept for the grace period" if item.retained is not None else "cannot be kept, because its commits are unknown"
        yield f"lake {refs.lake}: {item.description}; its contents {consequence}"
    if len(previous_logs) > MAX_LISTED_REFS:
        yield f"lake {refs.lake}: {len(previous_logs) - MAX_LISTED_REFS:,} more refs were deleted or moved"
    ends = [str(history.graph.commit_ids[index]) for index, end in enumerate(log_ends) if end is not None]
    if ends:
        yield (
            f"lake {refs.lake}: {count_of(len(ends), 'log', 'end')} at a commit whose parent the server no longer has "
            f"(for example {ends[0]}). "
            "The older history was cut, and locations that occur only in it are unknown"
        )
