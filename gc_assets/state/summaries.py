"""What a stage found out besides the rows of its table: one model per table, kept in the table's
receipt.

A model reads what its own release and every older one wrote. A fact that an older release did not
know has a default. A fact that decides what is deleted has none, so a receipt without it is
damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.plan import Amount, PlanHeader, PlanSummary, Unreadable
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.requests import Requests
from gc_assets.core.units import format_bytes

Moment = Annotated[datetime, PlainSerializer(lambda value: value.isoformat(), return_type=str, when_used="json")]
Counts = dict[str, int]
Amounts = dict[str, Amount]


class Summary(RenamedKeys):
    """The facts of one table. `TABLE` is the table's name.

    `requests` counts what was sent to object stores for it, by kind, and `requests_usd` is its
    price, null where none is known. `spark_jobs` counts the jobs that Spark ran for it, null where
    nobody counts them. Whoever publishes the table adds all three.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    TABLE: ClassVar[str]

    requests: Counts = Field(default_factory=dict)
    requests_usd: float | None = None
    spark_jobs: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the stage found out, as JSON."""
        return self.model_dump(mode="json", exclude={"requests", "requests_usd", "spark_jobs"})


def requests_of(summary: Mapping[str, Any]) -> Requests:
    """Return what was sent to object stores for a table, by the facts in its receipt."""
    return Requests(summary.get("requests") or {}, summary.get("requests_usd"))


class IndexSummary(RenamedKeys):
    """The few facts of a run that are read without opening its receipt. The index of runs keeps
    them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> IndexSummary:
        """Return the headline of the facts in a receipt. Raises `ValidationError` where one is
        missing.
        """
        return cls.model_validate(summary)


class PolicyTableSummary(Summary):
    TABLE: ClassVar = "policy_table"

    rules: int
    policy_digest: str


class FreezeTime(IndexSummary):
    """When refs were frozen, and whether a rehearsal's clock said so."""

    frozen_at: Moment
    rehearsal: bool

    def is_own_day(self, run_date: date) -> bool:
        """Return True if a run date was frozen on its own day. The analysis of an earlier date was
        not.
        """
        return self.frozen_at.date() == run_date


