"""Finds plans by their ids, records what people say of them, and says whether one may be applied."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.approvals import ApprovalEvent, Verdict
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError, UsageError
from gc_assets.core.plan import PlanHeader, PlanSummary, is_intact
from gc_assets.core.suggest import did_you_mean
from gc_assets.state.files import may_not_write
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.state.summaries import DeletionPlanSummary, PlannedAction

DAMAGE: Final = "spoilt"
APPROVALS: Final = "approvals"
_RECORDS: Final = "_records.json"
_FINISHED, _RESTORED = "finished.json", "restored.json"
_ENDS: Final = ("finished_at", "restored_at")
# The first word on a plan lies where releases before 0.4 put the one approval that a plan had.
_NAME: Final = re.compile(r"(?P<plan_id>[0-9a-f]{64})(-(?P<number>[1-9][0-9]*))?\.json")


class _Restored(BaseModel):
    """The record that `restore` makes of a plan whose files it put back."""

    at: datetime


class _Finished(BaseModel):
    """The record that `apply` makes of a plan that it executed in full, as far as lists show it."""

    at: datetime


class _Record(RootModel[dict[str, Any]]):
    """A JSON object."""


class PlanRecord(BaseModel):
    """What people and executions did with one plan. `words` are by the names of their files."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    words: dict[str, ApprovalEvent] = Field(default_factory=dict[str, ApprovalEvent])
    finished_at: datetime | None = None
    restored_at: datetime | None = None

    def verdict(self, needed: int) -> Verdict:
        return Verdict(tuple(word for _, word in sorted(self.words.items(), key=lambda item: _number(item[0]))), needed)

    def status_of(self, plan: PlanSummary, now: datetime, verdict: Verdict) -> str:
        if self.restored_at is not None:
            return "restored"
        if self.finished_at is not None:
            return "applied"
        status = plan.status_at(now)
        if status in {"ready", "refused"} and (verdict.rejections or verdict.is_approved):
            return "rejected" if verdict.rejections else "approved"
        return "expired" if status == "ready" and now >= plan.approve_before else status


class _Records(RootModel[dict[str, PlanRecord]]):
    """Records by plan id."""


