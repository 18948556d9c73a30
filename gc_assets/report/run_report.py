"""Define data classes for the contents of the report.

The classes neither read the state nor depend on how the report is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from gc_assets.config.models import Money
from gc_assets.core.plan import Amount, PlanHeader
from gc_assets.core.requests import KINDS, Requests
from gc_assets.report.drawing import Drawing
from gc_assets.report.storage_breakdown import Step
from gc_assets.report.trend import Point
from gc_assets.stages.read.usage import TableUsage
from gc_assets.state.summaries import DroppedTableSummary


@dataclass(frozen=True, slots=True)
class RefUsage:
    """The files and bytes of a table that the same refs keep live.

    A file that several commits need is counted for only one of them.
    """

    table: str
    refs: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExpiringCommit:
    """A commit that the retention policy does not keep.

    `table` is None for lakes that consist of a single repository.
    """

    table: str | None
    commit_id: str
    committed_at: datetime | None
    message: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class LakePage:
    """The section of the report about a lake.

    Attributes:
        states: How many commits are in each state.
        usage: The live bytes for each table and its refs.
        edits_history: Whether plans remove expired commits from the history. If not, they only
            remove the files of these commits.
        expiring: The newest commits that the policy does not keep. `expiring_left_out` counts all
            others.
        unknown_addresses: Number of live addresses with an unknown location.
        unknown_address_samples: Some of these addresses with the reasons.
    """

    name: str
    kind: str
    refs: int
    states: dict[str, int]
    expiry_actions: int
    notes: tuple[str, ...]
    usage: tuple[RefUsage, ...]
    histories: tuple[Drawing, ...]
    histories_left_out: int
    edits_history: bool = False
    expiring: tuple[ExpiringCommit, ...] = ()
    expiring_left_out: int = 0
    unknown_addresses: int = 0
    unknown_address_samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file in the plan."""

    key: str
    action: str
    reason: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedUpload:
    """An unfinished multipart upload that the plan aborts."""

    key: str
    upload_id: str
    initiated: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True)
class QuarantinedPlan:
    """The files that one plan has quarantined. Plans may purge them from `purge_from` on."""

    plan_id: str
    files: int
    size_bytes: int
    since: datetime
    purge_from: datetime


@dataclass(frozen=True, slots=True)
class FigureChange:
    """How a number in the report changed since the previous run date."""

    label: str
    previous: int
    current: int
    is_bytes: bool


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """How many bytes a storage contains before or after its plan, including quarantined files."""

    when: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PastPlan:
    """A plan of this or an earlier run for the same storage, with the amounts of each action."""

    plan_id: str
    run_date: date
    status: str
    amounts: dict[str, Amount]
    edits: int
    decisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoragePage:
    """The section of the report about a storage.

    Attributes:
        header: The header of the plan of the run date, if it has one.
        status: The status of the plan.
        decisions: The approvals and rejections of the plan.
        headline: A sentence about what the plan does.
        stored: How many bytes are stored now and after the plan.
        tables: The tables with the most garbage. `tables_left_out` counts all others.
        trend: The storage breakdown of the most recent runs.
        plans: The most recent plans, newest first.
        live_named: How many live files the metadata of the lakes references, or None if the listing
            contains the same number of live objects.
        unfinished: A sentence about unfinished uploads, if there are any.
        uploads: The oldest uploads that the plan aborts.
        dropped: The dropped tables with files. `dropped_left_out` counts all others.
    """

    name: str
    location: str
    steps: tuple[Step, ...]
    quarantined: tuple[QuarantinedPlan, ...]
    previous_run_date: date | None
    changes: tuple[FigureChange, ...]
    problems: dict[str, int]
    usd_per_gb_month: float | None
    header: PlanHeader | None = None
    status: str | None = None
    decisions: tuple[str, ...] = ()
    approvals_missing: str | None = None
    reversibility: tuple[str, ...] = ()
    apply_command: str = ""
    largest: tuple[PlannedFile, ...] = ()
    headline: str = ""
    stored: tuple[StoredBytes, ...] = ()
    tables: tuple[TableUsage, ...] = ()
    tables_left_out: int = 0
    trend: tuple[Point, ...] = ()
    plans: tuple[PastPlan, ...] = ()
    live_named: int | None = None
    unfinished: str | None = None
    uploads: tuple[PlannedUpload, ...] = ()
    notes: tuple[str, ...] = ()
    dropped: tuple[DroppedTableSummary, ...] = ()
    dropped_left_out: int = 0

    def usd_per_month(self, size_bytes: int) -> float | None:
        """Compute the monthly price of some bytes in USD, or None if the storage has no price."""
        return None if self.usd_per_gb_month is None else Money(usd_per_gb_month=self.usd_per_gb_month).usd_per_month(size_bytes)

    @property
    def reasons(self) -> list[str]:
        """All reasons for garbage that occur in any table."""
        return sorted({reason for share in self.tables for reason in share.garbage})


@dataclass(frozen=True, slots=True)
class TableRequests:
    """The requests to object stores that were needed to publish a table."""

    owner: str
    table: str
    requests: Requests


@dataclass(frozen=True, slots=True)
class ScanTerms:
    """The assumptions of `gc-assets scan`, and the configuration that `gc-assets init` would write.

    Attributes:
        addresses: The addresses that were scanned.
        assumptions: One sentence for each assumption.
        doubts: Reasons to distrust the estimate, such as a gate that would refuse the plan.
        lakes_yaml: The `lakes.yaml` that `gc-assets init` would write.
        init_command: The command that writes this file.
    """

    addresses: tuple[str, ...]
    assumptions: tuple[str, ...]
    doubts: tuple[str, ...]
    lakes_yaml: str
    init_command: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """The contents of a report about one run date or scan.

    Attributes:
        warnings: Warnings that apply to all numbers, for example because of a rehearsal, lowered
            limits or a past date.
        requests: The object store requests for each table, if the lakes, storages or the state need
            any.
        scan: The assumptions of the scan, or None if this is the report of a run.
    """

    run_date: date
    created_at: datetime
    version: str
    warnings: tuple[str, ...]
    storages: Sequence[StoragePage]
    lakes: Sequence[LakePage]
    requests: Sequence[TableRequests] = ()
    scan: ScanTerms | None = None

    @property
    def request_kinds(self) -> list[str]:
        return [kind for kind in KINDS if any(item.requests.counts.get(kind) for item in self.requests)]

    @property
    def is_priced(self) -> bool:
        return any(item.requests.usd is not None for item in self.requests)
