"""Reads the files of a report as a listing would show its objects.

A file is copied to a temporary one and compared with the manifest before a row of it counts. Its
rows are read in batches, those of ORC a stripe at a time.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError, StoreError
from gc_assets.stores.inventories.columns import batches, without
from gc_assets.stores.inventories.kinds import KINDS
from gc_assets.stores.inventories.report import DataFile, Manifest
from gc_assets.stores.listing import INVENTORY_SCHEMA
from gc_assets.stores.protocol import RESERVED_PREFIX, ListingBatch, Problem, ReportFiles, SourceBucket

# A row of a compressed report is seldom smaller, so a file tells how many rows it has at most.
_ROW_BYTES: Final = 8
_ATTEMPTS: Final = 3
_EMPTY: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in INVENTORY_SCHEMA], schema=INVENTORY_SCHEMA)


@dataclass(frozen=True, slots=True)
class ReportTask:
    """Files of a report of this kind. `versions` says whether the storage has versions. `is_left`
    marks a file that an earlier round left over for its size.
    """

    kind: str
    source_bucket: SourceBucket
    report_files: ReportFiles
    manifest: Manifest
    versions: bool
    files: tuple[DataFile, ...]
    is_left: bool = False

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """Lists as `ListingTask.run` says. A file is read whole, or left over as large as it is. One
        that cannot be read, or is not what the manifest says, is a problem of kind `unreadable`.
        """
        left = [file for file in self.files if not self.is_left and file.size_bytes > budget * _ROW_BYTES]
        for file in self.files:
            if file not in left:
                yield from self._read(file)
        yield ListingBatch(_EMPTY, leftover=tuple(replace(self, files=(file,), is_left=True) for file in left))

    def _read(self, file: DataFile) -> Iterator[ListingBatch]:
        kind, read = KINDS[self.kind].open_reader(), 0
        try:
            with tempfile.NamedTemporaryFile(prefix="gc-assets-report-") as copy:
                _fetch(self.report_files, file, copy)
                for raw in batches(copy.name, self.manifest.file_format, self.manifest.columns, kind.columns):
                    read += raw.num_rows
                    yield self._listed(kind.rows(raw, self.manifest.bucket), raw.num_rows)
            _require_rows(file, read)
        except (OSError, FormatError, StoreError, pa.ArrowException) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            yield ListingBatch(_EMPTY, (Problem(file.address, "unreadable", f"a file of report {self.manifest.name}: {why}"),))

    def _listed(self, rows: pa.RecordBatch, read: int) -> ListingBatch:
        prefix = self.source_bucket.prefix.encode()
        latest, markers = rows.column("is_latest"), rows.column("is_marker")
        if self.versions and latest.null_count:
            raise FormatError("a row does not say whether it is the latest version")
        if rows.column("key").null_count:
            raise FormatError("a row has no key")
        shown = pc.and_(pc.fill_null(latest, True), pc.invert(pc.fill_null(markers, False)))
        mine = rows.filter(pc.and_(shown, pc.starts_with(rows.column("key"), pattern=prefix)))
        keys = without(mine.column("key"), prefix)
        mine = mine.set_column(0, "key", keys).filter(pc.invert(pc.starts_with(keys, pattern=RESERVED_PREFIX.encode())))
        mine, problems = _named(mine)
        for name in ("size_bytes", "last_modified", "etag"):
            if mine.column(name).null_count:
                key = mine.filter(pc.is_null(mine.column(name))).column("key")[0].as_py()
                raise FormatError(f"the row of {key!r} has no {name}, so nobody could tell the object from another")
        return ListingBatch(self._objects(mine), problems, report_rows=read)

    def _objects(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows of `storage_inventory`."""
        etags = self.source_bucket.identities(rows.column("etag"), rows.column("size_bytes"), rows.column("last_modified"))
        # What was written before a bucket had versions has the version `null`.
        versions = pc.fill_null(rows.column("version_id"), "null") if self.versions else pa.nulls(rows.num_rows, pa.string())
        columns = {
            "key": rows.column("key").cast(pa.string()),
            "size_bytes": rows.column("size_bytes"),
            "last_modified": rows.column("last_modified"),
            "etag": etags,
            "version_id": versions,
            "storage_class": rows.column("storage_class"),
            "source": pa.repeat(f"{self.kind}_inventory", rows.num_rows),
        }
        return pa.RecordBatch.from_arrays(
            [columns[name].cast(INVENTORY_SCHEMA.field(name).type) for name in INVENTORY_SCHEMA.names], schema=INVENTORY_SCHEMA
        )


def _named(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[Problem, ...]]:
    """Returns the rows whose keys an address can name. What none can name is kept, and told."""
    try:
        is_text = pa.repeat(True, rows.num_rows)
        rows.column("key").cast(pa.string())
    except pa.ArrowInvalid:
        is_text = pa.array([_is_text(key) for key in rows.column("key").to_pylist()], pa.bool_())
    is_named = pc.not_equal(rows.column("key"), b"")
    problems = [
        Problem(key.decode("utf-8", "backslashreplace"), "not_utf8", "the key is not UTF-8: kept")
        for key in rows.filter(pc.invert(is_text)).column("key").to_pylist()
    ]
    problems += [Problem("", "special", "an object that is named as the storage's own prefix: kept")] * (
        rows.num_rows - is_named.true_count
    )
    return rows.filter(pc.and_(is_text, is_named)), tuple(problems)


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fetch(report_files: ReportFiles, file: DataFile, copy: IO[bytes]) -> None:
    """Copies a file of a report. Tries again where the copy was cut.

    Raises `OSError` where it cannot be read, and `FormatError` where it is not the one that the
    manifest names.
    """
    for attempt in range(_ATTEMPTS):
        copy.seek(0)
        copy.truncate()
        try:
            report_files.copy(file.address, copy)
            copy.flush()
            _compare(file, copy.name)
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, FormatError):
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            return


def _compare(file: DataFile, path: str) -> None:
    found = Path(path).stat().st_size
    if found != file.size_bytes:
        raise FormatError(f"it has {found:,} bytes, the manifest says {file.size_bytes:,}")
    with Path(path).open("rb") as content:
        md5 = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if file.md5 is not None and md5 != file.md5:
        raise FormatError(f"its MD5 is {md5}, the manifest says {file.md5}")


def _require_rows(file: DataFile, read: int) -> None:
    if file.rows is not None and file.rows != read:
        raise FormatError(f"it has {read:,} rows, the manifest says {file.rows:,}")
