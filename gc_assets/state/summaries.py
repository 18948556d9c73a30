"""Table summaries: statistics of a stage, stored in the receipt.

Each model also reads the summaries of older releases. Values that these did not write have
defaults, except values that determine deletions. A receipt without such a value is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.core.plan import Amount, PlanHeader, PlanSummary, Unreadable
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.requests import Requests
from gc_assets.core.units import count_of, format_bytes

Moment = Annotated[datetime, PlainSerializer(lambda value: value.isoformat(), return_type=str, when_used="json")]
Counts = dict[str, int]
Amounts = dict[str, Amount]


class Summary(RenamedKeys):
    """Base class of table summaries.

    Attributes:
        requests: Number of object store requests by kind, added by `publish`.
        requests_usd: Price of the requests in USD, or None if unknown, added by `publish`.
        spark_jobs: Number of Spark jobs, or None if unknown, added by `publish`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    TABLE: ClassVar[str]

    requests: Counts = Field(default_factory=dict)
    requests_usd: float | None = None
    spark_jobs: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON, without requests and jobs."""
        return self.model_dump(mode="json", exclude={"requests", "requests_usd", "spark_jobs"})


def requests_of(summary: Mapping[str, Any]) -> Requests:
    """Return the requests sent for a table, from its receipt summary."""
    return Requests(summary.get("requests") or {}, summary.get("requests_usd"))


class IndexSummary(RenamedKeys):
    """Part of a summary kept in the run index, to avoid opening receipts."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> IndexSummary:
        """Build the index summary from a receipt summary.

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
        """Check if the freeze was on the run date itself, so that the run is not historical."""
        return self.frozen_at.date() == run_date


class UnreadTable(BaseModel):
    """Table that could not be read, with the reason.

    `table_name` is None for the whole lake. `address` is the metadata address, if known.
    `table_uuid` is the uuid in the metadata, if at least that could be read.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    table_name: str | None
    why: str
    address: str | None = None
    table_uuid: str | None = None

    @property
    def identity(self) -> str | None:
        """The uuid, or the address if the uuid is unknown, to distinguish tables of the same name."""
        return self.table_uuid or self.address


class RepositorySummary(BaseModel):
    """Identity of a repository, see `RepositoryIdentity` in `lakes/protocol.py`.

    Attributes:
        read_at: Time of the last freeze that could read the repository.
        deleted: True if its server has since deleted it and a user ran `forget` for the lake.
        never_read: See `RepositoryIdentity`. `read_at` is then the time of the `forget` command.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    name: str
    namespace: str
    created: int
    server_id: str | None = None
    read_at: Moment
    deleted: bool = False
    never_read: bool = False


class LakeRefsSummary(Summary):
    """Summary of `lake_refs`.

    Attributes:
        min_age_seconds: Minimum age at which the lake's own system allows deletion of an object.
        unread: Unreadable tables not listed in any other table of the run.
        resolved_as: Digest of the storages by which addresses were resolved.
        repository: The repository, if the lake is a repository on a server.
        catalog: Kind and address of the catalog or server, with symbolic links resolved.
        seen_at: The freeze time by the latest clock, if a rule deletes idle branches of the lake.
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
    named_prefixes: dict[str, str] | None = None
    named_prefixes_error: str | None = None
    resolved_as: str | None = None
    repository: RepositorySummary | None = None
    catalog: str | None = None
    seen_at: datetime | None = None


class CommitGraphSummary(Summary):
    """Summary of `commit_graph`.

    Attributes:
        known: Number of commits reused from an earlier graph.
        read_as: Fingerprint of the rows.
        unread: Reason why the lake has no readable commits, or None.
    """

    TABLE: ClassVar = "commit_graph"

    commits: int
    known: int = 0
    read_as: str | None = None
    unread: str | None = None


class ReachableSnapshotsSummary(Summary):
    """Summary of `reachable_snapshots`.

    Attributes:
        unread: Reason why the policy is unknown and all commits are retained, or None.
        unused_rules: The notes on retention rules that apply to no ref.
    """

    TABLE: ClassVar = "reachable_snapshots"

    retained: int
    expired: int
    dangling: int
    notes: tuple[str, ...] = ()
    unread: str | None = None
    unused_rules: tuple[str, ...] = ()


