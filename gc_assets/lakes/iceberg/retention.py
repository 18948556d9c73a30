"""Iceberg's snapshot retention in six steps, with a reason for each snapshot and ref.

All functions are pure: they do not use a catalog or a clock. Source:
`RemoveSnapshots.internalApply` of Apache Iceberg 1.11, with "now" = `as_of`. That method has a rule
for unreferenced snapshots that the written specification omits. The running time is nearly linear
in the number of snapshots and refs of each table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from gc_assets.core.errors import GcError, LakeUnreadable
from gc_assets.core.forest import NO_PARENT, Forest, Reach, build_forest, refs_reaching
from gc_assets.core.moments import format_time, to_micros
from gc_assets.core.units import count_of
from gc_assets.lakes.iceberg.catalog_policy import read_policy
from gc_assets.lakes.iceberg.config import IcebergRetention
from gc_assets.lakes.iceberg.metadata import GC_ENABLED, is_gc_enabled
from gc_assets.lakes.iceberg.settings import (
    NEVER,
    AgeLimit,
    RefLimits,
    TableLimits,
    describe_limits,
    find_invalid_settings,
    find_keeping_policy,
)
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED, CommitSource, CommitState, FrozenRefs, Ref, RefType, Retention
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS

COLLECT, WRITABLE = "collect", "writable"
_YEAR_9999 = to_micros(datetime(9999, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class _KeepRule:
    """Rule that keeps a snapshot until a certain time.

    `keep_until` is in microseconds since 1970 UTC. It is infinite if the rule does not depend on
    age.
    """

    keep_until: float
    reason: str


@dataclass(frozen=True, slots=True)
class _WalkState:
    """Retention limits that remain when the traversal of a branch's history reaches a snapshot.

    The traversal of another branch stops at the snapshot if its remaining limits are not larger.
    """

    cutoff: float
    remaining: int
    keep_until: float


@dataclass(frozen=True, slots=True)
class _LapsedRef:
    ref_type: RefType
    reason: str


@dataclass(frozen=True, slots=True)
class _TableHistory:
    """Snapshots of a table, and all of its registrations (names in the catalog) with their refs.

    Attributes:
        disputed: Indices of snapshots whose parent only some registrations list.
        ambiguous: Ids of snapshots for which the registrations list different parents.
    """

    uuid: str
    rows: Sequence[int]
    forest: Forest
    disputed: frozenset[int]
    ambiguous: Sequence[str]
    stamps: Sequence[int]
    registrations: Sequence[tuple[CommitSource, Sequence[Ref]]]

    def qualify(self, source: CommitSource, ref: Ref) -> str:
        """Return the ref's name.

        If the table has several registrations, prefix it with the table name.
        """
        return ref.ref_name if len(self.registrations) == 1 else f"{source.table_name}:{ref.ref_name}"

    def head_index(self, source: CommitSource, ref: Ref) -> int | None:
        if ref.head_commit_id is None:
            return None
        if ref.head_commit_id not in self.forest.position:
            raise LakeUnreadable(
                f"table {source.table_name}: {ref.ref_type} {ref.ref_name!r} points at snapshot {ref.head_commit_id}, "
                "which is missing from the commit graph; run again, and restore the table's metadata if the error persists"
            )
        return self.forest.position[ref.head_commit_id]


@dataclass(slots=True)
class _Verdicts:
    """Snapshots to keep and refs to delete, based on all registrations of a table.

    If several rules keep a snapshot, the rule that keeps it longest is recorded. A ref only lapses,
    i.e. exceeds its maximum age, if it does so in all registrations.
    """

    keeps: dict[int, _KeepRule]
    expiry_reasons: dict[str, str]
    lapsed: dict[tuple[str, int], _LapsedRef]
    retained_refs: set[tuple[str, int]]

    def keep(self, index: int, keep: _KeepRule) -> None:
        known = self.keeps.get(index)
        if known is None or keep.keep_until > known.keep_until:
            self.keeps[index] = keep


def retain(refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime, policy: IcebergRetention) -> Retention:
    """Decide which snapshots and refs to keep, by the retention settings of all tables.

    If a table is registered twice, a snapshot is kept if one of the registrations keeps it. If only
    one of them lists the parent of a snapshot, the history continues with that parent. If they list
    different parents, the whole history is kept.

    Args:
        refs: Refs read at the start of the run. Their sources contain the table settings.
        commits: Snapshots, with the columns of `commit_graph`.
        as_of: Time at which the ages of snapshots are computed.
        grace_cutoff: Snapshots younger than this time are kept, even if no rule requires it.
        policy: Overrides in the configuration.

    Returns:
        One row per snapshot with the deciding rule, in the order of `commits`, and the actions that
        remove expired snapshots and refs that exceed their maximum age.

    Raises:
        LakeUnreadable: If the head of a ref is missing from `commits`, or the table of a commit is
            missing from `refs`.
    """
    columns = {name: commits[name].to_pylist() for name in ("table_uuid", "commit_id", "table_name")}
    reachable: list[dict[str, Any]] = [{} for _ in range(commits.num_rows)]
    expiry: list[dict[str, Any]] = []
    notes: list[str] = []
    unreferenced = "the table's max-snapshot-age" if policy.dangling is None else "retention.dangling"
    for table in _group_tables(refs, commits, columns["table_uuid"], columns["commit_id"]):
        with _name_errors(_table_name(table)):
            verdicts = _apply_rules(table, as_of, policy)
            notes += _keep_protected(table, verdicts, to_micros(grace_cutoff), policy)
            reach = refs_reaching(table.forest, _collect_heads(table))
            expiry += _plan_ref_deletions(table, verdicts)
            for index, row in enumerate(table.rows):
                state, reason = _find_state(verdicts, reach[index], index, unreferenced)
                keep = verdicts.keeps.get(index)
                keep_until = int(keep.keep_until) if keep is not None and keep.keep_until < _YEAR_9999 else None
                identity = {"table_uuid": table.uuid, "table_name": columns["table_name"][row]}
                reachable[row] = {
                    **identity,
                    "commit_id": columns["commit_id"][row],
                    "state": state,
                    "refs": list(reach[index].names),
                    "refs_count": reach[index].count,
                    "keep_until": keep_until,
                    "reason": reason,
                }
                if state != RETAINED:
                    removal = {"snapshot_id": columns["commit_id"][row], "action": "remove_snapshot", "reason": reason}
                    expiry.append({**identity, **removal})
            if table.forest.cyclic:
                notes.append(
                    f"table {_table_name(table)}: the parents of {len(table.forest.cyclic):,} snapshots form a cycle; they are kept"
                )
    return Retention(
        reachable=pa.Table.from_pylist(reachable, schema=REACHABLE_SNAPSHOTS.schema),
        expiry=pa.Table.from_pylist(expiry, schema=EXPIRY_PLAN.schema),
        notes=tuple(notes),
    )


@contextmanager
def _name_errors(table_name: str) -> Generator[None]:
    """Add the table's name to unexpected errors in the `with` block."""
    try:
        yield
    except GcError:
        raise
    except Exception as error:
        raise LakeUnreadable(f"table {table_name}: its retention cannot be computed: {type(error).__name__}: {error}") from error


