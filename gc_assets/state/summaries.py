"""Define the summaries of tables, which contain statistics of a stage and are stored in receipts.

Summaries of older releases can be read too. Values that were added later have defaults, except for
values that determine deletions. If such a value is missing, the receipt is treated as damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, PlainSerializer

from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.deferred_models import TolerantModel
from gc_assets.core.plan import Amount, PlanHeader, PlanSummary, Unreadable
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.requests import Requests
from gc_assets.core.units import count_of, format_bytes

Moment = Annotated[datetime, PlainSerializer(lambda value: value.isoformat(), return_type=str, when_used="json")]
Counts = dict[str, int]
Amounts = dict[str, Amount]


class Summary(RenamedKeys, TolerantModel):
    """Base class of table summaries. Its own attributes are set by `publish`.

    Attributes:
        requests: Number of object store requests by kind.
        requests_usd: Price of the requests in USD, or None if unknown.
        spark_jobs: Number of Spark jobs, or None if unknown.
    """

    TABLE: ClassVar[str]

    requests: Counts = Field(default_factory=dict)
    requests_usd: float | None = None
    spark_jobs: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON, without the values that `publish` sets."""
        return self.model_dump(mode="json", exclude={"requests", "requests_usd", "spark_jobs"})


def requests_of(summary: Mapping[str, Any]) -> Requests:
    """Return the requests that were sent for a table, given the summary in its receipt."""
    return Requests(summary.get("requests") or {}, summary.get("requests_usd"))


class IndexSummary(RenamedKeys, TolerantModel):
    """The part of a summary in the run index, so that receipts need not be opened."""

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> IndexSummary:
        """Extract the index summary from the summary in a receipt.

        Raises:
            ValidationError: If a value is missing.
        """
        return cls.model_validate(summary)


class PolicyTableSummary(Summary):
    TABLE: ClassVar = "policy_table"

    rules: int
    policy_digest: str


class ListingClock(IndexSummary):
    """Whether the listing used the clock of a rehearsal."""

    rehearsal: bool = False


class FreezeTime(IndexSummary):
    """The time at which a run read the refs, and whether it was a rehearsal."""

    frozen_at: Moment
    rehearsal: bool

    def is_own_day(self, run_date: date) -> bool:
        """Return True if refs were read on the run date itself, so that it is not historical."""
        return self.frozen_at.date() == run_date


class UnreadTable(TolerantModel):
    """A table that could not be read.

    Attributes:
        table_name: The table name, or None if the whole lake could not be read.
        why: The reason.
        address: Address of the metadata, if known.
        table_uuid: The UUID in the metadata, if at least that could be read.
    """

    table_name: str | None
    why: str
    address: str | None = None
    table_uuid: str | None = None

    @property
    def identity(self) -> str | None:
        """The UUID or, if unknown, the address. Distinguishes tables with the same name."""
        return self.table_uuid or self.address


class RepositorySummary(TolerantModel):
    """The identity of a repository, see `RepositoryIdentity` in `lakes/protocol.py`.

    Attributes:
        read_at: Time of the last run that was able to read the repository.
        deleted: True if the repository was deleted on the server since then, and a user has run
            `forget` for the lake.
        never_read: See `RepositoryIdentity`. If True, `read_at` is the time of the `forget`
            command.
    """

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
        min_age_seconds: Minimum age at which the lake's own system allows an object to be deleted.
        unread: Unreadable tables that no other table of the run lists.
        resolved_as: Digest of the storages that were used to resolve addresses.
        repository: The repository, if the lake is a repository on a server.
        catalog: Kind and address of the catalog or server, with symbolic links resolved.
        seen_at: If a rule deletes idle branches of the lake, the time at which the refs were read,
            according to the clock of the host or of a store, whichever is ahead.
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
        read_as: Digest of the gc-assets release and the lake's server (`graph_fingerprint`). A
            later run only reuses these commits if its own digest is equal.
        unread: Why no commits of the lake could be read, or None.
        bases: Run ids of the earlier graphs that this graph extends. None in graphs of earlier
            releases.
    """

    TABLE: ClassVar = "commit_graph"

    commits: int
    known: int = 0
    read_as: str | None = None
    unread: str | None = None
    bases: tuple[str, ...] | None = None


class GraphBases(IndexSummary):
    """The earlier graphs that a graph is based on, see `CommitGraphSummary`."""

    bases: tuple[str, ...] | None = None


class ReachableSnapshotsSummary(Summary):
    """Summary of `reachable_snapshots`.

    Attributes:
        unread: Why the policy is unknown, so that all commits are retained. None if it is known.
        unused_rules: Notes about retention rules that do not apply to any ref.
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