class UnreadTable(BaseModel):
    """A table that could not be read, with why, and the address of its metadata where that is
    known. `table_name` is null where it is the whole lake.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    table_name: str | None
    why: str
    address: str | None = None


class LakeRefsSummary(Summary):
    """`min_age_seconds` is the age below which the lake's own system keeps an object. `claims` and
    `pinned` are counts. `unread` are tables of which nothing else here speaks.
    """

    TABLE: ClassVar = "lake_refs"

    kind: str
    as_of: Moment
    frozen_at: Moment
    historical: bool
    rehearsal: bool
    policy_digest: str
    refs_digest: str
    claims: int
    pinned: int
    notes: tuple[str, ...]
    min_age_seconds: int
    unread: tuple[UnreadTable, ...] = ()


class CommitGraphSummary(Summary):
    """`known` commits were taken over from an earlier night's graph. `read_as` is a digest of what
    the rows depend on besides the commits. `unread` says why no commit of the lake could be read.
    """

    TABLE: ClassVar = "commit_graph"

    commits: int
    known: int = 0
    read_as: str | None = None
    unread: str | None = None


class ReachableSnapshotsSummary(Summary):
    """`unread` says why the policy could not be asked, so that every commit is retained."""

    TABLE: ClassVar = "reachable_snapshots"

    retained: int
    expired: int
    dangling: int
    notes: tuple[str, ...] = ()
    unread: str | None = None


class ExpiryPlanSummary(Summary):
    TABLE: ClassVar = "expiry_plan"

    actions: int


class LiveContentsSummary(Summary):
    TABLE: ClassVar = "live_contents"

    contents: int


class SnapshotHistorySummary(Summary):
    TABLE: ClassVar = "snapshot_history"

    listed: int
    expired: int


class SegmentSummary(IndexSummary):
    """The facts of one segment of the cache. `decoded_as` stands for what its rows depend on
    besides the containers. `external` counts its addresses that lie in no storage.
    """

    decoded_as: str | None = None
    external: int = 1


class ManifestEntriesSummary(Summary):
    """`segments` counts all segments of the cache, this one too. `levels` is how deep this run had
    to follow containers.
    """

    TABLE: ClassVar = "manifest_entries"

    decoded: int
    entries: int
    external: int
    unreadable: int
    container_bytes: int
    levels: int
    segments: int
    decoded_as: str | None = None


class LiveFilesSummary(Summary):
    """`files` are the rows. Files that only expired or dangling commits name are counted apart, and
    so are files that rules release. `unreadable` names what could not be read; the rows hold what
    earlier nights read of it.

    `reused_files` rows were carried over from the run `reused_from`. `full_recompute_reason` says why none
    were, and is null where some were. `incremental_runs` counts the nights since everything was
    computed, of the run date `full_on`, and `uncompared_runs` those since that was held against
    what carrying over gives. `differences` are those that this night found, and `distrusted_on` is
    the run date of the last night on record that found some: nothing is carried over from then on.
    By `fingerprint` and the `segments` of the cache a later night knows whether it may carry over these
    rows.
    """

    TABLE: ClassVar = "live_files"
    RENAMED: ClassVar = {
        "sick": "unreadable",
        "carried_files": "reused_files",
        "carried_from": "reused_from",
        "full_for": "full_recompute_reason",
        "full_on": "full_recompute_on",
        "nights_carried": "incremental_runs",
        "nights_uncompared": "uncompared_runs",
        "made_as": "fingerprint",
    }

    files: int
    live_bytes: int
    by_kind: Amounts
    by_storage: Amounts
    possible_by_storage: Amounts = Field(default_factory=dict)
    metadata_by_storage: Counts
    optional_by_storage: Counts = Field(default_factory=dict)
    expired_files: int
    dangling_files: int
    lifecycle_files: int = 0
    external_files: int
    notes: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    reused_files: int = 0
    reused_from: str | None = None
    full_recompute_reason: str | None = None
    full_recompute_on: date | None = None
    incremental_runs: int = 0
    uncompared_runs: int = 0
    differences: tuple[str, ...] = ()
    distrusted_on: date | None = None
    fingerprint: str | None = None
    segments: tuple[str, ...] = ()
    segments_digest: str = ""


class ComparisonSummary(IndexSummary):
    """The `fingerprint` of rows that were found to be wrong where they were carried over. It is null
    where nothing was found.
    """

    wrong: str | None = None

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> ComparisonSummary:
        current = LiveFilesSummary.with_current_keys(summary)
        return cls(wrong=current.get("fingerprint") if current.get("differences") else None)


class LiveFilterSummary(Summary):
    TABLE: ClassVar = "live_filter"

    keys: int
    slices: int
    bits_per_key: float
    false_positive_target: float
    false_positives_measured: float
    empty_slices: int


class Problem(BaseModel):
    """Something in a storage that is no plain file. The side table `PROBLEMS` describes it."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    key: str
    kind: str
    detail: str
    is_incomplete: bool = False


