"""Open stores, and dispatch to the code for their kind, which the URL scheme determines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from gc_assets.config.connections import DEFAULT_CONNECTIONS, Connections
from gc_assets.config.models import InventoryConfig, StorageConfig
from gc_assets.core.errors import StoreError, UsageError
from gc_assets.core.paths import FILE, Location, scheme_of
from gc_assets.core.urls import parse_alias
from gc_assets.stores.azure.kind import AZURE
from gc_assets.stores.gcs.kind import GOOGLE
from gc_assets.stores.kind import StoreKind
from gc_assets.stores.local.kind import LOCAL
from gc_assets.stores.s3.kind import S3

if TYPE_CHECKING:
    from gc_assets.core.findings import Finding
    from gc_assets.core.key_resolver import KeyResolver
    from gc_assets.core.objects import EditableObjects
    from gc_assets.stores.protocol import Lister, PathAlias, Store, SymbolicLink

SCHEMES: Final[dict[str, StoreKind]] = {kind.scheme: kind for kind in (LOCAL, S3, AZURE, GOOGLE)}
# The URL scheme of the storages that a kind of inventory report can describe.
_REPORT_SCHEMES: Final = {"s3": S3.scheme, "plain": S3.scheme, "azure": AZURE.scheme, "gcs": GOOGLE.scheme}


def open_store(location: str, connections: Connections = DEFAULT_CONNECTIONS) -> Store:
    """Open the store at a location.

    Args:
        location: A URL or path.
        connections: How to connect to object stores.

    Raises:
        UsageError: If there is no store for the URL scheme.
    """
    kind = SCHEMES.get(scheme_of(location))
    if kind is None:
        raise UsageError(f"storage location {location!r} has an unsupported scheme: {_supported_schemes()}")
    return kind.open(location, connections)


def examine_state(location: str, connections: Connections) -> Iterator[Finding]:
    """Check for `gc-assets doctor` that the store will not delete objects of the state by itself."""
    kind = SCHEMES.get(scheme_of(location))
    yield from kind.examine_state(location, connections) if kind is not None else ()


def find_link_sources(storage: StorageConfig, storages: Iterable[StorageConfig]) -> list[StorageConfig]:
    """Find the other storages whose symbolic links may lead into this storage."""
    if not open_store(storage.location).has_aliases:
        return []
    return [other for other in storages if other.name != storage.name and open_store(other.location).has_aliases]


def find_path_aliases(storages: Iterable[StorageConfig]) -> list[PathAlias]:
    """Find directories that have two paths in the storages, for example because of a bind mount."""
    of_scheme: dict[str, list[tuple[str, str]]] = {}
    for storage in storages:
        of_scheme.setdefault(scheme_of(storage.location), []).append((storage.name, storage.location))
    return [names for scheme, locations in of_scheme.items() if scheme in SCHEMES for names in SCHEMES[scheme].find_path_aliases(locations)]


def find_links(storage: StorageConfig) -> Iterable[SymbolicLink]:
    """Scan a part of a storage for symbolic links."""
    kind = SCHEMES.get(scheme_of(storage.location))
    return () if kind is None else kind.find_links(storage.name, storage.location)


def read_identity(address: str, location: str, connections: Connections) -> str | None:
    """Read the identity of an object, to compare it with identities in the storage at `location`.

    The result is None if a comparison is impossible, because the object is unreadable, in another
    kind of store, or in a mount that may show different inode numbers.
    """
    scheme = scheme_of(address)
    return SCHEMES[scheme].read_identity(address, location, connections) if scheme in SCHEMES and scheme == scheme_of(location) else None


def describe_directory(path: str, *, has_buckets: bool, disks: Sequence[str]) -> str | None:
    """Explain why files in a local directory cannot be compared with the files of storages.

    Local files are compared with planned files by inode. This does not work if the directory is a
    mounted bucket, only exists on the machine that wrote the files, or has other inode numbers than
    in the storages. If this process cannot search the directory, any file in it could be a link to
    a planned file.

    A directory can also be a mount point whose file system is not mounted. This function does not
    detect that, but `local_file_exists` does for each file.

    Args:
        path: The directory.
        has_buckets: Whether there are storages in object stores, which may be mounted.
        disks: The paths of the local storages.

    Returns:
        The reason, or None if the files can be compared.
    """
    from gc_assets.core.external_addresses import HIDDEN, NO_DIRECTORY  # imports pyarrow
    from gc_assets.stores.local.mounts import has_same_inodes, is_in_one_mount, may_hang
    from gc_assets.stores.local.objects import can_search, can_search_in_time

    # There is a time limit, because an unresponsive server must not block the run.
    if may_hang(path) and (has_buckets or not all(is_in_one_mount(path, disk) for disk in disks)):
        reason = "a network or FUSE mount, which may show a bucket, or a disk under other inode numbers"
        return HIDDEN if can_search_in_time(path) is False else reason
    is_searchable = can_search(path)
    if not is_searchable:
        return NO_DIRECTORY if is_searchable is None else HIDDEN
    if has_buckets and may_hang(os.path.realpath(path)):
        return "a network or FUSE mount, which may show a bucket"
    is_comparable = all(has_same_inodes(path, disk) for disk in disks)
    return None if is_comparable else "a network, FUSE or overlay mount, which may show a disk under other inode numbers"


def local_file_exists(address: str) -> bool:
    """Return True if there is a regular file at a local address that this process can examine.

    The `links` gate compares such files by inode.
    """
    return SCHEMES[FILE].anywhere(DEFAULT_CONNECTIONS).cached_identity(address) is not None


def local_file_is_hidden(address: str) -> bool:
    """Return True if there may be a file at a local address that this process cannot examine.

    The reason can be a private or damaged directory, either the file's own or one on the way to a
    link's target. The address can also be a link to a file that does not exist on this machine.
    """
    from gc_assets.stores.local.objects import is_hidden

    return is_hidden(address)


def resolve_links(address: str) -> str | None:
    """Resolve all symbolic links in a local address, as far as they exist.

    The result is None if the address has another scheme, or if the path is not UTF-8.
    """
    from gc_assets.stores.local.objects import real_path

    return real_path(address)


def open_lister(storage: StorageConfig, connections: Connections = DEFAULT_CONNECTIONS) -> Lister:
    """Return an object that lists a storage, directly or from its inventory reports.

    Raises:
        UsageError: If the storage has a setting that its store does not support.
    """
    inventory, kind = storage.inventory, SCHEMES.get(scheme_of(storage.location))
    if inventory is None:
        from gc_assets.stores.listing import StoreLister

        return StoreLister(open_store(storage.location, connections))
    from gc_assets.stores.inventories.lister import ReportLister

    for key, reason in find_unsupported_settings(storage):
        raise UsageError(f"storage {storage.name}: {key}: {reason}")
    if kind is None or kind.report_bucket is None:
        raise AssertionError("find_unsupported_settings accepted reports for a storage without them")
    report_files = SCHEMES[scheme_of(inventory.location)].report_files(connections)
    return ReportLister(inventory, kind.report_bucket(storage.location, connections), report_files)


def find_unsupported_settings(storage: StorageConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings that the store does not support, each with advice on what to write."""
    kind = SCHEMES.get(scheme_of(storage.location))
    if kind is None:
        yield "location", f"{storage.location!r} : {_supported_schemes()}"
        return
    try:
        Location.parse(storage.location)
    except UsageError as error:
        yield "location", str(error)
    for alias in storage.aliases:
        try:
            parse_alias(alias)
        except UsageError as error:
            yield "aliases", str(error)
    for key in {other.settings for other in SCHEMES.values()} - {None, kind.settings}:
        if getattr(storage, str(key)) is not None:
            yield str(key), f"a {kind.scheme}:// storage does not use it; leave it out"
    if storage.quarantine not in kind.quarantines:
        yield (
            "quarantine",
            f"{storage.quarantine!r} : a {kind.scheme}:// storage does not support it; use {' or '.join(kind.quarantines)}",
        )
    if storage.inventory is not None:
        yield from _unsupported_inventory(storage.inventory, kind)


