"""What a night compares itself with: the last night that was accepted (design 6.6).

A night is accepted where its plan passed the gates `live_drop` and `lakes_present`, or a person
approved it with the override. A night that was refused is nobody's measure, however often it comes
again. A lake that is to go is forgotten on record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.plan import LiveCount, PlanHeader
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import ListedPlan, list_plans
from gc_assets.state.journal import State
from gc_assets.state.summaries import DeletionPlanSummary

_COMPARES: Final = frozenset({"live_drop", "lakes_present"})


class ForgottenLake(BaseModel):
    """A person's word that a lake is to go."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    by: str
    at: datetime
    rehearsal: bool = False


class _Records(RootModel[tuple[ForgottenLake, ...]]):
    """All such words about one lake, in the order in which they were said."""


def last_accepted_plan(context: RunContext, storage_name: str) -> PlanHeader | None:
    """Returns the plan of the last accepted night before this one, or null where there is none.

    An analysis of a past date says nothing of what is normal, and a rehearsal nothing to a real
    night.
    """
    accepted = [
        plan
        for plan in list_plans(context.config, storage_name, empty=True)
        if plan.header.run_date < context.run_date
        and not plan.header.historical
        and (context.clock.is_rehearsal or not plan.header.rehearsal)
        and _is_accepted(plan)
    ]
    if not accepted:
        return None
    last = max(accepted, key=lambda plan: (plan.run.run_date, plan.run.run_id))
    return context.state.open(last.run).summary(DeletionPlanSummary).header


@dataclass(frozen=True, slots=True)
class AcceptedRun:
    """An earlier plan as a measure of tonight. `forgotten` are its lakes that a person let go since,
    `configured` those of the configuration by now.
    """

    plan: PlanHeader
    forgotten: frozenset[str]
    configured: frozenset[str]

    @classmethod
    def of(cls, context: RunContext, plan: PlanHeader) -> Self:
        """Reads who was let go. What a rehearsal said, or a clock that was ahead, counts for no real
        night.
        """
        since, now, is_rehearsal = plan.created_at, context.clock.now(), context.clock.is_rehearsal
        forgotten = [
            name
            for name in plan.refs_digests
            if any(since <= word.at <= now and (is_rehearsal or not word.rehearsal) for word in _records(context.state, name))
        ]
        return cls(plan, frozenset(forgotten), frozenset(lake.name for lake in context.config.lakes))

    def count(self, live: LiveCount) -> LiveCount:
        """Returns what was live then, without the lakes that were let go and that need nothing of
        the storage by now.
        """
        return LiveCount(self.plan.live_files, self.plan.live_by_lake).without(self.forgotten - live.by_lake.keys())

    def missing_lakes(self, live: LiveCount) -> list[str]:
        """Returns in words the lakes that need nothing of the storage by now, and that nobody let
        go.
        """
        # A plan made before 0.4 does not say which lake needed files here.
        then = {name: f"{files:,} files then" for name, files in self.plan.live_by_lake.items()}
        then = then or dict.fromkeys(self.plan.refs_digests.keys() - self.configured, "it was there then")
        return [
            f"{name} ({'nothing of it is live here' if name in self.configured else 'not in lakes.yaml'} by now, {then[name]})"
            for name in sorted(then.keys() - live.by_lake.keys() - self.forgotten)
        ]


def _is_accepted(plan: ListedPlan) -> bool:
    overrides = plan.verdict.overrides if plan.verdict.is_approved else ()
    return not _COMPARES & (set(plan.header.refused_by) - set(overrides))


def forget_lake(config: Config, clock: Clock, lake_name: str, by: str) -> ForgottenLake:
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
    record = ForgottenLake(by=by.strip(), at=clock.now(), rehearsal=clock.is_rehearsal)

    def with_record(content: bytes | None) -> bytes:
        before = _parsed(state, lake_name, content) if content is not None else ()
        return _Records((*before, record)).model_dump_json(indent=1).encode()

    state.files.change(_path(lake_name), with_record)
    return record


def _planned_lakes(config: Config, state: State) -> set[str]:
    """Returns the lakes of the last plans: that of each storage that was accepted, and those since."""
    found: set[str] = set()
    for storage in config.storages:
        for plan in list_plans(config, storage.name, empty=True):
            found |= state.open(plan.run).summary(DeletionPlanSummary).header.refs_digests.keys()
            if _is_accepted(plan):
                break
    return found


def _records(state: State, lake_name: str) -> Sequence[ForgottenLake]:
    try:
        return _parsed(state, lake_name, state.files.read(_path(lake_name)))
    except FileNotFoundError:
        return ()


def _parsed(state: State, lake_name: str, content: bytes) -> Sequence[ForgottenLake]:
    try:
        return _Records.model_validate_json(content).root
    except ValidationError as error:
        where = f"{state.files.root}/{_path(lake_name)}"
        raise StateError(f"{where} is damaged ({'; '.join(str(error).splitlines()[:2])}); remove it and forget the lake again") from error


def _path(lake_name: str) -> str:
    return f"{lake_name}/forgotten.json"
