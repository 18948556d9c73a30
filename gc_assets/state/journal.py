"""The collector's own tables below one root: how a table becomes visible, and how the runs of a
table are looked up (design section 5).

A run lies in `<group>/<asset>/run_date=YYYY-MM-DD/<run id>/*.parquet` with `_receipt.json`.
`current.json` names the run id that counts for its date and the receipt's sha256, and is replaced
atomically. `<group>/<asset>/_index.json` lists the runs of all dates.

A run stands in the index before its receipt is there, so the index never lacks a finished run. An
entry without a receipt is a run that died or has not ended; readers pass it over. Receipts are the
truth: an index that is lost is made from them again. Pure bookkeeping over `Files`: no Spark, no
Dagster.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

from pydantic import ValidationError

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state import compaction as folds
from gc_assets.state.backend import ABSENT, FileStat
from gc_assets.state.compaction import COMPACTED_TABLES, MAX_COMPACTIONS, SegmentFile, Segments
from gc_assets.state.files import Files, is_read_only
from gc_assets.state.index import INDEX, Entries, Index, IndexContent, IndexEntry, PastRun, make_entry, partition_path
from gc_assets.state.receipts import PartFile, Receipt, invalid_keys
from gc_assets.state.schemas import SCHEMA_VERSION
from gc_assets.state.summaries import Summary

RECEIPT: Final = "_receipt.json"
CURRENT: Final = "current.json"
_PARTITION: Final = "run_date="
_log = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Summary)


@dataclass(frozen=True, slots=True)
class TableRun:
    """A fresh directory of one asset and run date. It is not visible before `State.publish`. `path`
    is relative to the state.
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
    """A table that readers may use: its directory relative to the state, and its receipt."""

    path: str
    receipt: Receipt

    @property
    def rows(self) -> int:
        return self.receipt.rows

    def paths(self, side: str | None = None) -> list[str]:
        """Return the table's Parquet files, relative to the state."""
        return [f"{self.path}/{part.name}" for part in self.parts(side)]

    def parts(self, side: str | None = None) -> Sequence[PartFile]:
        """Return the table's Parquet files as the receipt names them."""
        return self.receipt.files if side is None else self.receipt.side.get(side, ())

    def summary(self, model: type[_F]) -> _F:
        """Return what the stage found out. Raises `StateError` naming the facts that are missing
        or wrong.
        """
        if self.receipt.asset != model.TABLE:
            raise TypeError(f"{model.__name__} are facts of {model.TABLE}, not of {self.receipt.asset}")
        try:
            return model.model_validate(self.receipt.summary)
        except ValidationError as error:
            raise StateError(
                f"{self.path}/{RECEIPT} is damaged (wrong or missing facts: {invalid_keys(error)}); run its asset again"
            ) from error


