"""Read the files of an inventory report, as a task of a listing.

Before the rows of a file are used, it is copied to a temporary file and compared with the manifest
of the report. Rows are read in batches, so that large files do not have to fit into memory.
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

from gc_assets.buckets.identity import build_identities
from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.core.errors import FormatError, StoreError, reason_of
from gc_assets.core.printable import decode_name, is_utf8
from gc_assets.core.urls import is_addressable
from gc_assets.stores.inventories.columns import read_batches, strip_prefix
from gc_assets.stores.inventories.readers import READERS
from gc_assets.stores.inventories.report import DataFile, Manifest
from gc_assets.stores.listing import INVENTORY_SCHEMA, NOT_IN_URLS
from gc_assets.stores.protocol import RESERVED_PREFIX, ListingBatch, Problem, ReportFiles

# Compressed rows are seldom smaller than this, so the size of a file limits its number of rows.
_ROW_BYTES: Final = 8
_ATTEMPTS: Final = 3
_EMPTY: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in INVENTORY_SCHEMA], schema=INVENTORY_SCHEMA)


@dataclass(frozen=True, slots=True)
class ReportTask:
    """A `ListingTask` that reads some files of a report.

    Attributes:
        kind: The kind of the report, which is a key of `READERS`.
        bucket: The bucket that the report lists.
        report_files: Reads the files.
        manifest: The report, without its list of files.
        versions: Whether the bucket has versions.
        files: The files to read.
        is_leftover: Whether an earlier round of the listing postponed the file because of its size.
    """

    kind: str
    bucket: ConditionalBucket
    report_files: ReportFiles
    manifest: Manifest
    versions: bool
    files: tuple[DataFile, ...]
    is_leftover: bool = False

    def run(self, budget: int) -> Iterator[ListingBatch]:
        """Read the files of the report (see `ListingTask.run`).

        Each file is either read completely or postponed to another round.

        If a file is unreadable or differs from the manifest, a problem of kind `unreadable` is
        reported.
        """
        postponed = [file for file in self.files if not self.is_leftover and file.size_bytes > budget * _ROW_BYTES]
        for file in self.files:
            if file not in postponed:
                yield from self._read(file)
        yield ListingBatch(_EMPTY, leftover=tuple(replace(self, files=(file,), is_leftover=True) for file in postponed))

    def _read(self, file: DataFile) -> Iterator[ListingBatch]:
        reader, read = READERS[self.kind], 0
        try:
            with tempfile.NamedTemporaryFile(prefix="gc-assets-report-") as copy:
                _copy_file(self.report_files, file, copy)
                for raw in read_batches(copy.name, self.manifest.file_format, self.manifest.columns, reader.columns):
                    read += raw.num_rows
                    yield self._to_listing_batch(reader.normalize_rows(raw, self.manifest.bucket), raw.num_rows)
            _require_rows(file, read)
        except (OSError, FormatError, StoreError, pa.ArrowException) as error:
            found = f"a file of report {self.manifest.name}: {reason_of(error)}"
            yield ListingBatch(_EMPTY, (Problem(file.address, "unreadable", found),))

    def _to_listing_batch(self, rows: pa.RecordBatch, read: int) -> ListingBatch:
        prefix = self.bucket.prefix.encode()
        latest, markers = rows.column("is_latest"), rows.column("is_marker")
        if self.versions and latest.null_count:
            raise FormatError("a row has no value in is_latest")
        if rows.column("key").null_count:
            raise FormatError("a row has no key")
        is_object = pc.and_(pc.fill_null(latest, True), pc.invert(pc.fill_null(markers, False)))
        own = rows.filter(pc.and_(is_object, pc.starts_with(rows.column("key"), pattern=prefix)))
        keys = strip_prefix(own.column("key"), prefix)
        own = own.set_column(0, "key", keys).filter(pc.invert(pc.starts_with(keys, pattern=RESERVED_PREFIX.encode())))
        own, problems = _split_addressable(own)
        if READERS[self.kind].normalizes_keys:
            own, unnamed = _split_dotted(own)
            problems += unnamed
        for name in ("size_bytes", "last_modified", "etag"):
            if own.column(name).null_count:
                key = own.filter(pc.is_null(own.column(name))).column("key")[0].as_py()
                raise FormatError(f"the row of {key!r} has no {name}, so the object cannot be identified")
        return ListingBatch(self._objects(own), problems, report_rows=read)

    def _objects(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the report to rows of `storage_inventory`."""
        etags = build_identities(rows.column("etag"), rows.column("size_bytes"), rows.column("last_modified"))
        # The version of objects that are older than the bucket's versioning is the string `null`.
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


def _split_addressable(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[Problem, ...]]:
    """Separate rows whose key no address can contain. Each of them is reported as a problem."""
    try:
        is_text = pa.repeat(True, rows.num_rows)
        rows.column("key").cast(pa.string())
    except pa.ArrowInvalid:
        is_text = pa.array(map(is_utf8, rows.column("key").to_pylist()), pa.bool_())
    is_named = pc.not_equal(rows.column("key"), b"")
    problems = [
        Problem(decode_name(key), "not_utf8", "the key is not UTF-8: kept")
        for key in rows.filter(pc.invert(is_text)).column("key").to_pylist()
    ]
    problems += [Problem("", "special", "the key equals the storage's prefix: kept")] * (rows.num_rows - is_named.true_count)
    return rows.filter(pc.and_(is_text, is_named)), tuple(problems)


def _split_dotted(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[Problem, ...]]:
    """Separate keys that no URL can contain. Each of them is reported as a problem."""
    keys = rows.column("key").cast(pa.string())
    dotted = keys.filter(pc.match_substring_regex(keys, pattern=r"(?:^|[/\\])\."))
    unnamed = [key for key in dotted.to_pylist() if not is_addressable(key)]
    kept = rows.filter(pc.invert(pc.is_in(keys, pa.array(unnamed, pa.string()))))
    return kept, tuple(Problem(key, "special", NOT_IN_URLS) for key in unnamed)


def _copy_file(report_files: ReportFiles, file: DataFile, copy: IO[bytes]) -> None:
    """Copy a file of a report to an open local file. If the copy is incomplete, it is retried.

    Raises:
        OSError: If the file cannot be read.
        FormatError: If the file differs from the manifest.
    """
    for attempt in range(_ATTEMPTS):
        copy.seek(0)
        copy.truncate()
        try:
            report_files.copy(file.address, copy)
            copy.flush()
            _require_match(file, copy.name)
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, FormatError):
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            return


def _require_match(file: DataFile, path: str) -> None:
    found = Path(path).stat().st_size
    if found != file.size_bytes:
        raise FormatError(f"it has {found:,} bytes, expected {file.size_bytes:,} from the manifest")
    with Path(path).open("rb") as content:
        md5 = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if file.md5 is not None and md5 != file.md5:
        raise FormatError(f"its MD5 is {md5}, expected {file.md5} from the manifest")


def _require_rows(file: DataFile, read: int) -> None:
    if file.rows is not None and file.rows != read:
        raise FormatError(f"it has {read:,} rows, expected {file.rows:,} from the manifest")
