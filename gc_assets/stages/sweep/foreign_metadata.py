"""Detect metadata of unconfigured tables and repositories in claimed prefixes.

Such metadata is a sign of an unconfigured catalog, whose live files would look unreferenced.
Objects whose names look like metadata are called suspects.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import find_table_prefix
from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.commands import command
from gc_assets.core.dropped_tables import MAX_LEAD
from gc_assets.core.errors import FormatError, GcError, StoreError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.core.printable import show
from gc_assets.engine.tables import map_arrow
from gc_assets.lakes.kind import MetadataPattern, TableIdentity
from gc_assets.lakes.kinds import KINDS
from gc_assets.lakes.lineage import NO_LINEAGE, Lineage
from gc_assets.lakes.other_formats import OTHER_FORMATS
from gc_assets.stages.records.dead_tables import DeadTable, describe_unlisted, read_table_id
from gc_assets.stages.sweep.known_tables import KnownTable

# Formats without a lake kind whose tables have their own catalog. They are only recognized by name.
OTHERS: Final = MetadataPattern("|".join(item.sign.replace("?P<root>", "?:") for item in OTHER_FORMATS if item.is_table))
FOREIGN: Final = pa.schema(
    [
        ("key", pa.string()),
        ("reason", pa.string()),
        ("is_junk", pa.bool_()),
        ("lake", pa.string()),
        ("table_uuid", pa.string()),
        ("last_modified", pa.timestamp("us", tz="UTC")),
        ("previous", pa.string()),
        ("previous_ms", pa.int64()),
        ("in_own_location", pa.bool_()),
        ("head", pa.string()),
        ("parent", pa.string()),
        ("parent_ms", pa.int64()),
        ("external", pa.list_(pa.string())),
        ("is_former_view", pa.bool_()),
        ("prefixes", pa.list_(pa.struct([("storage", pa.string()), ("prefix", pa.string())]))),
        ("is_newer", pa.bool_()),
        ("claimed_by", pa.string()),
    ]
)
# Largest number of rows with a reason that one task yields for each lake, and as many again for each
# table that is newer than in its catalog. Further rows are only yielded if they are in another
# directory or have other prefixes.
MAX_REASONS: Final = 1_000
# Columns that are copied from the suspect.
_OF_SUSPECT: Final = ("key", "lake", "last_modified", "claimed_by")
# No object has this name. If a pattern of `protect` matches it in a directory, it matches any name
# there.
_ANY_NAME: Final = "3f1c9a7e5b"


def foreign_metadata(suspects: DataFrame, classifier: MetadataClassifier) -> DataFrame:
    """Find suspects that are metadata of unconfigured tables, with reasons (rows of `FOREIGN`).

    Rows without a reason are metadata of former views or known tables. For known tables, they
    contain the lineage, which `metadata_lineage.py` needs to decide whether another catalog wrote
    the file. `prefixes` are the prefixes under which the table may have files: around the metadata,
    in its locations and around its manifest lists. `claimed_by` is the UUID of the table whose
    claim contains the file, if any.

    `is_junk` marks files that have names of metadata but cannot be read as metadata, one per
    directory. In the classifier's `own_directories`, a fragment of a metadata file is skipped,
    because it is left over from a failed write.

    If a metadata file contains a newer snapshot than the configured catalogs (`is_newer`), the
    catalog is a copy, or its writers have moved to another catalog. While the table is in use, this
    only applies to old metadata, because young metadata may belong to a commit in progress.

    Args:
        suspects: Objects whose names match `suspect_pattern`, with the columns key, last_modified,
            is_old, lake and table_uuid.
    """
    columns = "key", "last_modified", "is_old", "lake", F.col("table_uuid").alias("claimed_by")
    return map_arrow(suspects.select(*columns), classifier, FOREIGN)


def metadata_patterns() -> tuple[MetadataPattern, ...]:
    """Return the metadata patterns of all lake kinds.

    If several patterns match a key, the first one applies.
    """
    return (*(pattern for kind in KINDS.values() for pattern in kind.files.metadata_patterns), OTHERS)


def suspect_pattern() -> str:
    """Return a regular expression that matches metadata keys of all kinds."""
    return "|".join(pattern.names for pattern in metadata_patterns())


class StoragePrefix(NamedTuple):
    """A prefix in a storage under which a table may have files."""

    storage: str
    prefix: str


class _Finding(NamedTuple):
    """The result for a suspect: the columns of `FOREIGN` that are not in its inventory row."""

    reason: str | None
    is_junk: bool = False
    table_uuid: str | None = None
    previous: str | None = None
    previous_ms: int | None = None
    in_own_location: bool = False
    head: str | None = None
    parent: str | None = None
    parent_ms: int | None = None
    external: list[str] | None = None
    is_former_view: bool = False
    prefixes: frozenset[StoragePrefix] = frozenset()
    is_newer: bool = False

    def as_row(self) -> dict[str, Any]:
        return {**self._asdict(), "prefixes": [prefix._asdict() for prefix in sorted(self.prefixes)]}


@dataclass(frozen=True)
class MetadataClassifier:
    """Decides which suspects are metadata of unconfigured tables (`foreign_metadata`).

    Attributes:
        known_tables: The tables of the configured catalogs, by table UUID.
        dead: Tables that users accepted as dead. They are not foreign at the accepted location,
            unless they were written to afterwards.
        own_directories: Directories with the live metadata of tables that this run read, each with
            its lake's setting `collects_failed_creations`. If the setting is True, the first
            metadata of an unknown table without snapshots is garbage. If it is False, the reason
            mentions the setting.
        protected: Regular expression for protected keys, or None. Metadata is not foreign if all
            files in the locations of its table are protected.
        settled: Time before which `known_tables` contains all commits. Younger metadata may belong
            to a commit in progress, so its rows only contain the history before this time.
        former_views: When runs first did not find views that their catalogs no longer list, by
            UUID. Their earlier metadata is not foreign, unless a user accepted it as dead.
    """

    storage_name: str
    resolver: KeyResolver
    objects: Objects
    known_tables: Mapping[str, KnownTable]
    metadata_patterns: tuple[MetadataPattern, ...]
    dead: tuple[DeadTable, ...] = ()
    own_directories: Mapping[str, bool | None] = field(default_factory=dict[str, bool | None])
    protected: str | None = None
    settled: datetime | None = None
    former_views: Mapping[str, datetime] = field(default_factory=dict[str, datetime])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        directories_with_junk, reasons = set[str](), Counter[tuple[str | None, str | None]]()
        prefixes = defaultdict[tuple[str | None, str | None], set[StoragePrefix]](set)
        for batch in batches:
            rows = list[dict[str, Any]]()
            for row in batch.to_pylist():
                key, modified = row["key"], row["last_modified"]
                found = self._classify(key, modified, is_old=row["is_old"])
                if found is None or (found.is_junk and directory_of(key) in directories_with_junk):
                    continue
                if found.is_junk:
                    directories_with_junk.add(directory_of(key))
                if found.reason is not None:
                    group = row["lake"], found.table_uuid
                    reasons[group] += 1
                    places = found.prefixes | {StoragePrefix(self.storage_name, f"{directory_of(key)}/")}
                    if reasons[group] > MAX_REASONS and places <= prefixes[group]:
                        continue
                    prefixes[group] |= places
                rows.append({name: row.get(name) for name in _OF_SUSPECT} | found.as_row())
            yield pa.RecordBatch.from_pylist(rows, FOREIGN)

    def _classify(self, key: str, modified: datetime, *, is_old: bool) -> _Finding | None:
        pattern = next(pattern for pattern in self.metadata_patterns if re.search(pattern.names, key))
        if pattern.classify is None:
            return self._as_repository(key, _find_root(pattern, key), "metadata of a repository or table of another kind")
        place = find_table_prefix(key)
        try:
            raw = self._read(key)
        except FileNotFoundError:
            return None
        except (OSError, GcError) as error:
            return self._as_junk(key, place, f"{pattern.noun} that cannot be read ({error})")
        try:
            found = pattern.classify(raw)
        except Exception as error:  # noqa: BLE001 - any other program may have written this object
            if directory_of(key) in self.own_directories and pattern.is_fragment is not None and pattern.is_fragment(raw):
                return None
            reason = f"{pattern.noun} that cannot be read ({error if isinstance(error, GcError) else repr(error)})"
            return self._as_junk(key, place, reason)
        if isinstance(found, TableIdentity):
            if self._is_former_view(key, found):
                return _Finding(None, table_uuid=found.uuid, is_former_view=True)
            if self._is_protected(key, [place, *self._own_prefixes(found)]):
                return None
            finding = self._check_known(key, modified, found, is_old=is_old)
            return None if finding is None else finding._replace(prefixes=self._find_prefixes(place, found.lineage))
        return None if found is None else self._as_repository(key, _find_root(pattern, key), found)

    def _is_former_view(self, key: str, found: TableIdentity) -> bool:
        missed_at = self.former_views.get(found.uuid)
        if missed_at is None or found.newest is None or found.newest > missed_at.timestamp() * 1000:
            return False
        return self._find_record(key, found.uuid) is None

    def _as_junk(self, key: str, place: str, reason: str) -> _Finding | None:
        return None if self._is_protected(key, [place]) else _Finding(reason, is_junk=True, prefixes=self._find_prefixes(place))

    def _as_repository(self, key: str, root: str, reason: str) -> _Finding | None:
        return None if self._is_protected(key, [root]) else _Finding(reason, prefixes=self._find_prefixes(root))

    def _is_protected(self, key: str, places: Sequence[str | None]) -> bool:
        """Return True if `protect` matches the key and all files in the directories `places`.

        None represents a directory in another storage, to which `protect` does not apply.
        """
        if self.protected is None or re.search(self.protected, key) is None:
            return False
        names = ("", f"{_ANY_NAME}/", "data/", "metadata/")
        inside = [None if place is None else f"{place}{name}{_ANY_NAME}" for place in places for name in names]
        return all(item is not None and re.search(self.protected, item) is not None for item in inside)

    def _own_prefixes(self, found: TableIdentity) -> list[str | None]:
        """Return the table's directories in this storage, and None for each one in another."""
        resolved = [self.resolver.locate_one(f"{address.rstrip('/')}/") for address in found.lineage.locations]
        return [key if name == self.storage_name else None for name, key in (item for item in resolved if item is not None)]

    def _check_known(self, key: str, modified: datetime, found: TableIdentity, *, is_old: bool) -> _Finding | None:
        known = self.known_tables.get(found.uuid)
        written_ms = self._find_written_ms(modified, found)
        # If a dropped table has newer metadata than the last known file, a program wrote it that
        # may still use the table.
        if known is None or (known.dropped and found.newest is not None and found.newest > known.newest):
            reason = self._check_unknown(key, written_ms, found)
            return None if reason is None else _Finding(reason)
        name = f"{found.noun} {show(found.uuid)}"
        if found.newest is None:
            return _Finding(f"metadata of {name} in a format version that gc-assets does not support, so its age is unknown", is_junk=True)
        record = self._find_record(key, found.uuid)
        if record is not None and not record.is_alive_at(written_ms):
            return None
        if found.newest > known.newest and (is_old or not known.in_use):
            newer = "version" if found.noun == "view" else "snapshot"
            return _Finding(
                f"{name} has a newer {newer} here than in its catalog: the catalog is outdated or a copy, or a commit failed"
                f"{self._way_out(key, found.uuid)}",
                table_uuid=found.uuid,
                is_newer=True,
            )
        if not found.lineage.is_readable:
            return _Finding(f"metadata of {name} with a damaged log or list of snapshots, so its writer is unknown", is_junk=True)
        return self._describe(key, modified, found)

    def _find_written_ms(self, modified: datetime, found: TableIdentity) -> int:
        """Return when a metadata file was written, in milliseconds since 1970.

        A commit time in the future is ignored, because the clock of the writer was wrong.
        """
        modified_ms = int(modified.timestamp() * 1000)
        is_ahead = self.settled is not None and (found.newest or 0) > (self.settled + MAX_SKEW + MAX_LEAD).timestamp() * 1000
        return modified_ms if is_ahead else max(found.newest or 0, modified_ms)

    def _describe(self, key: str, modified: datetime, found: TableIdentity) -> _Finding | None:
        """Return the lineage that shows whether another catalog wrote a known table's metadata."""
        lineage, place = found.lineage, find_table_prefix(key)
        is_young = self.settled is not None and modified >= self.settled
        before_ms = self.settled.timestamp() * 1000 if self.settled is not None and is_young else math.inf
        head, parent = lineage.find_head(before_ms)
        lists = (item.manifest_list for item in lineage.snapshots if item.manifest_list is not None)
        in_own_location = not is_young and (place in self._own_prefixes(found) or any(self._is_under(place, address) for address in lists))
        previous, previous_ms = next((item for item in reversed(lineage.log) if item[1] < before_ms), (None, None))
        if previous is None and parent is None and not in_own_location:
            return None
        return _Finding(
            None,
            False,
            found.uuid,
            previous,
            previous_ms,
            in_own_location,
            None if head is None else head.snapshot_id,
            None if parent is None else parent.snapshot_id,
            None if parent is None else parent.at_ms,
            None if in_own_location else self._find_external(lineage),
        )

    def _find_external(self, lineage: Lineage) -> list[str] | None:
        """Return one address per directory that a metadata file references.

        Returns None if any directory is in a storage or cannot be resolved.

        For example, Spark's `rewrite_table_path` stages files that only reference other locations,
        when it prepares a copy of the table.
        """
        named = _name_directories((*_name_contents(lineage), *(name for name, _ in lineage.log)))
        try:
            is_external = bool(lineage.locations) and all(self.resolver.resolve_one(address) is None for address in named)
        except (FormatError, StoreError):
            return None
        return sorted(named) if is_external else None

    def _find_prefixes(self, place: str, lineage: Lineage = NO_LINEAGE) -> frozenset[StoragePrefix]:
        """Return the prefixes under which the table of a metadata file may have files.

        These are `place` in this storage, and those around the metadata's locations and manifest
        lists in any storage.
        """
        resolved = map(self.resolver.locate_one, _name_directories(_name_contents(lineage)))
        named = (StoragePrefix(found[0], find_table_prefix(found[1])) for found in resolved if found is not None)
        return frozenset({StoragePrefix(self.storage_name, place), *named})

    def _is_under(self, place: str, address: str) -> bool:
        resolved = self.resolver.locate_one(address)
        return resolved is not None and resolved[0] == self.storage_name and resolved[1].startswith(place)

    def _find_record(self, key: str, uuid: str) -> DeadTable | None:
        return next((item for item in self.dead if item.table_uuid == read_table_id(uuid) and key.startswith(item.prefix)), None)

    def _way_out(self, key: str, uuid: str) -> str:
        """Return advice on how to accept the table as dead in the key's directory."""
        return describe_way_out(self.resolver, self.storage_name, key, uuid)

    def _check_unknown(self, key: str, written_ms: int, found: TableIdentity) -> str | None:
        uuid = found.uuid
        record = self._find_record(key, uuid)
        if record is None:
            directory = directory_of(key)
            is_collected = self.own_directories.get(directory) if self._is_failed_creation(directory, found) else None
            if is_collected:
                return None
            way_out = self._way_out(key, uuid)
            if found.noun == "view":
                return f"view {describe_unlisted(uuid)} not among the views that the configured catalogs list{way_out}"
            hint = "" if is_collected is None else " (or left by a failed creation, see `failed_creations` in docs/configuration.md)"
            return f"table {describe_unlisted(uuid)} in no configured catalog{hint}{way_out}"
        if record.is_alive_at(written_ms):
            return f"{record}, but it was written to after that: add its catalog to lakes.yaml"
        return None

    def _is_failed_creation(self, directory: str, found: TableIdentity) -> bool:
        """Return True for the first metadata of an empty table in a known table's location.

        The metadata may also belong to a table in another catalog, which may write later files to
        other locations. Unresolvable locations, such as relative ones, never count as the location
        of a known table.
        """
        if found.location_if_empty is None or directory not in self.own_directories:
            return False
        return self.resolver.locate_one(f"{found.location_if_empty.rstrip('/')}/metadata/x") == (self.storage_name, f"{directory}/x")

    def _read(self, key: str) -> bytes:
        return self.objects.read(self.resolver.address(self.storage_name, key))


