"""The summaries of the tables: what a stage found out besides its rows, stored in the receipt.

A model reads the summaries of its own and of all older releases. Values that older releases did not
write have defaults. Values that decide what is deleted have none, so a receipt without them is
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
    """Summary of one table.

    Attributes:
        TABLE: Name of the table.
        requests: Number of requests to object stores, by kind. `publish` adds it.
        requests_usd: Their price, or None if it is unknown. `publish` adds it.
        spark_jobs: Number of Spark jobs, or None if it is unknown. `publish` adds it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    TABLE: ClassVar[str]

    requests: Counts = Field(default_factory=dict)
    requests_usd: float | None = None
    spark_jobs: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON, without requests and jobs."""
        return self.model_dump(mode="json", exclude={"requests", "requests_usd", "spark_jobs"})


def requests_of(summary: Mapping[str, Any]) -> Requests:
    """Return the requests that were sent for a table, from the summary in its receipt."""
    return Requests(summary.get("requests") or {}, summary.get("requests_usd"))


class IndexSummary(RenamedKeys):
    """Part of a summary that the index of runs keeps, so that no receipt has to be opened."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> IndexSummary:
        """Return the index summary of the summary in a receipt.

        Raises:
            ValidationError: If a value is missing.
        """
        return cls.model_validate(summary)


class PolicyTableSummary(Summary):
    TABLE: ClassVar = "policy_table"

    rules: int
    policy_digest: str


class FreezeTime(IndexSummary):
    """Time of a freeze, and whether it was a rehearsal."""

    frozen_at: Moment
    rehearsal: bool

    def is_own_day(self, run_date: date) -> bool:
        """Return True if the run date was frozen on its own day, False for the analysis of an
        earlier date.
        """
        return self.frozen_at.date() == run_date


class UnreadTable(BaseModel):
    """A table that could not be read, and the reason.

    `table_name` is None for the whole lake. `address` is that of its metadata, if it is known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    table_name: str | None
    why: str
    address: str | None = None


class LakeRefsSummary(Summary):
    """Summary of `lake_refs`.

    Attributes:
        min_age_seconds: Age under which the lake's own system keeps an object.
        claims: Number of claims.
        pinned: Number of pinned files.
        unread: Unreadable tables that no other table of the run mentions.
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
    """Summary of `commit_graph`.

    Attributes:
        known: Number of commits that were reused from an earlier graph.
        read_as: Fingerprint of the rows.
        unread: The reason why the lake has no readable commits, or None.
    """

    TABLE: ClassVar = "commit_graph"

    commits: int
    known: int = 0
    read_as: str | None = None
    unread: str | None = None


class ReachableSnapshotsSummary(Summary):
    """Summary of `reachable_snapshots`.

    `unread` is the reason why the policy is unknown and every commit is retained, or None.
    """

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
    """Summary of one segment of the cache of decoded containers.

    Attributes:
        decoded_as: Fingerprint of the decoder settings.
        external: Number of addresses outside all storages.
    """

    decoded_as: str | None = None
    external: int = 1


class ManifestEntriesSummary(Summary):
    """Summary of `manifest_entries`.

    Attributes:
        levels: Number of levels of containers that this run decoded.
        segments: Number of segments of the cache, including this one.
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
    """Summary of `live_files`.

    Attributes:
        files: Number of rows. Files that only expired or dangling commits name, and files that
            rules
        release, are counted separately.
        unreadable: Unreadable tables. The rows contain their last known files.
        reused_files: Number of rows that were reused.
        reused_from: The run that they were reused from.
        full_recompute_reason: The reason for a full recompute, or None.
        full_recompute_on: Run date of the last full recompute.
        incremental_runs: Number of runs since the last full recompute.
        uncompared_runs: Number of runs since the last comparison of both results.
        differences: Differences that this run found between both results.
        distrusted_on: Run date of the last run with differences. No earlier rows are reused.
        fingerprint: Fingerprint of the rows.
        segments: Segments of the cache that the rows were computed from.
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
    """Fingerprint of rows that proved wrong after reuse, or None."""

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
    """An entry of a storage that is not a plain file, see the side table `PROBLEMS`."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    key: str
    kind: str
    detail: str
    is_incomplete: bool = False


class UnfinishedUploads(BaseModel):
    """Unfinished multipart uploads of a storage.

    Attributes:
        uploads: Number of uploads.
        old: Number of uploads that are older than the grace period.
        bytes: Bytes of the parts of the `sized` uploads.
        sized: Number of uploads whose parts were counted.
        unknown: The reason why not all parts were counted, or None.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    uploads: int
    old: int
    bytes: int
    sized: int
    unknown: str | None = None

    def __str__(self) -> str:
        text = f"{self.uploads:,} unfinished uploads, {self.old:,} of them older than the grace period, {format_bytes(self.bytes)}"
        text += f" (parts of {self.sized:,} were counted)" if self.sized < self.uploads else ""
        return text if self.unknown is None else f"{text}; not all could be counted: {self.unknown}"


class StorageInventorySummary(Summary):
    """Summary of `storage_inventory`.

    Attributes:
        problems: Number of entries that are not plain files, by kind.
        listing_seconds: Total time of the listing tasks, or None in older releases.
        flow: `clean`, or `optimized` if directories were reused.
        full_listing_on: Run date of the last full listing.
        unfinished: Unfinished uploads, or None if the store has none.
        report: Name of the report that replaced the listing, or None.
        report_as_of: Start of its scan. Later objects may be missing from it.
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
    """Whether the run date is historical, and the number of containers that changed after decoding."""

    historical: bool
    rewritten: int = 0


class OrphanFilesSummary(Summary):
    """Summary of `orphan_files`.

    A field that ends in `_count` is the total of the samples in the field without this ending.

    Attributes:
        storage_breakdown: Amount of each class of objects.
        by_reason: Amounts by `<reason>/<lake>`.
        unneeded_metadata: Metadata that serves no retained commit and is not deleted.
        missing_metadata: Metadata that is missing or has changed, and stops the plan.
        unreadable: Tables whose metadata is missing.
        junk: Files that are only named like metadata. The files in their directories are kept.
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
    """A plan as listed."""

    plan: PlanSummary

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> PlanIndexSummary:
        return cls(plan=DeletionPlanSummary.model_validate(summary).header.summary)


class DeletionLogSummary(Summary):
    """Outcomes of an apply or a restore.

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
    """Number of expiry actions by outcome."""

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
    """Objects that rules release, and objects that rules release under one path and keep under
    another.
    """

    TABLE: ClassVar = "lifecycle_objects"

    released: Amount = Amount()
    deduplicated: Amount = Amount()


# The index summaries by table. Other tables have none.
INDEX_SUMMARIES: Final[Mapping[str, type[IndexSummary]]] = {
    LakeRefsSummary.TABLE: FreezeTime,
    ManifestEntriesSummary.TABLE: SegmentSummary,
    LiveFilesSummary.TABLE: ComparisonSummary,
    OrphanFilesSummary.TABLE: SweepSummary,
    DeletionPlanSummary.TABLE: PlanIndexSummary,
    ExpiryLogSummary.TABLE: ExpiryOutcomes,
}

# Tables that consist of the rows of many runs. The index of their runs lists the parts too.
CUMULATIVE_TABLES: Final = frozenset(
    {ManifestEntriesSummary.TABLE, DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE, DeletionPlanSummary.TABLE}
)