@dataclass(frozen=True, slots=True)
class ListedPlan:
    """A plan as the index of plans knows it.

    Its receipt was not read. Whoever approves or applies a plan gets it from `find_plan`.
    """

    header: PlanSummary
    run: PastRun
    record: PlanRecord
    verdict: Verdict

    def status_at(self, now: datetime) -> str:
        return self.record.status_of(self.header, now, self.verdict)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan in the state.

    `finished` is the record that `record_finished` wrote. `restored_at` is when files of the plan
    were put back.
    """

    header: PlanHeader
    published: PublishedTable
    verdict: Verdict
    finished: dict[str, Any] | None
    restored_at: datetime | None

    def status_at(self, now: datetime) -> str:
        finished_at = datetime.fromisoformat(self.finished["at"]) if self.finished is not None else None
        record = PlanRecord(finished_at=finished_at, restored_at=self.restored_at)
        return record.status_of(self.header.summary, now, self.verdict)


def list_plans(config: Config, storage_name: str | None = None, *, empty: bool = False) -> Iterator[ListedPlan]:
    """Yields every plan that has something to do, newest first within a storage.

    With `empty` it yields the others too. A plan that was made twice is listed once. Costs a few
    requests, however many plans there are.
    """
    state = State.of(config)
    for storage in config.storages:
        if storage_name in {None, storage.name}:
            history = state.history(storage.name, DELETION_PLAN.name)
            stored = {run.headline(PlannedAction).plan.plan_id: run for run in history}
            records = _records(state, storage.name) if stored else {}
            for plan_id, run in sorted(stored.items(), key=lambda item: item[1].run_id, reverse=True):
                plan = run.headline(PlannedAction).plan
                _refuse_copy(state, plan, run.group, run.path)
                if empty or plan.has_work:
                    record = records.get(plan_id, PlanRecord())
                    yield ListedPlan(plan, run, record, record.verdict(storage.approvals_needed))


def previous_plan(listed: Iterable[ListedPlan], clock: Clock) -> ListedPlan | None:
    """Returns the plan of the last night among a storage's plans, null where there was none.

    An analysis is no night. A rehearsal is one to rehearsals only.
    """
    nights = [plan for plan in listed if not plan.header.historical and plan.header.rehearsal == clock.is_rehearsal]
    return max(nights, key=lambda plan: (plan.run.run_date, plan.run.run_id), default=None)


def load_plan(config: Config, published: PublishedTable) -> StoredPlan:
    """Reads a plan with what people said of it and the record of its execution.

    Raises `StateError` where one of them is not what was written. Of a plan that was made with a
    `plan_key` only approval and apply check the id (`refuse_other_key`): after the key was changed
    or lost it is still shown and put back.
    """
    state = State.of(config)
    header = _header(state, published)
    verdict = PlanRecord(words=_words(state, header)).verdict(config.storage(header.storage).approvals_needed)
    if verdict.rejections and has_begun(state, header):
        verdict = verdict.without_late_rejections()
    restored = _read(state, f"{execution_directory(header)}/{_RESTORED}", _Restored)
    finished = _read(state, f"{execution_directory(header)}/{_FINISHED}", _Record)
    return StoredPlan(
        header,
        published,
        verdict,
        dict(finished.root) if finished is not None else None,
        restored.at if restored is not None else None,
    )


def _header(state: State, published: PublishedTable) -> PlanHeader:
    where, receipt = f"{state.files.root}/{published.path}", published.receipt
    try:
        summary = DeletionPlanSummary.model_validate(receipt.summary)
    except ValidationError as error:
        what = "; ".join(str(error).splitlines())
        raise StateError(f"the plan in {where} is damaged ({what}); make a new one with `gc-assets run`") from error
    header, named = summary.header, summary.plan_id
    intact = header.keyed or is_intact(header)
    if not intact or receipt.digest != header.rows_digest or receipt.rows != header.rows or named != header.plan_id:
        raise StateError(f"plan {header.plan_id} in {where} was changed after it was made; make a new one with `gc-assets run`")
    _refuse_copy(state, header.summary, receipt.group, published.path)
    return header


def _refuse_copy(state: State, plan: PlanSummary, group: str, path: str) -> None:
    if plan.storage != group or not path.startswith(f"{plan.storage}/"):
        other, where = path.partition("/")[0], f"{state.files.root}/{path}"
        raise StateError(f"plan {plan.plan_id} of storage {plan.storage} lies among those of {other} in {where}; remove that copy")


def _words(state: State, header: PlanHeader) -> dict[str, ApprovalEvent]:
    said = _said_of(item.name for item in state.files.list(f"{header.storage}/{APPROVALS}"))
    return {name: _word(state, header.storage, header.plan_id, name) for name in said.get(header.plan_id, ())}


def _word(state: State, storage_name: str, plan_id: str, name: str) -> ApprovalEvent:
    path = f"{storage_name}/{APPROVALS}/{name}"
    word = _read(state, path, ApprovalEvent)
    if word is None or word.plan_id != plan_id:
        found = "is gone" if word is None else f"is about plan {word.plan_id}, not the one it is named for"
        raise StateError(f"{state.files.root}/{path} {found}; remove it and approve the plan again")
    return word


def _said_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of records by the plan that they are about. Other files are passed over."""
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            found.setdefault(match["plan_id"], []).append(name)
    return found


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match["number"] or 1) if match else 0


def find_plan(config: Config, plan_id: str) -> StoredPlan:
    """Returns the plan of an id or of its first characters (at least 8), every byte of its rows
    verified.

    Raises `UsageError` where none or several match, and `StateError` where its rows are not those
    that were written.
    """
    if len(plan_id) < 8:
        raise UsageError(f"{plan_id!r} is too short for a plan id; give at least its first 8 characters (see `gc-assets plans`)")
    stored = list(list_plans(config, empty=True))
    found = [plan for plan in stored if plan.header.plan_id.startswith(plan_id)]
    if not found:
        meant = did_you_mean(plan_id, {plan.header.plan_id[: len(plan_id)] for plan in stored})
        raise UsageError(f"no plan with the id {plan_id}{meant or ';'} `gc-assets plans` lists those there are")
    if len(found) > 1:
        raise UsageError(f"{len(found)} plans with the id {plan_id}; `gc-assets plans` lists those there are")
    state = State.of(config)
    plan = load_plan(config, state.open(found[0].run))
    # A bit that flipped in a key would delete another file. So what is approved or applied is read
    # in full first.
    state.verify(plan.published)
    return plan


