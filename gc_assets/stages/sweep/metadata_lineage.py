"""Find metadata of known tables that was written through an unconfigured catalog.

Each metadata file refers to its predecessor, so the files that a table's configured catalogs wrote
form a chain from the current file back to the first one. A suspect is a listed metadata file to
which no configured catalog refers. If it follows a file outside this chain, another catalog
committed it, for example because the table is registered there too. If it follows a file in the
chain, it may be left over from a failed commit and is not foreign.

Metadata files are immutable, and they are only read for tables with such suspects. The search runs
in the driver.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import find_table_prefix
from gc_assets.core.errors import GcError
from gc_assets.core.external_addresses import ExternalAddresses
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.printable import show
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.kind import TableIdentity
from gc_assets.lakes.lineage import Lineage
from gc_assets.stages.mark.last_known import list_freezes
from gc_assets.stages.mark.unknown_addresses import external_addresses
from gc_assets.stages.sweep.clock_lead import first_freeze
from gc_assets.stages.sweep.foreign_metadata import MAX_REASONS, StoragePrefix, describe_way_out, metadata_patterns
from gc_assets.stages.sweep.known_tables import find_metadata
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import LAKE_REFS, LIVE_CONTENTS, LIVE_FILES
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE, PINNED, PINNED_SIDE, SOURCES, SOURCES_SIDE
from gc_assets.state.summaries import FreezeTime, LakeRefsSummary

# A suspect that was written after the refs were read may follow a commit that the run does not
# know, # so only its older history is compared. The clocks of host, store and writers may differ by
# this much.
MAX_SKEW: Final = timedelta(hours=1)
# Concurrent reads of metadata files.
_CONCURRENT_READS: Final = 16
# A server lists every file that a commit ever added. At most this many missing files are looked up.
MAX_MISSING: Final = 16

# A file: storage and key, or "" and the address if the file is outside all storages.
File = tuple[str, str]
ReadLineage = Callable[[str], Lineage | None]


@dataclass(slots=True)
class Chain:
    """A table's metadata files that were written through its configured catalogs.

    Attributes:
        files: Known files, including deleted ones that other files reference.
        locations: The table's locations, and the directories that contain its metadata.
        snapshots: Ids of the snapshots listed in the current files.
        oldest_snapshot_ms: Time of the oldest listed ancestor of a current snapshot.
        begins_ms: Time after which all files are known. Infinite if no file could be read.
        error: Why a file that may exist could not be read, or None. If it is set, suspects of any
            age are foreign if they follow a file outside the chain. Unreadable older files outside
            all storages are ignored.
    """

    files: set[File] = field(default_factory=set[File])
    locations: set[File] = field(default_factory=set[File])
    snapshots: set[str] = field(default_factory=set[str])
    oldest_snapshot_ms: float | None = None
    begins_ms: float = -math.inf
    error: str | None = None

    def has_all_since(self, at_ms: int | None) -> bool:
        """Check whether all metadata files that were current after `at_ms` are known."""
        return at_ms is not None and at_ms > self.begins_ms

    def cut(self, at_ms: float) -> None:
        """Record that metadata files up to `at_ms` are unknown."""
        self.begins_ms = max(at_ms, self.begins_ms)


def follow_chain(current: Sequence[str], read: ReadLineage, resolver: KeyResolver) -> Chain:
    """Follow the metadata logs of a table back to its first file.

    Each log lists up to 100 files, so only a few files are read.

    Args:
        current: Addresses of the files in the catalogs, first those at heads of branches, then the
            newest.
        read: Returns the lineage in a file, or None if the file does not exist or is damaged.
            Raises OSError or GcError if it cannot be read now.
    """
    chain, seen = Chain(), set[File]()
    chain.files = {identify(resolver, address) for address in current}
    has_read, missing = False, 0
    for start in current:
        if missing == MAX_MISSING:
            break
        address, known_ms = start, -math.inf
        while identify(resolver, address) not in seen:
            seen.add(identify(resolver, address))
            try:
                found = read(address)
            except (OSError, GcError) as error:
                found = None
                # An older file outside all storages, for example in another bucket, may never be
                # readable.
                if address == start or identify(resolver, address)[0]:
                    chain.error = chain.error or str(error)
            if found is None:
                missing += address == start
                chain.cut(known_ms)
                break
            if not found.is_readable:
                chain.cut(math.inf if address == start else known_ms)
                break
            has_read = True
            if address == start:
                _add_snapshots(chain, found)
            chain.locations.update(identify(resolver, f"{place.rstrip('/')}/") for place in found.locations)
            log = [identify(resolver, name) for name, _ in found.log]
            chain.files.update(log)
            seen.update(log[1:])
            if not log:  # the first file, or one of a writer without logs
                chain.cut((found.updated_ms or 0) - found.is_first)
                break
            address, known_ms = found.log[0]
    if not has_read:
        chain.cut(math.inf)
    chain.locations.update((storage, find_table_prefix(key)) for storage, key in chain.files)
    return chain


def _add_snapshots(chain: Chain, found: Lineage) -> None:
    """Add a metadata file's snapshots, and the time of its head's oldest listed ancestor."""
    by_id = {item.snapshot_id: item for item in found.snapshots}
    chain.snapshots.update(by_id)
    item, met = by_id.get(found.head or ""), set[str]()
    while item is not None and item.snapshot_id not in met:
        met.add(item.snapshot_id)
        chain.oldest_snapshot_ms = min(item.at_ms, chain.oldest_snapshot_ms or item.at_ms)
        item = by_id.get(item.parent_id or "")


def identify(resolver: KeyResolver, address: str) -> File:
    """Resolve an address to a file. If it is in no storage, the name of the storage is empty."""
    return resolver.locate_one(address) or ("", address)


def find_settled_time(context: RunContext) -> datetime:
    """Return the time up to which the recorded refs contain all commits of their catalogs."""
    return first_freeze(context.lake_tables(LAKE_REFS)) - MAX_SKEW


def find_foreign_lineages(
    context: RunContext, storage_name: str, rows: Iterable[Mapping[str, Any]], former: Mapping[str, Sequence[str]], skip: Collection[str]
) -> dict[str, str]:
    """Find suspects that another catalog wrote. Returns the reason for each, by its key.

    Args:
        rows: Suspects of known tables (`FOREIGN` columns, without a reason).
        former: Addresses of dropped tables' newest known metadata, by UUID.
        skip: UUIDs of unreadable tables, which are not checked.
    """
    resolver = context.resolver()
    suspects: dict[str, list[Suspect]] = defaultdict(list)
    addresses = external_addresses(context)
    for row in rows:
        if row["table_uuid"] not in skip and not _is_external(row, addresses):
            suspects[row["table_uuid"]].append(Suspect.of(row, storage_name, resolver))
    if not suspects:
        return {}
    named = _CurrentFiles.read(context, {item.previous[1] for items in suspects.values() for item in items if item.previous is not None})
    unclear = _select(suspects, lambda uuid, item: not named.explains(item, uuid))
    if not unclear:
        return {}
    current, on_branches = find_metadata(context, unclear.keys()), _read_branches(context)
    starts = {uuid: [*sorted(current.get(uuid, ()), key=lambda item: item not in on_branches), *former.get(uuid, ())] for uuid in unclear}
    files = {uuid: {identify(resolver, address) for address in addresses} for uuid, addresses in starts.items()}
    unclear = _select(unclear, lambda uuid, item: not named.explains(item, uuid, files[uuid]))
    read = _Reader(context)
    with ThreadPoolExecutor(_CONCURRENT_READS) as pool:
        chains = dict(zip(unclear, pool.map(lambda uuid: follow_chain(starts[uuid], read, resolver), unclear), strict=True))
    foreign = _select(
        unclear, lambda uuid, item: bool(starts[uuid]) and item.is_outside(chains[uuid], named.locations.get(uuid, frozenset()))
    )
    if foreign:
        seen = _find_seen(context, {file for items in foreign.values() for item in items for file in item.files}, resolver)
        foreign = _select(foreign, lambda _, item: seen.isdisjoint(item.files))
    return {
        item.key: reason
        for uuid, items in foreign.items()
        for reason in [_describe(context, min(items, key=lambda item: item.key), uuid, starts[uuid][0], chains[uuid].error)]
        for item in items
    }


def _select(suspects: Mapping[str, Sequence[Suspect]], is_selected: Callable[[str, Suspect], bool]) -> dict[str, list[Suspect]]:
    """Select suspects, keyed by table UUID. Tables without a selected suspect are omitted."""
    found = {uuid: [item for item in items if is_selected(uuid, item)] for uuid, items in suspects.items()}
    return {uuid: items for uuid, items in found.items() if items}


def remove_former(
    context: RunContext, storage_name: str, rows: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[Mapping[str, Any]], set[StoragePrefix]]:
    """Remove suspects that are former metadata newer than their catalog, if their wait has ended.

    Former metadata (`stages/mark/former_metadata.py`) was once used by a catalog. It is newer than
    the current metadata if the catalog is restored from a backup, or if a table is registered again
    with older metadata. If a table has `MAX_REASONS` or more newer files, none of them is removed,
    because some may be missing from the suspects.

    If other metadata of the lake is newer than its catalog, the catalog may be a copy, and a gate
    refuses the plan. A user can override this gate, so the files that the removed suspects
    reference must be kept too.

    Args:
        rows: Suspects (`FOREIGN` columns).

    Returns:
        The other suspects, and the prefixes of the removed ones that must be kept.
    """
    counts = Counter((row["lake"], row["table_uuid"]) for row in rows if row["is_newer"])
    newer = {(storage_name, row["key"]): row for row in rows if row["is_newer"] and counts[row["lake"], row["table_uuid"]] < MAX_REASONS}
    resolver, waiting, ended = context.resolver(), set[File](), set[File]()
    for lake in context.config.lakes if newer else ():
        waiting_of_lake, ended_of_lake = _find_former(context, lake.name, newer, resolver)
        waiting |= waiting_of_lake
        ended |= ended_of_lake
    former = {newer[file]["key"]: newer[file] for file in ended - waiting}
    others = [row for row in rows if not (row["is_newer"] and row["key"] in former)]
    doubtful = {row["lake"] for row in others if row["is_newer"]}
    kept = {StoragePrefix(**item) for row in former.values() if row["lake"] in doubtful for item in row["prefixes"]}
    return others, kept


def _find_former(
    context: RunContext, lake_name: str, newer: Mapping[File, Mapping[str, Any]], resolver: KeyResolver
) -> tuple[set[File], set[File]]:
    """Find metadata files in the refs recorded by a lake's earlier runs.

    The waiting time of a file begins with the first run that no longer found it. A file that was
    written after a run was not found by it.

    Args:
        newer: The files to look for (`FOREIGN` columns).

    Returns:
        The files that the catalog may still need, because their waiting time has not ended, or
        because the lake reads another catalog now. Then the files whose waiting time has ended,
        except files of tables that the catalog did not list in every run since then, because
        another catalog may use these files.
    """
    refs, after = context.table(LAKE_REFS, lake_name), context.config.lake(lake_name).dropped_after
    summary, names = refs.summary(LakeRefsSummary), _read_names(context, refs)
    listed, is_same = {row["table_uuid"] for row in newer.values()}, True
    wanted, waiting, ended, missed_at = set(newer), set[File](), set[File](), summary.frozen_at
    for past in list_freezes(context, lake_name, summary.frozen_at):
        wanted = {file for file in wanted if newer[file]["last_modified"] <= past.summary(FreezeTime).frozen_at + MAX_SKEW}
        if not wanted:
            break
        refs = context.state.open(past)
        is_same &= refs.summary(LakeRefsSummary).catalog == summary.catalog
        listed &= _list_uuids(context, refs, names)
        files = _find_in_freeze(context, refs, wanted, resolver)
        wanted -= files
        if not is_same or after is None or summary.frozen_at - missed_at < after:
            waiting |= files
        else:
            ended |= {file for file in files if newer[file]["table_uuid"] in listed}
        missed_at = refs.summary(LakeRefsSummary).frozen_at
    return waiting, ended


def _read_names(context: RunContext, refs: PublishedTable) -> dict[str, set[str]]:
    """Return the names of the tables in a run's recorded refs, keyed by table UUID."""
    names = defaultdict[str, set[str]](set)
    for row in read_parts(context.state.files, refs.paths(SOURCES_SIDE), SOURCES, ["table_uuid", "table_name"]).to_pylist():
        names[row["table_uuid"]].add(row["table_name"])
    return names


