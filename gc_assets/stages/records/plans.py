"""Find plans, record approvals and rejections, and check whether a plan may be applied."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.approvals import ApprovalEvent, Verdict
from gc_assets.core.clock import MAX_SKEW, Clock
from gc_assets.core.commands import command
from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.core.deprecation import REMOVED_IN, RenamedAttribute
from gc_assets.core.errors import GateRefused, StateError, UsageError, summarize
from gc_assets.core.gates import message_of
from gc_assets.core.outcomes import select_not_done
from gc_assets.core.phases import EXPIRE
from gc_assets.core.plan import Amount, GateResult, PlanHeader, PlanSummary, completed_header, gate_name, is_intact
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.suggest import did_you_mean
from gc_assets.core.user_names import require_name
from gc_assets.state.files import is_read_only
from gc_assets.state.index import PastRun
from gc_assets.state.journal import APPLY_LOG, PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.summaries import DeletionPlanSummary, PlanIndexSummary

# Since 0.2, the name of the directory with damage records, and of a key in these records.
DAMAGE: Final = "spoilt"
APPROVALS: Final = "approvals"
LIVE_LISTED: Final = "live_listed"
# Minimum length of the plan ids that users may enter.
MIN_PLAN_ID: Final = 8
_RECORDS: Final = "_records.json"
_FINISHED, _RESTORED = "finished.json", "restored.json"
_ENDS: Final = ("finished_at", "restored_at", "not_done")
# Statuses of plans that were executed in part. An unfinished plan can be continued. A partially
# applied one has ended, and some of its rows were left out.
UNFINISHED: Final = "unfinished"
PARTIALLY_APPLIED: Final = "partially applied"
# Validated summaries of plans with their unvalidated content, by the digest of the receipt.
_MAX_SUMMARIES: Final = 20_000
_SUMMARIES: Final[dict[str, tuple[dict[str, Any], PlanIndexSummary]]] = {}
# Plans with these statuses wait for a decision or for an apply.
_OPEN: Final = frozenset({"ready", "refused", "approved"})
# A plan's first event has no number, because releases before 0.4 stored a single approval.
_NAME: Final = re.compile(r"(?P<plan_id>[0-9a-f]{64})(-(?P<number>[1-9][0-9]*))?\.json")


class _RestoreRecord(BaseModel):
    """Written by `restore` for each plan whose files it has restored."""

    at: datetime


class FinishRecord(BaseModel):
    """Written by `apply` when a plan ends. These are only the fields required to list plans.

    Records written before release 0.4 contain only the time.
    """

    at: datetime
    by_outcome: dict[str, Amount] = Field(default_factory=dict[str, Amount])
    edits: dict[str, int] = Field(default_factory=dict[str, int])

    @property
    def not_done(self) -> dict[str, int] | None:
        """Number of unchanged files, uploads and edits by `phase/outcome`, or None if all changed."""
        counts = {name: amount.files for name, amount in self.by_outcome.items()}
        return select_not_done(counts | {f"{EXPIRE}/{outcome}": count for outcome, count in self.edits.items()}) or None


class PlanRecord(RenamedKeys):
    """The approvals and rejections of one plan, and the end of its execution.

    Attributes:
        approval_events: Approvals and rejections, by the name of their files.
        not_done: Number of unchanged files, uploads and edits by `phase/outcome`. None if all were
            changed, or if the plan ended before release 0.4.
        is_started: True if an apply has begun. This field is not stored.
    """

    model_config = ConfigDict(frozen=True, defer_build=DEFER_BUILD)
    RENAMED: ClassVar = {"words": "approval_events"}

    approval_events: dict[str, ApprovalEvent] = Field(default_factory=dict[str, ApprovalEvent])
    finished_at: datetime | None = None
    restored_at: datetime | None = None
    not_done: dict[str, int] | None = None
    is_started: bool = Field(default=False, exclude=True)

    words = RenamedAttribute("approval_events")

    @property
    def has_ended(self) -> bool:
        """Whether the execution of the plan has ended, or its files were restored."""
        return self.finished_at is not None or self.restored_at is not None

    def verdict(self, needed: int) -> Verdict:
        """Return the decisions. A rejection after the apply has begun does not count."""
        events = sorted(self.approval_events.items(), key=lambda item: _number(item[0]))
        verdict = Verdict(tuple(event for _, event in events), needed)
        return verdict.without_late_rejections() if self.is_started else verdict

    def status_of(self, plan: PlanSummary, now: datetime, verdict: Verdict) -> str:
        if self.restored_at is not None:
            return "restored"
        if self.finished_at is not None:
            return PARTIALLY_APPLIED if self.not_done else "applied"
        return UNFINISHED if self.is_started else self.decision_status(plan, now, verdict)

    def decision_status(self, plan: PlanSummary, now: datetime, verdict: Verdict) -> str:
        """Return the status that the plan would have if no apply had begun."""
        status = plan.status_at(now)
        if status in {"ready", "refused"} and (verdict.rejections or verdict.is_approved):
            return "rejected" if verdict.rejections else "approved"
        return "expired" if status == "ready" and now >= plan.approve_before else status


class _Records(RootModel[dict[str, PlanRecord]]):
    """The records of a storage by plan id."""


@dataclass(frozen=True, slots=True)
class ListedPlan:
    """A plan as listed in the index of plans.

    To list a plan, its receipt is not read. Use `find_plan` before approving or applying it.

    Attributes:
        generation: The number of run dates that the plan's run builds on, see `newest_sweeps`.
    """

    header: PlanSummary
    run: PastRun
    record: PlanRecord
    verdict: Verdict
    generation: int = 0

    @property
    def order(self) -> tuple[int, int, date, str]:
        """Sort key that puts the newest run last, independent of clocks (`newest_sweeps`)."""
        return order_of(self.run, self.generation)

    def status_at(self, now: datetime) -> str:
        return self.record.status_of(self.header, now, self.verdict)

    @property
    def is_listed(self) -> bool:
        """Whether a user should see the plan, because it has actions or its gates refuse it."""
        return self.header.has_work or (bool(self.header.refused_by) and not self.header.historical)

    @property
    def has_ended(self) -> bool:
        """Whether the plan was applied or restored and can therefore not be used again."""
        return self.record.has_ended

    @property
    def accepts_missing_files(self) -> bool:
        """Whether users approved the plan with an override of `live_listed`."""
        return self.verdict.is_approved and LIVE_LISTED in self.verdict.overrides

    def is_open(self, now: datetime) -> bool:
        """Return True if the plan can still be approved or applied."""
        return not self.has_ended and self.record.decision_status(self.header, now, self.verdict) in _OPEN

    def awaits_apply(self, now: datetime) -> bool:
        """Return True if the plan is approved and can be applied now, or continued."""
        return not self.has_ended and self.record.decision_status(self.header, now, self.verdict) == "approved"


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan loaded from the state, with its approvals and the record of its execution.

    Attributes:
        finished: The record written by `record_finished`, or None.
        is_started: True if an apply has begun.
    """

    header: PlanHeader
    published: PublishedTable
    verdict: Verdict
    finished: FinishRecord | None
    restored_at: datetime | None
    is_started: bool = False

    @property
    def finished_at(self) -> datetime | None:
        """The time at which the execution ended, or None if it has not."""
        return self.finished.at if self.finished is not None else None

    @property
    def not_done(self) -> dict[str, int]:
        """Number of files, uploads and edits left unchanged by the execution, by `phase/outcome`."""
        return (self.finished.not_done if self.finished is not None else None) or {}

    @property
    def overridden_gates(self) -> list[GateResult]:
        """Failed checks (gates) that the approvals override. Empty without an approval."""
        overrides = self.verdict.overrides if self.verdict.is_approved else ()
        return [gate for gate in self.header.failed_gates if gate.overridable and gate_name(gate.name) in overrides]

    @property
    def effective_header(self) -> PlanHeader:
        """The header to use in messages. For a finished plan, it has the completed amounts."""
        if self.finished is None or not self.finished.by_outcome:  # records of releases before 0.4 have another key
            return self.header
        done = {name.removesuffix("/done"): amount for name, amount in self.finished.by_outcome.items() if name.endswith("/done")}
        return completed_header(self.header, done, self.header.expiry_actions if self.finished.edits.get("done") else {})

    def status_at(self, now: datetime) -> str:
        record = PlanRecord(
            finished_at=self.finished_at, restored_at=self.restored_at, not_done=self.not_done or None, is_started=self.is_started
        )
        return record.status_of(self.header.summary, now, self.verdict)