def approve(config: Config, clock: Clock, plan_id: str, by: str, overrides: tuple[str, ...] = (), comment: str = "") -> ApprovalEvent:
    """Records a person's yes, beside what was said before.

    Raises `GateRefused` for a plan that must not be approved, naming the gates and their way out.
    Raises `UsageError` where the approval has no name or the plan has nothing to do.
    """
    plan, now = _to_judge(config, clock, plan_id, by), clock.now()
    header = plan.header
    refuse_historical(header)
    refuse_other_clock(header, clock)
    refuse_other_key(header, config)
    if not header.has_work:
        raise UsageError(f"plan {header.plan_id} has nothing to do, so there is nothing to approve")
    if now >= header.approve_before:
        raise GateRefused(
            f"plan {header.plan_id} could be approved until {header.approve_before.isoformat()}, now it is {now.isoformat()}; "
            "make a new one with `gc-assets run`"
        )
    refuse_gates(header, overrides)
    passed_over = tuple(sorted(set(overrides)))
    return _record(
        State.of(config), header, ApprovalEvent(plan_id=header.plan_id, by=by.strip(), at=now, overrides=passed_over, comment=comment)
    )


def reject(config: Config, clock: Clock, plan_id: str, by: str, comment: str = "") -> ApprovalEvent:
    """Records a person's no. It holds the plan back until the same name approves it.

    Raises `GateRefused` for a plan that began or is used up: a word does not undo it.
    """
    plan, state = _to_judge(config, clock, plan_id, by), State.of(config)
    if has_begun(state, plan.header):
        name = plan.header.plan_id[:12]
        raise GateRefused(
            f"plan {plan.header.plan_id} has begun, so a rejection comes too late. `gc-assets restore --plan {name}` puts back what it "
            f"moved, and `gc-assets apply {name}` brings it to its end."
        )
    return _record(
        state, plan.header, ApprovalEvent(plan_id=plan.header.plan_id, by=by.strip(), at=clock.now(), decision="rejected", comment=comment)
    )


def _to_judge(config: Config, clock: Clock, plan_id: str, by: str) -> StoredPlan:
    plan = find_plan(config, plan_id)
    if not by.strip():
        raise UsageError("a word on a plan needs a name: --by WHO")
    if plan.finished is not None or plan.restored_at is not None:
        status = plan.status_at(clock.now())
        raise GateRefused(f"plan {plan.header.plan_id} is {status}; a plan is used once. Make a new one with `gc-assets run`.")
    return plan


def has_begun(state: State, header: PlanHeader) -> bool:
    """Says whether an apply of the plan began. A restore alone does not begin it."""
    return any(item.name == "log.json" for item in state.files.list(execution_directory(header)))


def refuse_unapproved(plan: StoredPlan) -> None:
    verdict, plan_id = plan.verdict, plan.header.plan_id
    if verdict.missing is not None:
        who = "WHO" if not verdict.events else "ANOTHER_NAME"
        way = f"approve it with `gc-assets approve {plan_id[:12]} --by {who}`"
        if verdict.rejections:
            way = "it stays so until the same name approves it; the next run date has a plan of its own"
        raise GateRefused(f"plan {plan_id} is {verdict.missing}; {way}")


def refuse_historical(header: PlanHeader) -> None:
    if header.historical:
        raise GateRefused(
            f"plan {header.plan_id} is an analysis of {header.run_date}, a date that was never frozen on its day: "
            "it can be shown and never applied. Run today's date for a plan that can."
        )


def refuse_other_clock(header: PlanHeader, clock: Clock) -> None:
    """Raises `GateRefused` where a plan of a rehearsal meets the real clock, or a real one meets a
    rehearsal's.
    """
    if header.rehearsal != clock.is_rehearsal:
        made = "a rehearsal (GC_ASSETS_UNSAFE_NOW)" if header.rehearsal else "the real clock"
        raise GateRefused(f"plan {header.plan_id} was made under {made}, and now the clock is another; make a new plan")


def refuse_other_key(header: PlanHeader, config: Config) -> None:
    """Raises `GateRefused` for a plan whose id is a plain digest where the configuration has a
    `plan_key`, for one whose id is an HMAC where it has none, and for one whose HMAC is another.
    """
    if header.keyed != (config.plan_key is not None):
        made, now = ("with a plan_key", "has none") if header.keyed else ("without a plan_key", "has one")
        raise GateRefused(
            f"plan {header.plan_id} was made {made}, and the configuration now {now}, so nobody can say that it is the plan that was made. "
            "Make a new one with `gc-assets run`; a plan that was begun is ended under the key that it began with."
        )
    if not is_intact(header, config.plan_secret()):
        raise GateRefused(
            f"plan {header.plan_id} was changed after it was made, or made with another plan_key; make a new one with `gc-assets run`"
        )


