"""A deletion plan as a value: header, gates, and the digest that ties them to the rows (design 6).

Pure. The digest is what a person approves. A change of any row, cut-off or gate changes the digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from gc_assets.core.units import format_bytes

APPROVE_WITHIN: Final = timedelta(hours=24)
APPLY_WITHIN: Final = timedelta(hours=72)
# The key of `by_kind` for files that no metadata names.
UNNAMED: Final = "unnamed"


_NOT_IN_ID: Final = frozenset({"plan_id", "times_seal", "created_at", "approve_before", "apply_before"})
# Gates whose messages repeat why something cannot be read.
_READ_ERROR_GATES: Final = frozenset({"sick_tables", "never_read"})


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Amount(_Model):
    """A number of files and their bytes."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def total(cls, amounts: Iterable[Amount]) -> Amount:
        """Returns the sum of amounts."""
        listed = list(amounts)
        return cls(files=sum(amount.files for amount in listed), bytes=sum(amount.bytes for amount in listed))


@dataclass(frozen=True, slots=True)
class LiveCount:
    """The live files of a storage, and how many of them each lake needs."""

    files: int
    by_lake: Mapping[str, int] = field(default_factory=dict[str, int])

    def without(self, lakes: Collection[str]) -> LiveCount:
        """Returns the count without what these lakes need."""
        kept = {name: files for name, files in self.by_lake.items() if name not in lakes}
        return LiveCount(self.files - sum(self.by_lake.values()) + sum(kept.values()), kept)


class GateResult(_Model):
    """One gate's verdict with its numbers. `overridable` says whether a person may override the
    gate, by its name, when approving.
    """

    name: str
    passed: bool
    message: str
    overridable: bool
    numbers: dict[str, float] = Field(default_factory=dict[str, float])


