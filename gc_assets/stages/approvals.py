"""Finds plans by their ids, records a person's approval, and says whether a plan may be applied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from gc_assets.config import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError, UsageError
from gc_assets.core.plan import Approval, PlanHeader, is_intact
from gc_assets.core.receipts import Published, State
from gc_assets.schemas import DELETION_PLAN


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
            stored = {published.receipt.facts["plan_id"]: published for published in state.runs(storage.name, DELETION_PLAN.name)}
            for published in sorted(stored.values(), key=lambda item: item.receipt.run_id, reverse=True):
                if published.receipt.rows or empty:
                    yield load(state, published)


def load(state: State, published: Published) -> StoredPlan:
    """Raises `StateError` where the header is not the one its id was made of."""
    header = PlanHeader.model_validate(published.receipt.facts["header"])
    if not is_intact(header) or published.receipt.digest != header.rows_digest:
        raise StateError(f"plan {header.plan_id} in {published.path} was changed after it was made; make a new one with `gc-assets run`")
    approval = _read(state, approval_path(header))
    restored = _read(state, f"{execution_directory(header)}/restored.json")
    try:
        approved = Approval.model_validate(approval) if approval is not None else None
    except ValidationError as error:
        raise StateError(f"{approval_path(header)} in the state is no approval ({error}); approve the plan again") from error
    return StoredPlan(
        header,
        published,
        approved,
        _read(state, f"{execution_directory(header)}/finished.json"),
        datetime.fromisoformat(restored["at"]) if restored is not None else None,
    )


def find_plan(config: Config, plan_id: str) -> StoredPlan:
    """The plan of an id or of its first characters (8 at least). Raises `UsageError` where none or several match."""
    if len(plan_id) < 8:
        raise UsageError(f"{plan_id!r} is too short for a plan id; give at least its first 8 characters (see `gc-assets plans`)")
    found = [plan for plan in plans(config, empty=True) if plan.header.plan_id.startswith(plan_id)]
    if len(found) != 1:
        what = "no plan" if not found else f"{len(found)} plans"
        raise UsageError(f"{what} with the id {plan_id}; `gc-assets plans` lists those there are")
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
    if not header.rows:
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


def _read(state: State, path: str) -> dict[str, Any] | None:
    try:
        content = state.files.read(path)
    except FileNotFoundError:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        raise StateError(f"{state.files.root}/{path} is damaged ({error}); remove it and repeat the command that wrote it") from error