class ExpiryPlanSummary(Summary):
    TABLE: ClassVar = "expiry_plan"

    actions: int


class LiveContentsSummary(Summary):
    TABLE: ClassVar = "live_contents"

    contents: int


class HistoryPublicationSummary(BaseModel):
    """Result of writing the history to a table of other engines (`history.publish`).

    Attributes:
        table: The table, or None if it was not written.
        written: Number of rows that were added or replaced.
        removed: Number of rows that were removed.
        named: Uuids of the tables whose properties contain the history table's name.
        notes: Failures, with the reasons.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    table: str | None = None
    written: int = 0
    removed: int = 0
    named: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class SnapshotHistorySummary(Summary):
    TABLE: ClassVar = "snapshot_history"

    listed: int
    expired: int
    published: HistoryPublicationSummary | None = None


class SegmentSummary(IndexSummary):
    """Summary of one segment of the decoded container cache.

    Attributes:
        decoded_as: Fingerprint of the decoder settings.
        external: Number of addresses outside all storages.
        resolved_as: Digest of the storages by which addresses were resolved.
        resolved_again: Run ids of segments whose rows this one contains with new keys.
    """

    decoded_as: str | None = None
    external: int = 1
    resolved_as: str | None = None
    resolved_again: tuple[str, ...] = ()


class ManifestEntriesSummary(Summary):
    """Summary of `manifest_entries`.

    Attributes:
        levels: Number of container levels decoded in this run.
        segments: Number of cache segments, including this one.
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
    resolved_as: str | None = None
    resolved_again: tuple[str, ...] = ()


class LiveFilesSummary(Summary):
    """Summary of `live_files`.

    Attributes:
        files: Number of live files. Files of expired or dangling commits and files released by
            rules are counted separately.
        unreadable: Unreadable tables. Their last known files are treated as live.
        unknown_addresses: Number of external addresses that may be other names of objects in
            storages.
        unknown_address_samples: Some of them, with the reasons.
        segments: Cache segments with the entries of all needed containers.
    """

    TABLE: ClassVar = "live_files"
    RENAMED: ClassVar = {"sick": "unreadable"}

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
    unknown_addresses: int = 0
    unknown_address_samples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    segments: tuple[str, ...] = ()


class LiveFilterSummary(Summary):
    TABLE: ClassVar = "live_filter"

    keys: int
    slices: int
    bits_per_key: float
    false_positive_target: float
    false_positives_measured: float
    empty_slices: int


class Problem(BaseModel):
    """Storage entry that is not a plain file, see the side table `PROBLEMS`."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    key: str
    kind: str
    detail: str
    is_incomplete: bool = False


class UnfinishedUploads(BaseModel):
    """Unfinished multipart uploads of a storage.

    Attributes:
        old: Number of uploads older than the grace period.
        bytes: Total part size of the `sized` uploads, in bytes.
        sized: Number of uploads whose parts were measured.
        unknown: Reason why some parts were not measured, or None.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    uploads: int
    old: int
    bytes: int
    sized: int
    unknown: str | None = None

    def __str__(self) -> str:
        text = f"{self.uploads:,} unfinished uploads, {self.old:,} of them older than the grace period, {format_bytes(self.bytes)}"
        text += f" (parts of {self.sized:,} were counted)" if self.sized < self.uploads else ""
        return text if self.unknown is None else f"{text}; not all could be counted: {self.unknown}"