@dataclass(frozen=True, slots=True)
class State:
    """The platform's own tables below one root."""

    files: Files

    @classmethod
    def at(cls, root: str) -> State:
        """Return the state at an address that is reached as the environment says."""
        return cls(Files(root))

    @classmethod
    def of(cls, config: Config) -> State:
        """Return the state that a configuration names."""
        return cls(Files(config.state, config.state_s3()))

    def start(self, group: str, asset: str, run_date: date, clock: Clock) -> TableRun:
        """Return a directory that nobody has used. Run ids sort by time."""
        return TableRun(group, asset, run_date, f"{clock.now():%Y%m%dT%H%M%SZ}-{clock.sequence_number():016x}{uuid.uuid4().hex[:4]}")

    def publish(self, run: TableRun, receipt: Receipt, listed: Sequence[FileStat] | None = None) -> PublishedTable:
        """Make the run's table the current one of its date. Whoever has just `listed` all files of
        the run spares a request.

        Raises `StateError` where the completeness counts do not balance or a part is missing.
        Nothing becomes visible then.
        """
        wrong = [
            f"{item.name}: expected {item.expected:,}, found {item.found:,}" for item in receipt.balances if item.expected != item.found
        ]
        if wrong:
            raise StateError(f"{run.group}/{run.asset} of {run.run_date} is not complete and is not published: " + "; ".join(wrong))
        content = receipt.model_dump_json(indent=1).encode()
        self._check_parts(run.path, receipt, listed)
        sha256 = hashlib.sha256(content).hexdigest()
        index = self._add_entry(run, make_entry(receipt, sha256, is_there=False))
        self.files.replace(f"{run.path}/{RECEIPT}", content)
        pointer = json.dumps({"run_id": run.run_id, "receipt_sha256": sha256}).encode()
        is_first = not any(other.run_date == run.run_date for other in index.entries.values() if other.run_id != run.run_id)
        # On a condition, so that a put which the network held back replaces no newer pointer.
        partition = partition_path(run.group, run.asset, run.run_date)
        self.files.change(f"{partition}/{CURRENT}", lambda _: pointer, ABSENT if is_first else None)
        index = self._add_entry(run, make_entry(receipt, sha256, is_there=True), index)
        if run.asset in COMPACTED_TABLES and receipt.parts:
            self._compact(run.group, run.asset, index.entries)
        return PublishedTable(run.path, receipt)

    def _compact(self, group: str, asset: str, entries: Entries) -> None:
        """Folds small runs of a table that consists of many. What is beyond `MOST_FOLDS` waits for the
        next run that has rows.

        Nothing depends on it: where it fails, the log says so and the runs are read one by one.
        """
        import pyarrow as pa  # slow to load, and of no use to a reader

        try:
            runs = self._finished_runs(group, asset, entries)
            for _ in range(MAX_COMPACTIONS):
                there = folds.read_list(self.files, group, asset)
                # Another process may have published and folded since.
                runs = self.history(group, asset) if there.has_other_runs(runs) else runs
                if folds.compact(self.files, runs, there) is None:
                    break
        except (StateError, OSError, ValueError, pa.ArrowException) as error:  # ValueError: a damaged name is no UTF-8
            _log.warning("%s/%s: its small runs stay apart: %s", group, asset, error)

    def current(self, group: str, asset: str, run_date: date) -> PublishedTable | None:
        """Return the table of a run date, verified against its receipt, or None where that date
        was never published.

        Raises `StateError` naming what is missing, half written or of a newer schema version.
        """
        partition = partition_path(group, asset, run_date)
        pointer = self._pointer(partition)
        return self._read(f"{partition}/{pointer[0]}", pointer[1], CURRENT) if pointer is not None else None

    def require(self, group: str, asset: str, run_date: date) -> PublishedTable:
        """Return the same as `current`. A date that was never published raises `StateError`, which
        says what to run.
        """
        found = self.current(group, asset, run_date)
        if found is None:
            raise StateError(
                f"{group}/{asset} has no table for {run_date}; run `gc-assets run --run-date {run_date} --through {asset}` first"
            )
        return found

    def history(self, group: str, asset: str) -> tuple[PastRun, ...]:
        """Return every finished run of every date, current or not, from one read of the index.
        Runs are ordered by date, and within a date as they began.

        Raises `StateError` where the index is damaged.
        """
        index = Index(self.files, f"{group}/{asset}/{INDEX}")
        found = index.read()
        return self._finished_runs(group, asset, found if found is not None else self._create_index(index, group, asset))

    def _finished_runs(self, group: str, asset: str, entries: Entries) -> tuple[PastRun, ...]:
        runs = (PastRun(group, asset, entry) for entry in entries.values())
        finished = (run for run in runs if run.entry.is_published or self._receipt_sha256(run.path) == run.entry.receipt_sha256)
        return tuple(sorted(finished, key=lambda run: (run.run_date, run.run_id)))

    def segments(self, runs: Sequence[PastRun]) -> Segments:
        """Return the files that hold the rows of these runs of one table and of their side tables.
        Many small runs lie in few files (`state.folds`).
        """
        return folds.find_segments(self.files, runs)

    def segment_files(self, runs: Sequence[PastRun], side: str | None = None) -> list[SegmentFile]:
        """Return the sources of `pieces`."""
        return self.segments(runs).files(side)

    def paths(self, runs: Sequence[PastRun], side: str | None = None) -> list[str]:
        """Return the paths of `pieces`."""
        return self.segments(runs).paths(side)

    def open(self, run: PastRun) -> PublishedTable:
        """Return the run's table. Its receipt is verified against the index."""
        return self._read(run.path, run.entry.receipt_sha256, INDEX)

    def runs(self, group: str, asset: str) -> Iterator[PublishedTable]:
        """Open every finished run, with a few requests for each. `history` describes all runs in
        one request.
        """
        return map(self.open, self.history(group, asset))

    def dates(self, group: str, asset: str) -> list[date]:
        """Return the run dates that have a finished run, oldest first."""
        return sorted({run.run_date for run in self.history(group, asset)})

    def latest(self, group: str, asset: str, before: date | None = None) -> PublishedTable | None:
        """Return the table of the newest run date (strictly before `before`, if given), or None."""
        for day in reversed(self.dates(group, asset)):
            if before is None or day < before:
                found = self.current(group, asset, day)
                if found is not None:
                    return found
        return None

    def verify(self, table: PublishedTable) -> None:
        """Check that the bytes of every part are those that were written. It reads all of them, so
        it is for tables that decide what is deleted.

        Raises `StateError` naming the part that is missing or holds other bytes.
        """
        self._check_parts(table.path, table.receipt)
        for part in table.receipt.parts:
            found = hashlib.sha256(self.files.read(f"{table.path}/{part.name}")).hexdigest()
            if found != part.sha256:
                raise StateError(
                    f"{self.files.root}/{table.path}/{part.name} holds other bytes than were written "
                    f"(sha256 {found}, expected {part.sha256}); run its asset again"
                )

    def prune(self, keep_days: int, clock: Clock, protected: Sequence[str] = ()) -> list[str]:
        """Remove run directories that are not current and older than `keep_days`, and folds that
        were replaced before that. Returns their paths.

        The assets in `protected` are left alone: the old runs of append-only tables are their
        content. Only groups directly below the root are visited, so no re-check is.
        """
        removed: list[str] = []
        limit = clock.now().timestamp() - timedelta(days=keep_days).total_seconds()
        for group in self.files.directories(""):
            for asset in self.files.directories(group):
                if asset not in {*protected, *COMPACTED_TABLES}:
                    removed += self._prune(group, asset, limit)
                if asset in COMPACTED_TABLES:
                    removed += self._prune_segments(group, asset, keep_days)
        return removed

    def find_index_errors(self) -> list[str]:
        """Return one sentence for each run with a receipt that the index of its asset lacks, for
        each finished run of an index whose receipt is gone, and for each file of a fold that is.

        Reads every receipt. A damaged index is one sentence. A missing index is none: the next
        reader makes it.
        """
        found: list[str] = []
        for group, asset in self._assets():
            if asset in COMPACTED_TABLES:
                found += folds.find_damage(self.files, group, asset)
            index = Index(self.files, f"{group}/{asset}/{INDEX}")
            try:
                read = index.read()
            except StateError as error:
                found.append(str(error))
                continue
            if read is None:
                continue  # made from the receipts when it is needed
            there = {PastRun(group, asset, entry).path for entry in read.values()}
            receipts = {path for path, _ in self._receipts(group, asset)}
            gone = {PastRun(group, asset, entry).path for entry in read.values() if entry.is_published} - receipts
            found += [f"{self.files.root}/{index.path} lacks the run {path}" for path in sorted(receipts - there)]
            found += [f"{self.files.root}/{index.path} names the run {path}, whose receipt is gone" for path in sorted(gone)]
        return found

    def repair(self) -> list[str]:
        """Make the indexes that exist again from the receipts, and empties lists of folds whose
        files are gone. Returns the paths of what this changed. Only groups directly below the root
        are visited, so no re-check is.

        Entries that wait for their receipt are kept where the index can be read: their runs may be
        about to publish.
        """
        changed: list[str] = []
        for group, asset in self._assets():
            if asset in COMPACTED_TABLES and folds.find_damage(self.files, group, asset):
                folds.clear_list(self.files, group, asset)
                changed.append(f"{group}/{asset}/{folds.LIST_FILE}")
            index = Index(self.files, f"{group}/{asset}/{INDEX}")
            try:
                read = index.read()
            except StateError:
                index.replace(self._from_receipts(group, asset))
                changed.append(index.path)
                continue
            if read is None:
                continue
            before = read

            def with_receipts(entries: Entries, group: str = group, asset: str = asset) -> Entries:
                waiting = {run_id: entry for run_id, entry in entries.items() if not entry.is_published}
                return {**waiting, **self._from_receipts(group, asset)}

            if index.change(with_receipts, dict).entries != before:
                changed.append(index.path)
        return changed

    def _add_entry(self, run: TableRun, entry: IndexEntry, seen: IndexContent | None = None) -> IndexContent:
        """Add or replaces the entry of a run. It also notes which other waiting runs have been
        published meanwhile.
        """

        def entered(entries: Entries) -> Entries:
            return {**{run_id: self._settle_entry(run, other) for run_id, other in entries.items()}, entry.run_id: entry}

        index = Index(self.files, f"{run.group}/{run.asset}/{INDEX}")
        return index.change(entered, lambda: self._from_receipts(run.group, run.asset), seen)

    def _settle_entry(self, run: TableRun, other: IndexEntry) -> IndexEntry:
        if other.is_published or other.run_id == run.run_id:
            return other
        path = PastRun(run.group, run.asset, other).path
        return other.model_copy(update={"is_published": self._receipt_sha256(path) == other.receipt_sha256})

    def _create_index(self, index: Index, group: str, asset: str) -> Entries:
        """Return the entries of a state that a release before 0.3 wrote, or that lost its index.
        They are kept as the index where this process may write.
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
        base = f"{group}/{asset}"
        for partition in self.files.directories(base):
            if partition.startswith(_PARTITION):
                self._date_of(f"{base}/{partition}")
                for run_id in self.files.directories(f"{base}/{partition}"):
                    path = f"{base}/{partition}/{run_id}"
                    try:
                        yield path, self.files.read(f"{path}/{RECEIPT}")
                    except FileNotFoundError:
                        continue  # it never finished

    def _assets(self) -> Iterator[tuple[str, str]]:
        for group in self.files.directories(""):
            for asset in self.files.directories(group):
                if any(name.startswith(_PARTITION) for name in self.files.directories(f"{group}/{asset}")):
                    yield group, asset

    def _receipt_sha256(self, path: str) -> str | None:
        try:
            return hashlib.sha256(self.files.read(f"{path}/{RECEIPT}")).hexdigest()
        except FileNotFoundError:
            return None

    def _date_of(self, partition: str) -> date:
        try:
            return date.fromisoformat(partition.rpartition(_PARTITION)[2])
        except ValueError:
            raise StateError(f"{self.files.root}/{partition} is no run date like run_date=2026-01-31; move it out of the state") from None

    def _pointer(self, partition: str) -> tuple[str, str] | None:
        """Return the current run id of a partition and the sha256 of its receipt, or None where
        nothing was ever published.
        """
        try:
            pointer = parse_json(self.files.read(f"{partition}/{CURRENT}"))
            return pointer["run_id"], pointer["receipt_sha256"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            asset, _, day = partition.rpartition(f"/{_PARTITION}")
            raise StateError(
                f"{self.files.root}/{partition}/{CURRENT} is damaged ({error}); delete it and run {asset.rpartition('/')[2]} of {day} again"
            ) from error

    def _read(self, path: str, digest: str, named_by: str) -> PublishedTable:
        where = f"{self.files.root}/{path}/{RECEIPT}"
        try:
            content = self.files.read(f"{path}/{RECEIPT}")
        except FileNotFoundError:
            raise StateError(f"{where} is missing: the table is half written or was removed; run its asset again") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise StateError(f"{where} is not the receipt that {named_by} names: it was changed after publication; run its asset again")
        receipt = self._parse(path, content)
        self._check_parts(path, receipt)
        return PublishedTable(path, receipt)

    def _parse(self, path: str, content: bytes) -> Receipt:
        where = f"{self.files.root}/{path}/{RECEIPT}"
        try:
            document = parse_json(content)
            version = int(document["schema_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{where} is damaged ({error}); run its asset again") from error
        if version > SCHEMA_VERSION:
            raise StateError(
                f"{where} has schema version {version}, this release reads up to {SCHEMA_VERSION}: "
                "it was written by a newer gc-assets; upgrade"
            )
        try:
            return Receipt.model_validate(document)
        except ValidationError as error:
            raise StateError(f"{where} is damaged (wrong or missing: {invalid_keys(error)}); run its asset again") from error

    def _check_parts(self, path: str, receipt: Receipt, listed: Sequence[FileStat] | None = None) -> None:
        if not receipt.parts:
            return
        stats = listed if listed is not None else self.files.list(path, recursive=any(receipt.side.values()))
        present = {item.name: item.size_bytes for item in stats}
        for part in receipt.parts:
            if present.get(part.name) != part.size_bytes:
                found = f"has {present[part.name]:,} bytes" if part.name in present else "is missing"
                raise StateError(
                    f"{self.files.root}/{path}/{part.name} {found}, its receipt says {part.size_bytes:,} bytes: "
                    "the table is half there; run its asset again"
                )

    def _prune_segments(self, group: str, asset: str, keep_days: int) -> list[str]:
        # A job that began before a fold was replaced may read it still, whatever the user keeps.
        old = folds.take_replaced(self.files, group, asset, datetime.now(UTC) - timedelta(days=max(keep_days, 1)))
        for path in old:
            self.files.delete_directory(path)
        return old

    def _prune(self, group: str, asset: str, limit: float) -> list[str]:
        """Remove the runs from the index before it removes their directories, so that a half
        removed run is in nobody's way.
        """
        old: list[str] = []
        for partition in self.files.directories(f"{group}/{asset}"):
            path = f"{group}/{asset}/{partition}"
            if partition.startswith(_PARTITION):
                pointer = self._pointer(path)
                for run_id in self.files.directories(path):
                    started = _start_time(run_id)
                    if started is not None and started < limit and (pointer is None or run_id != pointer[0]):
                        old.append(f"{path}/{run_id}")
        index = Index(self.files, f"{group}/{asset}/{INDEX}")
        if old and index.read() is not None:
            gone = {path.rpartition("/")[2] for path in old}

            def kept(entries: Entries) -> Entries:
                return {run_id: entry for run_id, entry in entries.items() if run_id not in gone}

            index.change(kept, dict)
        for path in old:
            self.files.delete_directory(path)
        return old


def _start_time(run_id: str) -> float | None:
    """Return when a run began, in seconds since 1970, or None for a directory that no run of ours
    made.
    """
    try:
        return datetime.strptime(run_id.partition("-")[0] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
    except ValueError:
        return None
