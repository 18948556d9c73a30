"""Executes a plan's edits of history, with intents and outcomes on record, and publishes
`expiry_log`.

Acts and never decides. The actions are the plan's, and the lake makes only those that its policy
still asks for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.hashing import digest
from gc_assets.core.phases import ABSENT, CHANGED, DONE, FAILED, UNDONE
from gc_assets.core.plan import PlanHeader, Unreadable
from gc_assets.engine.progress import log_activity, log_progress, start_run, track
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.kinds import KINDS, reversible_titles
from gc_assets.lakes.protocol import REMOVE_SNAPSHOT, ExpiryAction, ExpiryOutcome, ExpiryVerdict, as_reversible
from gc_assets.stages.delete.deferred_rows import list_unreadable, read_missed_tables
from gc_assets.stages.delete.plan import planned_actions
from gc_assets.stages.mark.snapshot_history import record_removals
from gc_assets.stages.records.leases import refuse_rehearsal, take_lease
from gc_assets.stages.records.plans import StoredPlan, execution_directory, record_damage
from gc_assets.state.receipts import Balance
from gc_assets.state.schemas import EXPIRY_LOG, EXPIRY_PLAN, LIVE_FILES
from gc_assets.state.summaries import ExpiryLogSummary
from gc_assets.stores.execution import current_user, release_on_exit
from gc_assets.stores.protocol import Lease
from gc_assets.stores.store import open_store

# A lake, and in it an Iceberg table.
HistoryName = tuple[str, str | None]
OUT_OF_DATE: Final = "the plan was out of date before this edit was made"


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """An action with its final outcome, as the write-ahead log keeps it."""

    action: ExpiryAction
    verdict: ExpiryVerdict | Literal["undone"]
    error: str | None
    at: datetime
    spoilt: bool = False

    @property
    def is_final(self) -> bool:
        """Says whether the action is not to be tried again.

        An action that spoilt a lake stays `failed` and is over. A second try would see the edit
        made, which says nothing of the damage.
        """
        return self.verdict != FAILED or self.spoilt


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """How many edits had which outcome.

    `edited` says whether any was left to be settled, so that what was marked before is out of date.

    `failed` and `not_made` name the histories of which an edit failed or was not made. Such a
    history frees nothing, whatever a mark says: a catalog may have dropped a ref with its snapshot,
    or the table may live on in another catalog.
    """

    counts: dict[str, int]
    edited: bool
    failed: frozenset[HistoryName]
    not_made: frozenset[HistoryName]


@dataclass(frozen=True, slots=True)
class ExpiryRecord:
    """The record of one lake's part of a plan.

    `intent.json` is written before the first edit, `<token>-<n>.outcome.json` when edits have their
    outcomes. The token is that of the storage's lease, so a run that lost the lease overwrites
    nobody's record.
    """

    context: RunContext
    header: PlanHeader
    lake: str

    @property
    def _directory(self) -> str:
        return f"{execution_directory(self.header)}/expiry/{self.lake}"

    @property
    def begun(self) -> bool:
        return "intent.json" in self._names()

    def intend(self, actions: Sequence[ExpiryAction]) -> None:
        document = {"plan_id": self.header.plan_id, "actions": [asdict(action) for action in actions]}
        self.context.state.files.replace(f"{self._directory}/intent.json", json.dumps(document, indent=1).encode())

    def conclude(self, outcomes: Sequence[EditOutcome], token: int) -> None:
        """Records the outcomes of actions.

        Damage to the lake is recorded first. That record stops every later plan until a person
        removes its file.
        """
        files = self.context.state.files
        if spoilt := sorted({str(item.error) for item in outcomes if item.spoilt}):
            record_damage(self.context.state, self.lake, self.header.plan_id, spoilt)
        rows = [
            asdict(item.action) | {"verdict": item.verdict, "error": item.error, "at": item.at.isoformat(), "spoilt": item.spoilt}
            for item in outcomes
        ]
        number = sum(name.endswith(".outcome.json") for name in self._names())
        files.replace(f"{self._directory}/{token:06d}-{number:05d}.outcome.json", json.dumps(rows, indent=1).encode())

    def outcomes(self) -> dict[ExpiryAction, EditOutcome]:
        """Returns the newest outcome of each action.

        Raises `StateError` naming a record that cannot be understood.
        """
        names = sorted(name for name in self._names() if name.endswith(".outcome.json"))
        return {item.action: item for name in names for item in self._outcomes(name)}

    def settled(self) -> set[ExpiryAction]:
        """Returns the actions whose newest outcome is not `failed`."""
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
                    spoilt=row.pop("spoilt", False),
                    action=ExpiryAction(**row),
                )
                for row in rows
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path} in the state is no record of expiry outcomes ({error!r}); restore it from a backup") from error


def read_actions(context: RunContext, plan: StoredPlan) -> dict[str, list[ExpiryAction]]:
    """Returns the plan's edits by lake.

    Raises `StateError` where they are not those that were approved.
    """
    rows = planned_actions(context.state, plan.published)
    found = f"{digest(rows):016x}"
    if found != plan.header.expiry_digest:
        raise StateError(
            f"plan {plan.header.plan_id}: its edits of history have the digest {found}, it was approved with {plan.header.expiry_digest}; "
            f"{plan.published.path} was changed after the plan was made. Make a new one with `gc-assets run`."
        )
    by_lake: dict[str, list[ExpiryAction]] = {}
    for row in rows.to_pylist():
        by_lake.setdefault(row.pop("lake"), []).append(ExpiryAction(**row))
    return by_lake


def is_expiry_complete(context: RunContext, plan: StoredPlan) -> bool:
    """Says whether every edit of the plan has an outcome and none stands as failed."""
    wanted = read_actions(context, plan)
    return all(set(actions) <= ExpiryRecord(context, plan.header, lake).settled() for lake, actions in wanted.items())


def expire_lakes(
    spark: SparkSession, context: RunContext, again: RunContext, plan: StoredPlan, lease: Lease, *, only_interrupted: bool
) -> ExpiryResult:
    """Makes the plan's edits and returns what became of them.

    Before snapshots of a lake are removed, their records stand in `snapshot_history`. `again` is
    the night of the fresh mark.
    """
    counts = Counter[str]()
    unreadable = (*list_unreadable([again.table(LIVE_FILES, lake.name) for lake in context.config.lakes]), *read_missed_tables(context))
    edited, failed, not_made = False, set[HistoryName](), set[HistoryName]()
    for lake_name, actions in read_actions(context, plan).items():
        record = ExpiryRecord(context, plan.header, lake_name)
        settled = record.settled()
        removes = any(action.action == REMOVE_SNAPSHOT for action in actions if action not in settled)
        if removes and not only_interrupted and not record.begun:
            rows = planned_actions(context.state, plan.published)
            record_removals(spark, again, lake_name, plan.header.plan_id, rows.filter(pc.equal(rows.column("lake"), lake_name)))
        lease.check()
        edited |= make_edits(record, actions, lease, unreadable, only_interrupted=only_interrupted)
        counts.update(_publish(plan, actions, record))
        for item in record.outcomes().values():
            if item.verdict in {FAILED, CHANGED}:
                (failed if item.verdict == FAILED else not_made).add((lake_name, item.action.table_uuid))
    return ExpiryResult(dict(counts), edited, frozenset(failed), frozenset(not_made))


def make_edits(
    record: ExpiryRecord, actions: Sequence[ExpiryAction], lease: Lease, unreadable: Sequence[Unreadable] = (), *, only_interrupted: bool
) -> bool:
    """Gives each of a lake's actions an outcome on record; returns false where all had a final one
    before.

    The history of what is sick is not edited. An action that failed is tried again, one that spoilt
    the lake is not. Where an earlier run began, an edit that turns out to be made counts as `done`.

    With `only_interrupted` nothing begins that had not begun, and nothing that failed is tried
    again: the plan must come to its end.

    The lease is checked between edits, which renews it. Raises `GateRefused` where it is lost; the
    next run then learns what was made.
    """
    context, clock, resumed, known = record.context, record.context.clock, record.begun, record.outcomes()
    todo = [action for action in actions if action not in known or not known[action].is_final]
    if only_interrupted:
        todo += [action for action in actions if action in known and known[action].spoilt and known[action].verdict == FAILED]
    if not todo:
        return False
    if only_interrupted:
        there = any(lake.name == record.lake for lake in context.config.lakes)
        given_up = [action for action in todo if not (resumed and there) or action in known]
        if given_up:
            record.conclude([_given_up(action, known.get(action), clock.now()) for action in given_up], lease.token)
        todo = [action for action in todo if action not in given_up]
        if not todo:
            return True
    if not resumed:
        record.intend(actions)
    waiting = {action: item for action in todo for item in unreadable if item.covers(record.lake, action.table_uuid)}
    if waiting:
        at = clock.now()
        record.conclude([EditOutcome(action, CHANGED, f"{item.name} cannot be read", at) for action, item in waiting.items()], lease.token)
        todo = [action for action in todo if action not in waiting]
        if not todo:
            return True
    log_activity(f"expire: {len(todo):,} edits of the history of lake {record.lake}")
    outcomes = context.expiring_lake(record.lake).expire(todo, record.header.as_of, clock.now() - context.longest_grace())
    found: list[EditOutcome] = []
    for outcome in track(outcomes, "edits", len(todo)):
        found.append(_settled(outcome, clock.now(), resumed=resumed))
        lease.check()
    answered = {item.action for item in found}
    silent = [EditOutcome(action, FAILED, "the lake gave no answer for it", clock.now()) for action in todo if action not in answered]
    record.conclude([*found, *silent], lease.token)
    return True


def _given_up(action: ExpiryAction, before: EditOutcome | None, at: datetime) -> EditOutcome:
    found = f"; {before.error}" if before is not None and before.spoilt else ""
    return EditOutcome(action, CHANGED, OUT_OF_DATE + found, at)


@log_progress(EXPIRY_LOG, attrgetter("header.storage"))
def undo_expiry(context: RunContext, plan: StoredPlan) -> dict[str, int]:
    """Undoes the plan's edits of history, and returns how many had which outcome.

    Each outcome is on record in `expiry_log`, as `undone` or as what kept it. What was `done` is
    put back as it was before, where the repository still stands as the plan left it. Restore the
    plan's files first.

    Lakes that left the configuration are passed over: their history stays as it is. Raises
    `UsageError` where nothing of the plan can be undone: what a lake cannot take back is gone.
    """
    opened = [context.lake(item.name) for item in context.config.lakes if item.name in plan.header.expiry_actions]
    done = [
        (lake, [item for item in ExpiryRecord(context, plan.header, lake.name).outcomes().values() if item.verdict == DONE])
        for lake in map(as_reversible, opened)
        if lake is not None
    ]
    if not any(items for _, items in done):
        lost = [kind.edits.loss for kind in KINDS.values() if kind.edits is not None and kind.edits.loss is not None]
        rules = "; ".join([f"Edits of {reversible_titles()} histories can", *lost])
        raise UsageError(f"plan {plan.header.plan_id} made no edit of history that can be undone. {rules}")
    refuse_rehearsal(context, plan.header.storage)
    store = open_store(plan.header.location, context.config.places())
    lease = take_lease(context, plan.header.storage, store, plan.header.plan_id, current_user())
    counts: Counter[str] = Counter()
    with release_on_exit(lease):
        for lake, items in done:
            log_activity(f"undo: {len(items):,} edits of the history of lake {lake.name}")
            outcomes: list[EditOutcome] = []
            for found in track(lake.undo([item.action for item in items]), "edits", len(items)):
                verdict = UNDONE if found.verdict in {DONE, ABSENT} else found.verdict
                outcomes.append(EditOutcome(found.action, verdict, found.error, context.clock.now()))
                lease.check()
            counts.update(_write_log(plan, lake.name, context, outcomes, len(items)))
    return dict(counts)


def _settled(outcome: ExpiryOutcome, at: datetime, *, resumed: bool) -> EditOutcome:
    done_before = resumed and outcome.verdict == ABSENT
    return EditOutcome(outcome.action, DONE if done_before else outcome.verdict, outcome.error, at, outcome.damaged)


def _publish(plan: StoredPlan, actions: Sequence[ExpiryAction], record: ExpiryRecord) -> dict[str, int]:
    """Publishes `expiry_log` of the lake, all actions with their newest outcomes.

    Returns how many had which.
    """
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
