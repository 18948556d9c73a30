"""Find the last accepted run, which later runs use as their baseline.

A run is accepted if its plan passed the gates `live_drop` and `lakes_present`, or was approved with
an override of `live_drop`. A refused run never becomes the baseline, even if the next run has the
same result. If several runs of one run date each lose a few files, the losses are added up, unless
a user has approved one of these runs. If a lake is removed on purpose, a user can record this.
`newest_sweeps` describes the order of runs, which does not depend on the clocks of hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from pydantic import RootModel

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.gates import EXPIRED_IN
from gc_assets.core.plan import LiveCount, PlanHeader
from gc_assets.core.units import count_of
from gc_assets.core.user_names import require_name
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.plans import ListedPlan, list_plans
from gc_assets.stages.records.user_records import UserRecord, UserRecords
from gc_assets.state.index import PastRun
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import LAKE_REFS, ORPHAN_FILES
from gc_assets.state.summaries import DeletionPlanSummary, LakeRefsSummary

LIVE_DROP: Final = "live_drop"
_PASSWORD: Final = re.compile("://[^/@]*:[^/@]*@")
_COMPARES: Final = frozenset({LIVE_DROP, "lakes_present"})


class ForgottenLake(UserRecord):
    """A user's statement that a lake was removed on purpose."""


class _Records(RootModel[tuple[ForgottenLake, ...]]):
    """All records of one lake, oldest first."""


_RECORDS: Final = UserRecords(_Records, "forgotten.json", "forget the lake again")


