"""Compute Prometheus metrics about the last run of each storage and lake.

This is cheap, because only receipts in the state are read. A metric has no sample if the run did
not compute it, or if the storage or lake has no run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gc_assets._version import __version__
from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.report.shares import breakdown_steps
from gc_assets.stages.records.plans import list_plans, load_plan, previous_plan, unfinished_plans
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, LIVE_FILES, MANIFEST_ENTRIES, ORPHAN_FILES, REACHABLE_SNAPSHOTS, Table
from gc_assets.state.summaries import (
    ExpiryPlanSummary,
    FreezeTime,
    LifecyclePathsSummary,
    LiveFilesSummary,
    ManifestEntriesSummary,
    OrphanFilesSummary,
    ReachableSnapshotsSummary,
)

# Deprecated names with their labels and new names. Both are published until 0.5.
RENAMED: Final = (
    ("night_timestamp_seconds", ("storage",), "run_timestamp_seconds"),
    ("night_duration_seconds", ("storage",), "run_duration_seconds"),
    ("lake_night_timestamp_seconds", ("lake",), "lake_run_timestamp_seconds"),
    ("lake_sick", ("lake",), "lake_unreadable"),
)
# Names without the prefix `gc_assets_`, with their labels and help texts.
FAMILIES: Final = (
    ("info", ("version",), "The release that wrote the metrics. Always 1."),
    ("run_timestamp_seconds", ("storage",), "Time at which the last run created its plan."),
    ("run_duration_seconds", ("storage",), "Seconds from reading the first ref to the plan."),
    ("stored_files", ("storage", "share"), "Files in the storage by share of the storage breakdown."),
    ("stored_bytes", ("storage", "share"), "Bytes in the storage by share of the storage breakdown."),
    ("live_files", ("storage",), "Live files in the storage."),
    ("live_bytes", ("storage",), "Bytes of the live files in the storage."),
    ("planned_files", ("storage", "action"), "Files in the plan by action."),
    ("planned_bytes", ("storage", "action"), "Bytes in the plan by action."),
    ("planned_edits", ("storage", "lake"), "History edits in the plan."),
    ("planned_path_deletions", ("storage", "lake"), "Paths on branches that the plan deletes with new commits."),
    ("quarantined_files", ("storage",), "Files in quarantine when the plan was created."),
    ("quarantined_bytes", ("storage",), "Bytes in quarantine when the plan was created."),
    ("gate_failed", ("storage", "gate"), "1 if the gate refuses the plan, otherwise 0."),
    ("plan_status", ("storage", "status"), "1 for the plan's current status."),
    ("plan_approve_before_timestamp_seconds", ("storage",), "Deadline for the approval of the plan."),
    ("plan_apply_before_timestamp_seconds", ("storage",), "Deadline for applying the plan."),
    ("unfinished_applies", ("storage",), "Applies that have started but not finished."),
    ("lake_run_timestamp_seconds", ("lake",), "Time at which a run last read the lake's refs."),
    ("lake_refs", ("lake",), "Refs of the lake in the last run."),
    ("lake_commits", ("lake", "state"), "Commits by their state under the retention policy."),
    ("lake_live_files", ("lake",), "Live files of the lake."),
    ("lake_live_bytes", ("lake",), "Bytes of the lake's live files."),
    ("lake_expiry_actions", ("lake",), "History edits that the policy requires."),
    ("lake_due_paths", ("lake",), "Paths at branch heads that lifecycle rules delete with new commits."),
    ("lake_decoded_containers", ("lake",), "Containers that the last run decoded for the first time."),
    ("lake_unreadable_containers", ("lake",), "Containers that could not be read."),
    ("lake_unreadable", ("lake",), "Tables or repositories that could not be read."),
    *((old, labels, f"Deprecated, will be removed in 0.5. Use gc_assets_{new} instead.") for old, labels, new in RENAMED),
)
Sample = tuple[str, tuple[str, ...], float]


class RunMetrics(Collector):
    """A Prometheus collector for the storages and lakes of a configuration."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config, self._clock, self._state = config, clock, State.of(config)

    def collect(self) -> Iterable[Metric]:
        """Collect all metrics that have a sample.

        Raises:
            StateError: If the state is damaged.
        """
        found: dict[str, GaugeMetricFamily] = {}
        for name, labels, text in FAMILIES:
            found[name] = GaugeMetricFamily(f"gc_assets_{name}", text, labels=labels)
        old_names = {new: old for old, _, new in RENAMED}
        for name, labels, value in self._samples():
            found[name].add_metric(labels, value)
            if name in old_names:
                found[old_names[name]].add_metric(labels, value)
        return [family for family in found.values() if family.samples]

    def text(self) -> str:
        """Format the metrics for Prometheus."""
        return generate_latest(self).decode()

    def _samples(self) -> Iterator[Sample]:
        yield "info", (__version__,), 1
        for storage in self._config.storages:
            yield from self._storage_samples(storage.name)
        for lake in self._config.lakes:
            yield from self._lake_samples(lake.name)

    def _storage_samples(self, name: str) -> Iterator[Sample]:
        last = previous_plan(list_plans(self._config, name, empty=True), self._clock)
        if last is None:
            return
        plan = load_plan(self._config, self._state.open(last.run))
        header, owner = plan.header, (name,)
        yield "run_timestamp_seconds", owner, header.created_at.timestamp()
        yield "run_duration_seconds", owner, (header.created_at - header.frozen_at).total_seconds()
        yield "live_files", owner, header.live_files
        yield "live_bytes", owner, header.live_bytes
        for action, amount in header.totals.items():
            yield "planned_files", (name, action), amount.files
            yield "planned_bytes", (name, action), amount.bytes
        for lake, edits in header.expiry_actions.items():
            yield "planned_edits", (name, lake), edits
        for lake, paths in header.deleted_paths.items():
            yield "planned_path_deletions", (name, lake), paths
        yield "quarantined_files", owner, header.quarantined.files
        yield "quarantined_bytes", owner, header.quarantined.bytes
        for gate in header.gates:
            yield "gate_failed", (name, gate.name), not gate.passed
        yield "plan_status", (name, plan.status_at(self._clock.now())), 1
        yield "plan_approve_before_timestamp_seconds", owner, header.approve_before.timestamp()
        yield "plan_apply_before_timestamp_seconds", owner, header.apply_before.timestamp()
        yield "unfinished_applies", owner, len(unfinished_plans(self._state, name))
        if (orphans := self._state.current(name, ORPHAN_FILES.name, header.run_date)) is not None:
            for step in breakdown_steps(orphans.summary(OrphanFilesSummary))[1:]:
                yield "stored_files", (name, step.label), step.files
                yield "stored_bytes", (name, step.label), step.size_bytes

    def _lake_samples(self, name: str) -> Iterator[Sample]:
        frozen = self._last_freeze(name)
        if frozen is None:
            return
        (run_date, frozen_at), owner = frozen, (name,)

        def find(table: Table) -> PublishedTable | None:
            return self._state.current(name, table.name, run_date)

        yield "lake_run_timestamp_seconds", owner, frozen_at.timestamp()
        if (refs := find(LAKE_REFS)) is not None:
            yield "lake_refs", owner, refs.rows
        if (commits := find(REACHABLE_SNAPSHOTS)) is not None:
            states = commits.summary(ReachableSnapshotsSummary)
            yield "lake_commits", (name, "retained"), states.retained
            yield "lake_commits", (name, "expired"), states.expired
            yield "lake_commits", (name, "dangling"), states.dangling
        if (edits := find(EXPIRY_PLAN)) is not None:
            yield "lake_expiry_actions", owner, edits.summary(ExpiryPlanSummary).actions
        if (paths := find(table_with(TableRole.PATH_EDITS))) is not None:
            yield "lake_due_paths", owner, paths.summary(LifecyclePathsSummary).paths.files
        if (entries := find(MANIFEST_ENTRIES)) is not None:
            yield "lake_decoded_containers", owner, entries.summary(ManifestEntriesSummary).decoded
            yield "lake_unreadable_containers", owner, entries.summary(ManifestEntriesSummary).unreadable
        if (live := find(LIVE_FILES)) is not None:
            yield "lake_live_files", owner, live.summary(LiveFilesSummary).files
            yield "lake_live_bytes", owner, live.summary(LiveFilesSummary).live_bytes
            yield "lake_unreadable", owner, len(live.summary(LiveFilesSummary).unreadable)

    def _last_freeze(self, name: str) -> tuple[date, datetime] | None:
        """Return the run date of a lake's last run, and the time at which the run read the refs."""
        frozen = [(run.run_date, run.summary(FreezeTime)) for run in self._state.history(name, LAKE_REFS.name)]
        runs = [(day, each.frozen_at) for day, each in frozen if each.is_own_day(day) and each.rehearsal == self._clock.is_rehearsal]
        return max(runs, default=None)