def _list_uuids(context: RunContext, refs: PublishedTable, names: Mapping[str, Collection[str]]) -> set[str]:
    """Return the UUIDs of the tables in a run's recorded refs, including unreadable tables.

    The UUIDs of unreadable tables are not recorded, so they are looked up in `names` by name.
    """
    unread = {item.table_name for item in refs.summary(LakeRefsSummary).unread}
    of_unread = {uuid for uuid, of_table in names.items() if None in unread or not unread.isdisjoint(of_table)}
    return of_unread.union(_read_names(context, refs))


def _is_external(row: Mapping[str, Any], addresses: ExternalAddresses) -> bool:
    """Return True if a metadata file refers to no storage, so that its readers need no file there."""
    return row["external"] is not None and addresses.find_reasons(pa.array(row["external"], pa.string())).null_count == len(row["external"])


@dataclass(frozen=True, slots=True)
class Suspect:
    """Metadata of a known table that no configured catalog currently refers to."""

    key: str
    file: File
    location: File
    previous: File | None  # for a young suspect: the newest one before the settled time, like the fields below
    previous_ms: int | None
    in_own_location: bool
    head: str | None
    parent: str | None
    parent_ms: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any], storage_name: str, resolver: KeyResolver) -> Suspect:
        key, previous = row["key"], row["previous"]
        return cls(
            key,
            (storage_name, key),
            (storage_name, find_table_prefix(key)),
            None if previous is None else identify(resolver, previous),
            row["previous_ms"],
            row["in_own_location"],
            row["head"],
            row["parent"],
            row["parent_ms"],
        )

    @property
    def files(self) -> tuple[File, ...]:
        return (self.file,) if self.previous is None else (self.file, self.previous)

    def is_outside(self, chain: Chain, locations: Collection[File]) -> bool:
        """Return True if the file was written through another catalog.

        Args:
            chain: The metadata files of the table that configured catalogs wrote.
            locations: The locations that the configured catalogs claim for the table.
        """
        if self.file in chain.files:
            return False
        if self.in_own_location and chain.locations and self.location not in chain.locations and self.location not in locations:
            return True
        if self.previous is not None:
            if self.previous in chain.files:
                return False
            if chain.error is not None or chain.has_all_since(self.previous_ms):
                return True
        # The log is missing or older than the chain. One unknown snapshot may be a failed commit,
        # and so may several unknown snapshots that are later than the previous file.
        if self.parent is None or self.parent_ms is None:
            return False
        if self.previous_ms is not None and self.parent_ms > self.previous_ms:
            return False
        if chain.oldest_snapshot_ms is None:
            return chain.error is not None
        is_unknown = self.head not in chain.snapshots and self.parent not in chain.snapshots
        return is_unknown and self.parent_ms > chain.oldest_snapshot_ms


