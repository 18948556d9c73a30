"""Publish tables in the state, and look up their runs.

A run consists of `<group>/<asset>/run_date=YYYY-MM-DD/<run id>/*.parquet` and the `_receipt.json`
in the same directory. For each date, `current.json` contains the id of the current run and the
SHA-256 of its receipt. It is replaced atomically. `<group>/<asset>/_index.json` lists the runs of
all dates.

A run is added to the index before its receipt is written, so that no finished run is missing from
the index. If an entry does not have a receipt, the run is unfinished or crashed, and is skipped.
The receipts are authoritative, so a lost index can be rebuilt from them, see
docs/adr/0003-own-state-tables.md. This module uses neither Spark nor Dagster.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

from pydantic import ValidationError

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.commands import command
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.errors import StateError
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state import compaction
from gc_assets.state.backend import ABSENT, FileStat
from gc_assets.state.compaction import COMPACTED_TABLES, MAX_COMPACTIONS, SegmentFile, Segments
from gc_assets.state.damage import RECORDS, DamagedRunError, describe_next_step
from gc_assets.state.files import Files, is_read_only
from gc_assets.state.index import INDEX, Entries, Index, IndexContent, IndexEntry, PastRun, make_entry, partition_path
from gc_assets.state.receipts import PartFile, Receipt, invalid_keys
from gc_assets.state.schemas import SCHEMA_VERSION
from gc_assets.state.summaries import DeletionPlanSummary, StorageInventorySummary, Summary

RECEIPT: Final = "_receipt.json"
# The first file of an apply's write-ahead log.
APPLY_LOG: Final = "log.json"
CURRENT: Final = "current.json"
# `State.repair` renames the receipt of a damaged run to this, so that readers ignore the run.
SET_ASIDE: Final = f"{RECEIPT}.damaged"
_PARTITION: Final = "run_date="
_LONGEST_RUN: Final = timedelta(days=1)
_log = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Summary)


@dataclass(frozen=True, slots=True)
class TableRun:
    """A run that has not been published yet. Readers cannot see it before `State.publish`.

    Its path is relative to the state.
    """

    group: str
    asset: str
    run_date: date
    run_id: str

    @property
    def path(self) -> str:
        return f"{partition_path(self.group, self.asset, self.run_date)}/{self.run_id}"


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table, with its directory relative to the state and its receipt."""

    path: str
    receipt: Receipt

    facts = RenamedAttribute("summary")

    @property
    def rows(self) -> int:
        return self.receipt.rows

    def paths(self, side: str | None = None) -> list[str]:
        """Return the paths of the Parquet files, relative to the state."""
        return [f"{self.path}/{part.name}" for part in self.parts(side)]

    def parts(self, side: str | None = None) -> Sequence[PartFile]:
        """Return the Parquet files of the table or of a side table, as listed in the receipt."""
        return self.receipt.files if side is None else self.receipt.side.get(side, ())

    def summary(self, model: type[_F]) -> _F:
        """Return the summary of the stage.

        Raises:
            StateError: If values are missing or invalid. The message lists them.
        """
        if self.receipt.asset != model.TABLE:
            raise TypeError(f"{model.__name__} is the summary of {model.TABLE}, not of {self.receipt.asset}")
        try:
            return model.model_validate(self.receipt.summary)
        except ValidationError as error:
            raise StateError(
                f"{self.path}/{RECEIPT} is damaged (wrong or missing values: {invalid_keys(error)}); run its asset again"
            ) from error