def last_accepted_run(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the `deletion_plan` of the last accepted run before this one, or None.

    This may be a run of the same run date, if it read other refs or a lake that is no longer
    configured. Within a date, refs are read again only after the lake's history was edited, after
    its format was upgraded, or while part of it is unreadable. Historical plans are ignored, and
    real runs ignore plans of rehearsals.
    """
    return next(_list_baselines(context, storage_name), None)


def newest_accepted_plan(context: RunContext, storage_name: str) -> PlanHeader | None:
    """Return the plan of the last accepted run, including runs of the current run date."""
    return _header_of(newest_accepted_run(context, storage_name))


def former_aliases(context: RunContext, storage_name: str) -> list[str]:
    """Return `aliases` that a storage had in accepted runs but no longer has in lakes.yaml."""
    accepted = newest_accepted_plan(context, storage_name)
    return [] if accepted is None else sorted({*accepted.aliases} - {*context.storage(storage_name).aliases})


def remembered_aliases(context: RunContext, storage_name: str) -> tuple[str, ...]:
    """Return the `aliases` that a storage has now or had in accepted runs.

    Aliases with a password are left out, because plans must not contain secrets.
    """
    aliases = {*context.storage(storage_name).aliases, *former_aliases(context, storage_name)}
    return tuple(sorted(alias for alias in aliases if _PASSWORD.search(alias) is None))


def newest_accepted_run(context: RunContext, storage_name: str) -> PublishedTable | None:
    """Return the `deletion_plan` of the last accepted run up to the run date, or None."""
    return next(accepted_runs(context, storage_name), None)


def _header_of(published: PublishedTable | None) -> PlanHeader | None:
    return published.summary(DeletionPlanSummary).header if published is not None else None


def accepted_runs(context: RunContext, storage_name: str) -> Iterator[PublishedTable]:
    """Yield the accepted runs up to the run date, newest first."""
    for plan in _list_accepted(context.config, storage_name):
        if plan.header.run_date <= context.run_date and (context.clock.is_rehearsal or not plan.header.rehearsal):
            yield context.state.open(plan.run)


def _list_accepted(config: Config, storage_name: str) -> Iterator[ListedPlan]:
    """Yield the plans of all accepted runs, newest first."""
    return (plan for plan in list_plans(config, storage_name, empty=True) if not plan.header.historical and _is_accepted(plan))


def find_baseline_tables(config: Config) -> frozenset[str]:
    """Return the run ids of earlier runs' tables that later runs read.

    These are all tables that the newest accepted plan of each storage is based on, and the sweep of
    the newest plan whose approval accepts missing files. Another run of the same date may have
    replaced them. If the newest plan belongs to a rehearsal, the newest plan of a real run is
    considered as well.
    """
    state, found = State.of(config), set[str]()
    for storage in config.storages:
        sweeps = {run.run_id: run for run in state.history(storage.name, ORPHAN_FILES.name)}
        for plan in _newest(_list_accepted(config, storage.name)):
            of_plan = _read_inputs(state, plan.run)
            found |= of_plan.union(*(_read_inputs(state, sweeps[run_id]) for run_id in of_plan & sweeps.keys()))
        for plan in _newest(plan for plan in list_plans(config, storage.name, empty=True) if plan.accepts_missing_files):
            found |= _read_inputs(state, plan.run) & sweeps.keys()
    return frozenset(found)


def _newest(plans: Iterable[ListedPlan]) -> list[ListedPlan]:
    """Return the newest plan, and the newest plan of a real run."""
    listed = list(plans)
    return [*listed[:1], *[plan for plan in listed if not plan.header.rehearsal][:1]]


def _read_inputs(state: State, run: PastRun) -> set[str]:
    """Return the run ids of a table's inputs. If the table is damaged, the result is empty."""
    try:
        return {reference.partition(":")[0] for reference in state.open(run).receipt.inputs.values()}
    except StateError:
        return set()


def _list_baselines(context: RunContext, storage_name: str) -> Iterator[PublishedTable]:
    """Yield the accepted runs that this run is compared with, newest first.

    These are runs of the same run date that read other refs, and then the last run of an earlier
    date.
    """
    newer: PlanHeader | None = None
    for published in accepted_runs(context, storage_name):
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
    """Return True if a run read other refs of a lake than this run, or an unconfigured lake."""
    digests, configured = published.summary(DeletionPlanSummary).header.refs_digests, {lake.name for lake in context.config.lakes}
    if digests.keys() - configured:
        return True
    frozen = ((name, context.find(LAKE_REFS, name)) for name in digests)
    return any(refs is not None and refs.summary(LakeRefsSummary).refs_digest != digests[name] for name, refs in frozen)


@dataclass(frozen=True, slots=True)
class AcceptedRun:
    """An earlier accepted run, which the current run is compared with.

    Attributes:
        live: The live files of the run. Files that runs of the same date have lost without a known
            reason are added.
        forgotten: Lakes of the run that were removed on purpose since then.
        reused: Names of lakes in the run that now refer to other lakes in lakes.yaml.
    """

    plan: PlanHeader
    live: LiveCount
    forgotten: frozenset[str]
    configured: frozenset[str]
    reused: frozenset[str] = frozenset()

    @classmethod
    def find_last(cls, context: RunContext, storage_name: str) -> Self | None:
        """Load the last accepted run before the current run, or return None if no run was accepted."""
        headers = [published.summary(DeletionPlanSummary).header for published in _list_baselines(context, storage_name)]
        return cls.of(context, headers[0], add_drops(headers)) if headers else None

    @classmethod
    def of(cls, context: RunContext, plan: PlanHeader, live: LiveCount | None = None) -> Self:
        """Build the baseline from a plan, and find out which lakes were removed since then.

        Real runs ignore records of rehearsals and records from the future.
        """
        forgotten = [
            name for name in plan.refs_digests if find_forgotten(context, name, plan.created_at) is not None or _is_deleted(context, name)
        ]
        lakes = context.config.lakes
        reused = {lake.label for lake in lakes if lake.label != lake.name}
        return cls(plan, live or _count_live(plan), frozenset(forgotten), frozenset(lake.name for lake in lakes), frozenset(reused))

    def count(self, live: LiveCount) -> LiveCount:
        """Return the run's live files to compare with the current ones.

        Lakes that were removed on purpose are left out, unless they need files in the storage now.
        """
        return self.live.without(self.forgotten - live.by_lake.keys())

    def describe_losses(self) -> Iterator[str]:
        """Yield a note if earlier runs of the same run date have already lost live files."""
        if (lost := self.live.files - self.plan.live_files) > 0:
            yield f"earlier runs of the same date lost {lost:,} of these files already"

    def missing_lakes(self, live: LiveCount) -> list[str]:
        """Describe lakes that no longer need files in the storage but were not removed on purpose."""
        then = {name: f"{count_of(files, 'live file')} before" for name, files in self.plan.live_by_lake.items()}
        if not then and self.plan.live_files:  # plans of releases before 0.4 do not contain which lakes needed files
            then = dict.fromkeys(self.plan.refs_digests.keys() - self.configured, "configured before")
        return [f"{name} ({self._describe(name)}, {then[name]})" for name in sorted(then.keys() - live.by_lake.keys() - self.forgotten)]

    def _describe(self, name: str) -> str:
        if name in self.configured:
            return "no live files now"
        return "its name now belongs to another lake in lakes.yaml" if name in self.reused else "not in lakes.yaml now"


def add_drops(plans: Sequence[PlanHeader]) -> LiveCount:
    """Add up the live files of the newest plan and the files that were lost since the oldest plan.

    Files that the policy has expired are not counted as lost. If a plan was approved with an
    override, all losses up to that plan are accepted and not counted either.

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
    """Find the first record after a time that a lake was removed on purpose.

    Real runs ignore records of rehearsals and records from the future.
    """
    return next((item for item in _RECORDS.read_valid(context, lake_name) if item.at >= since), None)


def _is_deleted(context: RunContext, lake_name: str) -> bool:
    """Return True if the lake is a deleted repository for which a user has run `forget`."""
    refs = context.find(LAKE_REFS, lake_name) if any(lake.name == lake_name for lake in context.config.lakes) else None
    repository = refs.summary(LakeRefsSummary).repository if refs is not None else None
    return repository is not None and repository.deleted


def forget_lake(config: Config, clock: Clock, lake_name: str, by: str) -> ForgottenLake:
    """Record that a lake was removed on purpose.

    From then on, gates do not refuse a plan because the files of this lake are missing.

    Raises:
        UsageError: If `by` is empty, or the lake is neither in the configuration nor in the last
            plans.
    """
    require_name(by, "forgetting a lake")
    state = State.of(config)
    known = {lake.name for lake in config.lakes} | _planned_lakes(config, state)
    if lake_name not in known:
        lake_name = next((lake.name for lake in config.lakes if lake.label == lake_name), lake_name)
    if lake_name not in known:
        raise UsageError(f"unknown lake {lake_name!r}; known lakes: {', '.join(sorted(known))}")
    record = ForgottenLake(by=by.strip(), at=clock.now(), rehearsal=clock.is_rehearsal)
    _RECORDS.append(state, lake_name, record)
    return record


def _planned_lakes(config: Config, state: State) -> set[str]:
    """Return the lakes in the last accepted plan of each storage and in all plans after it."""
    found: set[str] = set()
    for storage in config.storages:
        for plan in list_plans(config, storage.name, empty=True):
            found |= state.open(plan.run).summary(DeletionPlanSummary).header.refs_digests.keys()
            if _is_accepted(plan):
                break
    return found