def order_of(run: PastRun, generation: int) -> tuple[int, int, date, str]:
    """Return the sort key of a plan's run, see `ListedPlan.order`."""
    return generation, run.entry.sequence_number, run.run_date, run.run_id


def list_plans(config: Config, storage_name: str | None = None, *, empty: bool = False) -> Iterator[ListedPlan]:
    """List the plans of all storages or of one storage, beginning with its newest plan.

    If the same plan was made twice, it is listed once. The number of requests does not depend on
    the number of plans.

    Args:
        empty: If True, include plans that do not contain any actions.
    """
    state = State.of(config)
    for storage in config.storages:
        if storage_name in {None, storage.name}:
            history = state.history(storage.name, DELETION_PLAN.name)
            records = _records(state, storage.name) if history else {}
            found: dict[str, tuple[PlanIndexSummary, PastRun]] = {}
            for run in sorted(history, key=lambda run: run.entry.sequence_number):
                index = index_summary(run)
                _refuse_copy(state, index.plan, run.group, run.path)
                found[index.plan.plan_id] = index, run
            for index, run in sorted(found.values(), key=lambda item: order_of(item[1], item[0].generation), reverse=True):
                if empty or index.plan.has_work:
                    record = records.get(index.plan.plan_id, PlanRecord())
                    yield ListedPlan(index.plan.copy_counts(), run, record, record.verdict(storage.approvals_needed), index.generation)