def used_plan_ids(config: Config, storage_name: str) -> set[str]:
    """Returns the ids of the storage's plans that were applied in full or put back."""
    records = _records(State.of(config), storage_name)
    return {plan_id for plan_id, record in records.items() if record.finished_at is not None or record.restored_at is not None}


def refuse_gates(header: PlanHeader, overrides: tuple[str, ...]) -> None:
    """Raises `GateRefused` with every failed gate that no override passes.

    Raises `UsageError` for an override of no gate.
    """
    unknown = set(overrides) - {gate.name for gate in header.gates}
    if unknown:
        known = ", ".join(gate.name for gate in header.gates if gate.overridable)
        raise UsageError(f"--override {', '.join(sorted(unknown))}: no such gate; those that can be overridden are {known}")
    stopped = [gate for gate in header.failed_gates if not (gate.overridable and gate.name in overrides)]
    if stopped:
        lines = "\n".join(f"  {gate.name}: {gate.message}" for gate in stopped)
        raise GateRefused(f"plan {header.plan_id} of storage {header.storage} is refused by its gates:\n{lines}")


def execution_directory(header: PlanHeader | PlanSummary) -> str:
    """Returns where the write-ahead log of a plan lives, relative to the state."""
    return f"{header.storage}/apply/{header.plan_id}"


def record_finished(state: State, header: PlanHeader, finished: Mapping[str, Any]) -> None:
    """Records that the plan was executed in full. `finished` says when (`at`) and with which books."""
    state.files.replace(f"{execution_directory(header)}/{_FINISHED}", json.dumps(finished, indent=1).encode())
    _Book(state, header.storage).note_plan(header.plan_id, finished_at=_Finished.model_validate(finished).at)


def record_restored(state: State, storage_name: str, plan_id: str, at: datetime, restore_id: str) -> None:
    """Records that files of the plan were put back, so that it no longer counts as finished.

    The list of plans must not learn it later than the plan's own record.
    """
    _Book(state, storage_name).note_plan(plan_id, restored_at=at)
    record = {"at": at.isoformat(), "restore": restore_id}
    state.files.replace(f"{storage_name}/apply/{plan_id}/{_RESTORED}", json.dumps(record).encode())


def unfinished_plans(state: State, storage_name: str) -> list[str]:
    """Returns the ids of plans whose execution began and did not end."""
    begun = state.files.directories(f"{storage_name}/apply")
    records = _records(state, storage_name, begun)
    ended = {plan_id for plan_id, record in records.items() if record.finished_at is not None or record.restored_at is not None}
    return [plan_id for plan_id in begun if plan_id not in ended]


def _record(state: State, header: PlanHeader, word: ApprovalEvent) -> ApprovalEvent:
    """Puts the word under a name that no word of the plan ever had."""
    book, directory = _Book(state, header.storage), f"{header.storage}/{APPROVALS}"
    taken = {_number(name) for name in book.read().get(header.plan_id, PlanRecord()).words}
    content = word.model_dump_json(indent=1).encode()
    while True:
        names = _said_of(item.name for item in state.files.list(directory)).get(header.plan_id, [])
        taken |= {_number(name) for name in names}
        number = max(taken, default=0) + 1
        taken.add(number)
        name = f"{header.plan_id}{'' if number == 1 else f'-{number}'}.json"
        if state.files.replace_if(f"{directory}/{name}", content, None) is not None:
            break
    book.note_plan(header.plan_id, words={name: word})
    return word


class _Spoilt(BaseModel):
    """What an edit of a lake's history did besides what was approved."""

    plan_id: str
    lake: str
    found: list[str]


def record_damage(state: State, lake_name: str, plan_id: str, found: Sequence[str]) -> None:
    """Records damage to a lake's history. It holds up every later plan until a person removes the
    record.
    """
    record = _Spoilt(plan_id=plan_id, lake=lake_name, found=list(found))
    state.files.replace(f"{lake_name}/{DAMAGE}/{plan_id}.json", record.model_dump_json(indent=1).encode())


def list_damage(state: State, lake_names: Sequence[str]) -> list[str]:
    """Returns what edits of these lakes' histories spoilt and nobody has settled yet.

    One sentence a record, with the way out.
    """
    paths = [f"{lake}/{DAMAGE}/{item.name}" for lake in lake_names for item in state.files.list(f"{lake}/{DAMAGE}")]
    records = [(path, record) for path in paths if (record := _read(state, path, _Spoilt)) is not None]
    return [
        f"Lake {record.lake}, plan {record.plan_id[:12]}: {'; '.join(record.found)}. Mend it, then remove {state.files.root}/{path}."
        for path, record in records
    ]