class EarlierListing(BaseModel):
    """Run of `storage_inventory` whose rows a later run uses instead of listing the storage."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    run_date: date
    run_id: str


class StorageInventorySummary(Summary):
    """Summary of `storage_inventory`.

    Attributes:
        problems: Number of entries that are not plain files, by kind.
        listing_seconds: Total time of the listing tasks. None in summaries of older releases.
        flow: `clean`, or `optimized` if directories were reused.
        full_listing_on: Run date of the last full listing.
        unfinished: Unfinished uploads, or None if the store has none.
        report: Name of the inventory report used instead of a listing, or None.
        report_as_of: Start of the report's scan. Later objects may be missing.
        listed_at: Time before the listing. None in summaries of older releases.
        settings: Digest of the settings that the listing depends on.
        rehearsal: True if the listing used a rehearsal clock.
        earlier: The run that listed the storage, if this run did not. This run then has no rows,
            and the other values are copied from that listing.
        listed_because: Reason why the storage was listed although the run should have used the last
            listing.
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
    listed_at: Moment | None = None
    settings: str = ""
    rehearsal: bool = False
    earlier: EarlierListing | None = None
    listed_because: str | None = None

    @property
    def as_of(self) -> datetime | None:
        """Time after which changes may be missing from the rows."""
        return self.report_as_of or self.listed_at


class SweepSummary(IndexSummary):
    """Historical flag of the run date, and number of containers changed after decoding."""

    historical: bool
    rewritten: int = 0


class ForeignFiles(BaseModel):
    """Foreign files found in one claim by one rule.

    Attributes:
        rule: The rule, see `core/foreign.py`.
        lake: Lake that claims the files.
        address: Address of the claim.
        oldest: Time of the oldest file.
        samples: Some of the keys.
        since: For `new_claim`: time of the newest accepted run without the claim.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    rule: str
    lake: str
    address: str
    files: int
    bytes: int
    oldest: Moment | None = None
    samples: tuple[str, ...] = ()
    since: Moment | None = None

    def __str__(self) -> str:
        oldest = f", oldest {self.oldest:%Y-%m-%d %H:%M}Z" if self.oldest is not None else ""
        return f"{count_of(self.files, 'file')} ({format_bytes(self.bytes)}) in {self.address}{oldest}, e.g. {', '.join(self.samples[:3])}"


class DroppedTableSummary(BaseModel):
    """A dropped table with listed files, see the side table `DROPPED_TABLES`."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    lake: str
    table_uuid: str
    table_name: str | None = None
    files: int = 0
    bytes: int = 0
    last_seen: Moment
    gone_since: Moment
    last_writer: str | None = None
    waits_for: str | None = None
    noun: str = "table"

    def __str__(self) -> str:
        name = self.table_name or self.table_uuid
        return (
            f"{name} of lake {self.lake} ({count_of(self.files, 'file')}, {format_bytes(self.bytes)}, last read {self.last_seen:%Y-%m-%d})"
        )