def _group_tables(refs: FrozenRefs, commits: pa.Table, uuids: Sequence[str], ids: Sequence[str]) -> Iterator[_TableHistory]:
    parents, differ = commits["parents"].to_pylist(), commits["parents_differ"].to_pylist()
    stamps = commits["committed_at"].cast(TIMESTAMP).cast(pa.int64()).to_pylist()
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, uuid in enumerate(uuids):
        rows_of[uuid].append(row)
    refs_of: dict[tuple[str | None, str | None], list[Ref]] = defaultdict(list)
    for ref in refs.refs:
        refs_of[ref.table_uuid, ref.table_name].append(ref)
    sources_of: dict[str, list[CommitSource]] = defaultdict(list)
    for source in refs.sources:
        sources_of[source.table_uuid or ""].append(source)
    if unknown := rows_of.keys() - sources_of.keys():
        raise LakeUnreadable(
            f"lake {refs.lake}: the commit graph has table {next(iter(unknown))}, which is not among the tables of this run; run again"
        )
    for uuid, sources in sources_of.items():
        rows = rows_of.get(uuid, [])
        forest = build_forest([ids[row] for row in rows], [next(iter(parents[row] or ()), None) for row in rows])
        disputed = frozenset(index for index, row in enumerate(rows) if differ[row])
        ambiguous = [ids[row] for row in rows if len(parents[row] or ()) > 1]
        registrations = [(source, refs_of[uuid, source.table_name]) for source in sources]
        yield _TableHistory(uuid, rows, forest, disputed, ambiguous, [stamps[row] for row in rows], registrations)


