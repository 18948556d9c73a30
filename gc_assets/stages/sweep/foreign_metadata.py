"""Detect metadata of unconfigured tables and repositories in claimed prefixes.

Such metadata indicates an unconfigured catalog, whose live files would look unreferenced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from gc_assets.core.commands import command
from gc_assets.core.errors import GcError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.core.printable import show
from gc_assets.engine.tables import map_arrow
from gc_assets.lakes.kind import MetadataPattern, TableIdentity
from gc_assets.lakes.kinds import KINDS
from gc_assets.lakes.other_formats import OTHER_FORMATS
from gc_assets.stages.records.dead_tables import DeadTable, describe_unlisted, read_table_id
from gc_assets.stages.sweep.known_tables import KnownTable

# Formats without a lake kind whose tables have a catalog of their own, recognised by name only.
OTHERS: Final = MetadataPattern("|".join(item.sign.replace("?P<root>", "?:") for item in OTHER_FORMATS if item.is_table))
FOREIGN: Final = pa.schema([("key", pa.string()), ("reason", pa.string()), ("is_junk", pa.bool_())])


def foreign_metadata(
    suspects: DataFrame,
    storage_name: str,
    resolver: KeyResolver,
    objects: Objects,
    known_tables: Mapping[str, KnownTable],
    dead: Sequence[DeadTable] = (),
    own_directories: Mapping[str, bool | None] | None = None,
) -> DataFrame:
    """Find the foreign suspects, with the reason (columns key, reason, is_junk).

    `is_junk` marks files named like metadata that are not readable as such, one in each directory.
    In `own_directories`, a fragment of such a file is the leftover of a failed write and is not
    returned.

    If a metadata file contains a newer snapshot than the catalogs know, the catalog is a copy or
    its writers moved to another one. If the table is in use, only old metadata counts: young
    metadata may belong to a commit in progress.

    Args:
        suspects: Objects with the columns key, last_modified and is_old, whose names match
            `suspect_pattern`.
        known_tables: The tables of the configured catalogs, by table uuid.
        dead: Tables that a user accepted as dead. They are not foreign at the accepted location,
            unless they were written to after that.
        own_directories: Directories with the live metadata of tables that this run read, and
            `collects_failed_creations` of their lakes. If it is True, the first metadata of an
            unknown table without snapshots is garbage. If it is False, the reason names the setting.
    """
    classifier = MetadataClassifier(
        storage_name,
        resolver,
        objects,
        known_tables,
        metadata_patterns(),
        tuple(dead),
        own_directories or {},
    )
    return map_arrow(suspects.select("key", "last_modified", "is_old"), classifier, FOREIGN)


def metadata_patterns() -> tuple[MetadataPattern, ...]:
    """Return the metadata patterns of all lake kinds.

    The first pattern that a key matches applies.
    """
    return (*(pattern for kind in KINDS.values() for pattern in kind.files.metadata_patterns), OTHERS)


def suspect_pattern() -> str:
    """Return a regular expression for keys of metadata, of any kind."""
    return "|".join(pattern.names for pattern in metadata_patterns())


class _Foreign(NamedTuple):
    """Why a file is foreign (columns `FOREIGN` without the key)."""

    reason: str
    is_junk: bool = False


@dataclass(frozen=True)
class MetadataClassifier:
    storage_name: str
    resolver: KeyResolver
    objects: Objects
    known_tables: Mapping[str, KnownTable]
    metadata_patterns: tuple[MetadataPattern, ...]
    dead: tuple[DeadTable, ...] = ()
    own_directories: Mapping[str, bool | None] = field(default_factory=dict[str, bool | None])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        directories_with_junk = set[str]()
        for batch in batches:
            columns = (batch.column(name) for name in ("key", "last_modified", "is_old"))
            foreign = list[dict[str, Any]]()
            for key, modified, is_old in zip(*map(_values, columns), strict=True):
                found = self._classify(key, modified, is_old=is_old)
                if found is None or (found.is_junk and directory_of(key) in directories_with_junk):
                    continue
                if found.is_junk:
                    directories_with_junk.add(directory_of(key))
                foreign.append({"key": key, **found._asdict()})
            yield pa.RecordBatch.from_pylist(foreign, FOREIGN)

    def _classify(self, key: str, modified: datetime, *, is_old: bool) -> _Foreign | None:
        pattern = next(pattern for pattern in self.metadata_patterns if re.search(pattern.names, key))
        if pattern.classify is None:
            return _Foreign("metadata of a repository or table of another kind")
        try:
            raw = self._read(key)
        except FileNotFoundError:
            return None
        except (OSError, GcError) as error:
            return _Foreign(f"{pattern.noun} that cannot be read ({error})", is_junk=True)
        try:
            found = pattern.classify(raw)
        except Exception as error:  # noqa: BLE001 - any other program may have written this object
            if directory_of(key) in self.own_directories and pattern.is_fragment is not None and pattern.is_fragment(raw):
                return None
            return _Foreign(f"{pattern.noun} that cannot be read ({error if isinstance(error, GcError) else repr(error)})", is_junk=True)
        if isinstance(found, TableIdentity):
            return self._check_known(key, modified, found, is_old=is_old)
        return None if found is None else _Foreign(found)

    def _check_known(self, key: str, modified: datetime, found: TableIdentity, *, is_old: bool) -> _Foreign | None:
        known = self.known_tables.get(found.uuid)
        # Metadata of a dropped table that is newer than the last known one was written by a program
        # that may still use the table.
        if known is None or (known.dropped and found.newest is not None and found.newest > known.newest):
            reason = self._check_unknown(key, max(found.newest or 0, int(modified.timestamp() * 1000)), found)
            return None if reason is None else _Foreign(reason)
        name = f"{found.noun} {show(found.uuid)}"
        if found.newest is None:
            return _Foreign(f"metadata of {name} in a format version that gc-assets does not support, so its age is unknown", is_junk=True)
        if found.newest > known.newest and (is_old or not known.in_use):
            newer = "version" if found.noun == "view" else "snapshot"
            return _Foreign(f"{name} has a newer {newer} here than in its catalog: the catalog is outdated or a copy, or a commit failed")
        return None

    def _check_unknown(self, key: str, written_ms: int, found: TableIdentity) -> str | None:
        uuid = found.uuid
        record = next((item for item in self.dead if item.table_uuid == read_table_id(uuid) and key.startswith(item.prefix)), None)
        if record is None:
            directory = directory_of(key)
            is_collected = self.own_directories.get(directory) if self._is_failed_creation(directory, found) else None
            if is_collected:
                return None
            location = self.resolver.address(self.storage_name, directory.removesuffix("/metadata") + "/")
            way_out = f"; if it is dead: `{command('accept', uuid, location, by='WHO')}`" if directory not in {"", "metadata"} else ""
            if found.noun == "view":
                return f"view {describe_unlisted(uuid)} not among the views that the configured catalogs list{way_out}"
            hint = "" if is_collected is None else " (or left by a failed creation, see `failed_creations` in docs/configuration.md)"
            return f"table {describe_unlisted(uuid)} in no configured catalog{hint}{way_out}"
        if record.is_alive_at(written_ms):
            return f"{record}, but it was written to after that: add its catalog to lakes.yaml"
        return None

    def _is_failed_creation(self, directory: str, found: TableIdentity) -> bool:
        """Return True for the first metadata of an empty table in the location of a known table.

        It can also belong to a table of another catalog, which may write later files to other places.
        A location that cannot be resolved, such as a relative one, is never that of a known table.
        """
        if found.location_if_empty is None or directory not in self.own_directories:
            return False
        return self.resolver.locate_one(f"{found.location_if_empty.rstrip('/')}/metadata/x") == (self.storage_name, f"{directory}/x")

    def _read(self, key: str) -> bytes:
        return self.objects.read(self.resolver.address(self.storage_name, key))


def directory_of(key: str) -> str:
    """Return the directory of a key, without a slash at its end."""
    return key.rpartition("/")[0]


def _values(column: pa.Array) -> list[Any]:
    return column.to_pylist()