class Unreadable(_Model):
    """A table or repository that could not be read, and is protected by what earlier nights read of
    it (design 6.5).

    `table_uuid` and `table_name` are null where the whole lake is sick. `good_on` is the run date
    of the last night that read it in full, null where none did: then nobody knows what it needs, and
    the `storages` that it lies in have no plan (none named: no storage has one).
    """

    lake: str
    table_uuid: str | None = None
    table_name: str | None = None
    why: str
    since: datetime
    good_on: date | None = None
    storages: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The words for it in messages."""
        table = self.table_name or self.table_uuid
        return f"lake {self.lake}" if table is None else f"table {table} of lake {self.lake}"

    @property
    def told(self) -> str:
        """A sentence for the report."""
        read = "was never read in full" if self.good_on is None else f"was read in full last on {self.good_on}"
        since = f"cannot be read since {self.since:%Y-%m-%d %H:%M} UTC, and {read}"
        return f"{self.name} {since}; nothing below its claims is touched and nothing is purged until it can be read: {self.why}"

    @property
    def is_whole_lake(self) -> bool:
        return self.table_uuid is None and self.table_name is None

    def stops(self, storage: str) -> bool:
        """Decides whether a storage must not be collected until it was read once."""
        return self.good_on is None and (not self.storages or storage in self.storages)

    def covers(self, lake: str, table_uuid: str | None) -> bool:
        """Decides whether a history of the lake is its own, or that of the same table elsewhere."""
        if self.is_whole_lake:
            return lake == self.lake
        return self.table_uuid is not None and table_uuid == self.table_uuid


class Uploads(_Model):
    """The unfinished uploads in parts that a plan aborts, and the bytes of their parts. `digest`
    stands for its list of them. `later` counts those that a later plan may abort, because one plan
    takes so many only.
    """

    count: int = 0
    bytes: int = 0
    later: int = 0
    digest: str = ""

    def __str__(self) -> str:
        more = f", the oldest of {self.count + self.later:,}" if self.later else ""
        return f"{self.count:,} unfinished uploads ({format_bytes(self.bytes)}){more}"


class PlanSummary(_Model):
    """What a list of plans shows of a plan. `refused_by` names its failed gates."""

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

    @property
    def has_work(self) -> bool:
        return bool(self.rows or self.expiry_actions or self.uploads.count)

    def status_at(self, now: datetime) -> str:
        """Returns in a word why the plan cannot be applied, or `ready`. It knows nothing of
        approvals.
        """
        if self.historical:
            return "historical"
        if now >= self.apply_before:
            return "expired"
        return "refused" if self.refused_by else "ready"


class PlanHeader(_Model):
    """Everything about a plan except its rows, its edits of history and its uploads. `rows_digest`,
    `expiry_digest` and `uploads.digest` stand for these.

    Each is the sum of the rows' hashes, and is checked again before acting. `keyed` says whether
    the id is an HMAC (`plan_key`) or a digest that anybody can make; then `times_seal` is one of
    when it was made, on which its id does not depend. `repeats` counts the plans of the same
    substance that were used up before this one. `expiry_actions` counts the edits per lake.
    `by_kind` counts the files per action and file kind (empty in a plan made before 0.2).
    `live_by_lake` counts the live files that each lake needs (empty before 0.4). `unreadable` names what
    could not be read: nothing is purged while there is any (empty before 0.4). The id depends on
    what it is, and not on the words. `uploads` are aborted (none before 0.4).
    Files planned `after_expiry` count in `totals`. Files `held_for_expiry` wait
    for a lake whose history this plan does not edit.
    """

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
    expiry_actions: dict[str, int]
    expiry_digest: str
    gates: tuple[GateResult, ...]
    rows: int
    rows_digest: str
    uploads: Uploads = Uploads()
    keyed: bool = False
    times_seal: str = ""
    repeats: int = 0

    @property
    def summary(self) -> PlanSummary:
        told = {name: getattr(self, name) for name in PlanSummary.model_fields if name != "refused_by"}
        return PlanSummary(**told, refused_by=tuple(gate.name for gate in self.failed_gates))

    @property
    def has_work(self) -> bool:
        return self.summary.has_work

    @property
    def failed_gates(self) -> list[GateResult]:
        return [gate for gate in self.gates if not gate.passed]

    def status_at(self, now: datetime) -> str:
        return self.summary.status_at(now)


def plan_id_of(substance: dict[str, Any], key: bytes | None = None) -> str:
    """Returns the sha256 over the canonical JSON of what `_substance` leaves of a header, or with a
    key its HMAC-SHA256.
    """
    content = json.dumps(substance, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest() if key is None else hmac.digest(key, content, "sha256").hex()


def sealed(key: bytes | None = None, **substance: Any) -> PlanHeader:
    """Returns a header with its id. The id does not depend on `created_at` and the times that count
    from it: the same plan made twice is one plan.
    """
    created_at: datetime = substance.pop("created_at")
    substance["keyed"] = key is not None
    substance.setdefault("repeats", 0)
    draft = PlanHeader(
        **substance,
        plan_id="",
        created_at=created_at,
        approve_before=created_at + APPROVE_WITHIN,
        apply_before=created_at + APPLY_WITHIN,
    )
    return _with_id(draft, key)


def repeated(header: PlanHeader, key: bytes | None = None) -> PlanHeader:
    """Returns the same plan once more, with an id of its own."""
    return _with_id(header.model_copy(update={"repeats": header.repeats + 1}), key)


def is_intact(header: PlanHeader, key: bytes | None = None) -> bool:
    """True if the id still is the digest of the header, or its HMAC where the header says that it
    is one, and the plan ends as long after it was made as every plan does. When it was made is
    certain only under a key.
    """
    ends = (header.approve_before - header.created_at, header.apply_before - header.created_at)
    used = key if header.keyed else None
    is_its_id = hmac.compare_digest(header.plan_id, plan_id_of(_substance(header), used))
    return is_its_id and ends == (APPROVE_WITHIN, APPLY_WITHIN) and hmac.compare_digest(header.times_seal, _times_seal(header, used))


def _times_seal(header: PlanHeader, key: bytes | None) -> str:
    return "" if key is None else plan_id_of({"plan_id": header.plan_id, "created_at": header.created_at.isoformat()}, key)


def _with_id(header: PlanHeader, key: bytes | None) -> PlanHeader:
    named = header.model_copy(update={"plan_id": plan_id_of(_substance(header), key)})
    return named.model_copy(update={"times_seal": _times_seal(named, key)})


def _substance(header: PlanHeader) -> dict[str, Any]:
    unknown_then = PlanHeader.model_fields.keys() - header.model_fields_set
    found = header.model_dump(mode="json", exclude={*_NOT_IN_ID, *unknown_then})
    if header.unreadable:
        # What could not be read counts, and not in which words a store or a disk said why.
        found["sick"] = [[item.lake, item.table_uuid, item.table_name, item.good_on is None] for item in header.unreadable]
        found["gates"] = [gate if gate["name"] not in _READ_ERROR_GATES else {**gate, "message": ""} for gate in found["gates"]]
    return found