class GoneNamespaceSummary(BaseModel):
    """A namespace of dropped tables that no longer contains tables."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=DEFER_BUILD)

    lake: str
    name: str
    tables: int


class OrphanFilesSummary(Summary):
    """Summary of `orphan_files`.

    If `<name>` contains samples, the field `<name>_count` is the total number.

    Attributes:
        storage_breakdown: Amount per object class.
        by_reason: Amounts by `<reason>/<lake>`.
        unneeded_metadata: Metadata not needed by any retained commit, but not deleted.
        missing_metadata: Missing or changed metadata that stops the plan.
        foreign_metadata_lakes: Lakes whose claims contain foreign metadata. None in summaries of
            older releases, in which any lake may.
        foreign_metadata_storages: Other storages that contain locations or manifest lists
            referenced by foreign metadata. None in summaries of older releases, in which any
            storage may.
        unreadable: Tables with missing metadata.
        missing_lakes: Lakes whose metadata in this storage is completely missing, or was replaced.
        unlisted_lakes: Lakes with too many missing live files in this storage, or the tables with
            missing live files if there are few.
        near_misses: Candidates that differ from a live key only in spelling. They are not planned.
        misspelled: Near misses that stop the plan because their live key is missing. None in
            summaries of older releases, in which all near misses stop the plan.
        junk: Files named like metadata without being metadata. The files in their directories are
            kept.
        junk_tables: The tables whose claims contain such files. Their files in other storages are
            kept.
        foreign: Files in claims that may belong to others, by claim and rule. Their total is part
            of `by_reason`.
        foreign_claims: Number of pairs of claim and rule. `foreign` contains the largest pairs.
        foreign_by_rule: Amounts by rule.
        unused_patterns: Patterns of `protect` that match no listed file.
        dropped: Dropped tables with listed files, due tables first.
        dropped_tables: Number of dropped tables recorded for the storage.
        dropped_due: Number of due tables with files, except tables that a user accepted or another
            table replaced. Replaced repositories are included.
        lost_tables: Messages on lakes with due tables if most of the lake's tables were missing in
            the runs of one date.
        gone_namespaces: Namespaces of due tables that no longer contain tables.
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
    missing_lakes: tuple[Unreadable, ...] = ()
    unlisted_lakes: tuple[Unreadable, ...] = ()
    live_unlisted: tuple[str, ...]
    live_unlisted_count: int
    foreign_metadata: tuple[str, ...]
    foreign_metadata_count: int
    foreign_metadata_lakes: tuple[str, ...] | None = None
    foreign_metadata_storages: tuple[str, ...] | None = None
    junk: tuple[str, ...] = ()
    junk_count: int = 0
    junk_tables: tuple[Unreadable, ...] = ()
    behind_links: tuple[str, ...]
    behind_links_count: int
    false_negatives: int
    near_misses: int
    misspelled: tuple[str, ...] | None = None
    named_twice: int = 0
    stopped_samples: tuple[str, ...]
    problems: Counts = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    foreign: tuple[ForeignFiles, ...] = ()
    foreign_claims: int = 0
    foreign_by_rule: Amounts = Field(default_factory=dict)
    unused_patterns: tuple[str, ...] = ()
    dropped: tuple[DroppedTableSummary, ...] = ()
    dropped_tables: int = 0
    dropped_due: int = 0
    lost_tables: tuple[str, ...] = ()
    gone_namespaces: tuple[GoneNamespaceSummary, ...] = ()

    @property
    def foreign_amount(self) -> Amount:
        """Foreign files, which are never planned."""
        return Amount.total(self.foreign_by_rule.values())


class DeletionPlanSummary(Summary):
    TABLE: ClassVar = "deletion_plan"

    plan_id: str
    header: PlanHeader


class PlanIndexSummary(IndexSummary):
    """Plan fields shown in lists."""

    plan: PlanSummary

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> PlanIndexSummary:
        return cls(plan=DeletionPlanSummary.model_validate(summary).header.summary)


class DeletionLogSummary(Summary):
    """Outcomes of an apply or a restore.

    Attributes:
        plan_id: Id of the plan or restore.
        approval_events: Approvals and rejections of the plan (empty before 0.4).
        by_outcome: Files and bytes by `<phase>/<outcome>`.
        edits: Number of history edits by verdict.
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
    """Objects released by rules, and objects released under one path but kept under another.

    `unused_rules` contains notes on rules that apply to no object, `notes` contains other notes.
    """

    TABLE: ClassVar = "lifecycle_objects"

    released: Amount = Amount()
    deduplicated: Amount = Amount()
    unused_rules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class LifecyclePathsSummary(Summary):
    """Paths deleted by lifecycle rules through commits, and the number of edited branches.

    `unused_rules` contains notes on rules that apply to no object. `notes` contains those on
    branches that are left unchanged, and `unedited` those on branches that move before each apply.
    """

    TABLE: ClassVar = "lifecycle_paths"

    paths: Amount = Amount()
    edits: int = 0
    unused_rules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unedited: tuple[str, ...] = ()

    @property
    def all_notes(self) -> tuple[str, ...]:
        return (*self.unused_rules, *self.notes, *self.unedited)


# Index summaries by table. Other tables have none.
INDEX_SUMMARIES: Final[Mapping[str, type[IndexSummary]]] = {
    LakeRefsSummary.TABLE: FreezeTime,
    ManifestEntriesSummary.TABLE: SegmentSummary,
    OrphanFilesSummary.TABLE: SweepSummary,
    DeletionPlanSummary.TABLE: PlanIndexSummary,
    ExpiryLogSummary.TABLE: ExpiryOutcomes,
}

# Tables built from the rows of many runs. Their run index also lists the parts.
CUMULATIVE_TABLES: Final = frozenset(
    {ManifestEntriesSummary.TABLE, DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE, DeletionPlanSummary.TABLE}
)