@dataclass(frozen=True, slots=True)
class _CurrentFiles:
    """Metadata files in this run's recorded refs, and each table's locations, by table UUID."""

    files: frozenset[File]
    locations: Mapping[str, frozenset[File]]

    @classmethod
    def read(cls, context: RunContext, keys: Collection[str]) -> _CurrentFiles:
        """Read the locations of all tables, and the metadata files whose key is in `keys`."""
        wanted = pa.array(sorted(keys), pa.string())
        kinds = pa.array(sorted(frozenset[str]().union(*(pattern.file_kinds for pattern in metadata_patterns()))), pa.string())
        files, locations = set[File](), dict[str, set[File]]()
        for lake in context.config.lakes:
            refs, live = context.table(LAKE_REFS, lake.name), context.table(LIVE_FILES, lake.name)
            rows = read_parts(context.state.files, refs.paths(PINNED_SIDE), PINNED, ["storage", "key", "kind"])
            rows = rows.filter(pc.and_(pc.is_in(rows.column("kind"), kinds), pc.is_in(rows.column("key"), wanted)))
            files.update(zip(rows.column("storage").to_pylist(), rows.column("key").to_pylist(), strict=True))
            for table in (refs, live):
                for row in read_parts(context.state.files, table.paths(CLAIMS_SIDE), CLAIMS).to_pylist():
                    uuid = row["location_of"] or row["table_uuid"]
                    if uuid is not None and row["storage"] is not None:
                        locations.setdefault(uuid.removeprefix("urn:uuid:"), set()).add((row["storage"], row["key"]))
        return cls(frozenset(files), {uuid: frozenset(found) for uuid, found in locations.items()})

    def explains(self, suspect: Suspect, uuid: str, others: Collection[File] = ()) -> bool:
        """Return True if the suspect cannot be foreign, so that no other file has to be read.

        This is the case if it follows a current file or one of `others` in a location of its table,
        or if it contains nothing to compare.
        """
        if suspect.in_own_location and suspect.location not in self.locations.get(uuid, ()):
            return False
        if suspect.previous is None:
            return suspect.parent is None
        return suspect.previous in self.files or suspect.previous in others


