"""What a published table says of itself, and the pointer that makes it visible (design section 5).

`<group>/<asset>/run_date=YYYY-MM-DD/<run id>/*.parquet` with `_receipt.json`; `current.json` names the run id and the
receipt's sha256 and is replaced atomically. Pure bookkeeping over `Files`: no Spark, no Dagster.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.core.files import Files
from gc_assets.schemas import SCHEMA_VERSION

RECEIPT = "_receipt.json"
CURRENT = "current.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PartFile(_Model):
    """One Parquet file of a table; `name` is relative to the run directory."""

    name: str
    rows: int
    size_bytes: int
    sha256: str


class Balance(_Model):
    """A completeness count: what had to be read or written against what was."""

    name: str
    expected: int
    found: int


class Receipt(_Model):
    """A table as published. `digest` is the sum of the rows' hashes modulo 2^64: equal content, equal digest, in any order.

    `side` holds further tables of the same run, under directories that readers of the table skip (`_containers`).
    `facts` are what the stage found out (cut-offs, totals by reason); `unsafe` the safety limits that were lowered.
    """

    schema_version: int = SCHEMA_VERSION
    group: str
    asset: str
    run_date: date
    run_id: str
    created_at: datetime
    rows: int
    size_bytes: int
    digest: str
    files: tuple[PartFile, ...]
    side: dict[str, tuple[PartFile, ...]] = Field(default_factory=dict[str, tuple[PartFile, ...]])
    inputs: dict[str, str] = Field(default_factory=dict[str, str])
    balances: tuple[Balance, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict[str, Any])
    unsafe: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """How the receipts of later tables name this one."""
        return f"{self.run_id}:{self.digest}"


@dataclass(frozen=True, slots=True)
class Run:
    """A fresh directory of one asset and run date, not visible before `State.publish`. `path` is relative to the state."""

    group: str
    asset: str
    run_date: date
    run_id: str

    @property
    def path(self) -> str:
        return f"{_partition(self.group, self.asset, self.run_date)}/{self.run_id}"


@dataclass(frozen=True, slots=True)
class Published:
    """A table that readers may use: its directory relative to the state, and its receipt."""

    path: str
    receipt: Receipt

    def paths(self, side: str | None = None) -> list[str]:
        """The table's Parquet files, relative to the state."""
        files = self.receipt.files if side is None else self.receipt.side.get(side, ())
        return [f"{self.path}/{file.name}" for file in files]


def _partition(group: str, asset: str, run_date: date) -> str:
    return f"{group}/{asset}/run_date={run_date.isoformat()}"


