"""The Iceberg lake, which contains all tables in a pyiceberg catalog. It implements `ExpiringLake`.

Commits are table snapshots, and their content roots (the objects that they point to directly) are
manifest lists. Tables outside the `tables` patterns and tables with `gc.enabled=false` are read as
well, because their files have to be protected. They are only excluded from claims and expiry.
"""

from __future__ import annotations

import hashlib
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gc_assets.core.causes import cause_of
from gc_assets.core.claims import find_table_location
from gc_assets.core.errors import FormatError, GcError, LakeUnreadable, StoreError, UsageError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.moments import seconds
from gc_assets.core.objects import Objects
from gc_assets.core.suggest import join_names
from gc_assets.core.units import format_duration
from gc_assets.core.untrusted_input import is_text
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg import manifests
from gc_assets.lakes.iceberg.catalog_policy import CatalogPolicy
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.metadata import GC_ENABLED, TableMetadata, parse_identity, parse_metadata, parse_view
from gc_assets.lakes.iceberg.registrations import Registration, build_graph, build_source, list_refs
from gc_assets.lakes.iceberg.retention import retain
from gc_assets.lakes.iceberg.unread_locations import absolute_locations, read_locations, sibling_locations
from gc_assets.lakes.iceberg.unused_metadata import UnreadRegistration, plan_pruning
from gc_assets.lakes.lineage import Lineage
from gc_assets.lakes.protocol import (
    Claim,
    Commit,
    CommitSource,
    Container,
    ContentRoot,
    ExpiryAction,
    ExpiryOutcome,
    FrozenRefs,
    HistoryPublication,
    Retention,
    UnreadableTable,
    View,
)

if TYPE_CHECKING:
    from gc_assets.core.findings import Finding
    from gc_assets.lakes.iceberg.catalog import CatalogClient, TablePointer, UnlistedViews, ViewPointer

# Number of metadata files to read concurrently. A store takes tens of milliseconds to respond.
CONCURRENT_READS = 16
# Except over REST, pyiceberg's `commit_table` writes the metadata itself. Version 0.12 cannot write
# format version 3. Its model of v3 metadata also lacks the fields of features that it does not
# support (`encryption-keys`, `key-id`), so any update would lose them.
MAX_WRITABLE_FORMAT = 2
# pyiceberg does not implement `commit_table` for these catalogs.
READ_ONLY_CATALOGS = frozenset({"dynamodb", "bigquery"})