def _read_branches(context: RunContext) -> set[str]:
    """Return the addresses of metadata files at the heads of servers' branches."""
    found = set[str]()
    for lake in context.config.lakes:
        if context.kind(lake.name).has_live_contents:
            contents = context.table(LIVE_CONTENTS, lake.name)
            rows = read_rows(context.state, LIVE_CONTENTS, contents, columns=["metadata_location", "on_branch"])
            found.update(rows.column("metadata_location").filter(rows.column("on_branch")).unique().to_pylist())
    return found


class _Reader:
    """Read the lineage in a metadata file. Returns None if the file does not exist or is damaged.

    Raises:
        OSError, GcError: If the file cannot be read now.
    """

    def __init__(self, context: RunContext) -> None:
        self._objects = context.objects()
        self._classify = [pattern.classify for pattern in metadata_patterns() if pattern.file_kinds and pattern.classify is not None]

    def __call__(self, address: str) -> Lineage | None:
        try:
            raw = self._objects.read(address)
        except FileNotFoundError:
            return None
        try:
            found = [classify(raw) for classify in self._classify]
        except Exception:  # noqa: BLE001 - any other program may have written this object
            return None
        return next((item.lineage for item in found if isinstance(item, TableIdentity)), None)


def _find_seen(context: RunContext, wanted: set[File], resolver: KeyResolver) -> set[File]:
    """Return the wanted files that an earlier run found in the current catalog of a lake.

    These metadata files are not foreign, because a table may have been registered again with older
    metadata. Files of a lake's former catalog are not returned, because that catalog may still be
    in use.
    """
    found = set[File]()
    for lake in context.config.lakes:
        catalog = context.table(LAKE_REFS, lake.name).summary(LakeRefsSummary).catalog
        for past in reversed(context.state.history(lake.name, LAKE_REFS.name)):
            if wanted <= found:
                return found
            refs = context.state.open(past)
            if refs.summary(LakeRefsSummary).catalog == catalog:
                found |= _find_in_freeze(context, refs, wanted, resolver)
    return found


