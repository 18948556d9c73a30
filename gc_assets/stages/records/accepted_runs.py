"""Find the last accepted run, which is the baseline for later runs.

A run is accepted if its plan passed the gates `live_drop` and `lakes_present`, or was approved with
overrides for them. A refused run is never a baseline, even if its result repeats. Small drops in
several runs of the same run date add up, unless a user approved one of them. A user can record that
a lake was removed on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from pydantic import RootModel

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import UsageError
from gc_assets.core.gates import EXPIRED_IN
from gc_assets.core.plan import LiveCount, PlanHeader
from gc_assets.core.units import count_of
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import ListedPlan, list_plans
from gc_assets.stages.records.user_records import UserRecord, UserRecords
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.summaries import DeletionPlanSummary, LakeRefsSummary

LIVE_DROP: Final = "live_drop"
_PASSWORD: Final = re.compile("://[^/@]*:[^/@]*@")
_COMPARES: Final = frozenset({LIVE_DROP, "lakes_present"})


class ForgottenLake(UserRecord):
    """A user's record that a lake was removed on purpose."""


class _Records(RootModel[tuple[ForgottenLake, ...]]):
    """All records of one lake, in chronological order."""


_RECORDS: Final = UserRecords(_Records, "forgotten.json", "forget the lake again")