def _unsupported_inventory(inventory: InventoryConfig, kind: StoreKind) -> Iterator[tuple[str, str]]:
    if kind.report_bucket is None:
        yield "inventory", f"a {kind.scheme}:// storage is always listed; leave it out"
    elif _REPORT_SCHEMES[inventory.kind] != kind.scheme:
        usable = " or ".join(repr(name) for name, scheme in _REPORT_SCHEMES.items() if scheme == kind.scheme)
        yield "inventory.kind", f"{inventory.kind!r} : this release cannot sweep storages with such reports; use {usable}"
    if scheme_of(inventory.location) not in SCHEMES:
        yield "inventory.location", f"{inventory.location!r} : reports are read from {' and '.join(f'{scheme}://' for scheme in SCHEMES)}"
        return
    try:
        Location.parse(inventory.location)
    except UsageError as error:
        yield "inventory.location", str(error)


def _supported_schemes() -> str:
    return f"this release supports {', '.join(f'{kind.scheme}:// (such as {kind.example})' for kind in SCHEMES.values())}"


def open_objects(connections: Connections = DEFAULT_CONNECTIONS, resolver: KeyResolver | None = None) -> EditableObjects:
    """Return an accessor for objects at any supported address.

    It is pickled and sent to Spark executors. If a resolver is given, addresses may also begin with
    an alias of a storage.
    """
    return ObjectsByScheme({scheme: kind.anywhere(connections) for scheme, kind in SCHEMES.items()}, resolver)