def index_summary(run: PastRun) -> PlanIndexSummary:
    """Return the summary of a plan, which is validated again only if its content has changed.

    Callers share the summary and must not change it.
    """
    stored = run.entry.summary
    known = _SUMMARIES.get(run.entry.receipt_sha256)
    if known is not None and known[0] == stored:
        return known[1]
    found = run.summary(PlanIndexSummary)
    if len(_SUMMARIES) >= _MAX_SUMMARIES:
        _SUMMARIES.clear()
    _SUMMARIES[run.entry.receipt_sha256] = stored, found
    return found


def previous_plan(listed: Iterable[ListedPlan], clock: Clock) -> ListedPlan | None:
    """Find the plan of the last run among the plans of a storage.

    Historical plans are ignored. A rehearsal only considers plans of rehearsals, and a real run
    only plans of real runs.
    """
    runs = [plan for plan in listed if not plan.header.historical and plan.header.rehearsal == clock.is_rehearsal]
    return max(runs, key=lambda plan: plan.order, default=None)


def load_plan(config: Config, published: PublishedTable) -> StoredPlan:
    """Load a plan with its approvals and the record of its execution.

    If the plan was made with a `plan_key`, its id is not verified here, but before it is approved
    or applied (see `refuse_other_key`). This way, the plan can still be shown and restored after
    the key was changed or lost.

    Raises:
        StateError: If a file of the plan is damaged or was changed.
    """
    state = State.of(config)
    header = _header(state, published)
    events, directory = _read_events(state, header), execution_directory(header)
    names = {item.name for item in state.files.list(directory)}
    begun = APPLY_LOG in names
    verdict = PlanRecord(approval_events=events, is_started=begun).verdict(config.storage(header.storage).approvals_needed)
    restored = _read(state, f"{directory}/{_RESTORED}", _RestoreRecord) if _RESTORED in names else None
    finished = _read(state, f"{directory}/{_FINISHED}", FinishRecord) if _FINISHED in names else None
    return StoredPlan(
        header,
        published,
        verdict,
        finished,
        restored.at if restored is not None else None,
        begun,
    )


def _header(state: State, published: PublishedTable) -> PlanHeader:
    path, receipt = f"{state.files.root}/{published.path}", published.receipt
    try:
        summary = DeletionPlanSummary.model_validate(receipt.summary)
    except ValidationError as error:
        raise StateError(
            f"Cannot read the plan in {path}: the file is damaged ({summarize(error)}). Make a new plan with `gc-assets run`."
        ) from error
    header, named = summary.header, summary.plan_id
    intact = header.keyed or is_intact(header)
    if not intact or receipt.digest != header.rows_digest or receipt.rows != header.rows or named != header.plan_id:
        raise StateError(
            f"Cannot use plan {header.plan_id[:12]}: {path} was changed after the plan was made. Make a new plan with `gc-assets run`."
        )
    _refuse_copy(state, header.summary, receipt.group, published.path)
    return header


def _refuse_copy(state: State, plan: PlanSummary, group: str, path: str) -> None:
    if plan.storage != group or not path.startswith(f"{plan.storage}/"):
        other, location = path.partition("/")[0], f"{state.files.root}/{path}"
        raise StateError(
            f"Cannot use plan {plan.plan_id[:12]} of storage {plan.storage}: {location} is a copy of it among the plans of "
            f"{other}. Remove this copy."
        )


def _read_events(state: State, header: PlanHeader) -> dict[str, ApprovalEvent]:
    names = _names_by_plan(item.name for item in state.files.list(f"{header.storage}/{APPROVALS}"))
    return {name: _read_event(state, header.storage, header.plan_id, name) for name in names.get(header.plan_id, ())}


def _read_event(state: State, storage_name: str, plan_id: str, name: str) -> ApprovalEvent:
    path = f"{storage_name}/{APPROVALS}/{name}"
    event = _read(state, path, ApprovalEvent)
    if event is None or event.plan_id != plan_id:
        found = "is missing" if event is None else f"contains an event of plan {event.plan_id[:12]}, not of the plan in its name"
        raise StateError(
            f"Cannot use the approval in {state.files.root}/{path}: the file {found}. Remove the file, then approve the plan again."
        )
    return event


