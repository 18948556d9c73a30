"""Define the header of a deletion plan and the plan id.

The id is a digest of the header, which in turn contains digests of the plan's rows. If a row, a
cut-off or a gate is different, the id is different too, so that an approval applies to exactly one
plan.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, Final, Self

from pydantic import Field

from gc_assets.core.deferred_models import StrictModel
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.phases import ABORT, EXPIRE
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.units import count_of, format_bytes

APPROVE_WITHIN: Final = timedelta(hours=24)
APPLY_WITHIN: Final = timedelta(hours=72)
# Key in `by_kind` for files that no metadata references.
UNNAMED: Final = "unnamed"


_NOT_IN_ID: Final = frozenset(
    {
        "plan_id",
        "times_seal",
        "created_at",
        "approve_before",
        "apply_before",
        "left_out",
        "edits_by_action",
        "idle_branches",
        "path_edits",
        "deleted_paths",
        "warnings",
        "aliases",
    }
)
# The messages of these gates contain read errors. Up to 0.3, the first one is `sick_tables`.
_READ_ERROR_GATES: Final = frozenset({"unreadable_tables", "sick_tables", "never_read"})
# Gates that were renamed in 0.4. Stored plans, approvals and `--override` may have the old names.
_RENAMED_GATES: Final = {"sick_tables": "unreadable_tables", "spoilt_histories": "damaged_histories"}


def gate_name(name: str) -> str:
    """Translate the old name of a gate to its current one. Other names are returned unchanged."""
    return _RENAMED_GATES.get(name, name)


class Amount(StrictModel):
    """A number of files and their total size."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def total(cls, amounts: Iterable[Amount]) -> Amount:
        """Return the sum of the amounts."""
        listed = list(amounts)
        return cls(files=sum(amount.files for amount in listed), bytes=sum(amount.bytes for amount in listed))

    def __str__(self) -> str:
        return f"{count_of(self.files, 'file')} ({format_bytes(self.bytes)})"


@dataclass(frozen=True, slots=True, order=True)
class BranchShare:
    """How many of a branch's paths a plan deletes. Instances are ordered by the fraction.

    Attributes:
        share: Deleted paths as a fraction of all paths of the branch.
        branch: Description of the branch and its lake, for messages.
        paths: Number of deleted paths.
    """

    share: float
    branch: str
    paths: int


@dataclass(frozen=True, slots=True)
class LiveCount:
    """The number of live files in a storage, in total and for each lake."""

    files: int
    by_lake: Mapping[str, int] = field(default_factory=dict[str, int])

    def without(self, lakes: Collection[str]) -> LiveCount:
        """Subtract the files of the given lakes."""
        kept = {name: files for name, files in self.by_lake.items() if name not in lakes}
        return LiveCount(self.files - sum(self.by_lake.values()) + sum(kept.values()), kept)


# If a larger fraction of the live files is missing, lake and inventory probably spell the same
# addresses differently.
MAX_UNLISTED: Final = 0.001


def lacks_too_many(unlisted: int, live: int) -> bool:
    """Return True if a larger share than `MAX_UNLISTED` of the live files is not in the inventory."""
    return unlisted > MAX_UNLISTED * live


class GateResult(StrictModel):
    """The result of a gate, a check that can refuse a plan.

    If the gate failed, an approval may override it if `overridable` is True.
    """

    name: str
    passed: bool
    message: str
    overridable: bool
    numbers: dict[str, float] = Field(default_factory=dict[str, float])