@dataclass(frozen=True, slots=True)
class State:
    """The platform's own tables below one root."""

    files: Files

    @classmethod
    def at(cls, root: str) -> State:
        return cls(Files(root))

    def start(self, group: str, asset: str, run_date: date, clock: Clock) -> Run:
        """A directory nobody has used. Run ids sort by time."""
        return Run(group, asset, run_date, f"{clock.now():%Y%m%dT%H%M%SZ}-{clock.order():016x}{uuid.uuid4().hex[:4]}")

    def publish(self, run: Run, receipt: Receipt) -> Published:
        """The run's table becomes the current one of its date.

        Raises `StateError` where the completeness counts do not balance or a part is missing; nothing becomes visible then.
        """
        wrong = [
            f"{item.name}: expected {item.expected:,}, found {item.found:,}" for item in receipt.balances if item.expected != item.found
        ]
        if wrong:
            raise StateError(f"{run.group}/{run.asset} of {run.run_date} is not complete and is not published: " + "; ".join(wrong))
        content = receipt.model_dump_json(indent=1).encode()
        self._check_parts(run.path, receipt)
        self.files.replace(f"{run.path}/{RECEIPT}", content)
        pointer = {"run_id": run.run_id, "receipt_sha256": hashlib.sha256(content).hexdigest()}
        self.files.replace(f"{_partition(run.group, run.asset, run.run_date)}/{CURRENT}", json.dumps(pointer).encode())
        return Published(run.path, receipt)

    def current(self, group: str, asset: str, run_date: date) -> Published | None:
        """The table of a run date, verified against its receipt, or None where that date was never published.

        Raises `StateError` naming what is missing, half written or of a newer schema version.
        """
        partition = _partition(group, asset, run_date)
        pointer = self._pointer(partition)
        return self._read(f"{partition}/{pointer[0]}", pointer[1]) if pointer is not None else None

    def require(self, group: str, asset: str, run_date: date) -> Published:
        """As `current`, but a date that was never published is an error that says what to run."""
        found = self.current(group, asset, run_date)
        if found is None:
            raise StateError(
                f"{group}/{asset} has no table for {run_date}; run `gc-assets run --run-date {run_date} --through {asset}` first"
            )
        return found

    def dates(self, group: str, asset: str) -> list[date]:
        """Run dates that have a published table, oldest first."""
        names = self.files.directories(f"{group}/{asset}")
        found = [self._date_of(f"{group}/{asset}/{name}") for name in names if name.startswith("run_date=")]
        return [day for day in found if any(item.name == CURRENT for item in self.files.list(_partition(group, asset, day)))]

    def latest(self, group: str, asset: str, before: date | None = None) -> Published | None:
        """The table of the newest run date (strictly before `before`, if given)."""
        days = [day for day in self.dates(group, asset) if before is None or day < before]
        return self.current(group, asset, days[-1]) if days else None

    def runs(self, group: str, asset: str) -> Iterator[Published]:
        """Every finished run of every date, current or not, oldest date first: what append-only tables consist of."""
        base = f"{group}/{asset}"
        for partition in self.files.directories(base):
            for run_id in self.files.directories(f"{base}/{partition}"):
                path = f"{base}/{partition}/{run_id}"
                if any(item.name == RECEIPT for item in self.files.list(path)):
                    yield self._read(path, None)

    def verify(self, table: Published) -> None:
        """The bytes of every part are those that were written. Reads them all: for tables that decide what is deleted.

        Raises `StateError` naming the part that is missing or holds other bytes.
        """
        self._check_parts(table.path, table.receipt)
        for part in (*table.receipt.files, *(part for parts in table.receipt.side.values() for part in parts)):
            found = hashlib.sha256(self.files.read(f"{table.path}/{part.name}")).hexdigest()
            if found != part.sha256:
                raise StateError(
                    f"{self.files.root}/{table.path}/{part.name} holds other bytes than were written "
                    f"(sha256 {found}, expected {part.sha256}); run its asset again"
                )

    def _date_of(self, partition: str) -> date:
        try:
            return date.fromisoformat(partition.rpartition("run_date=")[2])
        except ValueError:
            raise StateError(f"{self.files.root}/{partition} is no run date like run_date=2026-01-31; move it out of the state") from None

    def _pointer(self, partition: str) -> tuple[str, str] | None:
        """The current run id of a partition and the sha256 of its receipt; None where nothing was ever published."""
        try:
            pointer = json.loads(self.files.read(f"{partition}/{CURRENT}"))
            return pointer["run_id"], pointer["receipt_sha256"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            asset, _, day = partition.rpartition("/run_date=")
            raise StateError(
                f"{self.files.root}/{partition}/{CURRENT} is damaged ({error}); delete it and run {asset.rpartition('/')[2]} of {day} again"
            ) from error

    def _read(self, path: str, digest: str | None) -> Published:
        where = f"{self.files.root}/{path}/{RECEIPT}"
        try:
            content = self.files.read(f"{path}/{RECEIPT}")
        except FileNotFoundError:
            raise StateError(f"{where} is missing: the table is half written or was removed; run its asset again") from None
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise StateError(f"{where} is not the receipt that {CURRENT} names: it was changed after publication; run its asset again")
        try:
            document = json.loads(content)
            version = int(document["schema_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{where} is damaged ({error}); run its asset again") from error
        if version > SCHEMA_VERSION:
            raise StateError(
                f"{where} has schema version {version}, this release reads up to {SCHEMA_VERSION}: "
                "it was written by a newer gc-assets; upgrade"
            )
        try:
            receipt = Receipt.model_validate(document)
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
            raise StateError(f"{where} is damaged (wrong or missing: {wrong}); run its asset again") from error
        self._check_parts(path, receipt)
        return Published(path, receipt)

    def _check_parts(self, path: str, receipt: Receipt) -> None:
        present = {item.name: item.size_bytes for item in self.files.list(path)}
        for name in receipt.side:
            present |= {f"{name}/{item.name}": item.size_bytes for item in self.files.list(f"{path}/{name}")}
        for part in (*receipt.files, *(part for parts in receipt.side.values() for part in parts)):
            if present.get(part.name) != part.size_bytes:
                found = f"has {present[part.name]:,} bytes" if part.name in present else "is missing"
                raise StateError(
                    f"{self.files.root}/{path}/{part.name} {found}, its receipt says {part.size_bytes:,} bytes: "
                    "the table is half there; run its asset again"
                )

    def prune(self, keep_days: int, clock: Clock, protected: Sequence[str] = ()) -> list[str]:
        """Removes run directories that are not current and older than `keep_days`, and returns their paths.

        Append-only tables (`protected` asset names) are left alone: their old runs are their content.
        """
        removed: list[str] = []
        limit = clock.now().timestamp() - keep_days * 86400
        for group in self.files.directories(""):
            for asset in self.files.directories(group):
                if asset in protected:
                    continue
                for partition in self.files.directories(f"{group}/{asset}"):
                    removed += self._prune_partition(f"{group}/{asset}/{partition}", limit)
        return removed

    def _prune_partition(self, partition: str, limit: float) -> list[str]:
        removed: list[str] = []
        if not partition.rpartition("/")[2].startswith("run_date="):
            return removed
        pointer = self._pointer(partition)
        for run_id in self.files.directories(partition):
            started = _started(run_id)
            if started is not None and started < limit and (pointer is None or run_id != pointer[0]):
                self.files.delete_directory(f"{partition}/{run_id}")
                removed.append(f"{partition}/{run_id}")
        return removed


def _started(run_id: str) -> float | None:
    """When a run began, in seconds since 1970; None for a directory that no run of ours made."""
    try:
        return datetime.strptime(run_id.partition("-")[0] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
    except ValueError:
        return None