def _apply_rules(table: _TableHistory, as_of: datetime, policy: IcebergRetention) -> _Verdicts:
    """Apply Iceberg's retention algorithm to each registration of a table."""
    verdicts = _Verdicts({}, {}, {}, set())
    for source, refs in table.registrations:
        limits = TableLimits.of(source.properties, policy, as_of)
        of_table = " of the table" if policy.dangling is None else ""
        kept_refs: list[tuple[Ref, int, RefLimits, float]] = []
        for ref in refs:
            head = table.head_index(source, ref)
            if head is None:
                continue
            ref_limits, name = limits.for_ref(ref), table.qualify(source, ref)
            if ref_limits.ref_age.keeps(table.stamps[head]):  # step 1
                kept_refs.append((ref, head, ref_limits, table.stamps[head] + ref_limits.ref_age.duration))
                verdicts.retained_refs.add((ref.ref_name, head))
                verdicts.expiry_reasons[name] = (
                    f"expired: only the history of tag {name} reaches it, and a tag keeps its own snapshot alone"
                    if ref.ref_type == "tag"
                    else f"expired: older than {ref_limits.age.label} on branch {name} and not among its newest {ref_limits.keep_last}"
                )
            else:
                reason = f"expired: the head of {ref.ref_type} {name} is older than {ref_limits.ref_age.label}"
                verdicts.lapsed[ref.ref_name, head] = _LapsedRef(ref.ref_type, reason)
                verdicts.expiry_reasons[name] = (
                    f"expired: only {ref.ref_type} {name} reaches it, and its head is older than {ref_limits.ref_age.label}"
                )
        walked: dict[int, _WalkState] = {}
        on_branches: set[int] = set()
        for ref, head, ref_limits, keep_until in kept_refs:
            name = table.qualify(source, ref)
            verdicts.keep(head, _KeepRule(keep_until, f"kept: head of {ref.ref_type} {name}"))  # step 2
            if ref.ref_type == "branch":  # step 4: a tag only keeps its own snapshot, and no ancestor
                _keep_branch(table, verdicts, walked, name, head, ref_limits, keep_until)  # step 3
                _mark_ancestry(table, head, on_branches)
        referenced = on_branches.union(head for _, head, _, _ in kept_refs)
        for index, stamp in enumerate(table.stamps):  # step 5
            if index not in referenced and limits.unreferenced.keeps(stamp):
                reason = f"kept: no kept branch reaches it, and it is within {limits.unreferenced.label}{of_table}"
                verdicts.keep(index, _KeepRule(stamp + limits.unreferenced.duration, reason))
    return verdicts


def _keep_branch(
    table: _TableHistory, verdicts: _Verdicts, walked: dict[int, _WalkState], name: str, head: int, limits: RefLimits, keep_until: float
) -> None:
    """Keep a branch's head and its ancestors that are recent enough or among the newest."""
    index, remaining = head, limits.keep_last
    while index != NO_PARENT:
        stamp = table.stamps[index]
        if remaining > 0:
            keep = _KeepRule(keep_until, f"kept: among the newest {limits.keep_last} of branch {name}")
        elif limits.age.keeps(stamp):
            keep_until = min(keep_until, stamp + limits.age.duration)
            keep = _KeepRule(keep_until, f"kept: within {limits.age.label} of branch {name}{_describe_start(limits.age, stamp)}")
        else:
            return
        previous = walked.get(index)
        if (
            previous is not None
            and previous.cutoff <= limits.age.cutoff
            and previous.remaining >= remaining
            and previous.keep_until >= keep_until
        ):
            return
        walked[index] = _WalkState(limits.age.cutoff, remaining, keep_until)
        verdicts.keep(index, keep)
        index, remaining = table.forest.parent[index], max(0, remaining - 1)


def _describe_start(age: AgeLimit, stamp: int) -> str:
    """Explain why an age limit keeps a snapshot that is newer than the time of the evaluation."""
    as_of = age.cutoff + age.duration  # Infinite, or not a number, if the limit is not a duration.
    return f", counted from {format_time(datetime.fromtimestamp(as_of / 1e6, UTC))}" if stamp > as_of else ""


def _mark_ancestry(table: _TableHistory, head: int, marked: set[int]) -> None:
    """Add a head snapshot and its ancestors to `marked`.

    Stop at the first one that is in it already.

    A disputed parent is not added, because according to another registration, no branch reaches it.
    The rule for unreferenced snapshots can then apply to that parent.
    """
    index = head
    while index != NO_PARENT and index not in marked:
        marked.add(index)
        index = NO_PARENT if index in table.disputed else table.forest.parent[index]