class Unreadable(StrictModel):
    """A table or repository that this run could not read.

    Its last known files are protected. If no run has ever read it, its claims and possible
    locations are protected instead. No purge is planned until it is readable, or a user decides
    that purges need not wait for it (`gc-assets set-aside`).

    Attributes:
        table_uuid: Table UUID, or content id in a Nessie lake. None if the UUID is unknown or the
            whole lake is unreadable.
        table_name: Table name, or None if the whole lake is unreadable.
        why: The error.
        since: Time of the first run that failed to read it.
        good_on: Date of the last run that read it completely. None if there was no such run, so
            that its files are unknown.
        storages: For a table that was never read completely, the storages with its locations.
        may_be: Name of another unreadable table that may be the same one. It is set if the run did
            not find this table under any name. If a user sets the other table aside, this table is
            set aside too.
        set_aside: The decision of a user that purges do not wait for the table, or None.
        identity: The UUID, if the run found it in metadata or catalog, otherwise the address of the
            metadata. It distinguishes the table from others with the same name. None if both are
            unknown.
    """

    lake: str
    table_uuid: str | None = None
    table_name: str | None = None
    why: str
    since: datetime
    good_on: date | None = None
    storages: tuple[str, ...] = ()
    may_be: str | None = None
    set_aside: str | None = None
    identity: str | None = None

    told = RenamedAttribute("message")

    @property
    def name(self) -> str:
        """The table or lake, as described in messages."""
        table = self.table_name or self.table_uuid
        return f"lake {self.lake}" if table is None else f"table {table} of lake {self.lake}"

    @property
    def label(self) -> str:
        """The name to use in commands. It is the lake's name if the whole lake is unreadable."""
        return self.table_name or self.table_uuid or self.lake

    @property
    def message(self) -> str:
        """A message for reports, which explains the consequences and contains the error."""
        read = "was never read in full" if self.good_on is None else f"was last read in full by the run of {self.good_on}"
        since = f"has been unreadable since {self.since:%Y-%m-%d %H:%M} UTC and {read}"
        if self.set_aside is not None:
            return f"{self.name} {since}; nothing under its claims is deleted; {self.set_aside}: {self.why}"
        return f"{self.name} {since}; nothing under its claims is deleted and nothing is purged until it is readable: {self.why}"

    @property
    def is_whole_lake(self) -> bool:
        return self.table_uuid is None and self.table_name is None

    @property
    def blocks_purges(self) -> bool:
        """True if purges have to wait for the table, because no user has set it aside."""
        return self.set_aside is None

    def covers(self, lake: str, table_uuid: str | None) -> bool:
        """Return True if this record concerns the given table, even if another lake lists it."""
        if self.is_whole_lake:
            return lake == self.lake
        return self.table_uuid is not None and table_uuid == self.table_uuid


class Uploads(StrictModel):
    """Totals of the unfinished multipart uploads that a plan aborts.

    Attributes:
        count: Number of uploads.
        bytes: Total size of their parts.
        later: Number of further uploads that exceed the limit for one plan.
        digest: Digest of the rows that list the uploads.
    """

    count: int = 0
    bytes: int = 0
    later: int = 0
    digest: str = ""

    def __str__(self) -> str:
        more = f", the oldest of {self.count + self.later:,}" if self.later else ""
        return f"{count_of(self.count, 'unfinished upload')} ({format_bytes(self.bytes)}){more}"


class LeftOut(StrictModel):
    """A group of files or history edits that a plan leaves out.

    Attributes:
        name: The files or the table, as described in messages.
        files: Number of files.
        bytes: Total size of the files.
        edits: Number of history edits.
        reason: Why they are left out, and what the user can do about it.
    """

    name: str
    files: int = 0
    bytes: int = 0
    edits: int = 0
    reason: str

    def __str__(self) -> str:
        edits, size = f"{count_of(self.edits, 'history edit')} of {self.name}", format_bytes(self.bytes)
        is_one = (self.edits or self.files) == 1
        name = self.name.removesuffix("s") if is_one and not self.edits else self.name
        amount = edits if self.edits else f"{self.files:,} {name} ({size})"
        return f"{amount} {'is' if is_one else 'are'} left out: {self.reason}"


class PlanSummary(StrictModel):
    """The fields of a plan header that are needed to list plans.

    Attributes:
        refused_by: Names of the failed gates.
        policy_digest: Digest of the policy, or None in lists written by earlier releases.
    """

    plan_id: str
    storage: str
    run_date: date
    created_at: datetime
    approve_before: datetime
    apply_before: datetime
    historical: bool
    rehearsal: bool
    unsafe: tuple[str, ...]
    quarantine: str
    totals: dict[str, Amount]
    expiry_actions: dict[str, int]
    refused_by: tuple[str, ...]
    rows: int
    uploads: Uploads = Uploads()
    edits_by_action: dict[str, int] = Field(default_factory=dict)
    branch_edits: dict[str, int] = Field(default_factory=dict)
    deleted_paths: dict[str, int] = Field(default_factory=dict)
    listed_at: datetime | None = None
    policy_digest: str | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.rows or self.expiry_actions or self.uploads.count)

    def copy_counts(self) -> Self:
        """Return a copy of the summary that does not share its dictionaries."""
        counts = {name: dict(value) for name, value in self if isinstance(value, dict)}
        return self.model_copy(update=counts)

    def status_at(self, now: datetime) -> str:
        """Return the plan's status regardless of approvals: historical, expired, refused or ready."""
        if self.historical:
            return "historical"
        if now >= self.apply_before:
            return "expired"
        return "refused" if self.refused_by else "ready"


