"""Finds plans by their ids, records a person's approval, and says whether a plan may be applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from gc_assets.config import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError, UsageError
from gc_assets.core.plan import Approval, PlanHeader, is_intact
from gc_assets.core.receipts import Published, State
from gc_assets.schemas import DELETION_PLAN

SPOILT: Final = "spoilt"


class _Restored(BaseModel):
    """What `restore` records of a plan whose files it put back."""

    at: datetime


class _Record(RootModel[dict[str, Any]]):
    """A JSON object."""


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan in the state. `finished` is what `finish` recorded, `restored_at` when files of it were put back."""

    header: PlanHeader
    published: Published
    approval: Approval | None
    finished: dict[str, Any] | None
    restored_at: datetime | None

    def status_at(self, now: datetime) -> str:
        if self.restored_at is not None:
            return "restored"
        if self.finished is not None:
            return "applied"
        status = self.header.status_at(now)
        if self.approval is not None and status in {"ready", "refused"}:
            return "approved"
        return "expired" if status == "ready" and now >= self.header.approve_before else status


def plans(config: Config, storage_name: str | None = None, *, empty: bool = False) -> Iterator[StoredPlan]:
    """Every plan that has something to do (or `empty`: every one), newest first within a storage; made twice, listed once."""
    state = State.at(config.state)
    for storage in config.storages:
        if storage_name in {None, storage.name}:
            stored = {_header(state, published).plan_id: published for published in state.runs(storage.name, DELETION_PLAN.name)}
            for published in sorted(stored.values(), key=lambda item: item.receipt.run_id, reverse=True):
                if empty or _header(state, published).has_work:
                    yield load(state, published)


def load(state: State, published: Published) -> StoredPlan:
    """Raises `StateError` where the plan, its approval or the record of its execution is not what was written."""
    header = _header(state, published)
    restored = _read(state, f"{execution_directory(header)}/restored.json", _Restored)
    finished = _read(state, f"{execution_directory(header)}/finished.json", _Record)
    return StoredPlan(
        header,
        published,
        _approval(state, header),
        dict(finished.root) if finished is not None else None,
        restored.at if restored is not None else None,
    )


def _header(state: State, published: Published) -> PlanHeader:
    where, receipt = f"{state.files.root}/{published.path}", published.receipt
    try:
        header = PlanHeader.model_validate(receipt.facts["header"])
        named = receipt.facts["plan_id"]
    except (KeyError, ValidationError) as error:
        what = "; ".join(str(error).splitlines())
        raise StateError(f"the plan in {where} is damaged ({what}); make a new one with `gc-assets run`") from error
    if not is_intact(header) or receipt.digest != header.rows_digest or receipt.rows != header.rows or named != header.plan_id:
        raise StateError(f"plan {header.plan_id} in {where} was changed after it was made; make a new one with `gc-assets run`")
    if header.storage != receipt.group or not published.path.startswith(f"{header.storage}/"):
        other = published.path.partition("/")[0]
        raise StateError(f"plan {header.plan_id} of storage {header.storage} lies among those of {other} in {where}; remove that copy")
    return header


def _approval(state: State, header: PlanHeader) -> Approval | None:
    approval = _read(state, approval_path(header), Approval)
    if approval is not None and approval.plan_id != header.plan_id:
        raise StateError(
            f"{state.files.root}/{approval_path(header)} approves plan {approval.plan_id}, not the one it is named for; "
            "remove it and approve the plan again"
        )
    return approval


def find_plan(config: Config, plan_id: str) -> StoredPlan:
    """The plan of an id or of its first characters (8 at least), every byte of its rows verified.

    Raises `UsageError` where none or several match, `StateError` where its rows are not those that were written.
    """
    if len(plan_id) < 8:
        raise UsageError(f"{plan_id!r} is too short for a plan id; give at least its first 8 characters (see `gc-assets plans`)")
    found = [plan for plan in plans(config, empty=True) if plan.header.plan_id.startswith(plan_id)]
    if len(found) != 1:
        what = "no plan" if not found else f"{len(found)} plans"
        raise UsageError(f"{what} with the id {plan_id}; `gc-assets plans` lists those there are")
    # A bit that flipped in a key would delete another file: what is approved or applied is read in full first.
    State.at(config.state).verify(found[0].published)
    return found[0]


