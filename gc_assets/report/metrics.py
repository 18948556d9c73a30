"""The last night of each storage and lake as Prometheus metrics.

Reads receipts of the state, and no table, lake or storage. What a night did not come to has no
sample, and neither has a storage or lake that never had a night.
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
from gc_assets.report.shares import breakdown_steps
from gc_assets.stages.records.plans import list_plans, load_plan, previous_plan, unfinished_plans
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, LIVE_FILES, MANIFEST_ENTRIES, ORPHAN_FILES, REACHABLE_SNAPSHOTS, Table
from gc_assets.state.summaries import (
    ExpiryPlanSummary,
    Freeze,
    LiveFilesSummary,
    ManifestEntriesSummary,
    OrphanFilesSummary,
    ReachableSnapshotsSummary,
)

# Name of the metric, its labels, and what it says.
FAMILIES: Final = (
    ("info", ("version",), "The release that wrote this; always 1."),
    ("night_timestamp_seconds", ("storage",), "When the plan of the last night was made."),
    ("night_duration_seconds", ("storage",), "Time from the first frozen ref to the plan."),
    ("stored_files", ("storage", "share"), "Files of the storage, by what they are."),
    ("stored_bytes", ("storage", "share"), "Bytes of the storage, by what they are."),
    ("live_files", ("storage",), "Files of the storage that a lake needs."),
    ("live_bytes", ("storage",), "Bytes of the storage that a lake needs."),
    ("planned_files", ("storage", "action"), "Files that the plan names, by what would be done with them."),
    ("planned_bytes", ("storage", "action"), "Bytes that the plan names, by what would be done with them."),
    ("planned_edits", ("storage", "lake"), "Edits of history that the plan names."),
    ("quarantined_files", ("storage",), "Files that waited in quarantine when the plan was made."),
    ("quarantined_bytes", ("storage",), "Bytes that waited in quarantine when the plan was made."),
    ("gate_failed", ("storage", "gate"), "1 where the gate refuses the plan, else 0."),
    ("plan_status", ("storage", "status"), "1 for the status that the plan has now."),
    ("plan_approve_before_timestamp_seconds", ("storage",), "Until when the plan can be approved."),
    ("plan_apply_before_timestamp_seconds", ("storage",), "Until when the plan can be applied."),
    ("unfinished_applies", ("storage",), "Plans that began and did not end."),
    ("lake_night_timestamp_seconds", ("lake",), "When the lake's refs were frozen last."),
    ("lake_refs", ("lake",), "Refs that were frozen."),
    ("lake_commits", ("lake", "state"), "Commits by what the policy makes of them."),
    ("lake_live_files", ("lake",), "Files that the lake needs."),
    ("lake_live_bytes", ("lake",), "Bytes that the lake needs."),
    ("lake_expiry_actions", ("lake",), "Edits of history that the policy asks for."),
    ("lake_decoded_containers", ("lake",), "Metadata objects that were decoded for the first time."),
    ("lake_unreadable_containers", ("lake",), "Metadata objects that could not be read."),
    ("lake_sick", ("lake",), "Tables or repositories that could not be read."),
)
Sample = tuple[str, tuple[str, ...], float]


class RunMetrics(Collector):
    """The metrics of a configuration's last nights."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config, self._clock, self._state = config, clock, State.of(config)

    def collect(self) -> Iterable[Metric]:
        """Returns every metric that has a sample. Raises `StateError` where the state is damaged."""
        found: dict[str, GaugeMetricFamily] = {}
        for name, labels, told in FAMILIES:
            found[name] = GaugeMetricFamily(f"gc_assets_{name}", told, labels=labels)
        for name, labels, value in self._samples():
            found[name].add_metric(labels, value)
        return [family for family in found.values() if family.samples]

    def text(self) -> str:
        """Returns the metrics in Prometheus' text format."""
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
        header, at = plan.header, (name,)
        yield "night_timestamp_seconds", at, header.created_at.timestamp()
        yield "night_duration_seconds", at, (header.created_at - header.frozen_at).total_seconds()
        yield "live_files", at, header.live_files
        yield "live_bytes", at, header.live_bytes
        for action, amount in header.totals.items():
            yield "planned_files", (name, action), amount.files
            yield "planned_bytes", (name, action), amount.bytes
        for lake, edits in header.expiry_actions.items():
            yield "planned_edits", (name, lake), edits
        yield "quarantined_files", at, header.quarantined.files
        yield "quarantined_bytes", at, header.quarantined.bytes
        for gate in header.gates:
            yield "gate_failed", (name, gate.name), not gate.passed
        yield "plan_status", (name, plan.status_at(self._clock.now())), 1
        yield "plan_approve_before_timestamp_seconds", at, header.approve_before.timestamp()
        yield "plan_apply_before_timestamp_seconds", at, header.apply_before.timestamp()
        yield "unfinished_applies", at, len(unfinished_plans(self._state, name))
        if (orphans := self._state.current(name, ORPHAN_FILES.name, header.run_date)) is not None:
            for step in breakdown_steps(orphans.summary(OrphanFilesSummary))[1:]:
                yield "stored_files", (name, step.label), step.files
                yield "stored_bytes", (name, step.label), step.size_bytes

    def _lake_samples(self, name: str) -> Iterator[Sample]:
        frozen = self._last_freeze(name)
        if frozen is None:
            return
        (run_date, frozen_at), at = frozen, (name,)

        def published(table: Table) -> PublishedTable | None:
            return self._state.current(name, table.name, run_date)

        yield "lake_night_timestamp_seconds", at, frozen_at.timestamp()
        if (refs := published(LAKE_REFS)) is not None:
            yield "lake_refs", at, refs.rows
        if (commits := published(REACHABLE_SNAPSHOTS)) is not None:
            states = commits.summary(ReachableSnapshotsSummary)
            yield "lake_commits", (name, "retained"), states.retained
            yield "lake_commits", (name, "expired"), states.expired
            yield "lake_commits", (name, "dangling"), states.dangling
        if (edits := published(EXPIRY_PLAN)) is not None:
            yield "lake_expiry_actions", at, edits.summary(ExpiryPlanSummary).actions
        if (entries := published(MANIFEST_ENTRIES)) is not None:
            yield "lake_decoded_containers", at, entries.summary(ManifestEntriesSummary).decoded
            yield "lake_unreadable_containers", at, entries.summary(ManifestEntriesSummary).unreadable
        if (live := published(LIVE_FILES)) is not None:
            yield "lake_live_files", at, live.summary(LiveFilesSummary).files
            yield "lake_live_bytes", at, live.summary(LiveFilesSummary).live_bytes
            yield "lake_sick", at, len(live.summary(LiveFilesSummary).unreadable)

    def _last_freeze(self, name: str) -> tuple[date, datetime] | None:
        """Returns the run date of the lake's last night and when its refs were frozen."""
        frozen = [(run.run_date, run.headline(Freeze)) for run in self._state.history(name, LAKE_REFS.name)]
        nights = [(day, each.frozen_at) for day, each in frozen if each.is_own_day(day) and each.rehearsal == self._clock.is_rehearsal]
        return max(nights, default=None)
