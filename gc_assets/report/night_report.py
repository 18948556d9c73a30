"""What the report page shows of one run date, as values. Pure: no state, no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from gc_assets.core.plan import PlanHeader
from gc_assets.core.requests import KINDS, Requests
from gc_assets.report.drawing import Drawing
from gc_assets.report.waterfall import Step

BYTES_PER_GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class Holder:
    """The bytes that one group of files holds.

    `refs` reach the witness commit of each file. A file counts once, at its witness.
    """

    table: str
    refs: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LakePage:
    """A lake on the page: its commits by state, who holds its bytes, its histories."""

    name: str
    kind: str
    refs: int
    states: dict[str, int]
    expiry_actions: int
    notes: tuple[str, ...]
    holders: tuple[Holder, ...]
    histories: tuple[Drawing, ...]
    histories_left_out: int


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
class Quarantined:
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
    before: int
    now: int
    is_bytes: bool


@dataclass(frozen=True, slots=True)
class StoragePage:
    """A storage on the page. `header` and `status` are null where the date has no plan yet.
    `words` are what people said of the plan. `unfinished` tells of uploads in parts that nobody
    finished, null where there are none. `uploads` are the oldest of those that the plan aborts.
    """

    name: str
    location: str
    steps: tuple[Step, ...]
    header: PlanHeader | None
    status: str | None
    words: tuple[str, ...]
    approvals_missing: str | None
    undoing: tuple[str, ...]
    apply_command: str
    largest: tuple[PlannedFile, ...]
    quarantined: tuple[Quarantined, ...]
    before: date | None
    changes: tuple[Change, ...]
    problems: dict[str, int]
    usd_per_gb_month: float | None
    unfinished: str | None = None
    uploads: tuple[PlannedUpload, ...] = ()
    notes: tuple[str, ...] = ()

    def usd_per_month(self, size_bytes: int) -> float | None:
        """Returns the price of storing so many bytes for a month, or null where the configuration
        names no price.
        """
        return None if self.usd_per_gb_month is None else size_bytes / BYTES_PER_GB * self.usd_per_gb_month


@dataclass(frozen=True, slots=True)
class Asked:
    """What was sent to object stores for one table of a lake or storage."""

    owner: str
    table: str
    requests: Requests


@dataclass(frozen=True, slots=True)
class NightReport:
    """One run date. `warnings` are what a reader must know before any figure: a rehearsal, lowered
    limits, a past date. `asked` is empty where nothing lies on an object store.
    """

    run_date: date
    made_at: datetime
    version: str
    warnings: tuple[str, ...]
    storages: Sequence[StoragePage]
    lakes: Sequence[LakePage]
    asked: Sequence[Asked] = ()

    @property
    def kinds_asked(self) -> list[str]:
        return [kind for kind in KINDS if any(item.requests.counts.get(kind) for item in self.asked)]

    @property
    def is_priced(self) -> bool:
        return any(item.requests.usd is not None for item in self.asked)