def approve(config: Config, clock: Clock, plan_id: str, by: str, overrides: tuple[str, ...] = ()) -> Approval:
    """Records a person's yes. Raises `GateRefused` for a plan that must not be approved, naming the gates and their way out."""
    plan, now = find_plan(config, plan_id), clock.now()
    header = plan.header
    if not by.strip():
        raise UsageError("an approval needs a name: --by WHO")
    if plan.finished is not None or plan.restored_at is not None:
        raise GateRefused(f"plan {header.plan_id} is {plan.status_at(now)}; a plan is used once. Make a new one with `gc-assets run`.")
    refuse_historical(header)
    if not header.has_work:
        raise UsageError(f"plan {header.plan_id} has nothing to do, so there is nothing to approve")
    if now >= header.approve_before:
        raise GateRefused(
            f"plan {header.plan_id} could be approved until {header.approve_before.isoformat()}, now it is {now.isoformat()}; "
            "make a new one with `gc-assets run`"
        )
    refuse_gates(header, overrides)
    approval = Approval(plan_id=header.plan_id, by=by.strip(), at=now, overrides=tuple(sorted(set(overrides))))
    State.at(config.state).files.replace(approval_path(header), approval.model_dump_json(indent=1).encode())
    return approval


def refuse_historical(header: PlanHeader) -> None:
    if header.historical:
        raise GateRefused(
            f"plan {header.plan_id} is an analysis of {header.run_date}, a date that was never frozen on its day: "
            "it can be shown and never applied. Run today's date for a plan that can."
        )


def refuse_gates(header: PlanHeader, overrides: tuple[str, ...]) -> None:
    """Raises `GateRefused` with every failed gate that no override passes, `UsageError` for an override of no gate."""
    unknown = set(overrides) - {gate.name for gate in header.gates}
    if unknown:
        known = ", ".join(gate.name for gate in header.gates if gate.overridable)
        raise UsageError(f"--override {', '.join(sorted(unknown))}: no such gate; those that can be overridden are {known}")
    stopped = [gate for gate in header.failed_gates if not (gate.overridable and gate.name in overrides)]
    if stopped:
        lines = "\n".join(f"  {gate.name}: {gate.message}" for gate in stopped)
        raise GateRefused(f"plan {header.plan_id} of storage {header.storage} is refused by its gates:\n{lines}")


def approval_path(header: PlanHeader) -> str:
    return f"{header.storage}/approvals/{header.plan_id}.json"


def execution_directory(header: PlanHeader) -> str:
    """Where the write-ahead log of a plan lives, relative to the state."""
    return f"{header.storage}/apply/{header.plan_id}"


def unfinished(state: State, storage_name: str) -> list[str]:
    """Ids of plans whose execution began and did not end."""
    base = f"{storage_name}/apply"
    return [
        name
        for name in state.files.directories(base)
        if not {"finished.json", "restored.json"} & {item.name for item in state.files.list(f"{base}/{name}")}
    ]


class _Spoilt(BaseModel):
    """What an edit of a lake's history did besides what was approved."""

    plan_id: str
    lake: str
    found: list[str]


def record_spoilt(state: State, lake_name: str, plan_id: str, found: Sequence[str]) -> None:
    """Holds up every later plan until a person removes the record."""
    record = _Spoilt(plan_id=plan_id, lake=lake_name, found=list(found))
    state.files.replace(f"{lake_name}/{SPOILT}/{plan_id}.json", record.model_dump_json(indent=1).encode())


def spoilt(state: State, lake_names: Sequence[str]) -> list[str]:
    """What edits of these lakes' histories spoilt and nobody has settled, with the way out, a sentence a record."""
    paths = [f"{lake}/{SPOILT}/{item.name}" for lake in lake_names for item in state.files.list(f"{lake}/{SPOILT}")]
    records = [(path, record) for path in paths if (record := _read(state, path, _Spoilt)) is not None]
    return [
        f"Lake {record.lake}, plan {record.plan_id[:12]}: {'; '.join(record.found)}. Mend it, then remove {state.files.root}/{path}."
        for path, record in records
    ]


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