class UnfinishedUploads(BaseModel):
    """Uploads in parts that nobody finished, `old` ones were begun before the grace period. `bytes`
    are the parts of the `sized` ones. `unknown` says why not all were counted.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    uploads: int
    old: int
    bytes: int
    sized: int
    unknown: str | None = None

    def __str__(self) -> str:
        told = f"{self.uploads:,} unfinished uploads, {self.old:,} of them older than the grace period, hold {format_bytes(self.bytes)}"
        told += f" (parts of {self.sized:,} were counted)" if self.sized < self.uploads else ""
        return told if self.unknown is None else f"{told}; not all could be counted: {self.unknown}"


class StorageInventorySummary(Summary):
    """`problems` counts what is no plain file, by its kind. `flow` is `clean`, or `optimized` where
    directories were carried over. `unfinished` is null where the store has no uploads in parts.
    `report` names the report that took the place of a listing, and `report_as_of` says when its
    scan began: what was written later may be missing. `listing_seconds` is how long the tasks took,
    one after the other; null where an earlier release listed.
    """

    TABLE: ClassVar = "storage_inventory"
    RENAMED: ClassVar = {"carried_directories": "reused_directories", "carried_objects": "reused_objects"}

    objects: int
    bytes: int
    problems: Counts
    problem_samples: tuple[Problem, ...] = ()
    tasks: int
    listing_seconds: float | None = None
    location: str | None = None
    flow: str = "clean"
    full_listing_on: date
    reused_directories: int = 0
    reused_objects: int = 0
    unfinished: UnfinishedUploads | None = None
    report: str | None = None
    report_as_of: Moment | None = None


class SweepSummary(IndexSummary):
    """Whether the night looked at another day than its own, and how many containers' objects are
    others than were decoded.
    """

    historical: bool
    rewritten: int = 0


class OrphanFilesSummary(Summary):
    """`storage_breakdown` says where the objects of the storage went. `by_reason` has the keys
    `<reason>/<lake>`.

    A count ends in `_count` where the field without this ending holds samples. `unneeded_metadata`
    serves no retained commit, and nobody deletes it. `unreadable` are tables whose metadata is not there,
    and `missing_metadata` is what stops the plan: what is another object than was read, or all.
    `junk` is named like metadata and is none: it holds the files beside it.
    """

    TABLE: ClassVar = "orphan_files"
    RENAMED: ClassVar = {"sick": "unreadable", "waterfall": "storage_breakdown"}

    grace_cutoff: Moment
    historical: bool
    storage_breakdown: Amounts
    by_reason: Amounts
    unneeded_metadata: Amount = Amount()
    live_keys: int
    rewritten: int = 0
    missing_metadata: tuple[str, ...]
    missing_metadata_count: int
    unreadable: tuple[Unreadable, ...] = ()
    live_unlisted: tuple[str, ...]
    live_unlisted_count: int
    foreign_metadata: tuple[str, ...]
    foreign_metadata_count: int
    junk: tuple[str, ...] = ()
    junk_count: int = 0
    behind_links: tuple[str, ...]
    behind_links_count: int
    false_negatives: int
    near_misses: int
    named_twice: int = 0
    stopped_samples: tuple[str, ...]
    problems: Counts = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class DeletionPlanSummary(Summary):
    TABLE: ClassVar = "deletion_plan"

    plan_id: str
    header: PlanHeader


class PlanIndexSummary(IndexSummary):
    """A plan as it is listed."""

    plan: PlanSummary

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> PlanIndexSummary:
        return cls(plan=DeletionPlanSummary.model_validate(summary).header.summary)


class DeletionLogSummary(Summary):
    """The outcomes of an apply or a restore.

    Attributes:
        plan_id: The id of the plan, or of the restore.
        approval_events: The approvals and rejections of the plan (empty before 0.4).
        by_outcome: Files and bytes by `<phase>/<outcome>`.
        edits: The number of edits of history by verdict.
    """

    TABLE: ClassVar = "deletion_log"
    RENAMED: ClassVar = {"words": "approval_events", "books": "by_outcome"}

    plan_id: str
    phases: tuple[str, ...] = ()
    approved_by: str | None = None
    approval_events: tuple[ApprovalEvent, ...] = ()
    overrides: tuple[str, ...] = ()
    by_outcome: Amounts
    edits: Counts = Field(default_factory=dict)


class ExpiryOutcomes(IndexSummary):
    """How many edits of history came to which verdict."""

    RENAMED: ClassVar = {"books": "by_outcome"}

    by_outcome: Counts


class ExpiryLogSummary(Summary):
    TABLE: ClassVar = "expiry_log"
    RENAMED: ClassVar = {"books": "by_outcome"}

    plan_id: str
    approved_by: str | None = None
    by_outcome: Counts


class UncommittedObjectsSummary(Summary):
    TABLE: ClassVar = "uncommitted_objects"

    objects: int
    branches: int


class PotentialCommitsSummary(Summary):
    TABLE: ClassVar = "potential_commits"

    commits: int
    potential: int
    ranges: int
    notes: tuple[str, ...] = ()


class LifecycleObjectsSummary(Summary):
    """Objects that rules release, and objects that they release under one path and keep under
    another.
    """

    TABLE: ClassVar = "lifecycle_objects"

    released: Amount = Amount()
    deduplicated: Amount = Amount()


# The facts that the index of a table's runs keeps. Of other tables it keeps none.
INDEX_SUMMARIES: Final[Mapping[str, type[IndexSummary]]] = {
    LakeRefsSummary.TABLE: FreezeTime,
    ManifestEntriesSummary.TABLE: SegmentSummary,
    LiveFilesSummary.TABLE: ComparisonSummary,
    OrphanFilesSummary.TABLE: SweepSummary,
    DeletionPlanSummary.TABLE: PlanIndexSummary,
    ExpiryLogSummary.TABLE: ExpiryOutcomes,
}

# Tables whose content is the rows of many runs together. The index of their runs names the parts
# too.
CUMULATIVE_TABLES: Final = frozenset(
    {ManifestEntriesSummary.TABLE, DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE, DeletionPlanSummary.TABLE}
)