@dataclass(frozen=True, slots=True)
class _Book:
    """What is known of all plans of a storage, in one object.

    Each record repeats what lies in a file of the plan's own.
    """

    state: State
    storage: str

    @property
    def path(self) -> str:
        return f"{self.storage}/apply/{_RECORDS}"

    def read(self) -> Mapping[str, PlanRecord]:
        try:
            return self._parsed(self.state.files.read(self.path))
        except FileNotFoundError:
            return {}

    def note(self, change: Callable[[Mapping[str, PlanRecord]], Mapping[str, PlanRecord]]) -> None:
        def noted(content: bytes | None) -> bytes:
            records = change(self._parsed(content) if content is not None else {})
            return _Records(dict(sorted(records.items()))).model_dump_json(indent=1, exclude_none=True).encode()

        self.state.files.change(self.path, noted)

    def note_plan(self, plan_id: str, words: Mapping[str, ApprovalEvent] = MappingProxyType({}), **known: Any) -> None:
        def noted(records: Mapping[str, PlanRecord]) -> Mapping[str, PlanRecord]:
            before = records.get(plan_id, PlanRecord())
            return {**records, plan_id: before.model_copy(update={**known, "words": {**before.words, **words}})}

        self.note(noted)

    def _parsed(self, content: bytes) -> Mapping[str, PlanRecord]:
        try:
            return _Records.model_validate_json(content).root
        except ValidationError as error:
            where = f"{self.state.files.root}/{self.path}"
            raise StateError(f"{where} is damaged ({error}); remove it, it is made again from the records beside it") from error


def _records(state: State, storage_name: str, begun: Sequence[str] | None = None) -> dict[str, PlanRecord]:
    """Returns the records of all plans that somebody judged or that began. Whoever has just listed
    those that have `begun` spares a request.

    A word whose file somebody removed counts as none. What the book lacks is read from the plan's
    own files and noted. Few plans began and did not end, so few files are read.
    """
    book = _Book(state, storage_name)
    known = book.read()
    said = _said_of(item.name for item in state.files.list(f"{storage_name}/{APPROVALS}"))
    there = set(begun if begun is not None else state.files.directories(f"{storage_name}/apply"))
    found: dict[str, PlanRecord] = {}
    for plan_id in said.keys() | there:
        record = known.get(plan_id, PlanRecord())
        words = {name: record.words.get(name) or _word(state, storage_name, plan_id, name) for name in said.get(plan_id, ())}
        record = record.model_copy(update={"words": words})
        if plan_id in there and record.finished_at is None and record.restored_at is None:
            directory = f"{storage_name}/apply/{plan_id}"
            finished, restored = _read(state, f"{directory}/{_FINISHED}", _Finished), _read(state, f"{directory}/{_RESTORED}", _Restored)
            ended = {"finished_at": finished.at if finished else None, "restored_at": restored.at if restored else None}
            record = record.model_copy(update=ended)
        found[plan_id] = record
    if any(_adds(record, known.get(plan_id, PlanRecord())) for plan_id, record in found.items()):
        _keep(book, found)
    return found


def _adds(record: PlanRecord, known: PlanRecord) -> bool:
    """Says whether the record tells something that the known one does not."""
    ended = any(getattr(known, name) is None and getattr(record, name) is not None for name in _ENDS)
    return ended or not record.words.keys() <= known.words.keys()


def _keep(book: _Book, found: Mapping[str, PlanRecord]) -> None:
    """Notes what was read from the plans' own files.

    Leaves alone what somebody noted meanwhile, and notes nothing where this process may not write.
    """

    def added(records: Mapping[str, PlanRecord]) -> Mapping[str, PlanRecord]:
        merged = dict(records)
        for plan_id, record in found.items():
            newer = merged.get(plan_id, PlanRecord())
            unknown: dict[str, Any] = {name: getattr(record, name) for name in _ENDS if getattr(newer, name) is None}
            merged[plan_id] = newer.model_copy(update={**unknown, "words": {**record.words, **newer.words}})
        return merged

    try:
        book.note(added)
    except OSError as error:
        if not may_not_write(error):
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
        raise StateError(f"{state.files.root}/{path} is damaged ({error}); remove it and repeat the command that wrote it") from error