def _name_contents(lineage: Lineage) -> Iterator[str]:
    """Yield the manifest lists of a metadata file, and a possible address in each location."""
    yield from (f"{address.rstrip('/')}/{_ANY_NAME}" for address in lineage.locations)
    yield from (item.manifest_list for item in lineage.snapshots if item.manifest_list is not None)


def _name_directories(addresses: Iterable[str]) -> Collection[str]:
    """Return one address per directory."""
    return {address.rpartition("/")[0]: address for address in addresses}.values()


def describe_way_out(resolver: KeyResolver, storage_name: str, key: str, uuid: str) -> str:
    """Return advice on how to accept a table as dead, or "" if its metadata has no directory."""
    directory = directory_of(key)
    if directory in {"", "metadata"}:
        return ""
    location = resolver.address(storage_name, directory.removesuffix("/metadata") + "/")
    return f"; if it is dead: `{command('accept', uuid, location, by='WHO')}`"


def _find_root(pattern: MetadataPattern, key: str) -> str:
    """Return the root directory of a repository or table of another kind."""
    if pattern is OTHERS:
        return next(found["root"] or "" for item in OTHER_FORMATS if item.is_table and (found := re.search(item.sign, key)) is not None)
    found = re.search(pattern.names, key)
    return key[: found.start()] + "/" if found is not None and found.start() else ""


def directory_of(key: str) -> str:
    """Return a key's directory without a trailing slash."""
    return key.rpartition("/")[0]
