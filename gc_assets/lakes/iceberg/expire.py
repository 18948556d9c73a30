"""Execute history edits in several tables of one catalog concurrently.

A table is identified by its UUID, so that the right table is edited even if it was renamed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from pyiceberg.typedef import Identifier

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.lakes.iceberg.catalog import CatalogClient, CatalogTable, NotLoadable, TablePointer
from gc_assets.lakes.iceberg.idle_branches import BranchEdits
from gc_assets.lakes.iceberg.manifests import ListSummary, summarize_list
from gc_assets.lakes.iceberg.metadata_pruning import MetadataPruning
from gc_assets.lakes.iceberg.readable import ReadabilityChecker
from gc_assets.lakes.iceberg.table_expiry import Policy, ReadRegistration, TableExpiry
from gc_assets.lakes.protocol import PRUNING, ExpiryAction, ExpiryOutcome

CONCURRENT_TABLES = 4
CONCURRENT_READS = 16


@dataclass(frozen=True, slots=True)
class CatalogExpiry:
    """Executes approved history edits in the tables of one catalog.

    A registration is a table under one of its names in the catalog. `read_registration` reads the
    one with a given name and metadata address. `read_current` also reads the catalog's current
    policy for it. `policy` computes the retention of a table from all of its registrations.
    """

    catalog: CatalogClient
    objects: Objects
    read_registration: ReadRegistration
    read_current: ReadRegistration
    policy: Policy

    def run(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Execute the actions, and yield one outcome for each.

        The outcomes of a table are yielded when all its edits are finished. Closing the generator
        cancels the edits of tables that have not started yet.
        """
        yield from _edit_tables(self.catalog, self.read_registration, actions, self._edit_table)

    def _edit_table(self, uuid: str, actions: Sequence[ExpiryAction], index: _CatalogIndex, readers: Executor) -> list[ExpiryOutcome]:
        """Remove snapshots and refs of a table first, then schemas and partition specs."""
        history = [action for action in actions if action.action not in PRUNING]
        pruning = [action for action in actions if action.action in PRUNING]
        outcomes = self._build_table_expiry(uuid, history, index, readers).run() if history else []
        if not pruning:
            return outcomes

        def read_lists(addresses: Sequence[str]) -> Iterable[ListSummary]:
            return readers.map(lambda address: summarize_list(address, self.objects.read(address)), addresses)

        locations = list(index.tables.get(uuid, {}))
        return outcomes + MetadataPruning(self.catalog, self.read_current, uuid, locations, pruning, read_lists).run()

    def _build_table_expiry(self, uuid: str, actions: Sequence[ExpiryAction], index: _CatalogIndex, readers: Executor) -> TableExpiry:
        locations, checker = index.tables.get(uuid, {}), ReadabilityChecker(self.objects, readers)
        return TableExpiry(self.catalog, self.read_registration, self.policy, uuid, locations, index.unreadable, actions, checker)


@dataclass(frozen=True, slots=True)
class _CatalogIndex:
    """Names and metadata addresses of each table, keyed by table UUID.

    `unreadable` contains the reason for each table that cannot be read, keyed by table name.
    """

    tables: Mapping[str, Mapping[Identifier, str]]
    unreadable: Mapping[str, str]

    @classmethod
    def read(cls, catalog: CatalogClient, read_registration: ReadRegistration, workers: Executor) -> _CatalogIndex:
        """Load all tables. If pyiceberg cannot load one, its UUID is read from its metadata file."""

        def load(identifier: Identifier) -> CatalogTable | LakeUnreadable | None:
            try:
                return catalog.load(identifier)
            except LakeUnreadable as error:
                return error

        found: dict[str, dict[Identifier, str]] = defaultdict(dict)
        unreadable, addresses, unloadable = dict[str, str](), dict[str, str](), set[Identifier]()
        identifiers = catalog.list_identifiers()
        for identifier, table in zip(identifiers, workers.map(load, identifiers), strict=True):
            if isinstance(table, LakeUnreadable):
                unreadable[".".join(identifier)] = str(table)
                unloadable |= {identifier} if isinstance(table, NotLoadable) else set()
            elif table is not None and table.table_uuid is None:
                unloadable.add(identifier)
                addresses[".".join(identifier)] = table.metadata_location
            elif table is not None and table.table_uuid is not None:
                found[table.table_uuid][identifier] = table.metadata_location
        if any(".".join(identifier) not in addresses for identifier in unloadable):
            pointers = [item for item in catalog.list_pointers() if isinstance(item, TablePointer)]
            addresses |= {item.name: item.metadata_location for item in pointers}
        for identifier in unloadable:
            name = ".".join(identifier)
            try:
                uuid = read_registration(name, addresses[name]).table.table_uuid
            except (LakeUnreadable, KeyError) as error:
                unreadable.setdefault(name, str(error))
                continue
            unreadable.pop(name, None)
            found[uuid][identifier] = addresses[name]
        return cls(found, unreadable)


# A function that edits one table, given its UUID, its actions, the index and the readers.
_Edit = Callable[[str, Sequence[ExpiryAction], _CatalogIndex, Executor], list[ExpiryOutcome]]


def edit_branches(
    catalog: CatalogClient, read_registration: ReadRegistration, actions: Sequence[ExpiryAction], *, creates: bool
) -> Iterator[ExpiryOutcome]:
    """Delete idle branches, or recreate deleted ones if `creates`. Yields one outcome per action."""

    def edit(uuid: str, own: Sequence[ExpiryAction], index: _CatalogIndex, readers: Executor) -> list[ExpiryOutcome]:
        del readers
        locations = list(index.tables.get(uuid, {}))
        if not locations and index.unreadable:
            reason = next(iter(index.unreadable.values()))
            return [ExpiryOutcome(action, "failed", index.unreadable.get(action.table_name or "") or reason) for action in own]
        return BranchEdits(catalog, read_registration, uuid, locations, own, creates).run()

    yield from _edit_tables(catalog, read_registration, actions, edit)


def _edit_tables(
    catalog: CatalogClient, read_registration: ReadRegistration, actions: Sequence[ExpiryAction], edit: _Edit
) -> Iterator[ExpiryOutcome]:
    if not actions:
        return
    actions_by_table: dict[str, list[ExpiryAction]] = defaultdict(list)
    for action in actions:
        actions_by_table[action.table_uuid or ""].append(action)
    with ThreadPoolExecutor(CONCURRENT_READS) as readers, ThreadPoolExecutor(CONCURRENT_TABLES) as workers:
        try:
            index = _CatalogIndex.read(catalog, read_registration, workers)
        except LakeUnreadable as error:
            yield from (ExpiryOutcome(action, "failed", str(error)) for action in actions)
            return
        edits = [workers.submit(edit, uuid, own, index, readers) for uuid, own in actions_by_table.items()]
        try:
            for done in as_completed(edits):
                yield from done.result()
        finally:
            workers.shutdown(cancel_futures=True)