def _keep_protected(table: _TableHistory, verdicts: _Verdicts, grace_cutoff: int, policy: IcebergRetention) -> list[str]:
    """Keep further snapshots that Iceberg's rules would expire. Returns notes for the report.

    The whole history is kept if a table is not collected or not writable, or has invalid retention
    settings or contradictory parents. Snapshots are also kept if their parents form a cycle, or if
    they are younger than the grace period.
    """
    notes: list[str] = []
    if table.ambiguous:
        reason = f"the names of the table list different parents of snapshot {table.ambiguous[0]}"
        _keep_all(table, verdicts, f"{reason}, so its history is unknown")
        notes.append(f"table {_table_name(table)}: {reason}; its whole history is kept")
    for source, refs in table.registrations:
        if source.properties[COLLECT] != "true":
            reason = _not_collected_reason(source.properties)
            for index in range(len(table.rows)):
                verdicts.keeps[index] = _KeepRule(NEVER, f"kept: table {source.table_name} is not collected, {reason}")
            verdicts.lapsed.clear()
        elif source.properties.get(WRITABLE) == "false":
            reason = (
                "pyiceberg cannot commit to it (it supports format version 3 only over REST, and no commits in DynamoDB or BigQuery); "
                "expire it with an engine that can, such as Spark's expire_snapshots; gc-assets then collects its files"
            )
            _keep_all(table, verdicts, reason)
        elif (kept_by := find_keeping_policy(source.properties, policy)) is not None:
            _keep_all(table, verdicts, kept_by)
        elif invalid := next(find_invalid_settings(source.properties, refs, policy), None):
            _keep_all(table, verdicts, f"{invalid}, which is invalid")
            notes.append(
                f"table {source.table_name}: {invalid}, expected a whole number that is not negative, so its whole history is kept and "
                "only its orphans are collected; correct the setting, or override it by `retention` in lakes.yaml"
            )
    for index in table.forest.cyclic:
        verdicts.keep(index, _KeepRule(NEVER, "kept: its parents form a cycle, so its history is unknown"))
    for index, stamp in enumerate(table.stamps):
        if index not in verdicts.keeps and stamp >= grace_cutoff:
            verdicts.keeps[index] = _KeepRule(NEVER, "kept: younger than the grace period")
    return notes


def _not_collected_reason(properties: Mapping[str, str]) -> str:
    of_catalog = read_policy(properties)
    if of_catalog is not None and of_catalog.protect is not None:
        return of_catalog.protect
    is_enabled = is_gc_enabled(properties)
    return "no pattern of `tables` matches it" if is_enabled else f"its {GC_ENABLED} is {properties[GC_ENABLED]}"


def describe_retention(properties: Mapping[str, str], policy: IcebergRetention, source: str = "lakes.yaml") -> str:
    """Describe which snapshots a table keeps on its branches, and the origin of the limits.

    Args:
        properties: `CommitSource.properties` of the table.
        policy: Overrides in the configuration.
        source: Origin of the overrides, for messages.
    """
    if properties.get(COLLECT, "true") != "true":
        return f"everything ({_not_collected_reason(properties)})"
    if properties.get(WRITABLE) == "false":
        return "everything (pyiceberg cannot commit to it)"
    if (kept_by := find_keeping_policy(properties, policy)) is not None:
        return f"everything ({kept_by})"
    invalid = next(find_invalid_settings(properties, (), policy), None)
    return describe_limits(properties, policy, source) if invalid is None else f"everything ({invalid}, which is invalid)"


def _keep_all(table: _TableHistory, verdicts: _Verdicts, reason: str) -> None:
    """Keep all snapshots and refs of a table. If a snapshot is already kept, its reason stays."""
    for index in range(len(table.rows)):
        verdicts.keeps.setdefault(index, _KeepRule(NEVER, f"kept: {reason}"))
    verdicts.lapsed.clear()


def _collect_heads(table: _TableHistory) -> Mapping[int, Sequence[str]]:
    heads: dict[int, list[str]] = defaultdict(list)
    for source, refs in table.registrations:
        for ref in refs:
            head = table.head_index(source, ref)
            if head is not None:
                heads[head].append(table.qualify(source, ref))
    return heads


def _find_state(verdicts: _Verdicts, reach: Reach, index: int, rule: str) -> tuple[CommitState, str]:
    keep = verdicts.keeps.get(index)
    if keep is not None:
        return RETAINED, keep.reason
    if not reach.count:
        return DANGLING, f"dangling: no ref reaches it, and it is older than {rule}"
    # The reason given by a kept branch is more useful than one given by a tag or a lapsed ref.
    reasons = [verdicts.expiry_reasons[name] for name in reach.names]
    others = f" (and {count_of(reach.count - 1, 'other ref')})" if reach.count > 1 else ""
    return EXPIRED, next((reason for reason in reasons if "on branch" in reason), reasons[0]) + others


def _plan_ref_deletions(table: _TableHistory, verdicts: _Verdicts) -> Iterator[dict[str, Any]]:
    for (name, head), lapse in verdicts.lapsed.items():
        if (name, head) not in verdicts.retained_refs:
            yield {
                "table_uuid": table.uuid,
                "table_name": _table_name(table),
                "snapshot_id": table.forest.ids[head],
                "action": "delete_ref",
                "ref_name": name,
                "ref_type": lapse.ref_type,
                "reason": lapse.reason,
            }


def _table_name(table: _TableHistory) -> str:
    return str(table.registrations[0][0].table_name)