def _find_in_freeze(context: RunContext, refs: PublishedTable, wanted: Collection[File], resolver: KeyResolver) -> set[File]:
    """Return the wanted metadata files that a run's recorded refs contain."""
    rows = read_parts(context.state.files, refs.paths(PINNED_SIDE), PINNED, ["storage", "key"])
    rows = rows.filter(pc.is_in(rows.column("key"), pa.array([key for _, key in wanted], pa.string())))
    found = {file for row in rows.to_pylist() if (file := (row["storage"], row["key"])) in wanted}
    sources = read_parts(context.state.files, refs.paths(SOURCES_SIDE), SOURCES, ["address"])
    return found.union(_identify_all(sources.column("address").to_pylist(), wanted, resolver))


def _identify_all(addresses: Iterable[str], wanted: Collection[File], resolver: KeyResolver) -> Iterator[File]:
    names = {key.rpartition("/")[2] for _, key in wanted}
    yield from (file for item in addresses if item.rpartition("/")[2] in names and (file := identify(resolver, item)) in wanted)


def _describe(context: RunContext, item: Suspect, uuid: str, current: str, error: str | None) -> str:
    """Return why a suspect is foreign. All suspects of a table share this text in gates."""
    (storage_name, key), resolver = item.file, context.resolver()
    way_out = describe_way_out(resolver, storage_name, key, uuid)
    if error is not None:
        return (
            f"table {show(uuid)}, which another catalog may write too, because its history cannot be read: {show(error)}. "
            f"Run again, or make the history readable{way_out}"
        )
    follows = "" if item.previous is None else f" follows {show(item.previous[1].rpartition('/')[2])}, which"
    has_branches = any(context.kind(lake.name).has_live_contents for lake in context.config.lakes)
    return (
        f"table {show(uuid)}, which another catalog{', or a deleted branch,' if has_branches else ''} writes too: "
        f"{show(key.rpartition('/')[2])}{follows} is not in the history of {show(current.rpartition('/')[2])}, the file in the configured "
        f"catalog; add the other catalog to lakes.yaml{way_out}"
    )