class HistoryPublicationSummary(TolerantModel):
    """The result of writing the history to a table for other engines, see `history.publish`.

    Attributes:
        table: The history table, or None if it was not written.
        written: Number of rows that were added or replaced.
        removed: Number of rows that were removed.
        named: UUIDs of tables whose properties contain the name of the history table.
        notes: Failures and their reasons.
    """

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
    """Summary of one segment in the cache of decoded containers.

    Attributes:
        decoded_as: Fingerprint of the decoder settings.
        external: Number of addresses outside of all storages.
        resolved_as: Digest of the storages that were used to resolve addresses.
        resolved_again: Run ids of segments whose rows this segment contains with new keys.
    """

    decoded_as: str | None = None
    external: int = 1
    resolved_as: str | None = None
    resolved_again: tuple[str, ...] = ()


class ManifestEntriesSummary(Summary):
    """Summary of `manifest_entries`.

    Attributes:
        levels: Number of container levels decoded by this run.
        segments: Number of segments in the cache, including this one.
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
        files: Number of live files. Files of expired or dangling commits, and files that rules
            allow to be deleted, are counted separately.
        unreadable: Unreadable tables, whose last known files are treated as live.
        unknown_addresses: Number of external addresses that may be other names for objects in a
            storage.
        unknown_address_samples: Some of these addresses with the reasons.
        segments: Cache segments that contain the entries of all needed containers.
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


class Problem(TolerantModel):
    """An entry in a storage that is not a plain file, see the side table `PROBLEMS`."""

    key: str
    kind: str
    detail: str
    is_incomplete: bool = False


class UnfinishedUploads(TolerantModel):
    """Statistics of the unfinished multipart uploads in a storage.

    Attributes:
        uploads: Number of uploads.
        old: Number of uploads that are older than the grace period.
        bytes: Total size of the parts that were measured.
        sized: Number of uploads whose parts were measured.
        unknown: Why some parts were not measured, or None.
    """

    uploads: int
    old: int
    bytes: int
    sized: int
    unknown: str | None = None

    def __str__(self) -> str:
        text = f"{self.uploads:,} unfinished uploads, {self.old:,} of them older than the grace period, {format_bytes(self.bytes)}"
        text += f" (parts of {self.sized:,} were counted)" if self.sized < self.uploads else ""
        return text if self.unknown is None else f"{text}; not all could be counted: {self.unknown}"


class EarlierListing(TolerantModel):
    """A run of `storage_inventory` that a later run uses instead of listing the storage again."""

    run_date: date
    run_id: str


class StorageInventorySummary(Summary):
    """Summary of `storage_inventory`.

    Attributes:
        problems: Number of entries that are not plain files, by kind.
        listing_seconds: Total time of the listing tasks. None in summaries of older releases.
        flow: `clean`, or `optimized` if directories of the previous listing were reused.
        full_listing_on: Run date of the last full listing.
        unfinished: Unfinished uploads, or None if the store does not have any.
        report: Name of the inventory report that was used instead of a listing, or None.
        report_as_of: Start of the report's scan. Objects written later may be missing.
        listed_at: Time before the listing began. None in summaries of older releases.
        settings: Digest of the settings that the listing depends on.
        rehearsal: True if the listing used the clock of a rehearsal.
        earlier: The run that listed the storage, if this one did not. In this case, this run does
            not have rows, and all other values are copied from that listing.
        listed_because: Why the storage was listed, although this run was expected to use the last
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
        """The time of the listing or report. The rows may lack later changes."""
        return self.report_as_of or self.listed_at


class SweepSummary(IndexSummary):
    """Whether a sweep is historical, and how many containers changed after being decoded."""

    historical: bool
    rewritten: int = 0


class ForeignFiles(TolerantModel):
    """The files in one claim that are foreign according to one rule.

    Attributes:
        rule: The rule, see `core/foreign.py`.
        lake: The lake that claims the files.
        address: Address of the claim.
        oldest: Time of the oldest file.
        samples: Keys of some of the files.
        since: For the `new_claim` rule, the time of the newest accepted run without the claim.
    """

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


class DroppedTableSummary(TolerantModel):
    """A dropped table that still has files, see the side table `DROPPED_TABLES`."""

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


class GoneNamespaceSummary(TolerantModel):
    """A namespace whose tables have all been dropped."""

    lake: str
    name: str
    tables: int