def _names_by_plan(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the file names of approval events by plan id, and ignore other files."""
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            found.setdefault(match["plan_id"], []).append(name)
    return found


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match["number"] or 1) if match else 0


def find_plan(config: Config, plan_id: str) -> StoredPlan:
    """Find a plan by its id, or by at least the first 8 characters of it, and verify its rows.

    Raises:
        UsageError: If no plan matches, or more than one.
        StateError: If the rows are damaged or were changed.
    """
    if len(plan_id) < MIN_PLAN_ID:
        raise UsageError(
            f"{plan_id!r} is too short for a plan id; give at least its first {MIN_PLAN_ID} characters (see `gc-assets plans`)"
        )
    stored = list(list_plans(config, empty=True))
    found = [plan for plan in stored if plan.header.plan_id.startswith(plan_id)]
    if not found:
        meant = did_you_mean(plan_id, {plan.header.plan_id[: len(plan_id)] for plan in stored})
        raise UsageError(f"no plan with the id {plan_id}{meant or ';'} `gc-assets plans` lists the existing ones")
    if len(found) > 1:
        raise UsageError(
            f"plan id {plan_id} is ambiguous: {len(found)} plans have an id that begins with it. `gc-assets plans` lists all ids"
        )
    state = State.of(config)
    plan = load_plan(config, state.open(found[0].run))
    # All rows are verified before an approval or apply, because a single flipped bit in a key could
    # delete the wrong file.
    state.verify(plan.published)
    return plan


def find_approvable_plan(config: Config, clock: Clock, plan_id: str, by: str, overrides: tuple[str, ...] = ()) -> StoredPlan:
    """Find a plan and check that the user `by` may approve it now.

    Raises:
        GateRefused: If the plan must not be approved. The message lists the failed gates and how to
            override them.
        UsageError: If `by` is empty, an override is not a gate of the plan, or an approval would
            have no effect.
    """
    plan, now = _find_open_plan(config, clock, plan_id, by), clock.now()
    header = plan.header
    refuse_historical(header)
    refuse_other_clock(header, clock)
    refuse_future(header, clock)
    refuse_other_key(header, config)
    # Even if a plan has no actions, its overrides matter: later runs use them, and so do plans of
    # other storages that wait for missing files which the gate allows.
    refuse_unknown_gates(header, overrides)
    is_overridden = any(gate.name in overrides and (not gate.passed or gate.numbers.get("unlisted")) for gate in header.gates)
    if not header.has_work and not header.failed_gates and not is_overridden:
        raise UsageError(f"Cannot approve plan {header.plan_id[:12]}: the plan has no work, so there is nothing to approve")
    if now >= header.approve_before:
        raise GateRefused(
            f"Cannot approve plan {header.plan_id[:12]}: it had to be approved before "
            f"{header.approve_before:%Y-%m-%d %H:%M}Z, and it is now {now:%Y-%m-%d %H:%M}Z. Make a new plan with "
            "`gc-assets run`."
        )
    try:
        refuse_gates(header, overrides)
    except GateRefused as error:
        others = list(describe_other_plans(config, header, now))
        raise GateRefused("\n".join([*others, str(error)])) from None
    return plan


def approve(config: Config, clock: Clock, plan_id: str, by: str, overrides: tuple[str, ...] = (), comment: str = "") -> ApprovalEvent:
    """Record an approval of a plan.

    Earlier events are kept. If the same user has already approved the plan with the same overrides,
    and the comment is empty or the same, no new event is recorded.

    Returns:
        The new approval, or the existing one.

    Raises:
        GateRefused: If the plan must not be approved, see `find_approvable_plan`.
        UsageError: If an argument is invalid, see `find_approvable_plan`.
    """
    plan, now = find_approvable_plan(config, clock, plan_id, by, overrides), clock.now()
    _warn_renamed_gates(plan.header, overrides)
    require_name(by, "an approval", comment)
    names = tuple(sorted(set(map(gate_name, overrides))))
    for earlier in plan.verdict.approvals:
        if (earlier.by, earlier.overrides) == (by.strip(), names) and comment in {"", earlier.comment}:
            return earlier
    event = ApprovalEvent(plan_id=plan.header.plan_id, by=by.strip(), at=now, overrides=names, comment=comment)
    return _record(State.of(config), plan.header, event)


def _warn_renamed_gates(header: PlanHeader, overrides: Iterable[str]) -> None:
    own = {gate.name for gate in header.gates}
    for name in overrides:
        if name not in own and name != gate_name(name):
            message = f"gate `{name}` was renamed to `{gate_name(name)}`; the old name is removed in gc-assets {REMOVED_IN}"
            warnings.warn(message, FutureWarning, stacklevel=3)


def reject(config: Config, clock: Clock, plan_id: str, by: str, comment: str = "") -> ApprovalEvent:
    """Record a rejection, which blocks the plan until the same user approves it.

    Raises:
        GateRefused: If an apply of the plan has begun or has ended, because it may have moved files
            already. While an apply marks the lakes, it has not begun.
    """
    plan, state = _find_open_plan(config, clock, plan_id, by), State.of(config)
    require_name(by, "a rejection", comment)
    _refuse_started(state, plan.header)
    event = ApprovalEvent(plan_id=plan.header.plan_id, by=by.strip(), at=clock.now(), decision="rejected", comment=comment)
    recorded = _record(state, plan.header, event)
    _refuse_started(state, plan.header)  # an apply may have begun in the meantime
    return recorded


def _refuse_started(state: State, header: PlanHeader) -> None:
    if has_started(state, header):
        name = header.plan_id[:12]
        raise GateRefused(
            f"Cannot reject plan {name}: an apply of the plan has begun, so it is too late. `{command('restore', plan=name)}` "
            f"restores the files that it moved, and `{command('apply', name)}` finishes it."
        )


def _find_open_plan(config: Config, clock: Clock, plan_id: str, by: str) -> StoredPlan:
    plan = find_plan(config, plan_id)
    require_name(by, "an approval or rejection")
    if plan.finished is not None or plan.restored_at is not None:
        status = plan.status_at(clock.now())
        raise GateRefused(
            f"Cannot use plan {plan.header.plan_id[:12]} again: it is {status}, and each plan can be used only once. Make a "
            "new plan with `gc-assets run`."
        )
    return plan


def has_started(state: State, header: PlanHeader) -> bool:
    """Return True if an apply of the plan has begun. Restoring its files does not count."""
    return state.has_apply_log(header.storage, header.plan_id)


def refuse_unapproved(plan: StoredPlan) -> None:
    """Check that a plan is approved.

    Raises:
        GateRefused: If it is not. The message contains the command to approve it.
    """
    if (why := describe_unapproved(plan)) is not None:
        raise GateRefused(why)


def describe_unapproved(plan: StoredPlan) -> str | None:
    """Explain why the plan is not approved and how to approve it. Returns None if it is approved."""
    verdict, plan_id = plan.verdict, plan.header.plan_id[:12]
    if verdict.missing is None:
        return None
    if verdict.rejections:
        by = verdict.rejections[0].by
        return f"plan {plan_id} was {verdict.missing}. Only the same name can approve it: `{command('approve', plan_id, by=by)}`."
    who = "ANOTHER_NAME" if verdict.events else "WHO"
    return f"plan {plan_id} is {verdict.missing}. Approve it with `{command('approve', plan_id, by=who)}`."


def refuse_historical(header: PlanHeader) -> None:
    """Check that a plan is not historical.

    Raises:
        GateRefused: If the plan is historical, because such a plan can never be applied.
    """
    if header.historical:
        raise GateRefused(
            f"Cannot use plan {header.plan_id[:12]}: it is historical, because no run read the lakes on {header.run_date}. "
            "Historical plans can be shown, but never applied. To get a plan for today, run `gc-assets run`."
        )


def refuse_other_clock(header: PlanHeader, clock: Clock) -> None:
    """Check that a rehearsal's plan is only used in rehearsals, and a real plan only outside them.

    Raises:
        GateRefused: If either the plan or the clock belongs to a rehearsal, but not both.
    """
    name = f"plan {header.plan_id[:12]}"
    if header.rehearsal and not clock.is_rehearsal:
        raise GateRefused(
            f"Cannot use {name} with the real clock: it was made in a rehearsal, so its ages are not real, and "
            "GC_ASSETS_UNSAFE_NOW is not set now. Make a new plan with `gc-assets run`. To continue the rehearsal, set "
            f"GC_ASSETS_UNSAFE_NOW as before, for example to {header.created_at:%Y-%m-%dT%H:%M:%SZ}."
        )
    if clock.is_rehearsal and not header.rehearsal:
        raise GateRefused(
            f"Cannot use {name} in a rehearsal: it was made with the real clock, and GC_ASSETS_UNSAFE_NOW replaces the clock "
            "now. To use the plan, unset the variable. To rehearse, make a new plan with `gc-assets run`."
        )


def refuse_future(header: PlanHeader, clock: Clock) -> None:
    """Check that a plan was not made in the future.

    Raises:
        GateRefused: If the plan was made in the future. Either the clock was ahead at that time, so
            the ages in the plan are wrong, or the clock is behind now.
    """
    if header.created_at - clock.now() > MAX_SKEW:
        raise GateRefused(
            f"Cannot use plan {header.plan_id[:12]}: it was made at {header.created_at:%Y-%m-%d %H:%M}Z, but it is only "
            f"{clock.now():%Y-%m-%d %H:%M}Z now. Check the clock of this host. If the clock is right, make a new plan with "
            "`gc-assets run`."
        )


def refuse_other_key(header: PlanHeader, config: Config) -> None:
    """Check that the plan's id was computed with the configured `plan_key`.

    Raises:
        GateRefused: If the id is an HMAC with another key, an HMAC although no key is configured,
            or a plain digest although a key is configured.
    """
    if header.keyed != (config.plan_key is not None):
        made, now = ("with a plan_key", "has none") if header.keyed else ("without a plan_key", "has one")
        raise GateRefused(
            f"Cannot verify plan {header.plan_id[:12]}: it was made {made}, and lakes.yaml {now} now. Make a new plan with "
            "`gc-assets run`. To finish a plan that an apply has begun, configure its key again."
        )
    if not is_intact(header, config.plan_secret()):
        raise GateRefused(
            f"Cannot verify plan {header.plan_id[:12]}: it was changed after it was made, or it was made with another "
            "plan_key. Make a new plan with `gc-assets run`."
        )


def used_plan_ids(config: Config, storage_name: str) -> set[str]:
    """Return the ids of plans that cannot be used again, because they have ended or were restored."""
    return {plan_id for plan_id, record in _records(State.of(config), storage_name).items() if record.has_ended}


def refuse_unknown_gates(header: PlanHeader, overrides: tuple[str, ...]) -> None:
    """Check that all overrides are gates of the plan.

    Raises:
        UsageError: If an override is not a gate of the plan.
    """
    unknown = {gate_name(name) for name in overrides} - {gate_name(gate.name) for gate in header.gates}
    if unknown:
        known = ", ".join(gate.name for gate in header.gates if gate.overridable)
        raise UsageError(f"--override {', '.join(sorted(unknown))}: no such gate. Gates that can be overridden: {known}")


def refuse_gates(header: PlanHeader, overrides: tuple[str, ...]) -> None:
    """Check that all failed gates (checks) of the plan are overridden.

    Raises:
        GateRefused: If a failed gate is not overridden. The message lists these gates and, if
            possible, the command that overrides them.
        UsageError: If an override is not a gate of the plan.
    """
    refuse_unknown_gates(header, overrides)
    overrides = tuple(map(gate_name, overrides))
    stopped = [gate for gate in header.failed_gates if not (gate.overridable and gate_name(gate.name) in overrides)]
    if stopped:
        lines = "\n".join(f"  {gate.name}: {message_of(gate, header.failed_gates)}" for gate in stopped)
        way_out = override_command(header, overrides)
        advice = f"\nTo override all of them: `{way_out}`" if way_out is not None else ""
        raise GateRefused(f"plan {header.plan_id[:12]} of storage {header.storage} is refused by its gates:\n{lines}{advice}")


def override_command(header: PlanHeader, overrides: tuple[str, ...] = (), by: str = "WHO") -> str | None:
    """Build the command that approves a plan despite its failed gates.

    Args:
        overrides: Additional gates to override.

    Returns:
        The command, or None if one of the failed gates cannot be overridden.
    """
    if not all(gate.overridable for gate in header.failed_gates):
        return None
    names = sorted({*overrides, *(gate_name(gate.name) for gate in header.failed_gates)})
    return " ".join([command("approve", header.plan_id[:12], by=by), *(f"--override {name}" for name in names)])


def describe_other_policy(config: Config, header: PlanHeader) -> str | None:
    """Explain that the plan cannot be applied because the policy in `lakes.yaml` has changed.

    Returns:
        A message, or None if the policy is the same or an apply of the plan has begun.
    """
    if header.policy_digest == config.policy_digest() or has_started(State.of(config), header):
        return None
    return (
        f"Plan {header.plan_id[:12]} cannot be applied, because the policy in lakes.yaml has changed since it was made. "
        "Make a new plan with `gc-assets run`."
    )


def describe_other_plans(config: Config, header: PlanHeader, now: datetime) -> Iterator[str]:
    """Yield sentences about other plans of the storage that a user should know before deciding.

    The sentences show the newest plan, if it is newer than the given plan, and each plan that was
    applied after the given plan was made.
    """
    listed = list_plans(config, header.storage, empty=True)
    plans = [plan for plan in listed if plan.is_listed and plan.header.rehearsal == header.rehearsal]
    if plans and plans[0].header.created_at > header.created_at:
        name = f"{plans[0].header.plan_id[:12]} of {plans[0].header.run_date} ({plans[0].status_at(now)})"
        yield f"Plan {name} is newer. An apply of this plan leaves out files that are needed now or that the newer one has changed."
    for plan in plans:
        finished = plan.record.finished_at
        if finished is not None and finished > header.created_at and plan.header.plan_id != header.plan_id:
            applied = f"Plan {plan.header.plan_id[:12]} was applied at {finished:%Y-%m-%d %H:%M}Z, after this plan was made"
            yield f"{applied}, so parts of this plan may be done already."


def approved_plans(config: Config, header: PlanHeader, now: datetime) -> list[ListedPlan]:
    """Return other plans of the storage that are approved and can be applied now."""
    plans = (plan for plan in list_plans(config, header.storage) if plan.header.rehearsal == header.rehearsal)
    return [plan for plan in plans if plan.awaits_apply(now) and plan.header.plan_id != header.plan_id]


def execution_directory(header: PlanHeader | PlanSummary) -> str:
    """Return the path of the plan's write-ahead log, relative to the state."""
    return f"{header.storage}/apply/{header.plan_id}"


def record_finished(state: State, header: PlanHeader, finished: Mapping[str, Any]) -> None:
    """Record the end of a plan's execution.

    Args:
        finished: The time (`at`) and the outcomes.
    """
    record_ended(state, header.storage, header.plan_id, finished)


def record_ended(state: State, storage_name: str, plan_id: str, finished: Mapping[str, Any]) -> None:
    """Record the end of an execution, even if the plan itself is missing from the state."""
    state.files.replace(f"{storage_name}/apply/{plan_id}/{_FINISHED}", json.dumps(finished, indent=1).encode())
    record = FinishRecord.model_validate(finished)
    _RecordsFile(state, storage_name).update_plan(plan_id, finished_at=record.at, not_done=record.not_done)


def record_restored(state: State, storage_name: str, plan_id: str, at: datetime, restore_id: str) -> None:
    """Record that files of the plan were restored, so that it cannot be used again.

    The shared records are updated before the plan's own record is written, because they must never
    be older than the plan's record.
    """
    _RecordsFile(state, storage_name).update_plan(plan_id, restored_at=at)
    record = {"at": at.isoformat(), "restore": restore_id}
    state.files.replace(f"{storage_name}/apply/{plan_id}/{_RESTORED}", json.dumps(record).encode())


def unfinished_plans(state: State, storage_name: str) -> list[str]:
    """Return the ids of plans whose execution has begun but not ended."""
    return sorted(plan_id for plan_id, record in _records(state, storage_name).items() if record.is_started and not record.has_ended)


def unknown_plans(config: Config, storage_name: str) -> list[str]:
    """Return the ids of unfinished plans that are missing from the state.

    This happens if a backup is copied over a newer state. The list of plans is replaced, but the
    logs of later plans remain.
    """
    if not (interrupted := unfinished_plans(State.of(config), storage_name)):
        return []
    known = {plan.header.plan_id for plan in list_plans(config, storage_name, empty=True)}
    return [plan_id for plan_id in interrupted if plan_id not in known]


def _record(state: State, header: PlanHeader, event: ApprovalEvent) -> ApprovalEvent:
    """Write the event to a file whose name no other event of the plan has ever had."""
    records_file, directory = _RecordsFile(state, header.storage), f"{header.storage}/{APPROVALS}"
    taken = {_number(name) for name in records_file.read().get(header.plan_id, PlanRecord()).approval_events}
    content = event.model_dump_json(indent=1).encode()
    while True:
        names = _names_by_plan(item.name for item in state.files.list(directory)).get(header.plan_id, [])
        taken |= {_number(name) for name in names}
        number = max(taken, default=0) + 1
        taken.add(number)
        name = f"{header.plan_id}{'' if number == 1 else f'-{number}'}.json"
        if state.files.replace_if(f"{directory}/{name}", content, None) is not None:
            break
    records_file.update_plan(header.plan_id, approval_events={name: event})
    return event


class _Damage(BaseModel):
    """Differences between the planned and the actual result of a history edit."""

    plan_id: str
    lake: str
    found: list[str]


def record_damage(state: State, lake_name: str, plan_id: str, found: Sequence[str]) -> None:
    """Record that a lake's history was damaged, which blocks all plans until a user removes it."""
    record = _Damage(plan_id=plan_id, lake=lake_name, found=list(found))
    state.files.replace(f"{lake_name}/{DAMAGE}/{plan_id}.json", record.model_dump_json(indent=1).encode())


def list_damage(state: State, lake_names: Sequence[str]) -> list[str]:
    """Describe recorded damage to the histories of these lakes.

    Each message contains the file to remove after the repair.
    """
    paths = [f"{lake}/{DAMAGE}/{item.name}" for lake in lake_names for item in state.files.list(f"{lake}/{DAMAGE}")]
    records = [(path, record) for path in paths if (record := _read(state, path, _Damage)) is not None]
    return [
        f"Lake {record.lake}, plan {record.plan_id[:12]}: {'; '.join(record.found)}. Repair it, then remove {state.files.root}/{path}."
        for path, record in records
    ]


@dataclass(frozen=True, slots=True)
class _RecordsFile:
    """A file with the records of all plans of a storage.

    It contains copies of the plans' own files, so that plans can be listed with few requests.
    """

    state: State
    storage: str

    @property
    def path(self) -> str:
        return f"{self.storage}/apply/{_RECORDS}"

    def read(self) -> Mapping[str, PlanRecord]:
        try:
            return self._parse(self.state.files.read(self.path))
        except FileNotFoundError:
            return {}

    def update(self, change: Callable[[Mapping[str, PlanRecord]], Mapping[str, PlanRecord]]) -> None:
        def edit(content: bytes | None) -> bytes:
            records = change(self._parse(content) if content is not None else {})
            return _Records(dict(sorted(records.items()))).model_dump_json(indent=1, exclude_none=True).encode()

        self.state.files.change(self.path, edit)

    def update_plan(self, plan_id: str, approval_events: Mapping[str, ApprovalEvent] = MappingProxyType({}), **known: Any) -> None:
        def edit(records: Mapping[str, PlanRecord]) -> Mapping[str, PlanRecord]:
            previous = records.get(plan_id, PlanRecord())
            return {
                **records,
                plan_id: previous.model_copy(update={**known, "approval_events": {**previous.approval_events, **approval_events}}),
            }

        self.update(edit)

    def _parse(self, content: bytes) -> Mapping[str, PlanRecord]:
        try:
            return _Records.model_validate_json(content).root
        except ValidationError as error:
            path = f"{self.state.files.root}/{self.path}"
            raise StateError(
                f"Cannot read the index of plans in {path}: the file is damaged ({summarize(error)}). Remove the file. gc-assets rebuilds "
                "it from the files of the plans."
            ) from error


def _records(state: State, storage_name: str) -> dict[str, PlanRecord]:
    """Return the records of all plans that have approval events or have begun.

    An event counts only as long as its file exists. If records are missing, they are read from the
    plans' own files and added. This takes few requests, because there are few unfinished plans.
    """
    records_file = _RecordsFile(state, storage_name)
    known = records_file.read()
    names = _names_by_plan(item.name for item in state.files.list(f"{storage_name}/{APPROVALS}"))
    applied = set(state.files.directories(f"{storage_name}/apply"))
    found: dict[str, PlanRecord] = {}
    for plan_id in names.keys() | applied:
        record = known.get(plan_id, PlanRecord())
        approval_events = {
            name: record.approval_events.get(name) or _read_event(state, storage_name, plan_id, name) for name in names.get(plan_id, ())
        }
        record = record.model_copy(update={"approval_events": approval_events, "is_started": plan_id in applied})
        if record.is_started and not record.has_ended:
            directory = f"{storage_name}/apply/{plan_id}"
            finished, restored = (
                _read(state, f"{directory}/{_FINISHED}", FinishRecord),
                _read(state, f"{directory}/{_RESTORED}", _RestoreRecord),
            )
            ended: dict[str, Any] = {"restored_at": restored.at if restored else None}
            if finished is not None:
                ended |= {"finished_at": finished.at, "not_done": finished.not_done}
            record = record.model_copy(update=ended)
            if not record.has_ended:
                record = record.model_copy(update={"is_started": state.has_apply_log(storage_name, plan_id)})
        found[plan_id] = record
    if any(_has_news(record, known.get(plan_id, PlanRecord())) for plan_id, record in found.items()):
        _store_missing(records_file, found)
    return found


def _has_news(record: PlanRecord, known: PlanRecord) -> bool:
    """Return True if `record` contains an event or the end of the plan, and `known` does not."""
    ended = any(getattr(known, name) is None and getattr(record, name) is not None for name in _ENDS)
    return ended or not record.approval_events.keys() <= known.approval_events.keys()


def _store_missing(records_file: _RecordsFile, found: Mapping[str, PlanRecord]) -> None:
    """Add records that were read from the plans' own files.

    Existing values are kept. Users without write permission can still list plans, because the error
    is ignored.
    """

    def merge(records: Mapping[str, PlanRecord]) -> Mapping[str, PlanRecord]:
        merged = dict(records)
        for plan_id, record in found.items():
            newer = merged.get(plan_id, PlanRecord())
            unknown: dict[str, Any] = {name: getattr(record, name) for name in _ENDS if getattr(newer, name) is None}
            merged[plan_id] = newer.model_copy(update={**unknown, "approval_events": {**record.approval_events, **newer.approval_events}})
        return merged

    try:
        records_file.update(merge)
    except OSError as error:
        if not is_read_only(error):
            raise


_M = TypeVar("_M", bound=BaseModel)


def _read(state: State, path: str, model: type[_M]) -> _M | None:
    try:
        content = state.files.read(path)
    except FileNotFoundError:
        return None
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise StateError(
            f"Cannot read {state.files.root}/{path}: the file is damaged ({summarize(error)}). Remove the file, then repeat the "
            "command that wrote it."
        ) from error
