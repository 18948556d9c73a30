"""What the report page shows of one run date, as values. Pure: no state, no HTML."""

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


@dataclass(frozen=True, slots=True)
class RefUsage:
    """The bytes that one group of files holds. A file counts once, at one commit that needs it,
    which `refs` reach.
    """

    table: str
    refs: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExpiringCommit:
    """A commit that the policy no longer keeps. `table` is null where the lake is one repository."""

    table: str | None
    commit_id: str
    committed_at: datetime | None
    message: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class LakePage:
    """A lake on the page: its commits by state, who holds its bytes, its histories. `expiring` are the
    newest commits that the policy no longer keeps; `edits_history` says whether a plan removes them,
    or frees their files only.
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
    """An unfinished upload that the plan aborts."""

    key: str
    upload_id: str
    initiated: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True)
class QuarantinedPlan:
    """What one plan moved aside and is still there. A plan of the moment `purge_from` or later may
    purge it.
    """

    plan_id: str
    files: int
    size_bytes: int
    since: datetime
    purge_from: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of this run date beside the same figure of the run date before."""

    label: str
    previous: int
    current: int
    is_bytes: bool


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """What a storage holds, quarantine included, at one moment of its plan's life."""

    when: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PastPlan:
    """A plan of the storage, and what people said of it. `amounts` are its files by action."""

    plan_id: str
    run_date: date
    status: str
    amounts: dict[str, Amount]
    edits: int
    decisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoragePage:
    """A storage on the page. `headline` says in one sentence what its plan means, and `stored` how
    much it holds now and afterwards. `tables` are those with the most garbage, and `tables_left_out`
    counts the rest. `trend` are the last nights, and `plans` the last plans, newest first.
    `live_named` is how many live files the lakes' own metadata names here, where that is not the
    number of live objects that were listed.

    `header` and `status` are null where the date has no plan yet. `words` are what people said of
    the plan. `unfinished` tells of uploads in parts that nobody finished, null where there are none.
    `uploads` are the oldest of those that the plan aborts.
    """

    name: str
    location: str
    steps: tuple[Step, ...]
    header: PlanHeader | None
    status: str | None
    decisions: tuple[str, ...]
    approvals_missing: str | None
    reversibility: tuple[str, ...]
    apply_command: str
    largest: tuple[PlannedFile, ...]
    quarantined: tuple[QuarantinedPlan, ...]
    previous_run_date: date | None
    changes: tuple[Change, ...]
    problems: dict[str, int]
    usd_per_gb_month: float | None
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

    def usd_per_month(self, size_bytes: int) -> float | None:
        """Returns the price of storing so many bytes for a month, or null where the configuration
        names no price.
        """
        return None if self.usd_per_gb_month is None else Money(usd_per_gb_month=self.usd_per_gb_month).usd_per_month(size_bytes)

    @property
    def reasons(self) -> list[str]:
        """Returns the reasons for which any of its tables has garbage."""
        return sorted({reason for share in self.tables for reason in share.garbage})


@dataclass(frozen=True, slots=True)
class TableRequests:
    """What was sent to object stores for one table of a lake or storage."""

    owner: str
    table: str
    requests: Requests


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run date. `warnings` are what a reader must know before any figure: a rehearsal, lowered
    limits, a past date. `asked` is empty where nothing lies on an object store.
    """

    run_date: date
    created_at: datetime
    version: str
    warnings: tuple[str, ...]
    storages: Sequence[StoragePage]
    lakes: Sequence[LakePage]
    requests: Sequence[TableRequests] = ()

    @property
    def request_kinds(self) -> list[str]:
        return [kind for kind in KINDS if any(item.requests.counts.get(kind) for item in self.requests)]

    @property
    def is_priced(self) -> bool:
        return any(item.requests.usd is not None for item in self.requests)