@dataclass(frozen=True, slots=True)
class State:
    """All published tables under a root.

    A *group* is the directory of a lake or storage, and an *asset* is the name of one of its
    tables.
    """

    files: Files

    @classmethod
    def at(cls, root: str) -> State:
        """Open the state at an address with the default connection settings."""
        return cls(Files(root))

    @classmethod
    def of(cls, config: Config) -> State:
        """Open the state that a configuration specifies."""
        return cls(Files(config.state, config.state_settings()))

    def start(self, group: str, asset: str, run_date: date, clock: Clock) -> TableRun:
        """Start a run in a new directory. Sorting run ids by name sorts them by their start."""
        return TableRun(group, asset, run_date, f"{clock.now():%Y%m%dT%H%M%SZ}-{clock.sequence_number():016x}{uuid.uuid4().hex[:4]}")

    def publish(self, run: TableRun, receipt: Receipt, listed: Sequence[FileStat] | None = None) -> PublishedTable:
        """Publish a run, which becomes the current one of its date.

        Args:
            listed: All files of the run, if the caller has just listed them. This saves a request.

        Raises:
            StateError: If counts do not balance or a part is missing. The run is not published.
        """
        wrong = [
            f"{item.name}: expected {item.expected:,}, found {item.found:,}" for item in receipt.balances if item.expected != item.found
        ]
        if wrong:
            raise StateError(f"{run.group}/{run.asset} of {run.run_date} is incomplete and was not published: " + "; ".join(wrong))
        self._check_parts(run.path, receipt, listed)
        receipt, index = self._add_receipt(run, receipt)
        content = _format(receipt)
        sha256 = index.entries[run.run_id].receipt_sha256
        self.files.replace(f"{run.path}/{RECEIPT}", content)
        pointer = json.dumps({"run_id": run.run_id, "receipt_sha256": sha256}).encode()
        is_first = not any(other.run_date == run.run_date for other in index.entries.values() if other.run_id != run.run_id)
        # The replacement is conditional, so that a delayed put does not undo a newer publication.
        partition = partition_path(run.group, run.asset, run.run_date)
        self.files.change(f"{partition}/{CURRENT}", lambda _: pointer, ABSENT if is_first else None)
        entry = make_entry(receipt, sha256, is_there=True)
        index = self._add_entry(run, lambda _: entry, index)
        if run.asset in COMPACTED_TABLES and receipt.parts:
            self.compact(run.group, run.asset, index.entries)
        return PublishedTable(run.path, receipt)

    def compact(self, group: str, asset: str, entries: Entries) -> None:
        """Compact the small runs of a cumulative table, up to `MAX_COMPACTIONS` times.

        If this fails, a warning is logged, and the runs are read from their own files.
        """
        import pyarrow as pa  # slow to import, and not needed for reading

        try:
            runs = self._finished_runs(group, asset, entries)
            for _ in range(MAX_COMPACTIONS):
                listed = compaction.read_list(self.files, group, asset)
                # Another process may have published and compacted runs in the meantime.
                runs = self.history(group, asset) if listed.has_other_runs(runs) else runs
                if compaction.compact(self.files, runs, listed) is None:
                    break
        except (StateError, OSError, ValueError, pa.ArrowException) as error:  # ValueError: a damaged name is not UTF-8
            _log.warning("%s/%s: its small runs were not compacted: %s", group, asset, error)

    def current(self, group: str, asset: str, run_date: date) -> PublishedTable | None:
        """Open the current table of a run date, and check that it is complete.

        Returns:
            The table, or None if none was published for the date.

        Raises:
            StateError: If part of it is missing, or it was written by a newer release.
        """
        partition = partition_path(group, asset, run_date)
        pointer = self._pointer(partition)
        return self._read(f"{partition}/{pointer[0]}", pointer[1], CURRENT) if pointer is not None else None

    def require(self, group: str, asset: str, run_date: date) -> PublishedTable:
        """Open the current table of a run date, which must exist.

        Raises:
            StateError: If the table was not published, or for the reasons given in `current`. The
                message contains the command that publishes it.
        """
        found = self.current(group, asset, run_date)
        if found is None:
            raise StateError(
                f"{group}/{asset} has no table for {run_date}; run `{command('run', run_date=str(run_date), through=asset)}` first"
            )
        return found

    def history(self, group: str, asset: str) -> tuple[PastRun, ...]:
        """Return all finished runs of all dates, whether they are current or not.

        This takes a single request, which reads the index. The runs are ordered by date and, within
        a date, by their start.

        Raises:
            StateError: If the index is damaged.
        """
        index = Index(self.files, f"{group}/{asset}/{INDEX}")
        found = index.read()
        return self._finished_runs(group, asset, found if found is not None else self._create_index(index, group, asset))

    def _finished_runs(self, group: str, asset: str, entries: Entries) -> tuple[PastRun, ...]:
        runs = (PastRun(group, asset, entry) for entry in entries.values())
        finished = (run for run in runs if run.entry.is_published or self._receipt_sha256(run.path) == run.entry.receipt_sha256)
        return tuple(sorted(finished, key=lambda run: (run.run_date, run.run_id)))

    def segments(self, runs: Sequence[PastRun], *, complete: bool = False) -> Segments:
        """Find the files that contain the rows of the given runs, see `state.compaction`."""
        return compaction.find_segments(self.files, runs, complete=complete)

    def segment_files(self, runs: Sequence[PastRun]) -> list[SegmentFile]:
        """Return the files that contain the rows of the given runs."""
        return self.segments(runs).files()

    def paths(self, runs: Sequence[PastRun], side: str | None = None) -> list[str]:
        """Return the paths of the files that contain the rows of the given runs."""
        return self.segments(runs).paths(side)

    def open(self, run: PastRun) -> PublishedTable:
        """Open the table of a run, and check that its receipt matches the index."""
        return self._read(run.path, run.entry.receipt_sha256, INDEX)

    def open_input(self, table: PublishedTable, group: str, asset: str) -> PublishedTable | None:
        """Open an input table of a published table.

        Returns:
            The input, or None if it is not in the state any more.

        Raises:
            StateError: If the input is damaged.
        """
        name = f"{group}/{asset}/"
        run_id = next((text.partition(":")[0] for path, text in table.receipt.inputs.items() if path.startswith(name)), None)
        run = next((run for run in self.history(group, asset) if run.run_id == run_id), None)
        return None if run is None else self.open(run)

    def runs(self, group: str, asset: str) -> Iterator[PublishedTable]:
        """Open every finished run, which takes a few requests for each.

        If possible, use `history` instead, which takes a single request for all runs.
        """
        return map(self.open, self.history(group, asset))

    def dates(self, group: str, asset: str) -> list[date]:
        """Return all dates with a finished run, in ascending order."""
        return sorted({run.run_date for run in self.history(group, asset)})

    def latest(self, group: str, asset: str, before: date | None = None) -> PublishedTable | None:
        """Open the current table of the newest run date.

        Args:
            before: If given, only consider dates before this one.

        Returns:
            The table, or None if no such date has one.
        """
        for day in reversed(self.dates(group, asset)):
            if before is None or day < before:
                found = self.current(group, asset, day)
                if found is not None:
                    return found
        return None

    def is_overtaken(self, table: PublishedTable) -> bool:
        """Check whether a table of an earlier run date was published later, on that date.

        If so, the clock of one of the two hosts was wrong, and the table may be older than its run
        date. Historical runs, which are made after their run date, are ignored. Rehearsals are only
        compared with rehearsals, and real runs with real runs.
        """
        receipt = table.receipt
        later = (run.entry for run in self.history(receipt.group, receipt.asset) if run.entry.sequence_number > receipt.sequence_number)
        is_rehearsal = receipt.summary.get("rehearsal", False)
        mine = (entry for entry in later if entry.summary.get("rehearsal", False) == is_rehearsal)
        return any(entry.run_date < receipt.run_date and entry.created_at.date() == entry.run_date for entry in mine)

    def verify(self, table: PublishedTable) -> None:
        """Read all parts of a table and verify their SHA-256.

        Use this for tables that determine which files are deleted.

        Raises:
            StateError: If a part is missing or damaged. The message contains its path.
        """
        self._check_parts(table.path, table.receipt)
        for part in table.receipt.parts:
            found = hashlib.sha256(self.files.read(f"{table.path}/{part.name}")).hexdigest()
            if found != part.sha256:
                path = f"{self.files.root}/{table.path}/{part.name}"
                raise DamagedRunError(f"{path} is damaged (sha256 {found}, expected {part.sha256}); {describe_next_step(path)}")

    def prune(self, keep_days: int, clock: Clock, protected: Sequence[str] = (), used: Collection[str] = ()) -> list[str]:
        """Delete old runs that are no longer current, and old segments that were replaced.

        Only groups directly under the root are pruned, which excludes tables in `_recheck/`.

        Args:
            keep_days: Keep everything that is not older than this number of days.
            protected: Assets of which no run is deleted, because cumulative tables consist of old
                runs.
            used: Ids of other runs to keep.

        Returns:
            The deleted directories.
        """
        removed: list[str] = []
        now = clock.now().timestamp()
        limit = now - timedelta(days=keep_days).total_seconds()
        for group in self.files.directories(""):
            for asset in self.files.directories(group):
                if asset not in {*protected, *COMPACTED_TABLES}:
                    removed += self._prune(group, asset, now, limit, used)
                if asset in COMPACTED_TABLES:
                    removed += self._prune_segments(group, asset, keep_days)
        return removed

    def find_index_errors(self) -> list[str]:
        """Compare indexes with receipts, and check pointers and compacted segments.

        This reads every receipt.

        Returns:
            A message for each difference, and for each damaged index or pointer. A missing index is
            not reported, because the next reader rebuilds it.
        """
        found: list[str] = []
        for group, asset in self._assets():
            if asset in COMPACTED_TABLES:
                found += compaction.find_damage(self.files, group, asset)
            if asset not in RECORDS:
                found += self._find_damaged_pointers(group, asset)
            index = Index(self.files, f"{group}/{asset}/{INDEX}")
            try:
                read = index.read()
            except StateError as error:
                found.append(str(error))
                continue
            if read is None:
                continue  # rebuilt from the receipts when it is needed
            damaged = self._find_damaged_runs(group, asset, self._check_receipt).values()
            found += [str(error) for error, is_record in damaged if not is_record]
            listed = {PastRun(group, asset, entry).path for entry in read.values()}
            receipts = {path for path, _ in self._receipts(group, asset)}
            found += [f"{self.files.root}/{index.path} lacks the run {path}" for path in sorted(receipts - listed)]
            if asset not in RECORDS:
                missing = {PastRun(group, asset, entry).path for entry in read.values() if entry.is_published} - receipts
                found += [f"{self.files.root}/{index.path} lists the run {path}, whose receipt is missing" for path in sorted(missing)]
        return found

    def find_damaged_records(self) -> list[str]:
        """Find missing and damaged files of deletion logs and of plans whose apply has begun.

        Returns:
            A message for each run. `repair` cannot help, because no run can compute these tables
            again.
        """
        found: list[str] = []
        for group, asset in self._assets():
            if asset in RECORDS:
                found += [f"{self.files.root}/{path}/{RECEIPT} is missing" for path in self._missing_receipts(group, asset)]
            if asset in {*RECORDS, DeletionPlanSummary.TABLE}:
                damaged = self._find_damaged_runs(group, asset, self._check_receipt).values()
                found += [str(error).rpartition(";")[0] for error, is_record in damaged if is_record]
        return found

    def repair(self) -> list[str]:
        """Exclude damaged runs, rebuild indexes, and clear damaged lists of compacted segments.

        This reads the whole state. Only groups directly under the root are repaired. Missing
        indexes are not created. If an index is readable, entries without a receipt are kept,
        because their runs may be in progress.

        The files of a damaged run are kept. Only its receipt is renamed, so that readers ignore the
        run and the next run computes the table again. Deletion records stay unchanged.

        Returns:
            The paths of the changed files.
        """
        changed: list[str] = []
        for group, asset in self._assets():
            if asset in COMPACTED_TABLES and compaction.find_damage(self.files, group, asset):
                compaction.clear_list(self.files, group, asset)
                changed.append(f"{group}/{asset}/{compaction.LIST_FILE}")
            changed += self._set_damaged_runs_aside(group, asset)
            changed += self._repair_index(group, asset)
            if asset not in RECORDS:
                changed += self._remove_wrong_pointers(group, asset)
        return changed

    def _repair_index(self, group: str, asset: str) -> list[str]:
        index = Index(self.files, f"{group}/{asset}/{INDEX}")
        try:
            found = self._from_receipts(group, asset)
        except DamagedRunError:  # a deletion record, see `find_damaged_records`
            return []
        try:
            before = index.read()
        except StateError:
            index.replace(found)
            return [index.path]
        if before is None:
            return []

        def with_receipts(entries: Entries) -> Entries:
            kept = {run_id: entry for run_id, entry in entries.items() if asset in RECORDS or not entry.is_published}
            return {**kept, **self._from_receipts(group, asset)}

        return [index.path] if index.change(with_receipts, dict).entries != before else []

    def _set_damaged_runs_aside(self, group: str, asset: str) -> list[str]:
        changed: list[str] = []
        for path, (error, is_record) in self._find_damaged_runs(group, asset, self._verify_receipt).items():
            if is_record:
                continue
            _log.warning("The damaged run %s is ignored from now on: %s", path, error)
            self.files.replace(f"{path}/{SET_ASIDE}", self.files.read(f"{path}/{RECEIPT}"))
            self.files.delete(f"{path}/{RECEIPT}")
            changed.append(f"{path}/{SET_ASIDE}")
        return changed

    def _remove_wrong_pointers(self, group: str, asset: str) -> list[str]:
        """Remove pointers to runs that are missing, so that the next run computes the table again."""
        changed: list[str] = []
        for partition in self._partitions(group, asset):
            try:
                pointer = self._pointer(partition)
                is_wrong = pointer is not None and self._receipt_sha256(f"{partition}/{pointer[0]}") != pointer[1]
            except StateError:
                is_wrong = True
            if is_wrong:
                self.files.delete(f"{partition}/{CURRENT}")
                changed.append(f"{partition}/{CURRENT}")
        return changed

    def _find_damaged_pointers(self, group: str, asset: str) -> Iterator[str]:
        for partition in self._partitions(group, asset):
            try:
                self._pointer(partition)
            except StateError as error:
                yield str(error)

    def _find_damaged_runs(self, group: str, asset: str, check: Callable[[str, bytes], None]) -> dict[str, tuple[DamagedRunError, bool]]:
        """Find runs with missing or damaged files.

        Args:
            check: Checks the run at a path, given its receipt. Raises `DamagedRunError`.

        Returns:
            For the path of each damaged run, the error, and whether it is a deletion record.
        """
        found: dict[str, tuple[DamagedRunError, bool]] = {}
        published = self._published_receipts(group, asset)
        for path, content in self._receipts(group, asset):
            try:
                self._check_digest(path, content, published.get(path), INDEX)
                check(path, content)
            except DamagedRunError as error:
                found[path] = error, self._is_record(group, asset, content)
            except (StateError, FileNotFoundError):  # written by a newer release, which readers report, or just pruned
                continue
        return found

    def _is_record(self, group: str, asset: str, receipt: bytes) -> bool:
        """Check if a run records deletions. The run of a plan does as soon as its apply has begun."""
        if asset != DeletionPlanSummary.TABLE:
            return asset in RECORDS
        applied = self.files.directories(f"{group}/apply")
        return any(plan_id.encode() in receipt and self.has_apply_log(group, plan_id) for plan_id in applied)

    def has_apply_log(self, group: str, plan_id: str) -> bool:
        """Return True if an apply of the plan has begun, so that its write-ahead log exists.

        An apply that is killed before it writes the log can leave a directory behind.
        """
        return any(item.name == APPLY_LOG for item in self.files.list(f"{group}/apply/{plan_id}"))

    def _missing_receipts(self, group: str, asset: str) -> list[str]:
        return [path for path in sorted(self._published_receipts(group, asset)) if self._receipt_sha256(path) is None]

    def _published_receipts(self, group: str, asset: str) -> dict[str, str]:
        """Return the SHA-256 of the receipt of each published run in the index, by the run's path."""
        try:
            read = Index(self.files, f"{group}/{asset}/{INDEX}").read() or {}
        except StateError:  # see `find_index_errors`
            return {}
        return {PastRun(group, asset, entry).path: entry.receipt_sha256 for entry in read.values() if entry.is_published}

    def _check_receipt(self, path: str, content: bytes) -> None:
        self._check_parts(path, self._parse(path, content))

    def _verify_receipt(self, path: str, content: bytes) -> None:
        self.verify(PublishedTable(path, self._parse(path, content)))

    def _add_receipt(self, run: TableRun, receipt: Receipt) -> tuple[Receipt, IndexContent]:
        """Give a receipt the next sequence number, and add its run to the index.

        The index is replaced conditionally, so concurrent publications get different numbers.
        """
        numbered = receipt

        def make_next(entries: Entries) -> IndexEntry:
            nonlocal numbered
            last = max((entry.sequence_number for entry in entries.values()), default=0)
            numbered = receipt.model_copy(update={"sequence_number": last + 1})
            return make_entry(numbered, hashlib.sha256(_format(numbered)).hexdigest(), is_there=False)

        index = self._add_entry(run, make_next)
        return numbered, index

    def _add_entry(self, run: TableRun, make: Callable[[Entries], IndexEntry], seen: IndexContent | None = None) -> IndexContent:
        """Add or replace the entry of a run, and update entries of runs published since.

        Args:
            make: Makes the entry from the current entries.
        """

        def with_entry(entries: Entries) -> Entries:
            return {**{run_id: self._settle_entry(run, other) for run_id, other in entries.items()}, run.run_id: make(entries)}

        index = Index(self.files, f"{run.group}/{run.asset}/{INDEX}")
        return index.change(with_entry, lambda: self._from_receipts(run.group, run.asset), seen)

    def _settle_entry(self, run: TableRun, other: IndexEntry) -> IndexEntry:
        if other.is_published or other.run_id == run.run_id:
            return other
        path = PastRun(run.group, run.asset, other).path
        return other.model_copy(update={"is_published": self._receipt_sha256(path) == other.receipt_sha256})

    def _create_index(self, index: Index, group: str, asset: str) -> Entries:
        """Create an index that is missing. Without write permission, only return its entries.

        The index may have been lost, or the state may have been written before release 0.3.
        """
        entries = self._from_receipts(group, asset)
        if not entries:
            return entries
        try:
            return index.change(dict, lambda: entries).entries
        except OSError as error:
            if not is_read_only(error):
                raise
            return entries

    def _from_receipts(self, group: str, asset: str) -> Entries:
        found: Entries = {}
        for path, content in self._receipts(group, asset):
            receipt = self._parse(path, content)
            found[receipt.run_id] = make_entry(receipt, hashlib.sha256(content).hexdigest(), is_there=True)
        return found

    def _receipts(self, group: str, asset: str) -> Iterator[tuple[str, bytes]]:
        for partition in self._partitions(group, asset):
            self._date_of(partition)
            for run_id in self.files.directories(partition):
                path = f"{partition}/{run_id}"
                try:
                    yield path, self.files.read(f"{path}/{RECEIPT}")
                except FileNotFoundError:
                    continue  # the run is not finished

    def _assets(self) -> Iterator[tuple[str, str]]:
        for group in self.files.directories(""):
            for asset in self.files.directories(group):
                if any(self._partitions(group, asset)):
                    yield group, asset

    def _partitions(self, group: str, asset: str) -> Iterator[str]:
        """Yield the directories of a table's run dates, relative to the state."""
        base = f"{group}/{asset}"
        yield from (f"{base}/{name}" for name in self.files.directories(base) if name.startswith(_PARTITION))

    def _receipt_sha256(self, path: str) -> str | None:
        try:
            return hashlib.sha256(self.files.read(f"{path}/{RECEIPT}")).hexdigest()
        except FileNotFoundError:
            return None

    def _date_of(self, partition: str) -> date:
        try:
            return date.fromisoformat(partition.rpartition(_PARTITION)[2])
        except ValueError:
            raise StateError(
                f"{self.files.root}/{partition} is not a run date like run_date=2026-01-31; move it out of the state"
            ) from None

    def _pointer(self, partition: str) -> tuple[str, str] | None:
        """Read `current.json` of a partition.

        Returns:
            The id of the current run and the SHA-256 of its receipt, or None if the file is
            missing.
        """
        try:
            pointer = parse_json(self.files.read(f"{partition}/{CURRENT}"))
            return pointer["run_id"], pointer["receipt_sha256"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            address = f"{self.files.root}/{partition}/{CURRENT}"
            raise StateError(f"{address} is damaged ({error}); {describe_next_step(address)}") from error

    def _read(self, path: str, digest: str, named_by: str) -> PublishedTable:
        address = f"{self.files.root}/{path}/{RECEIPT}"
        try:
            content = self.files.read(f"{path}/{RECEIPT}")
        except FileNotFoundError:
            raise StateError(f"{address} is missing: the table is incomplete or was removed; {describe_next_step(address)}") from None
        self._check_digest(path, content, digest, named_by)
        receipt = self._parse(path, content)
        self._check_parts(path, receipt)
        return PublishedTable(path, receipt)

    def _check_digest(self, path: str, receipt: bytes, digest: str | None, named_by: str) -> None:
        if digest is not None and hashlib.sha256(receipt).hexdigest() != digest:
            address = f"{self.files.root}/{path}/{RECEIPT}"
            raise DamagedRunError(f"{address} does not match {named_by}: it was changed after publication; {describe_next_step(address)}")

    def _parse(self, path: str, content: bytes) -> Receipt:
        address = f"{self.files.root}/{path}/{RECEIPT}"
        try:
            document = parse_json(content)
            version = int(document["schema_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRunError(f"{address} is damaged ({error}); {describe_next_step(address)}") from error
        if version > SCHEMA_VERSION:
            raise StateError(
                f"{address} has schema version {version}, this release reads up to {SCHEMA_VERSION}: "
                "it was written by a newer gc-assets; upgrade"
            )
        try:
            return Receipt.model_validate(document)
        except ValidationError as error:
            raise DamagedRunError(
                f"{address} is damaged (wrong or missing: {invalid_keys(error)}); {describe_next_step(address)}"
            ) from error

    def _check_parts(self, path: str, receipt: Receipt, listed: Sequence[FileStat] | None = None) -> None:
        if not receipt.parts:
            return
        stats = listed if listed is not None else self.files.list(path, recursive=any(receipt.side.values()))
        present = {item.name: item.size_bytes for item in stats}
        for part in receipt.parts:
            if present.get(part.name) != part.size_bytes:
                found = f"has {present[part.name]:,} bytes" if part.name in present else "is missing"
                address = f"{self.files.root}/{path}/{part.name}"
                raise DamagedRunError(
                    f"{address} {found}, expected {part.size_bytes:,} bytes: the table is incomplete; {describe_next_step(address)}"
                )

    def _prune_segments(self, group: str, asset: str, keep_days: int) -> list[str]:
        # Readers that started before a segment was replaced may still be using it.
        old = compaction.take_replaced(self.files, group, asset, datetime.now(UTC) - timedelta(days=max(keep_days, 1)))
        for path in old:
            self.files.delete_directory(path)
        return old

    def _used_listings(self, group: str) -> frozenset[str]:
        """Return the ids of runs whose listings other current runs use instead of their own."""
        asset, found = StorageInventorySummary.TABLE, set[str]()
        for day in self.dates(group, asset):
            try:
                current = self.current(group, asset, day)
                earlier = current.summary(StorageInventorySummary).earlier if current is not None else None
            except StateError:  # a damaged run cannot use a listing
                continue
            if earlier is not None:
                found.add(earlier.run_id)
        return frozenset(found)

    def _prune(self, group: str, asset: str, now: float, limit: float, used: Collection[str]) -> list[str]:
        """Delete runs that started before `limit`.

        They are removed from the index first, so that readers do not see partly deleted runs. An
        unpublished run may still be in progress, so it is kept for a day.
        """
        old: list[str] = []
        used = {*used, *(self._used_listings(group) if asset == StorageInventorySummary.TABLE else ())}
        index = Index(self.files, f"{group}/{asset}/{INDEX}")
        entries = index.read()
        published = {run_id for run_id, entry in (entries or {}).items() if entry.is_published}
        for partition in self._partitions(group, asset):
            pointer = self._pointer(partition)
            for run_id in self.files.directories(partition):
                started = _start_time(run_id)
                is_used = run_id in used or (pointer is not None and run_id == pointer[0])
                until = limit if run_id in published else min(limit, now - _LONGEST_RUN.total_seconds())
                if started is not None and started < until and not is_used:
                    old.append(f"{partition}/{run_id}")
        if old and entries is not None:
            removed = {path.rpartition("/")[2] for path in old}

            def without_removed(entries: Entries) -> Entries:
                return {run_id: entry for run_id, entry in entries.items() if run_id not in removed}

            index.change(without_removed, dict)
        for path in old:
            self.files.delete_directory(path)
        return old


def _format(receipt: Receipt) -> bytes:
    return receipt.model_dump_json(indent=1).encode()


def _start_time(run_id: str) -> float | None:
    """Parse the start of a run from its id, in seconds since 1970. Returns None for other names."""
    try:
        return datetime.strptime(run_id.partition("-")[0] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
    except ValueError:
        return None
