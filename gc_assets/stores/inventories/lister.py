"""Finds the newest report about a storage and refuses what must not be believed.

With a refused report the plan of the storage stops: one that is too old or from the future, about
another bucket or other keys, damaged, or without the columns that tell one object from another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa

from gc_assets.config.inventory import InventoryConfig
from gc_assets.config.models import StorageConfig
from gc_assets.core.errors import FormatError, StoreError
from gc_assets.core.findings import OK, WARN, Finding
from gc_assets.core.units import format_bytes, format_duration
from gc_assets.stores.inventories.kinds import KINDS
from gc_assets.stores.inventories.report import Manifest, parse_scan_time
from gc_assets.stores.inventories.task import ReportTask
from gc_assets.stores.protocol import Directory, ListingPlan, Report, ReportFiles, SourceBucket

# Files up to so many bytes together are one task: they are read in less than a second.
ONE_TASK_BYTES: Final = 2**20
# A report from the future by more than this is one of a clock that is wrong.
MAX_SKEW: Final = timedelta(minutes=5)
_CONCURRENT: Final = 16


@dataclass(frozen=True, slots=True)
class ReportLister:
    """`Lister` of a storage from the reports that `config` names."""

    config: InventoryConfig
    source_bucket: SourceBucket
    report_files: ReportFiles

    def plan(
        self, parallelism: int, now: datetime, unchanged: frozenset[str], settled_before: datetime, split_keys: Sequence[str] | None
    ) -> ListingPlan:
        """Plans as the protocol says: a task for each file of the newest finished report."""
        del parallelism, unchanged, settled_before, split_keys
        manifest, _ = self._newest()
        versions = self._require(manifest, now)
        whole = ReportTask(self.config.kind, self.source_bucket, self.report_files, manifest.without_files(), versions, manifest.files)
        tasks = [whole] if manifest.size_bytes <= ONE_TASK_BYTES else [replace(whole, files=(file,)) for file in manifest.files]
        return ListingPlan(tasks, Report(manifest.name, manifest.as_of, manifest.rows))

    def find_unchanged_directories(self, known: Iterable[Directory]) -> frozenset[str]:
        del known
        return frozenset()

    def select_unchanged_objects(self, objects: pa.RecordBatch, unchanged: pa.Array) -> pa.RecordBatch:
        del unchanged
        return objects.slice(0, 0)

    def look_up(self, keys: Sequence[str]) -> list[int | None]:
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            return list(pool.map(self._size_of, keys))

    def _size_of(self, key: str) -> int | None:
        try:
            return self.source_bucket.size_of(key)
        except OSError as error:
            raise StoreError(f"{key!r} is in no report, and cannot be looked up: {error.strerror or error}") from error

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        manifest, unfinished = self._newest()
        if unfinished:
            found = f"{', '.join(unfinished[:3])}: not finished, so an older report counts"
            yield Finding(storage.name, "inventory", WARN, found, "Wait until it is written, or look why it is not.")
        self._require(manifest, now)
        age = format_duration(timedelta(hours=max(0, (now - manifest.as_of) // timedelta(hours=1))))
        told = f"{manifest.name}: scan of {manifest.as_of.isoformat()}, {age} ago, {len(manifest.files):,} files"
        found = f"{told}, {format_bytes(manifest.size_bytes)}; what is younger is no candidate"
        yield Finding(storage.name, "inventory", OK, found)

    @property
    def _location(self) -> str:
        return self.config.location.rstrip("/") + "/"

    def _newest(self) -> tuple[Manifest, list[str]]:
        """Returns the newest finished report, and the folders of newer ones that are not finished.
        Raises `StoreError` where there is none.
        """
        try:
            folders = self.report_files.folders(self._location)
            scans = sorted(((scan, folder) for folder in folders if (scan := parse_scan_time(folder)) is not None), reverse=True)
            unfinished: list[str] = []
            for scan, folder in scans:
                try:
                    return KINDS[self.config.kind].open_reader().manifest(self.report_files, self._location, folder, scan), unfinished
                except FileNotFoundError as error:
                    unfinished.append(str(error.filename))
        except FormatError as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            raise StoreError(f"reports in {self._location} cannot be read: {error.filename}: {error.strerror or error}") from error
        if unfinished:
            raise StoreError(
                f"no report in {self._location} is finished: {unfinished[0]} is missing. Wait for a report, or list the storage"
            )
        raise StoreError(
            f"there is no report in {self._location}: expected folders such as 2026-11-22T01-00Z/. "
            "`inventory.location` ends in the name of the inventory's configuration"
        )

    def _require(self, manifest: Manifest, now: datetime) -> bool:
        """Returns whether the storage has versions. Raises `StoreError` naming the report where it
        must not be believed.
        """
        name, source_bucket, age = manifest.name, self.source_bucket, now - manifest.as_of
        if manifest.bucket != source_bucket.bucket:
            raise StoreError(
                f"report {name} is about the bucket {manifest.bucket!r}, expected {source_bucket.bucket!r}; mend `inventory.location`"
            )
        if not source_bucket.prefix.startswith(manifest.prefixes):
            raise StoreError(
                f"report {name} has the keys that begin with {' or '.join(map(repr, manifest.prefixes))}, and the storage's begin with "
                f"{source_bucket.prefix!r}; let the report cover the storage"
            )
        if age > self.config.max_inventory_age:
            limit = format_duration(self.config.max_inventory_age)
            raise StoreError(
                f"report {name}, the newest that is finished, is of {manifest.as_of.isoformat()}: older than max_inventory_age ({limit}). "
                "Look why no newer one came, raise the limit, or leave `inventory` out to list the storage"
            )
        if age < -MAX_SKEW:
            raise StoreError(f"report {name} is of {manifest.as_of.isoformat()}, and now it is {now.isoformat()}; set the clocks")
        try:
            versions = source_bucket.has_versions()
        except OSError as error:
            raise StoreError(
                f"bucket {source_bucket.bucket}, about which {name} is, cannot be looked at: {error.strerror or error}"
            ) from error
        if versions and not manifest.versions:
            raise StoreError(
                f"report {name} shows no versions, and bucket {source_bucket.bucket} has them. "
                "Let the inventory include all versions (IncludedObjectVersions: All)"
            )
        return versions
