"""Find the newest inventory report of a storage, and make sure that it is usable.

A report is skipped if it is not finished, has failed, or has a damaged manifest. Because several
rules can write to one location, a report is also skipped if it lists another bucket or only a part
of the storage. Of the remaining reports, only the newest is considered. It is rejected if it is too
old or dated in the future. Without a usable report, no plan is made for the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.config.models import InventoryConfig, StorageConfig
from gc_assets.core.errors import FormatError, StoreError
from gc_assets.core.findings import OK, WARN, Finding
from gc_assets.core.units import count_of, format_bytes, format_duration
from gc_assets.stores.inventories.completeness import describe_partial, sample_old_objects
from gc_assets.stores.inventories.readers import READERS
from gc_assets.stores.inventories.report import Manifest, OtherBucket, ReportMismatch, require_own_bucket
from gc_assets.stores.inventories.task import ReportTask
from gc_assets.stores.protocol import RESERVED_PREFIX, Directory, ListingPlan, Report, ReportFiles

# Smaller reports are read by a single task, in less than a second.
ONE_TASK_BYTES: Final = 2**20
# If a report is dated further in the future, a clock is wrong.
MAX_SKEW: Final = timedelta(minutes=5)
# `doctor` compares reports up to this size with the storage, which takes a few seconds.
MAX_COMPARED_BYTES: Final = 64 * 2**20
_WAY_OUT: Final = "Wait for another report, or remove `inventory` to list the storage"
_FOLDERS: Final = "folders such as 2026-11-22T01-00Z/. `inventory.location` must end in the name of the inventory configuration"
_EXPECTED: Final = {
    "s3": _FOLDERS,
    "plain": _FOLDERS,
    "azure": "folders such as 2026/11/22/01-00-00/RULE/. `inventory.location` must be the container of the reports",
    "gcs": "files such as ID_2026-11-22T01:00_manifest.json. `inventory.location` must be the folder of the report configuration",
}


@dataclass(frozen=True, slots=True)
class ReportLister:
    """A `Lister` that reads inventory reports instead of listing the storage."""

    config: InventoryConfig
    bucket: ConditionalBucket
    report_files: ReportFiles

    def plan(
        self, parallelism: int, now: datetime, unchanged: frozenset[str], settled_before: datetime, split_keys: Sequence[str] | None
    ) -> ListingPlan:
        """Plan to read the newest usable report, with one task for each of its files."""
        del parallelism, unchanged, settled_before, split_keys
        versions = self._has_versions()
        manifest, _ = self._read_newest(now, versions)
        self._require_current(manifest, now)
        task = ReportTask(self.config.kind, self.bucket, self.report_files, manifest.without_files(), versions, manifest.files)
        tasks = [task] if manifest.size_bytes <= ONE_TASK_BYTES else [replace(task, files=(file,)) for file in manifest.files]
        return ListingPlan(tasks, Report(manifest.name, manifest.as_of, manifest.rows))

    def find_unchanged_directories(self, directories: Iterable[Directory]) -> frozenset[str]:
        del directories
        return frozenset()

    def examine(self, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
        manifest, skipped = self._read_newest(now, self._has_versions())
        if skipped:
            found = f"an older report is used, because newer ones are unfinished or damaged: {'; '.join(skipped[:3])}"
            yield Finding(storage.name, "inventory", WARN, found, "Wait until a report is complete, or check why it is not.")
        self._require_current(manifest, now)
        age = format_duration(timedelta(hours=max(0, (now - manifest.as_of) // timedelta(hours=1))))
        summary = f"{manifest.name}: scan of {manifest.as_of.isoformat()}, {age} ago, {len(manifest.files):,} files"
        found = f"{summary}, {format_bytes(manifest.size_bytes)}{self._compare(manifest)}; younger files are not candidates"
        yield Finding(storage.name, "inventory", OK, found)

    def _compare(self, manifest: Manifest) -> str:
        """Compare a report with a few old objects of the storage, and describe the result.

        Raises:
            StoreError: If the report is damaged, or does not contain one of these objects.
        """
        if manifest.size_bytes > MAX_COMPARED_BYTES:
            return ", not compared with the storage because of its size (a run compares it with the live files)"
        sample = sample_old_objects(self.bucket, manifest.as_of)
        lacking, keys = dict(sample), pa.array(sample, pa.string())
        task = ReportTask(self.config.kind, self.bucket, self.report_files, manifest, self._has_versions(), manifest.files)
        for batch in task.run(MAX_COMPARED_BYTES) if sample else ():  # this budget postpones no file
            for problem in batch.problems:
                if problem.is_incomplete:
                    raise StoreError(f"{problem.key}: {problem.detail}")
            listed = batch.objects.column("key")
            for key in listed.filter(pc.is_in(listed, keys)).to_pylist():
                lacking.pop(key, None)
            if not lacking:
                break
        for key, modified in lacking.items():
            raise StoreError(describe_partial(manifest.name, manifest.as_of, self.bucket.address(key), modified))
        return f", contains {count_of(len(sample), 'old object')} of the storage that were looked for" if sample else ""

    @property
    def _location(self) -> str:
        return self.config.location.rstrip("/") + "/"

    def _has_versions(self) -> bool:
        try:
            return self.bucket.versioning("read").has_versions
        except OSError as error:
            raise StoreError(f"cannot read the versioning of bucket {self.bucket.name}: {error.strerror or error}") from error

    def _read_newest(self, now: datetime, versions: bool) -> tuple[Manifest, list[str]]:
        """Find the newest usable report that lists the whole storage.

        Only reports within `max_inventory_age` are searched, unless the newest one is older.

        Args:
            now: The current time.
            versions: Whether the bucket has versions.

        Returns:
            The manifest of the report, and the reasons why newer reports are not used.

        Raises:
            StoreError: If there is no usable report, or if it cannot be read.
        """
        reader, unfinished, unusable = READERS[self.config.kind], list[str](), list[FormatError]()
        oldest = now - self.config.max_inventory_age
        try:
            for found in sorted(reader.find_reports(self.report_files, self._location), reverse=True):
                if unusable and found.scan < oldest:
                    break
                try:
                    manifest = reader.read_manifest(self.report_files, self._location, found, self.bucket.name)
                    self._require_match(manifest, versions)
                except FileNotFoundError as error:
                    unfinished.append(str(error.filename))
                except FormatError as error:
                    unusable.append(error)
                else:
                    damaged = [str(error) for error in unusable if not isinstance(error, ReportMismatch)]
                    return manifest, [*(f"{name}: not finished" for name in unfinished), *damaged]
        except OSError as error:
            raise StoreError(f"reports in {self._location} cannot be read: {error.filename}: {error.strerror or error}") from error
        if unusable:
            reason = min(unusable, key=lambda error: isinstance(error, OtherBucket))
            others = f". No other report since {oldest.isoformat()} covers the storage" if len(unusable) > 1 else ""
            missing = f". Another report is not finished: {unfinished[0]} is missing" if unfinished else ""
            raise StoreError(f"{reason}{others}{missing}. {_WAY_OUT}")
        if unfinished:
            raise StoreError(f"no report in {self._location} is finished: {unfinished[0]} is missing. {_WAY_OUT}")
        raise StoreError(f"there is no report in {self._location}: expected {_EXPECTED[self.config.kind]}")

    def _require_match(self, manifest: Manifest, versions: bool) -> None:
        """Check that a report lists the whole storage.

        Raises:
            ReportMismatch: If the report does not list the whole storage.
        """
        name, bucket = manifest.name, self.bucket
        require_own_bucket(manifest.bucket, bucket.name, name)
        if not bucket.prefix.startswith(manifest.prefixes):
            raise ReportMismatch(
                f"report {name} lists keys that begin with {' or '.join(map(repr, manifest.prefixes))}, but the storage has the prefix "
                f"{bucket.prefix!r}; extend the report to the storage"
            )
        for excluded in manifest.excluded:
            if bucket.prefix.startswith(excluded) or self._is_listed(excluded):
                raise ReportMismatch(
                    f"report {name} excludes keys that begin with {excluded!r}, but the storage has the prefix {bucket.prefix!r}; "
                    "include them in the report"
                )
        if versions and not manifest.versions:
            raise ReportMismatch(
                f"report {name} lists no versions, but bucket {bucket.name} has versions. "
                "Include all versions in the inventory (IncludedObjectVersions: All)"
            )

    def _is_listed(self, prefix: str) -> bool:
        """Return True if all keys with a prefix are in the storage, outside its reserved directory."""
        return prefix.startswith(self.bucket.prefix) and not prefix.startswith(f"{self.bucket.prefix}{RESERVED_PREFIX}")

    def _require_current(self, manifest: Manifest, now: datetime) -> None:
        """Check the time at which the scan for a report started.

        Raises:
            StoreError: If the report is too old or from the future.
        """
        name, age = manifest.name, now - manifest.as_of
        if age > self.config.max_inventory_age:
            limit = format_duration(self.config.max_inventory_age)
            raise StoreError(
                f"report {name}, the newest finished one, is from {manifest.as_of.isoformat()}: older than max_inventory_age ({limit}). "
                "Check why there is no newer report, raise the limit, or remove `inventory` to list the storage"
            )
        if age < -MAX_SKEW:
            raise StoreError(f"report {name} is from {manifest.as_of.isoformat()}, but now is {now.isoformat()}; set the clocks")
