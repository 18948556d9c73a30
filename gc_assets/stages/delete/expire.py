"""Execute the plan's history edits.

Intents and outcomes are recorded in the state, and the outcomes are also published as `expiry_log`.
A planned edit is executed only if the lake's policy still requires it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.errors import GateRefused, StateError, UsageError
from gc_assets.core.hashing import digest
from gc_assets.core.idle_branches import find_rule
from gc_assets.core.phases import ABSENT, CHANGED, DENIED, DONE, FAILED, UNDONE
from gc_assets.core.plan import PlanHeader, Unreadable
from gc_assets.core.units import count_of
from gc_assets.engine.progress import log_activity, log_progress, start_run, track
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import KINDS, reversible_titles
from gc_assets.lakes.protocol import (
    BRANCH_EDITS,
    DELETE_IDLE_BRANCH,
    DELETE_PATHS,
    REMOVE_SNAPSHOT,
    WITHOUT_FILES,
    BranchLake,
    ExpiryAction,
    ExpiryOutcome,
    ExpiryVerdict,
    Lake,
    PathLake,
    as_branch_lake,
    as_path_lake,
    as_reversible,
)
from gc_assets.stages.delete.deferred_rows import list_unreadable, read_missed_tables
from gc_assets.stages.delete.planned_edits import PlannedPaths, planned_actions
from gc_assets.stages.delete.removed_objects import describe_removed_objects
from gc_assets.stages.mark.shared_tables import SharedTables, edit_keys
from gc_assets.stages.mark.snapshot_history import record_removals
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stages.records.plans import DAMAGE, StoredPlan, execution_directory, record_damage
from gc_assets.stages.records.verified_tables import HistoryName
from gc_assets.state.damage import RESTORE_BACKUP
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import EXPIRY_LOG, EXPIRY_PLAN, LIVE_FILES
from gc_assets.state.summaries import ExpiryLogSummary
from gc_assets.stores.execution import current_user
from gc_assets.stores.held_lease import hold_lease
from gc_assets.stores.protocol import Lease

OUT_OF_DATE: Final = "the plan was out of date before this edit was made"
WITHOUT_RULE: Final = "no rule of `retention.delete_idle` matches the branch now"


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """A planned action and its outcome, as recorded in the state.

    Attributes:
        damaged: True if the edit was made but its result differs from the plan.
        is_uncertain: True if an interrupted apply may have made the edit.
    """

    action: ExpiryAction
    verdict: ExpiryVerdict | Literal["undone"]
    error: str | None
    at: datetime
    damaged: bool = False
    is_uncertain: bool = False

    @property
    def is_final(self) -> bool:
        """Whether the action must not be retried.

        If an action damaged a history, it stays `failed` and is never retried. A retry would find
        the edit in effect and record an outcome that hides the damage.
        """
        return self.verdict != FAILED or self.damaged

    @property
    def may_be_made(self) -> bool:
        """True if the edit was made, or if it may have been made because its outcome is unknown."""
        return self.verdict in {DONE, FAILED} or self.is_uncertain


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """The outcomes of a plan's history edits.

    Attributes:
        counts: Number of edits by outcome.
        edited: True if any edit was pending, which makes every earlier mark out of date.
        failed: Histories in which an edit failed.
        not_made: Histories in which an edit was skipped or denied. The files of these and of failed
            histories stay, even if the next mark finds them unused. For example, the catalog may
            have dropped a ref along with its snapshot, or another catalog may have the table.
        done_by_lake: Number of edits with the outcome `done`, by lake.
        edited_histories: Histories in which an edit was made.
    """

    counts: dict[str, int]
    edited: bool
    failed: frozenset[HistoryName]
    not_made: frozenset[HistoryName]
    done_by_lake: Mapping[str, int]
    edited_histories: frozenset[HistoryName] = frozenset()


@dataclass(frozen=True, slots=True)
class ExpiryRecord:
    """The record of a plan's edits in one lake, stored in the state.

    `intent.json` is written before the first edit and `<token>-<n>.outcome.json` afterwards. File
    names contain the fencing token of the storage's lease, so a run that lost the lease cannot
    overwrite the record of the next holder.
    """

    context: RunContext
    header: PlanHeader
    lake: str

    @property
    def _directory(self) -> str:
        return f"{execution_directory(self.header)}/expiry/{self.lake}"

    @property
    def is_started(self) -> bool:
        return "intent.json" in self._names()

    def record_intent(self, actions: Sequence[ExpiryAction]) -> None:
        document = {"plan_id": self.header.plan_id, "actions": [asdict(action) for action in actions]}
        self.context.state.files.replace(f"{self._directory}/intent.json", json.dumps(document, indent=1).encode())

    def record_outcomes(self, outcomes: Sequence[EditOutcome], token: int) -> None:
        """Record the outcomes of history edits.

        If the lake was damaged, the damage is recorded first. It blocks all later plans until a
        user removes the record.
        """
        files = self.context.state.files
        if damaged := sorted({str(item.error) for item in outcomes if item.damaged}):
            record_damage(self.context.state, self.lake, self.header.plan_id, damaged)
        rows = [
            asdict(item.action)
            | {"verdict": item.verdict, "error": item.error, "at": item.at.isoformat(), DAMAGE: item.damaged}
            | ({"is_uncertain": True} if item.is_uncertain else {})
            for item in outcomes
        ]
        number = sum(name.endswith(".outcome.json") for name in self._names())
        files.replace(f"{self._directory}/{token:06d}-{number:05d}.outcome.json", json.dumps(rows, indent=1).encode())

    def outcomes(self) -> dict[ExpiryAction, EditOutcome]:
        """Return the most recent outcome recorded for each action.

        Raises:
            StateError: If an outcome file cannot be parsed.
        """
        names = sorted(name for name in self._names() if name.endswith(".outcome.json"))
        return {item.action: item for name in names for item in self._outcomes(name)}

    def settled_actions(self) -> set[ExpiryAction]:
        """Return the actions that have an outcome other than `failed`."""
        return {action for action, item in self.outcomes().items() if item.verdict != FAILED}

    def _names(self) -> list[str]:
        return [item.name for item in self.context.state.files.list(self._directory)]

    def _outcomes(self, name: str) -> list[EditOutcome]:
        path = f"{self._directory}/{name}"
        try:
            rows: list[dict[str, Any]] = json.loads(self.context.state.files.read(path))
            return [
                EditOutcome(
                    verdict=row.pop("verdict"),
                    error=row.pop("error"),
                    at=datetime.fromisoformat(row.pop("at")),
                    damaged=row.pop(DAMAGE, False),
                    is_uncertain=row.pop("is_uncertain", False),
                    action=ExpiryAction(**row),
                )
                for row in rows
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{self.context.state.files.root}/{path} is damaged ({error!r}); {RESTORE_BACKUP}") from error


def read_actions(context: RunContext, plan: StoredPlan) -> dict[str, list[ExpiryAction]]:
    """Read the plan's history edits, grouped by lake.

    Raises:
        StateError: If their digest differs from the approved digest.
    """
    rows = planned_actions(context.state, plan.published)
    found = f"{digest(rows):016x}"
    if found != plan.header.expiry_digest:
        raise StateError(
            f"Cannot apply plan {plan.header.plan_id[:12]}: its history edits in {plan.published.path} were changed after the "
            f"plan was made (digest {found}, approved {plan.header.expiry_digest}). Make a new plan with `gc-assets run`."
        )
    by_lake: dict[str, list[ExpiryAction]] = {}
    for row in rows.to_pylist():
        by_lake.setdefault(row.pop("lake"), []).append(ExpiryAction(**row))
    return by_lake


def is_expiry_complete(context: RunContext, plan: StoredPlan) -> bool:
    """Return True if every history edit of the plan has an outcome other than `failed`."""
    planned = read_actions(context, plan)
    return all(set(actions) <= ExpiryRecord(context, plan.header, lake).settled_actions() for lake, actions in planned.items())


def expire_lakes(spark: SparkSession, context: RunContext, mark: RunContext, plan: StoredPlan, lease: Lease) -> ExpiryResult:
    """Execute the plan's history edits and return their outcomes.

    Snapshots are recorded in `snapshot_history` before they are removed.

    Args:
        mark: The run context of the verification mark.
        lease: The lease on the plan's storage.
    """
    counts = Counter[str]()
    missed = read_missed_tables(context, plan.header.storage)
    unreadable = (*list_unreadable(mark.lake_tables(LIVE_FILES)), *missed)
    edited, failed, not_made, done_by_lake = False, set[HistoryName](), set[HistoryName](), dict[str, int]()
    edited_histories, shared = set[HistoryName](), SharedTables.of(mark, [lake.name for lake in mark.config.lakes])
    for lake_name, actions in read_actions(context, plan).items():
        record = ExpiryRecord(context, plan.header, lake_name)
        settled_actions = record.settled_actions()
        removes = any(action.action == REMOVE_SNAPSHOT for action in actions if action not in settled_actions)
        if removes and not record.is_started and mark.kind(lake_name).table_with(TableRole.HISTORY) is not None:
            rows = planned_actions(context.state, plan.published)
            record_removals(spark, mark, lake_name, plan.header.plan_id, rows.filter(pc.equal(rows.column("lake"), lake_name)))
        lease.check()
        announce_deletions(plan, actions, record)
        kept = {} if shared.is_empty else _find_kept(shared, lake_name, actions)
        edited |= make_edits(record, actions, lease, unreadable, kept)
        published = _publish(plan, actions, record)
        counts.update(published)
        done_by_lake[lake_name] = published.get(DONE, 0)
        for item in record.outcomes().values():
            if item.verdict == DONE:
                edited_histories.add((lake_name, item.action.table_uuid))
            if item.verdict in {FAILED, CHANGED, DENIED} and item.action.action not in WITHOUT_FILES:
                (failed if item.verdict == FAILED else not_made).add((lake_name, item.action.table_uuid))
    return ExpiryResult(dict(counts), edited, frozenset(failed), frozenset(not_made), done_by_lake, frozenset(edited_histories))


def _find_kept(shared: SharedTables, lake_name: str, actions: Sequence[ExpiryAction]) -> dict[ExpiryAction, str]:
    """Find actions on history that another lake still retains.

    Returns:
        The reason for each such action.
    """
    rows = pa.Table.from_pylist([asdict(action) for action in actions], EXPIRY_PLAN.schema)
    kept = shared.find_kept_edits(lake_name, rows)
    return {action: kept[key].reason for action, key in zip(actions, edit_keys(rows), strict=True) if key in kept}


def make_edits(
    record: ExpiryRecord,
    actions: Sequence[ExpiryAction],
    lease: Lease,
    unreadable: Sequence[Unreadable] = (),
    kept: Mapping[ExpiryAction, str] = MappingProxyType({}),
) -> bool:
    """Execute the pending history edits of a lake and record their outcomes.

    A failed edit is retried unless it damaged the lake. If an earlier run was interrupted, an edit
    that is already in effect is recorded as `done`.

    The lease is checked between edits, which renews it if necessary.

    Args:
        actions: All planned actions of the lake.
        unreadable: Unreadable tables, whose histories are left unchanged.
        kept: Actions on history that another lake retains, with the reasons. They are skipped.

    Returns:
        False if every action already had a final outcome, so that nothing was executed.

    Raises:
        LeaseLost: If the lease is lost. The next run then determines which edits were made.
    """
    resumed, recorded = record.is_started, record.outcomes()
    pending = [action for action in actions if action not in recorded or not recorded[action].is_final]
    if not pending:
        return False
    if not resumed:
        record.record_intent(actions)
    waiting = {
        action: f"{item.name} cannot be read" for action in pending for item in unreadable if item.covers(record.lake, action.table_uuid)
    }
    reasons = dict.fromkeys(_find_without_rule(record, pending), WITHOUT_RULE) | {**kept, **waiting}
    pending = _cancel_actions(record, pending, reasons, recorded, lease, resumed=resumed)
    if pending:
        _execute(record, pending, lease, resumed=resumed)
    return True


def end_edits(context: RunContext, plan: StoredPlan, lease: Lease) -> dict[str, dict[str, int]]:
    """Record `changed` for each pending edit of the plan, and count its edits by lake and outcome.

    This neither reads nor edits a history. If an interrupted edit took effect, the next run notices
    this when it reads the history.
    """
    by_lake: dict[str, dict[str, int]] = {}
    for lake_name, actions in read_actions(context, plan).items():
        record = ExpiryRecord(context, plan.header, lake_name)
        recorded, at = record.outcomes(), context.clock.now()
        pending = [action for action in actions if action not in recorded or recorded[action].verdict == FAILED]
        outcomes = [_cancel(action, recorded.get(action), at, is_interrupted=record.is_started) for action in pending]
        if outcomes:
            lease.check()
            record.record_outcomes(outcomes, lease.token)
        by_lake[lake_name] = _publish(plan, actions, record)
    return by_lake


def _find_without_rule(record: ExpiryRecord, pending: Sequence[ExpiryAction]) -> list[ExpiryAction]:
    """Return the planned branch deletions for which no `retention.delete_idle` rule remains."""
    deletions = [action for action in pending if action.action == DELETE_IDLE_BRANCH]
    rules = record.context.config.lake(record.lake).idle_rules if deletions else ()
    return [action for action in deletions if find_rule(rules, str(action.ref_name)) is None]


def _cancel_actions(
    record: ExpiryRecord,
    pending: Sequence[ExpiryAction],
    reasons: Mapping[ExpiryAction, str],
    recorded: Mapping[ExpiryAction, EditOutcome],
    lease: Lease,
    *,
    resumed: bool,
) -> list[ExpiryAction]:
    """Record the actions in `reasons` as `changed` and return the remaining pending actions."""
    at = record.context.clock.now()
    outcomes = [
        _cancel(action, recorded.get(action), at, is_interrupted=resumed, reason=reasons[action]) for action in pending if action in reasons
    ]
    if outcomes:
        record.record_outcomes(outcomes, lease.token)
    return [action for action in pending if action not in reasons]


def _execute(record: ExpiryRecord, actions: Sequence[ExpiryAction], lease: Lease, *, resumed: bool) -> None:
    context, clock = record.context, record.context.clock
    log_activity(f"expire: {count_of(len(actions), 'edit')} of the history of lake {record.lake}")
    outcomes = _edit(context, record, actions, lease)
    found: list[EditOutcome] = []
    try:
        for outcome in track(outcomes, "edits", len(actions)):
            found.append(_to_edit_outcome(outcome, clock.now(), resumed=resumed))
            lease.check()
    except BaseException:
        with suppress(GateRefused):  # without the lease, the next attempt checks the edits
            lease.check()
            record.record_outcomes(found, lease.token)
        raise
    answered = {item.action for item in found}
    silent = [
        EditOutcome(action, FAILED, "the lake returned no outcome for it", clock.now()) for action in actions if action not in answered
    ]
    record.record_outcomes([*found, *silent], lease.token)


def _edit(context: RunContext, record: ExpiryRecord, actions: Sequence[ExpiryAction], lease: Lease) -> Iterator[ExpiryOutcome]:
    """Edit the history first, then delete branches, then delete paths on branches."""
    history, branches, paths = _split(actions)
    if history:
        grace_cutoff = context.clock.now() - context.longest_grace()
        yield from context.expiring_lake(record.lake).expire(history, record.header.as_of, grace_cutoff)
    if branches:
        yield from _require_branch_lake(context.lake(record.lake)).delete_branches(branches)
    if paths:
        planned = PlannedPaths(context, record.lake, record.header.run_date)
        yield from _require_path_lake(context.lake(record.lake)).delete_paths(record.header.plan_id, paths, planned.read, lease.check)


def _split(actions: Sequence[ExpiryAction]) -> tuple[list[ExpiryAction], list[ExpiryAction], list[ExpiryAction]]:
    """Split the actions into history edits, branch deletions and path deletions."""
    return (
        [action for action in actions if action.action not in BRANCH_EDITS],
        [action for action in actions if action.action == DELETE_IDLE_BRANCH],
        [action for action in actions if action.action == DELETE_PATHS],
    )


def _require_branch_lake(lake: Lake) -> BranchLake:
    found = as_branch_lake(lake)
    if found is None:
        raise UsageError(
            f"Cannot delete branches of lake {lake.name}, because its kind {lake.kind} does not support it. Remove retention.delete_idle."
        )
    return found


def _require_path_lake(lake: Lake) -> PathLake:
    found = as_path_lake(lake)
    if found is None:
        raise UsageError(f"Cannot delete paths of lake {lake.name} by commits, because its kind {lake.kind} does not support it")
    return found


def _undo(lake: Lake, plan_id: str, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
    """Undo the history edits, recreate deleted branches and restore deleted paths."""
    history, branches, paths = _split(actions)
    reversible = as_reversible(lake)
    if history and reversible is not None:
        yield from reversible.undo(history)
    if branches:
        yield from _require_branch_lake(lake).recreate_branches(branches)
    if paths:
        yield from _require_path_lake(lake).restore_paths(plan_id, paths)


def _cancel(
    action: ExpiryAction, previous: EditOutcome | None, at: datetime, *, is_interrupted: bool, reason: str = OUT_OF_DATE
) -> EditOutcome:
    """Return the outcome of a cancelled edit.

    The outcome is marked as uncertain if an earlier attempt may have made the edit.
    """
    if previous is None:
        found = f"{reason}; it may have been made, because an apply was interrupted" if is_interrupted else reason
        return EditOutcome(action, CHANGED, found, at, is_uncertain=is_interrupted)
    found = f"{reason}; {previous.error}" if previous.damaged else reason
    return EditOutcome(action, CHANGED, found, at, is_uncertain=previous.may_be_made)


def refuse_irreversible(context: RunContext, plan: StoredPlan) -> None:
    """Raise `UsageError` unless the plan has an edit that was undone or can be."""
    if not any(items for _, items in _read_reversible(context, plan)):
        raise UsageError(f"{_describe_irreversible(plan)} No file was restored. To restore the files only, leave out `--history`.")


def _read_reversible(context: RunContext, plan: StoredPlan) -> list[tuple[Lake, list[EditOutcome]]]:
    """Return each lake with the edits that were undone or can be."""
    lakes = [context.lake(item.name) for item in context.config.lakes if item.name in plan.header.expiry_actions]
    return [(lake, list(_select_reversible(lake, ExpiryRecord(context, plan.header, lake.name).outcomes().values()))) for lake in lakes]


def _select_reversible(lake: Lake, items: Iterable[EditOutcome]) -> Iterator[EditOutcome]:
    for item in items:
        is_reversible = item.action.action in BRANCH_EDITS or as_reversible(lake) is not None
        if (item.may_be_made and is_reversible) or item.verdict == UNDONE:
            yield item


def _describe_irreversible(plan: StoredPlan) -> str:
    lost = [kind.edits.loss for kind in KINDS.values() if kind.edits is not None and kind.edits.loss is not None]
    rules = "; ".join([f"Only edits of {reversible_titles()} histories and edits of branches can be undone", *lost])
    return f"plan {plan.header.plan_id[:12]} made no history edit that can be undone. {rules}."


@log_progress(EXPIRY_LOG, attrgetter("header.storage"))
def undo_expiry(context: RunContext, plan: StoredPlan, *, only_paths: bool = False) -> dict[str, int]:
    """Undo the plan's history edits and return the number of edits by outcome.

    Call this after the plan's files have been restored. Each outcome is recorded in `expiry_log`:
    `undone`, or the reason why the edit could not be undone. An edit is reverted only if the
    repository has not changed since the plan. This includes edits that an interrupted apply may
    have made. Lakes that are no longer configured are skipped.

    Args:
        only_paths: If True, only undo edits in lakes in which the plan only deleted paths by
            commits. This works without the plan's files, because the objects at these paths were
            live.

    Raises:
        UsageError: If none of the plan's edits can be undone.
    """
    reversible = _read_reversible(context, plan)
    if not only_paths and not any(items for _, items in reversible):
        raise UsageError(_describe_irreversible(plan))
    done = [(lake, [item for item in items if item.verdict != UNDONE]) for lake, items in reversible]
    if only_paths:
        done = [(lake, items) for lake, items in done if all(item.action.action == DELETE_PATHS for item in items)]
    if not any(items for _, items in done):
        return {}
    refuse_rehearsal(context, plan.header.storage)
    store = context.store(plan.header.storage)  # the storage may have moved since the plan was made
    lease = take_lease(context, plan.header.storage, store, plan.header.plan_id, current_user())
    counts: Counter[str] = Counter()
    with hold_lease(lease):
        for lake, items in done:
            counts.update(_write_log(plan, lake.name, context, _undo_lake(context, plan, lake, items, lease), len(items)))
    return dict(counts)


def _undo_lake(context: RunContext, plan: StoredPlan, lake: Lake, items: Sequence[EditOutcome], lease: Lease) -> list[EditOutcome]:
    """Undo edits in the history of one lake."""
    log_activity(f"undo: {count_of(len(items), 'edit')} of the history of lake {lake.name}")
    outcomes = list(_find_without_objects(context, plan, lake.name, items))
    blocked = {item.action for item in outcomes}
    actions = [item.action for item in items if item.action not in blocked]
    for found in track(_undo(lake, plan.header.plan_id, actions), "edits", len(actions)):
        verdict = UNDONE if found.verdict in {DONE, ABSENT} else found.verdict
        outcomes.append(EditOutcome(found.action, verdict, found.error, context.clock.now()))
        lease.check()
    # Without this record, a second undo would revert the commit of a later plan.
    reverted = [item for item in outcomes if item.verdict == UNDONE and item.action.action == DELETE_PATHS]
    if reverted:
        ExpiryRecord(context, plan.header, lake.name).record_outcomes(reverted, lease.token)
    return outcomes


def _find_without_objects(context: RunContext, plan: StoredPlan, lake: str, items: Sequence[EditOutcome]) -> Iterator[EditOutcome]:
    """Find path deletions that cannot be undone because gc-assets may have removed the objects.

    Yields:
        The outcome `changed` for each of them, with the reason.
    """
    planned = PlannedPaths(context, lake, plan.header.run_date)
    for item in items:
        is_of_paths = item.action.action == DELETE_PATHS
        reason = describe_removed_objects(context, planned, item.action, plan.header.plan_id) if is_of_paths else None
        if reason is not None:
            yield EditOutcome(item.action, CHANGED, reason, context.clock.now())


def _to_edit_outcome(outcome: ExpiryOutcome, at: datetime, *, resumed: bool) -> EditOutcome:
    was_done = resumed and outcome.verdict == ABSENT
    return EditOutcome(outcome.action, DONE if was_done else outcome.verdict, outcome.error, at, outcome.damaged)


def announce_deletions(plan: StoredPlan, actions: Sequence[ExpiryAction], record: ExpiryRecord) -> None:
    """List branch deletions in `expiry_log` as failed before executing them.

    If the apply is killed, the next run can then see which branches it may have deleted.
    """
    known, at = record.outcomes(), record.context.clock.now()
    pending = [action for action in actions if action.action == DELETE_IDLE_BRANCH and (action not in known or not known[action].is_final)]
    if pending:
        error = (
            "about to delete the branch. A later row has the outcome; without it, the apply runs or was interrupted: apply the plan again"
        )
        known |= {action: EditOutcome(action, FAILED, error, at) for action in pending}
        _write_log(plan, record.lake, record.context, list(known.values()), len(known))


def _publish(plan: StoredPlan, actions: Sequence[ExpiryAction], record: ExpiryRecord) -> dict[str, int]:
    """Publish the lake's `expiry_log` and return the number of actions by outcome."""
    known = record.outcomes()
    return _write_log(plan, record.lake, record.context, [known[action] for action in actions if action in known], len(actions))


def _write_log(plan: StoredPlan, lake_name: str, context: RunContext, outcomes: Sequence[EditOutcome], expected: int) -> dict[str, int]:
    counts = Counter[str](item.verdict for item in outcomes)
    run = start_run(context, lake_name, EXPIRY_LOG, plan.header.run_date)
    rows = [
        {name: getattr(item.action, name) for name in EXPIRY_PLAN.schema.names}
        | {"outcome": item.verdict, "error": item.error, "at": item.at, "plan_id": plan.header.plan_id}
        for item in outcomes
    ]
    written = write_rows(pa.Table.from_pylist(rows, EXPIRY_LOG.schema), EXPIRY_LOG, run, context.state.files)
    balances = [Balance(name="planned edits with an outcome", expected=expected, found=len(outcomes))]
    summary = ExpiryLogSummary(plan_id=plan.header.plan_id, approved_by=plan.verdict.approved_by, by_outcome=counts)
    publish(context.state, run, written, context.clock, inputs=[plan.published], balances=balances, summary=summary, unsafe=context.unsafe)
    return dict(counts)