@dataclass(frozen=True, slots=True)
class ObjectsByScheme:
    """An accessor that delegates to the store for the scheme of each address.

    All methods raise `StoreError` if the scheme of an address is not supported.
    """

    stores: Mapping[str, EditableObjects]
    resolver: KeyResolver | None = None

    def read(self, address: str) -> bytes:
        objects, target = self._open(address)
        return objects.read(target)

    def read_identified(self, address: str) -> tuple[bytes, str]:
        objects, target = self._open(address)
        return objects.read_identified(target)

    def cached_identity(self, address: str) -> str | None:
        objects, target = self._open(address)
        return objects.cached_identity(target)

    def identity(self, address: str) -> str | None:
        objects, target = self._open(address)
        return objects.identity(target)

    def size(self, address: str) -> int:
        objects, target = self._open(address)
        return objects.size(target)

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        objects, target = self._open(prefix)
        if target == prefix:
            return objects.list(prefix)
        return ((prefix + address.removeprefix(target), size, modified) for address, size, modified in objects.list(target))

    def list_identities(self, prefix: str) -> Iterator[tuple[str, str]]:
        objects, target = self._open(prefix)
        return ((prefix + address.removeprefix(target), found) for address, found in objects.list_identities(target))

    def read_with_etag(self, address: str) -> tuple[bytes, str]:
        objects, target = self._open(address)
        return objects.read_with_etag(target)

    def replace(self, address: str, content: bytes, etag: str) -> None:
        objects, target = self._open(address)
        objects.replace(target, content, etag)

    def create(self, address: str, content: bytes, *, new_directories: int = 1) -> None:
        objects, target = self._open(address)
        objects.create(target, content, new_directories=new_directories)

    def remove(self, address: str, etag: str) -> None:
        objects, target = self._open(address)
        objects.remove(target, etag)

    def _open(self, address: str) -> tuple[EditableObjects, str]:
        """Return the accessor for an address, and the address without storage aliases."""
        target = address if self.resolver is None else self.resolver.translate(address)
        objects = self.stores.get(scheme_of(target))
        if objects is None:
            known = ", ".join(f"{scheme}://" for scheme in self.stores)
            raise StoreError(f"{address!r} has an unsupported scheme; this release reads {known}")
        return objects, target
