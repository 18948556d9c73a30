"""What a night compares itself with: the last night that was accepted (design 6.6).

A night is accepted where its plan passed the gates `live_drop` and `lakes_present`, or a person
approved it with the override. A night that was refused is nobody's measure, however often it comes
again. A lake that is to go is forgotten on record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.plan import LiveCount, PlanHeader
from gc_assets.stages.books.plans import ListedPlan, plans
from gc_assets.stages.night import Night
from gc_assets.state.facts import DeletionPlanFacts
from gc_assets.state.journal import State

_COMPARES: Final = frozenset({"live_drop", "lakes_present"})


class Forgotten(BaseModel):
    """A person's word that a lake is to go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: str
    at: datetime


class _Records(RootModel[tuple[Forgotten, ...]]):
    """All such words about one lake, in the order in which they were said."""


def last_accepted(night: Night, storage_name: str) -> PlanHeader | None:
    """Returns the plan of the last accepted night before this one, or null where there is none.

    An analysis of a past date says nothing of what is normal, and a rehearsal nothing to a real
    night.
    """
    accepted = [
        plan
        for plan in plans(night.config, storage_name, empty=True)
        if plan.header.run_date < night.run_date
        and not plan.header.historical
        and (night.clock.is_rehearsal or not plan.header.rehearsal)
        and _is_accepted(plan)
    ]
    if not accepted:
        return None
    last = max(accepted, key=lambda plan: (plan.run.run_date, plan.run.run_id))
    return night.state.open(last.run).facts(DeletionPlanFacts).header


def measure(night: Night, before: PlanHeader, live: LiveCount) -> LiveCount:
    """Returns what was live in an earlier plan, without the lakes that a person let go since and
    that need nothing of the storage by now.
    """
    gone = _forgotten(night.state, before) - live.by_lake.keys()
    return LiveCount(before.live_files, before.live_by_lake).without(gone)


def gone_lakes(night: Night, before: PlanHeader, live: LiveCount) -> list[str]:
    """Returns in words the lakes that an earlier plan knew and that need nothing of the storage by
    now, without those that a person let go since.
    """
    configured = {lake.name for lake in night.config.lakes}
    # A plan made before 0.4 does not say which lake needed files here.
    then = {name: f"{files:,} files then" for name, files in before.live_by_lake.items()}
    then = then or dict.fromkeys(before.refs_digests.keys() - configured, "it was there then")
    return [
        f"{name} ({'nothing of it is live here' if name in configured else 'not in lakes.yaml'} by now, {then[name]})"
        for name in sorted(then.keys() - live.by_lake.keys() - _forgotten(night.state, before))
    ]


def _is_accepted(plan: ListedPlan) -> bool:
    overrides = plan.approval.overrides if plan.approval is not None else ()
    return not _COMPARES & (set(plan.header.refused_by) - set(overrides))


def forget(config: Config, clock: Clock, lake_name: str, by: str) -> Forgotten:
    """Records a person's word that a lake is to go, so that its files no longer hold up the plans.

    Raises `UsageError` where nobody says it, and for a lake that neither the configuration nor the
    last plans know.
    """
    if not by.strip():
        raise UsageError("forgetting a lake needs a name: --by WHO")
    state = State.of(config)
    known = {lake.name for lake in config.lakes} | _planned_lakes(config, state)
    if lake_name not in known:
        raise UsageError(f"no lake {lake_name!r}; known are {', '.join(sorted(known))}")
    record = Forgotten(by=by.strip(), at=clock.now())

    def with_record(content: bytes | None) -> bytes:
        before = _parsed(state, lake_name, content) if content is not None else ()
        return _Records((*before, record)).model_dump_json(indent=1).encode()

    state.files.change(_path(lake_name), with_record)
    return record


def _forgotten(state: State, before: PlanHeader) -> set[str]:
    return {name for name in before.refs_digests if any(record.at >= before.created_at for record in _records(state, name))}


def _planned_lakes(config: Config, state: State) -> set[str]:
    """Returns the lakes of the last plans: that of each storage that was accepted, and those since."""
    found: set[str] = set()
    for storage in config.storages:
        for plan in plans(config, storage.name, empty=True):
            found |= state.open(plan.run).facts(DeletionPlanFacts).header.refs_digests.keys()
            if _is_accepted(plan):
                break
    return found


def _records(state: State, lake_name: str) -> Sequence[Forgotten]:
    try:
        return _parsed(state, lake_name, state.files.read(_path(lake_name)))
    except FileNotFoundError:
        return ()


def _parsed(state: State, lake_name: str, content: bytes) -> Sequence[Forgotten]:
    try:
        return _Records.model_validate_json(content).root
    except ValidationError as error:
        where = f"{state.files.root}/{_path(lake_name)}"
        raise StateError(f"{where} is damaged ({'; '.join(str(error).splitlines()[:2])}); remove it and forget the lake again") from error


def _path(lake_name: str) -> str:
    return f"{lake_name}/forgotten.json"
