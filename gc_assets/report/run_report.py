"""The data model of the report, without access to the state and without HTML."""

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
    """Live bytes of a table that are kept by some refs.

    Each file is counted once, at one of the commits that need it.
    """

    table: str
    refs: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExpiringCommit:
    """A commit that the policy does not keep. `table` is None if the lake is a single repository."""

    table: str | None
    commit_id: str
    committed_at: datetime | None
    message: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class LakePage:
    """A lake on the page.

    Attributes:
        states: Commits by state.
        usage: The live bytes by table and refs.
        edits_history: True if a plan removes expired commits. Otherwise only their files are
            removed.
        expiring: The newest commits that the policy does not keep.
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


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A row of the plan."""

    key: str
    action: str
    reason: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedUpload:
    """An unfinished upload that is aborted by the plan."""

    key: str
    upload_id: str
    initiated: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True)
class QuarantinedPlan:
    """Quarantined files of one plan. A plan created at `purge_from` or later can purge them."""

    plan_id: str
    files: int
    size_bytes: int
    since: datetime
    purge_from: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """A figure for this run date and for the previous one."""

    label: str
    previous: int
    current: int
    is_bytes: bool


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes of a storage, including quarantined files, at one stage of its plan."""

    when: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PastPlan:
    """A plan of the storage with its decisions. `amounts` contains its files by action."""

    plan_id: str
    run_date: date
    status: str
    amounts: dict[str, Amount]
    edits: int
    decisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoragePage:
    """A storage on the page.

    Attributes:
        header: The plan of the run date, or None if it has no plan.
        status: The status of the plan, or None.
        decisions: The approvals and rejections of the plan.
        headline: One sentence about the effects of the plan.
        stored: The stored bytes now and after the plan.
        tables: The tables with the most garbage. `tables_left_out` counts the others.
        trend: The storage breakdown of the last runs.
        plans: The last plans, newest first.
        live_named: The number of live files referenced by the lakes' metadata, or None if it equals
            the number of live objects in the listing.
        unfinished: A sentence about unfinished uploads, or None.
        uploads: The oldest uploads aborted by the plan.
        dropped: The dropped tables with files. `dropped_left_out` counts the others.
    """

    name: str
    location: str
    steps: tuple[Step, ...]
    quarantined: tuple[QuarantinedPlan, ...]
    previous_run_date: date | None
    changes: tuple[Change, ...]
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
        """Return the monthly price of storing these bytes, or None if no price is configured."""
        return None if self.usd_per_gb_month is None else Money(usd_per_gb_month=self.usd_per_gb_month).usd_per_month(size_bytes)

    @property
    def reasons(self) -> list[str]:
        """The reasons for garbage, over all tables."""
        return sorted({reason for share in self.tables for reason in share.garbage})


@dataclass(frozen=True, slots=True)
class TableRequests:
    """Requests to object stores for one table of a lake or storage."""

    owner: str
    table: str
    requests: Requests


@dataclass(frozen=True, slots=True)
class ScanTerms:
    """Assumptions of a scan, and the configuration with which a run would repeat it.

    Attributes:
        addresses: The scanned addresses.
        assumptions: The assumptions, one sentence each.
        doubts: Reasons why the estimate may be wrong, such as a gate that would refuse the plan.
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
    """Report of one run date.

    Attributes:
        scan: The terms of a scan, which has no plan and stores nothing. None for a run.
        warnings: Warnings that apply to all figures: a rehearsal, lowered limits, or a past date.
        requests: Requests to object stores, if a lake, a storage or the state is in one.
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