class OrphanFilesSummary(Summary):
    """Summary of `orphan_files`.

    If a `<name>` field contains samples, `<name>_count` is the total number.

    Attributes:
        storage_breakdown: Number and size of the objects in each class.
        by_reason: Number and size of files, keyed by `<reason>/<lake>`.
        unneeded_metadata: Metadata that no retained commit needs, but that is not deleted.
        missing_metadata: Metadata that is missing or has changed, so that the plan is refused.
        foreign_metadata_lakes: Lakes whose claims contain foreign metadata. None in summaries of
            older releases, which means that it may be any lake.
        foreign_metadata_storages: Other storages that foreign metadata refers to by locations or
            manifest lists. None in summaries of older releases, which means that it may be any
            storage.
        unreadable: Tables whose metadata is missing.
        missing_lakes: Lakes whose metadata in this storage was replaced or is missing completely.
        unlisted_lakes: Lakes of which too many live files are missing in this storage, and the
            tables of other lakes of which any live file is missing.
        near_misses: Number of candidates that differ only in spelling from a key that is live or in
            expired history. They are not planned.
        misspelled: Near misses whose live key is missing, so that the plan is refused. None in
            summaries of older releases, which means that all near misses are included.
        junk: Files that are named like metadata but are not. Files in the same directories are
            kept.
        junk_tables: Tables with such files under their claims. Their files in other storages are
            kept.
        foreign: Files that may belong to other applications, by claim and rule. `by_reason`
            includes them.
        foreign_claims: Number of pairs of claim and rule. `foreign` contains only the largest.
        foreign_by_rule: Number and size of foreign files, keyed by rule.
        clock_lead_seconds: How far the host's clock was ahead of the storage's, if by minutes or
            more.
        unused_patterns: Patterns of `protect` that do not match any listed file.
        dropped: Dropped tables with listed files. Tables that are due come first.
        dropped_tables: Number of dropped tables that are on record for the storage.
        dropped_due: Number of due tables with files. Tables that a user accepted, or that another
            table replaced, are not counted. Replaced repositories are.
        lost_tables: Messages about lakes of due tables, if most tables of the lake went missing in
            runs of one date.
        gone_namespaces: Namespaces of due tables in which no table exists any more.
    """

    TABLE: ClassVar = "orphan_files"
    RENAMED: ClassVar = {"sick": "unreadable", "waterfall": "storage_breakdown"}

    grace_cutoff: Moment
    clock_lead_seconds: float = 0
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
    def clock_lead(self) -> timedelta:
        return timedelta(seconds=self.clock_lead_seconds)

    @property
    def foreign_amount(self) -> Amount:
        """The total of all foreign files, which are never planned."""
        return Amount.total(self.foreign_by_rule.values())


class DeletionPlanSummary(Summary):
    """Summary of `deletion_plan`.

    Attributes:
        generation: The number of run dates that the run builds on, see `newest_sweeps`. 0 before
            release 0.4.
    """

    TABLE: ClassVar = "deletion_plan"

    plan_id: str
    header: PlanHeader
    generation: int = 0


class PlanIndexSummary(IndexSummary):
    """The fields of a plan that lists of plans show."""

    plan: PlanSummary
    generation: int = 0

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> PlanIndexSummary:
        plan = DeletionPlanSummary.model_validate(summary)
        return cls(plan=plan.header.summary, generation=plan.generation)


class DeletionLogSummary(Summary):
    """The outcomes of an apply or a restore.

    Attributes:
        plan_id: Id of the plan or of the restore.
        approval_events: Approvals and rejections of the plan. Empty before release 0.4.
        by_outcome: Number and size of files, keyed by `<phase>/<outcome>`.
        edits: Number of history edits by outcome.
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
    """The number of expiry actions by outcome."""

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
    """Summary of `lifecycle_objects`.

    Attributes:
        released: Objects that rules allow to be deleted.
        deduplicated: Objects that may be deleted under one path but are kept under another.
        unused_rules: Notes about rules that do not apply to any object.
        notes: Other notes.
    """

    TABLE: ClassVar = "lifecycle_objects"

    released: Amount = Amount()
    deduplicated: Amount = Amount()
    unused_rules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class LifecyclePathsSummary(Summary):
    """Summary of `lifecycle_paths`.

    Attributes:
        paths: Paths that lifecycle rules delete by commits.
        edits: Number of branches on which paths are deleted.
        unused_rules: Notes about rules that do not apply to any object.
        notes: Notes about branches that are left unchanged.
        unedited: Notes about branches on which the last applies could not delete any path.
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


# The index summaries of those tables that have one.
INDEX_SUMMARIES: Final[Mapping[str, type[IndexSummary]]] = {
    LakeRefsSummary.TABLE: FreezeTime,
    StorageInventorySummary.TABLE: ListingClock,
    CommitGraphSummary.TABLE: GraphBases,
    ManifestEntriesSummary.TABLE: SegmentSummary,
    OrphanFilesSummary.TABLE: SweepSummary,
    DeletionPlanSummary.TABLE: PlanIndexSummary,
    ExpiryLogSummary.TABLE: ExpiryOutcomes,
}

# Tables that consist of the rows of many runs. For them, the run index also lists the parts.
CUMULATIVE_TABLES: Final = frozenset(
    {ManifestEntriesSummary.TABLE, DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE, DeletionPlanSummary.TABLE}
)