class PlanHeader(RenamedKeys, StrictModel):
    """The header of a plan, which is everything but its rows, expiry actions and uploads.

    The header represents these parts by `rows_digest`, `expiry_digest` and `uploads.digest`. The
    digests are sums of row hashes, and an apply verifies them. If an attribute was added in a later
    release than the one that made the plan, it has its default value.

    Attributes:
        totals: Number and size of files for each action, including `after_expiry`.
        by_kind: Number and size of files for each action and file kind (since 0.2).
        live_by_lake: Number of live files for each lake (since 0.4).
        after_expiry: Files that become garbage through the expiry actions of this plan.
        held_for_expiry: Files that are kept, because a history that this plan does not edit needs
            them.
        unreadable: Unreadable tables, for which purges wait (since 0.4). The plan id depends on the
            tables, but not on their error messages.
        left_out: Files and edits that the plan leaves out, because they cannot succeed at present
            or because another lake keeps the history (since 0.4). Not part of the id.
        warnings: Sentences to read before approving the plan (since 0.4). Not part of the id.
        aliases: The `aliases` that the storage has now or had in accepted runs (since 0.4). Not
            part of the id.
        expiry_actions: Number of expiry actions (history edits) for each lake.
        edits_by_action: Number of expiry actions of each type, such as `remove_snapshot` (since
            0.4).
        idle_branches: Number of idle branches to delete, for each lake (since 0.4).
            `expiry_actions` includes them.
        path_edits: Number of branches on which a commit deletes paths, for each lake (since 0.4).
            `expiry_actions` includes them.
        deleted_paths: Number of paths that these commits delete, for each lake (since 0.4).
        uploads: Unfinished multipart uploads to abort (since 0.4).
        missing_digest: Digest of the live files that the sweep did not find. Empty if it found all
            (since 0.4).
        listed_at: If the plan is based on an earlier listing, the time of that listing (since 0.4).
            None if the plan's own run listed the storage.
        keyed: True if the plan id is an HMAC with the `plan_key`, False if it is a plain digest.
        times_seal: HMAC of the creation time, on which the plan id does not depend. Empty if there
            is no key.
        repeats: Number of earlier plans with the same content that were already used.
    """

    RENAMED: ClassVar = {"sick": "unreadable"}

    plan_id: str
    storage: str
    location: str
    quarantine: str
    run_date: date
    as_of: datetime
    frozen_at: datetime
    grace_cutoff: datetime
    created_at: datetime
    approve_before: datetime
    apply_before: datetime
    historical: bool
    rehearsal: bool
    unsafe: tuple[str, ...]
    refs_digests: dict[str, str]
    policy_digest: str
    live_files: int
    live_by_lake: dict[str, int] = Field(default_factory=dict)
    live_bytes: int
    totals: dict[str, Amount]
    by_reason: dict[str, Amount]
    by_kind: dict[str, dict[str, Amount]] = Field(default_factory=dict)
    after_expiry: Amount
    held_for_expiry: Amount
    quarantined: Amount
    unreadable: tuple[Unreadable, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    expiry_actions: dict[str, int]
    edits_by_action: dict[str, int] = Field(default_factory=dict)
    idle_branches: dict[str, int] = Field(default_factory=dict)
    path_edits: dict[str, int] = Field(default_factory=dict)
    deleted_paths: dict[str, int] = Field(default_factory=dict)
    expiry_digest: str
    gates: tuple[GateResult, ...]
    rows: int
    rows_digest: str
    uploads: Uploads = Uploads()
    missing_digest: str = ""
    listed_at: datetime | None = None
    keyed: bool = False
    times_seal: str = ""
    repeats: int = 0

    sick = RenamedAttribute("unreadable")

    @property
    def summary(self) -> PlanSummary:
        fields = {name: getattr(self, name) for name in PlanSummary.model_fields if name != "refused_by"}
        return PlanSummary(**fields, refused_by=tuple(gate.name for gate in self.failed_gates))

    @property
    def has_work(self) -> bool:
        return self.summary.has_work

    @property
    def branch_edits(self) -> dict[str, int]:
        """Number of branch edits for each lake. They can be undone in every kind of lake."""
        lakes = sorted({*self.idle_branches, *self.path_edits})
        return {lake: self.idle_branches.get(lake, 0) + self.path_edits.get(lake, 0) for lake in lakes}

    @property
    def listing_note(self) -> str | None:
        """A sentence about the earlier listing, or None if the run listed the storage itself."""
        if self.listed_at is None:
            return None
        listing = f"{self.listed_at:%Y-%m-%d %H:%M} UTC"
        return f"Made with the listing of {listing}, so it contains only files that metadata has referenced before, and no purges."

    @property
    def failed_gates(self) -> list[GateResult]:
        return [gate for gate in self.gates if not gate.passed]

    @property
    def notes(self) -> list[str]:
        """Sentences to show in every view of the plan."""
        return [*([] if self.listing_note is None else [self.listing_note]), *self.warnings]

    def status_at(self, now: datetime) -> str:
        return self.summary.status_at(now)


def completed_header(header: PlanHeader, done: Mapping[str, Amount], edits: Mapping[str, int]) -> PlanHeader:
    """Return a copy of a plan's header with the totals completed by an apply, for messages.

    Args:
        done: Files and bytes with the outcome `done` in each phase.
        edits: Number of history edits with the outcome `done` in each lake.
    """
    aborted, is_complete = done.get(ABORT, Amount()), sum(edits.values()) == sum(header.expiry_actions.values())
    return header.model_copy(
        update={
            "totals": {phase: amount for phase, amount in done.items() if phase not in {EXPIRE, ABORT} and amount.files},
            "expiry_actions": {lake: count for lake, count in edits.items() if count},
            "edits_by_action": header.edits_by_action if is_complete else {},
            "deleted_paths": header.deleted_paths if is_complete else {},
            "idle_branches": {lake: min(count, edits.get(lake, 0)) for lake, count in header.idle_branches.items() if edits.get(lake)},
            "path_edits": {lake: min(count, edits.get(lake, 0)) for lake, count in header.path_edits.items() if edits.get(lake)},
            "uploads": Uploads(count=aborted.files, bytes=aborted.bytes),
        }
    )


def plan_id_of(fields: dict[str, Any], key: bytes | None = None) -> str:
    """Compute a plan id: the SHA-256 digest, or with a key the HMAC-SHA256, of the fields as JSON."""
    content = json.dumps(fields, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest() if key is None else hmac.digest(key, content, "sha256").hex()


def seal(key: bytes | None = None, **fields: Any) -> PlanHeader:
    """Create a plan header and compute its id.

    The id does not depend on `created_at` and the deadlines, so that two plans with the same
    content have the same id.
    """
    created_at: datetime = fields.pop("created_at")
    fields["keyed"] = key is not None
    fields.setdefault("repeats", 0)
    draft = PlanHeader(
        **fields,
        plan_id="",
        created_at=created_at,
        approve_before=created_at + APPROVE_WITHIN,
        apply_before=created_at + APPLY_WITHIN,
    )
    return _with_id(draft, key)


def repeat(header: PlanHeader, key: bytes | None = None) -> PlanHeader:
    """Give a plan with the content of an already used plan a new id, so that it can be applied."""
    return _with_id(header.model_copy(update={"repeats": header.repeats + 1}), key)


def is_intact(header: PlanHeader, key: bytes | None = None) -> bool:
    """Return True if a header's id matches its content, and its deadlines the creation time.

    Without a key, changes of the creation time itself cannot be detected.
    """
    ends = (header.approve_before - header.created_at, header.apply_before - header.created_at)
    used = key if header.keyed else None
    has_valid_id = hmac.compare_digest(header.plan_id, plan_id_of(_digest_fields(header), used))
    return has_valid_id and ends == (APPROVE_WITHIN, APPLY_WITHIN) and hmac.compare_digest(header.times_seal, _times_seal(header, used))


def _times_seal(header: PlanHeader, key: bytes | None) -> str:
    return "" if key is None else plan_id_of({"plan_id": header.plan_id, "created_at": header.created_at.isoformat()}, key)


def _with_id(header: PlanHeader, key: bytes | None) -> PlanHeader:
    named = header.model_copy(update={"plan_id": plan_id_of(_digest_fields(header), key)})
    return named.model_copy(update={"times_seal": _times_seal(named, key)})


def _digest_fields(header: PlanHeader) -> dict[str, Any]:
    added_later = PlanHeader.model_fields.keys() - header.model_fields_set
    found = header.model_dump(mode="json", exclude={*_NOT_IN_ID, *added_later})
    for name in ("listed_at", "missing_digest"):  # otherwise the ids of stored plans without these values would change
        if not getattr(header, name):
            found.pop(name, None)
    if "unreadable" in found:
        found["sick"] = found.pop("unreadable")  # the name up to 0.3, so that the ids of stored plans do not change
    if header.unreadable:
        # The id depends on the tables and on who has set them aside, but not on the errors.
        found["sick"] = [
            [item.lake, item.table_uuid, item.table_name, item.good_on is None, *([] if item.set_aside is None else [item.set_aside])]
            for item in header.unreadable
        ]
        found["gates"] = [gate if gate["name"] not in _READ_ERROR_GATES else {**gate, "message": ""} for gate in found["gates"]]
    return found