class IcebergLake:
    """The tables of one Iceberg catalog. `objects` reads their metadata.json files.

    The catalog is only opened in the driver. A lake that is pickled for executors contains neither
    a connection nor credentials.
    """

    kind = "iceberg"

    def __init__(self, config: IcebergLakeConfig, objects: Objects, storages: Sequence[str] = ()) -> None:
        self.name = config.name
        self._config = config
        self._objects = objects
        self._resolver = KeyResolver([(str(number), location) for number, location in enumerate(storages)])

    def __getstate__(self) -> dict[str, Any]:
        history = self._config.history.model_copy(update={"publish": None})  # It may contain secrets.
        return {**self.__dict__, "_config": self._config.model_copy(update={"catalog": {}, "history": history})}

    def check_access(self) -> None:
        """Send one small request to the catalog. Raises `LakeUnreadable` if the request fails."""
        self._open_catalog().check_access()

    def freeze(self, as_of: datetime) -> FrozenRefs:  # noqa: ARG002 - part of the protocol; Iceberg refs have no timestamp
        """Read all branches and tags from the current metadata of every table.

        A table is `unreadable` if its metadata cannot be read, or if one of its refs points to a
        missing snapshot.
        """
        catalog = self._open_catalog()
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            found = list(pool.map(self._build_reader(catalog), catalog.list_pointers()))
            views = list(pool.map(self._read_view, catalog.list_views()))
        registrations = [item for item in found if isinstance(item, Registration)]
        unreadable = [self._locate(catalog, item, registrations) for item in found if isinstance(item, UnreadableTable)]
        protected = {item.table.table_uuid for item in registrations if not item.collect}
        wrong_names = () if found else tuple(_describe_empty(self.name, self._config.catalog_name, catalog.find_other_names()))
        return FrozenRefs(
            lake=self.name,
            kind=self.kind,
            refs=tuple(ref for item in registrations for ref in list_refs(item)),
            sources=tuple(build_source(item) for item in registrations),
            claims=(*_build_claims(registrations, protected), *_claim_unread(unreadable)),
            pinned=_merge_pinned(_build_pinned(registrations), [file for view in views for file in view.pinned]),
            notes=(
                *self._list_config_notes(),
                *wrong_names,
                *(() if unreadable and not registrations else _build_notes(self.name, registrations)),
                *_list_catalog_notes(self.name, registrations),
                *(view.note for view in views if view.note is not None),
            ),
            min_age_seconds=max(map(_orphan_age, registrations), default=0),
            unreadable=tuple(unreadable),
            views=tuple(view.view for view in views if view.view is not None),
            wrong_names=wrong_names,
        )

    def _build_reader(self, catalog: CatalogClient) -> Callable[[TablePointer | UnreadableTable], Registration | UnreadableTable]:
        """Return a function that reads a table and the catalog's policy for it."""
        add_policy = self._build_policy_reader(catalog)

        def read(pointer: TablePointer | UnreadableTable) -> Registration | UnreadableTable:
            item = self._read_table(pointer)
            return add_policy(item) if isinstance(item, Registration) else item

        return read

    def _build_current_reader(self, catalog: CatalogClient) -> Callable[[str, str], Registration]:
        """Return a function that reads a table and its policy again before a history edit."""
        add_policy = self._build_policy_reader(catalog, rereads=True)
        return lambda name, address: add_policy(self.read_registration(name, address))

    def _build_policy_reader(self, catalog: CatalogClient, *, rereads: bool = False) -> Callable[[Registration], Registration]:
        from gc_assets.lakes.iceberg.nessie_refs import find_unread_refs  # as in `_open_catalog`

        retention, unread_refs = self._config.retention, find_unread_refs(catalog)
        if unread_refs is not None:
            return lambda item: replace(item, policy=CatalogPolicy(protect=unread_refs))
        if retention.source == "table":
            return lambda item: item
        from gc_assets.lakes.iceberg.policy_reader import PolicyReader

        policies = PolicyReader(catalog, has_default=retention.max_snapshot_age is not None, rereads=rereads)
        return lambda item: replace(item, policy=policies.read(item.name, item.table.properties)) if item.collect else item

    def _read_table(self, pointer: TablePointer | UnreadableTable) -> Registration | UnreadableTable:
        """Read a table without its snapshots, because all tables are in memory at the same time.

        The method `commits` reads the snapshots later.
        """
        if isinstance(pointer, UnreadableTable):
            return pointer
        try:
            item = self.read_registration(pointer.name, pointer.metadata_location)
        except LakeUnreadable as error:
            return UnreadableTable(pointer.name, str(error), pointer.metadata_location, cause=cause_of(error))
        return replace(item, table=replace(item.table, snapshots=()), writable=item.writable and pointer.can_commit)

    def _locate(self, catalog: CatalogClient, item: UnreadableTable, registrations: Sequence[Registration]) -> UnreadableTable:
        """Add an unreadable table's possible locations and, if found, its UUID.

        The directory of its metadata file is always one of these locations. If the metadata does
        not contain a readable location, further ones are derived from the catalog and from other
        tables of the namespace.
        """
        name, found, uuid = item.table_name or "", tuple[str, ...](), None
        if item.address is not None and _is_resolvable(item.address, self._resolver):
            found, uuid = self._read_unreadable(item.address)
        around = () if item.address is None else (find_table_location(item.address),)
        if not found:
            siblings = sibling_locations(name, [(other.name, other.table.locations[0]) for other in registrations if other.table.locations])
            found = (*catalog.find_default_locations(name), *siblings)
        locations = absolute_locations((*around, *found))
        resolvable = tuple(address for address in locations if _is_resolvable(address, self._resolver))
        return replace(item, locations=resolvable, table_uuid=uuid)

    def _read_unreadable(self, address: str) -> tuple[tuple[str, ...], str | None]:
        """Find the locations and the UUID of a table in metadata that is only partly readable."""
        try:
            raw = self._objects.read(address)
        except Exception:  # noqa: BLE001 - the table is already unreadable for a known reason
            return (), None
        try:
            uuid = parse_identity(address, raw).uuid
        except FormatError:
            uuid = None
        return read_locations(raw), uuid

    def _read_view(self, pointer: ViewPointer | UnlistedViews) -> _PinnedView:
        """Return the metadata files of a view.

        They do not have to exist, because no file needs them.
        """
        from gc_assets.lakes.iceberg.catalog import UnlistedViews

        if isinstance(pointer, UnlistedViews):
            subject = f"{pointer.name} of lake {self.name}" if pointer.name else f"lake {self.name}"
            return _PinnedView(
                note=f"the views of {subject} cannot be read ({pointer.reason}); the gate foreign_metadata reports their metadata files "
                "under locations of tables"
            )
        address = pointer.metadata_location
        try:
            view = parse_view(address, self._objects.read(address))
            self._resolver.resolve(pa.array([address, *view.previous_metadata], pa.string()))
        except Exception as error:  # noqa: BLE001 - other programs write the metadata
            reason = str(error) if isinstance(error, GcError | OSError) else f"{type(error).__name__}: {error}"
            pinned = (_pin_view_file(address),) if _is_resolvable(address, self._resolver) else ()
            return _PinnedView(pinned, note=f"view {pointer.name} of lake {self.name} cannot be read: {reason}")
        return _PinnedView(tuple(map(_pin_view_file, (address, *view.previous_metadata))), View(view.view_uuid, pointer.name, view.newest))

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield a commit for each snapshot of a table, in the order of the table's metadata.

        Raises:
            LakeUnreadable: If the table cannot be read or its metadata was replaced during the run.
        """
        vanished = "was deleted after this run had found it, for example by a writer that deletes its old metadata; run again"
        table, raw = self._read_metadata(source.table_name or "?", source.address, vanished)
        if source.digest not in {None, hashlib.sha256(raw).hexdigest()}:
            raise LakeUnreadable(
                f"lake {self.name}: the metadata {source.address} of table {source.table_name} on {socket.gethostname()} differs from "
                "the file read first. All machines must read the same storage, and no program may overwrite the file; run again"
            )
        for snapshot in table.snapshots:
            summary = snapshot.summary
            manifest_list = ContentRoot(snapshot.manifest_list, Kind.MANIFEST_LIST, is_container=True)
            yield Commit(
                commit_id=snapshot.snapshot_id,
                parents=() if snapshot.parent_id is None else (snapshot.parent_id,),
                committed_at=snapshot.committed_at,
                content_roots=(manifest_list, *snapshot.files),
                message=summary.get("operation"),
                table_uuid=table.table_uuid,
                table_name=source.table_name,
                summary=summary,
            )

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Decode a manifest list or manifest.

        Raises:
            FormatError: If the container is damaged. The message contains its address.
        """
        return manifests.decode(container, raw)

    def decode_many(self, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
        return manifests.decode_many(containers)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the tables' retention settings at `as_of`, with the overrides in the configuration."""
        found = retain(refs, commits, as_of, grace_cutoff, self._config.retention)
        if self._config.retention.unused_metadata == "keep":
            return found
        unread = [self._identify(item.table_name or "?", item.address) for item in refs.unreadable if item.address is not None]
        actions, notes = plan_pruning(refs.sources, commits, found.reachable, self._summarize_lists, unread)
        expiry = pa.concat_tables([found.expiry, pa.Table.from_pylist(actions, found.expiry.schema)])
        return replace(found, expiry=expiry, notes=(*found.notes, *notes))

    def _identify(self, name: str, address: str) -> UnreadRegistration:
        """Read the UUID of an unreadable table, if its metadata contains one."""
        try:
            return UnreadRegistration(name, address, parse_identity(address, self._objects.read(address)).uuid)
        except Exception:  # noqa: BLE001 - the table is already unreadable for a known reason
            return UnreadRegistration(name, address, None)

    def read_lineage(self, address: str) -> Lineage:
        return parse_identity(address, self._objects.read(address)).lineage

    def _summarize_lists(self, addresses: Sequence[str]) -> list[manifests.ListSummary]:
        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            return list(pool.map(lambda address: manifests.summarize_list(address, self._objects.read(address)), addresses))

    def delete_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Delete idle branches, with one commit per table."""
        from gc_assets.lakes.iceberg.expire import edit_branches

        catalog = self._open_catalog()
        yield from edit_branches(catalog, self._build_current_reader(catalog), actions, creates=False)

    def recreate_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Recreate deleted branches, with one commit per table."""
        from gc_assets.lakes.iceberg.expire import edit_branches

        yield from edit_branches(self._open_catalog(), self.read_registration, actions, creates=True)

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        """Execute history edits, with at most one commit per registration (name) of a table.

        Before each commit, the edits are checked again with the table's current metadata and
        policy.
        """
        from gc_assets.lakes.iceberg.expire import CatalogExpiry

        tables = self._open_catalog()
        add_policy = self._build_policy_reader(tables, rereads=True)

        def policy(found: Sequence[Registration]) -> Retention:
            registrations = [add_policy(item) for item in found]
            refs = tuple(ref for item in registrations for ref in list_refs(item))
            frozen = FrozenRefs(self.name, self.kind, refs, tuple(map(build_source, registrations)), (), ())
            return retain(frozen, build_graph(registrations), as_of, grace_cutoff, self._config.retention)

        read_current = self._build_current_reader(tables)
        yield from CatalogExpiry(tables, self._objects, self.read_registration, read_current, policy).run(actions)

    def find_listed(self, tables: Mapping[str, str], *, is_strict: bool = True) -> Mapping[str, str]:
        """Find tables that the catalog may still contain. Maps their UUIDs to the reasons.

        `tables` maps table UUIDs to names.
        """
        from gc_assets.lakes.iceberg.unlisted_tables import find_listed

        return find_listed(self._open_catalog(), tables, is_strict=is_strict)

    def find_recoverable(self, uuids: Collection[str]) -> Mapping[str, str]:
        """Find dropped tables that the catalog can restore. Maps their UUIDs to the reasons."""
        from gc_assets.lakes.iceberg.policy_reader import find_recoverable

        return find_recoverable(self._open_catalog(), uuids)

    def find_uneditable(self, tables: Mapping[str, str]) -> Mapping[str, str]:
        """Find tables that pyiceberg cannot load. Maps their UUIDs to the reasons.

        `tables` maps table UUIDs to names.
        """
        from gc_assets.lakes.iceberg.preflight import find_unloadable

        return find_unloadable(self._open_catalog(), tables)

    def probe_edits(self) -> Finding:
        """Check that the catalog permits commits, without changing anything."""
        from gc_assets.lakes.iceberg.preflight import probe_commits

        return probe_commits(self.name, self._open_catalog())

    @property
    def publishes_history(self) -> bool:
        return self._config.history.publish is not None

    def publish_history(
        self, read: Callable[[list[str] | None], Iterator[pa.RecordBatch]], unnamed: Mapping[str, str], kept_since: datetime
    ) -> HistoryPublication:
        """Write the lake's snapshot history to the Iceberg table configured as `history.publish`.

        Each table of the lake that has expired snapshots gets a property with the name of that
        table.
        """
        from gc_assets.lakes.iceberg.catalog import CatalogClient
        from gc_assets.lakes.iceberg.published_history import HistoryTable, find_expired_tables, point_to

        target = self._config.history.publish
        if target is None:
            raise UsageError(f"lake {self.name} has no history.publish")
        catalog_name = target.catalog_name or self._config.catalog_name
        properties = self._config.catalog if target.catalog is None else target.catalog
        client = CatalogClient(self.name, catalog_name, properties, self._config.read_seconds)
        origin = " ".join(self._config.catalog_location())
        found = HistoryTable(client, target.table, self._config.label, origin).publish(read, kept_since)
        expired = find_expired_tables(read) if unnamed else set[str]()
        tables = {uuid: name for uuid, name in unnamed.items() if uuid in expired and name != target.table}
        pointed, notes = point_to(self._open_catalog(), tables, f"{catalog_name}.{target.table}")
        return replace(found, pointed=tuple(sorted(pointed)), notes=tuple(notes))

    def _open_catalog(self) -> CatalogClient:
        from gc_assets.lakes.iceberg.catalog import CatalogClient  # Takes half a second to import.

        return CatalogClient(self.name, self._config.catalog_name, self._config.catalog, self._config.read_seconds)

    def _list_config_notes(self) -> Iterator[str]:
        if self._config.merged_properties:
            yield (
                f"lake {self.name}: pyiceberg's own configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__*) adds properties to `catalog`: "
                f"{', '.join(self._config.merged_properties)}; write them into lakes.yaml, or unset them"
            )

    def read_registration(self, name: str, metadata_location: str) -> Registration:
        table, raw = self._read_metadata(name, metadata_location)
        matched = any(fnmatchcase(name, pattern) for pattern in self._config.tables)
        writable = "." in name and self._is_writable(table.format_version)
        return Registration(name, table, len(raw), matched, writable, hashlib.sha256(raw).hexdigest())

    def _is_writable(self, format_version: int) -> bool:
        """Return True if pyiceberg can commit to tables of a format version.

        Over REST, it can always commit, because the server writes the metadata.
        """
        catalog = {name: self._config.catalog[name].get_secret_value() for name in ("type", "uri") if name in self._config.catalog}
        if "type" not in catalog:
            is_rest = catalog.get("uri", "").startswith("http")  # pyiceberg infers it in the same way.
            return is_rest or format_version <= MAX_WRITABLE_FORMAT
        kind = catalog["type"].lower()
        return kind == "rest" or (kind not in READ_ONLY_CATALOGS and format_version <= MAX_WRITABLE_FORMAT)

    def _read_metadata(
        self, name: str, address: str, missing: str = "does not exist; restore it, or drop the table from the catalog"
    ) -> tuple[TableMetadata, bytes]:
        try:
            raw = self._objects.read(address)
            table = parse_metadata(address, raw)
            _require_addresses(table, self._resolver)
        except FileNotFoundError:
            raise LakeUnreadable(f"lake {self.name}: table {name} could not be read: its metadata {address} {missing}") from None
        except (OSError, FormatError, StoreError) as error:
            raise LakeUnreadable(f"lake {self.name}: table {name} could not be read: {error}") from error
        except Exception as error:  # Other programs write the metadata.
            problem = f"{address}: unexpected {type(error).__name__}: {error}"
            raise LakeUnreadable(f"lake {self.name}: table {name} could not be read: {problem}") from error
        return table, raw


@dataclass(frozen=True, slots=True)
class _PinnedView:
    """A view's metadata files to keep, and the view itself, or a note if it is unreadable."""

    pinned: tuple[ContentRoot, ...] = ()
    view: View | None = None
    note: str | None = None


def _pin_view_file(address: str) -> ContentRoot:
    return ContentRoot(address, Kind.VIEW_METADATA, is_container=False, must_exist=False)


def _is_resolvable(address: str, resolver: KeyResolver) -> bool:
    try:
        resolver.resolve_one(address)
    except GcError:
        return False
    return is_text(address)


def _merge_pinned(pinned: Sequence[ContentRoot], of_views: Iterable[ContentRoot]) -> tuple[ContentRoot, ...]:
    """Merge the metadata files to keep of tables and of views.

    If a file belongs to a table and a view, the table's entry is kept, because only that entry may
    require the file to exist.
    """
    known = {root.address: root for root in pinned}
    for root in of_views:
        known.setdefault(root.address, root)
    return tuple(known.values())


def _require_addresses(table: TableMetadata, resolver: KeyResolver) -> None:
    """Verify that all addresses of a table can be resolved.

    Raises:
        FormatError: If readers disagree about the meaning of an address.
        StoreError: If an address may or may not lead into a storage, e.g. due to a circular link.
    """
    lists = [snapshot.manifest_list for snapshot in table.snapshots]
    files = [file.address for snapshot in table.snapshots for file in snapshot.files] + [file.address for file in table.unlisted_statistics]
    locations = [location.rstrip("/") + "/" for location in table.locations]
    resolver.resolve(pa.array([table.address, *locations, *lists, *files, *table.previous_metadata], pa.string()))


def _build_claims(registrations: Iterable[Registration], protected: set[str]) -> tuple[Claim, ...]:
    """Build one claim for each location of each table, because tables can share a location.

    Locations of tables in `protected` are never collected, even if another table shares or contains
    them.
    """
    found = {(location.rstrip("/") + "/", item.table.table_uuid): item.name for item in registrations for location in item.table.locations}
    shielded = {address for address, uuid in found if uuid in protected}
    return tuple(Claim(address, uuid, name, collect=address not in shielded) for (address, uuid), name in found.items())


def _claim_unread(unreadable: Sequence[UnreadableTable]) -> Iterator[Claim]:
    """Yield claims that protect the possible locations of unreadable tables."""
    for item in unreadable:
        yield from (Claim(address, None, item.table_name, collect=False) for address in item.locations)


def _build_pinned(registrations: Sequence[Registration]) -> tuple[ContentRoot, ...]:
    """Return the distinct metadata files to keep. A file must exist if any table requires it."""
    pinned: dict[str, ContentRoot] = {}
    for item in registrations:
        pinned[item.table.address] = ContentRoot(item.table.address, Kind.METADATA_JSON, is_container=False, size_bytes=item.size_bytes)
        pinned.update({file.address: file for file in item.table.unlisted_statistics})
    for item in registrations:
        # The log may list metadata files that engines have deleted since
        # (write.metadata.delete-after-commit.enabled).
        for address in item.table.previous_metadata:
            pinned.setdefault(address, ContentRoot(address, Kind.METADATA_JSON, is_container=False, must_exist=False))
        hint = item.table.address.rpartition("/")[0] + "/version-hint.text"
        pinned.setdefault(hint, ContentRoot(hint, Kind.VERSION_HINT, is_container=False, must_exist=False))
    return tuple(pinned.values())


def _list_catalog_notes(lake: str, registrations: Sequence[Registration]) -> Iterator[str]:
    """Yield a note for each reason why the catalog's policies protect tables or young files."""
    names: dict[str, list[str]] = defaultdict(list)
    for item in registrations:
        if item.policy is not None and item.policy.protect is not None:
            names[item.policy.protect].append(item.name)
    for reason, tables in names.items():
        which = f"table {tables[0]}" if len(tables) == 1 else f"{len(tables):,} tables, for example {tables[0]}"
        yield f"lake {lake}: all files of {which} are kept: {reason}"
    oldest = max((item for item in registrations if item.policy is not None), key=_orphan_age, default=None)
    if oldest is not None and (age := _orphan_age(oldest)):
        text = f"no file younger than {format_duration(seconds(age))} is a candidate"
        yield f"lake {lake}: {text}, because the catalog's policy for table {oldest.name} requires it"


def _orphan_age(item: Registration) -> int:
    return 0 if item.policy is None else item.policy.min_file_age_seconds


def _describe_empty(lake: str, catalog_name: str, others: Sequence[str]) -> Iterator[str]:
    """Yield a note if the database only contains tables of other catalogs."""
    if others:
        yield (
            f"lake {lake}: catalog {catalog_name!r} has no tables, but its database has tables of {join_names(list(map(repr, others)))}; "
            "set `catalog_name` in lakes.yaml to the name that the writers use"
        )


def _build_notes(lake: str, registrations: Sequence[Registration]) -> Iterator[str]:
    if not registrations:
        yield f"lake {lake}: the catalog has no tables, so no location is claimed"
    uuids = Counter(item.table.table_uuid for item in registrations)
    for item in registrations:
        for key, path in item.table.relative_locations.items():
            yield f"table {item.name}: {key} is the relative path {path!r}, which each reader resolves differently; it is not claimed"
        if not item.table.gc_enabled:
            yield f"table {item.name}: gc.enabled is {item.table.properties[GC_ENABLED]}, so all its files are kept"
        elif not item.matched:
            yield f"table {item.name}: no pattern of `tables` matches it, so all its files are kept"
        if (times := uuids[item.table.table_uuid]) > 1:
            yield f"table {item.name}: its uuid {item.table.table_uuid} is registered {times} times; a file is kept if any of them needs it"