def last_accepted_run(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the `deletion_plan` of the last accepted run before this one, or None.

    A run of the same run date counts if it used another freeze, or a lake that is not configured
    any more. A run of the current date freezes a lake again only after an edit of its history,
    after an upgrade of its format, or while a part of it is unreadable. Historical plans do not
    count, and plans of rehearsals do not count for a real run.
    """
    return next(_list_baselines(context, storage_name), None)


def newest_accepted_plan(context: RunContext, storage_name: str) -> PlanHeader | None:
    """Return the plan of the last accepted run, which may be of the same run date."""
    return _header_of(newest_accepted_run(context, storage_name))


def former_aliases(context: RunContext, storage_name: str) -> list[str]:
    """Return the `aliases` of a storage in its accepted runs that it does not have now."""
    accepted = newest_accepted_plan(context, storage_name)
    return [] if accepted is None else sorted({*accepted.aliases} - {*context.storage(storage_name).aliases})


def remembered_aliases(context: RunContext, storage_name: str) -> tuple[str, ...]:
    """Return the `aliases` of a storage in this run and in its accepted runs.

    Those with a password are left out, because a plan contains no secrets.
    """
    aliases = {*context.storage(storage_name).aliases, *former_aliases(context, storage_name)}
    return tuple(sorted(alias for alias in aliases if _PASSWORD.search(alias) is None))


def newest_accepted_run(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the `deletion_plan` of the last accepted run up to the run date, or None."""
    return next(_accepted_runs(context, storage_name), None)


def _header_of(published: PublishedTable | None) -> PlanHeader | None:
    return published.summary(DeletionPlanSummary).header if published is not None else None


def _accepted_runs(context: RunContext, storage_name: str) -> Iterator[PublishedTable]:
    """Yield the accepted runs up to the run date, newest first."""
    accepted = [
        plan
        for plan in list_plans(context.config, storage_name, empty=True)
        if plan.header.run_date <= context.run_date
        and not plan.header.historical
        and (context.clock.is_rehearsal or not plan.header.rehearsal)
        and _is_accepted(plan)
    ]
    for plan in sorted(accepted, key=lambda plan: (plan.run.run_date, plan.run.run_id), reverse=True):
        yield context.state.open(plan.run)


def _list_baselines(context: RunContext, storage_name: str) -> Iterator[PublishedTable]:
    """Yield the accepted runs with which this run is compared, newest first.

    These are the runs of the same run date with other freezes, and the last run of an earlier date.
    """
    newer: PlanHeader | None = None
    for published in _accepted_runs(context, storage_name):
        header = published.summary(DeletionPlanSummary).header
        if published.receipt.run_date < context.run_date:
            yield published
            return
        if newer is None and not _has_other_freeze(context, published):
            continue
        if newer is None or newer.refs_digests != header.refs_digests:
            newer = header
            yield published


def _has_other_freeze(context: RunContext, published: PublishedTable) -> bool:
    """Check whether the run read a lake that is not configured now, or used another freeze of a
    lake.
    """
    digests, configured = published.summary(DeletionPlanSummary).header.refs_digests, {lake.name for lake in context.config.lakes}
    if digests.keys() - configured:
        return True
    frozen = ((name, context.find(LAKE_REFS, name)) for name in digests)
    return any(refs is not None and refs.summary(LakeRefsSummary).refs_digest != digests[name] for name, refs in frozen)


@dataclass(frozen=True, slots=True)
class AcceptedRun:
    """An earlier accepted run, as the baseline of the current one.

    Attributes:
        live: The run's live files, plus those that earlier runs of its date had lost without a
            reason.
        forgotten: The run's lakes that a user has removed since then.
        reused: Names that belong to other lakes in the current configuration.
    """

    plan: PlanHeader
    live: LiveCount
    forgotten: frozenset[str]
    configured: frozenset[str]
    reused: frozenset[str] = frozenset()

    @classmethod
    def find_last(cls, context: RunContext, storage_name: str) -> Self | None:
        """Return the last accepted run before this one, or None."""
        headers = [published.summary(DeletionPlanSummary).header for published in _list_baselines(context, storage_name)]
        return cls.of(context, headers[0], add_drops(headers)) if headers else None

    @classmethod
    def of(cls, context: RunContext, plan: PlanHeader, live: LiveCount | None = None) -> Self:
        """Build the baseline from a plan, and read which lakes were removed since then.

        For a real run, records of rehearsals and records from the future do not count.
        """
        forgotten = [
            name for name in plan.refs_digests if find_forgotten(context, name, plan.created_at) is not None or _is_deleted(context, name)
        ]
        lakes = context.config.lakes
        reused = {lake.label for lake in lakes if lake.label != lake.name}
        return cls(plan, live or _count_live(plan), frozenset(forgotten), frozenset(lake.name for lake in lakes), frozenset(reused))

    def count(self, live: LiveCount) -> LiveCount:
        """Return the run's live files, for comparison with the current ones.

        Removed lakes that need no files in the storage now are left out.
        """
        return self.live.without(self.forgotten - live.by_lake.keys())

    def describe_losses(self) -> Iterator[str]:
        """Yield a sentence if earlier runs of the same run date lost live files."""
        if (lost := self.live.files - self.plan.live_files) > 0:
            yield f"earlier runs of the same date lost {lost:,} of these files already"

    def missing_lakes(self, live: LiveCount) -> list[str]:
        """Describe the lakes that need no files in the storage any more and were not removed by a
        user.
        """
        then = {name: f"{count_of(files, 'live file')} before" for name, files in self.plan.live_by_lake.items()}
        if not then and self.plan.live_files:  # plans of releases before 0.4 do not contain which lakes needed files
            then = dict.fromkeys(self.plan.refs_digests.keys() - self.configured, "configured before")
        return [f"{name} ({self._describe(name)}, {then[name]})" for name in sorted(then.keys() - live.by_lake.keys() - self.forgotten)]

    def _describe(self, name: str) -> str:
        if name in self.configured:
            return "no live files now"
        return "its name now belongs to another lake in lakes.yaml" if name in self.reused else "not in lakes.yaml now"


def add_drops(plans: Sequence[PlanHeader]) -> LiveCount:
    """Return the newest plan's live files, plus those that were lost since the oldest plan.

    Files expired by the policy are not lost, and neither are files missed by a plan that was
    approved with an override, or before it.

    Args:
        plans: Plans of accepted runs, newest first. Each one is compared with the next.
    """
    found = _count_live(plans[-1])
    for plan in reversed(plans[:-1]):
        own = _count_live(plan)
        if not _COMPARES.isdisjoint(gate.name for gate in plan.failed_gates):
            found = own
            continue
        found = found.without(found.by_lake.keys() - own.by_lake.keys())
        numbers = next((gate.numbers for gate in plan.gates if gate.name == LIVE_DROP), {})
        by_lake = {
            lake: max(files, found.by_lake.get(lake, 0) - int(numbers.get(EXPIRED_IN.format(lake=lake), 0)))
            for lake, files in own.by_lake.items()
        }
        found = LiveCount(max(own.files, found.files - int(numbers.get("expired", 0))), by_lake)
    return found


def _count_live(plan: PlanHeader) -> LiveCount:
    return LiveCount(plan.live_files, plan.live_by_lake)


def _is_accepted(plan: ListedPlan) -> bool:
    overrides = plan.verdict.overrides if plan.verdict.is_approved else ()
    return not _COMPARES & (set(plan.header.refused_by) - set(overrides))


def find_forgotten(context: RunContext, lake_name: str, since: datetime) -> ForgottenLake | None:
    """Return the first record since a time that a lake was removed on purpose, or None.

    For a real run, records of rehearsals and records from the future do not count.
    """
    return next((item for item in _RECORDS.read_valid(context, lake_name) if item.at >= since), None)


def _is_deleted(context: RunContext, lake_name: str) -> bool:
    """Check whether a lake is a deleted repository that was recorded as removed since it was last
    read.
    """
    refs = context.find(LAKE_REFS, lake_name) if any(lake.name == lake_name for lake in context.config.lakes) else None
    repository = refs.summary(LakeRefsSummary).repository if refs is not None else None
    return repository is not None and repository.deleted


def forget_lake(config: Config, clock: Clock, lake_name: str, by: str) -> ForgottenLake:
    """Record that a lake was removed on purpose, so that plans are not refused because its files
    are missing.

    Raises:
        UsageError: If `by` is empty, or neither the configuration nor the last plans contain the
            lake.
    """
    if not by.strip():
        raise UsageError("forgetting a lake needs a name: --by WHO")
    state = State.of(config)
    known = {lake.name for lake in config.lakes} | _planned_lakes(config, state)
    if lake_name not in known:
        lake_name = next((lake.name for lake in config.lakes if lake.label == lake_name), lake_name)
    if lake_name not in known:
        raise UsageError(f"no lake {lake_name!r}; known lakes are {', '.join(sorted(known))}")
    record = ForgottenLake(by=by.strip(), at=clock.now(), rehearsal=clock.is_rehearsal)
    _RECORDS.append(state, lake_name, record)
    return record


def _planned_lakes(config: Config, state: State) -> set[str]:
    """Return the lakes in each storage's last accepted plan and in all later plans."""
    found: set[str] = set()
    for storage in config.storages:
        for plan in list_plans(config, storage.name, empty=True):
            found |= state.open(plan.run).summary(DeletionPlanSummary).header.refs_digests.keys()
            if _is_accepted(plan):
                break
    return found
