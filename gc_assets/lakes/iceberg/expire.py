"""Approved edits of the Iceberg histories of one catalog, table beside table. Each table is looked
up by its uuid, whatever its name is now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from pyiceberg.typedef import Identifier

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.lakes.iceberg.catalog import CatalogTable, Tables
from gc_assets.lakes.iceberg.readable import Readable
from gc_assets.lakes.iceberg.table_expiry import Policy, ReadRegistration, TableExpiry
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome

TABLES_AT_ONCE = 4
READERS = 16


@dataclass(frozen=True, slots=True)
class Expiry:
    """`read` gives the registration behind a name and its metadata address. `policy` gives the
    retention of one table's registrations now.
    """

    tables: Tables
    objects: Objects
    read: ReadRegistration
    policy: Policy

    def run(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Yields one outcome per action, table by table as each is known. A caller that stops
        listening stops the tables that have not begun.
        """
        if not actions:
            return
        wanted: dict[str, list[ExpiryAction]] = defaultdict(list)
        for action in actions:
            wanted[action.table_uuid or ""].append(action)
        with ThreadPoolExecutor(READERS) as readers, ThreadPoolExecutor(TABLES_AT_ONCE) as workers:
            try:
                found = _Found.of(self.tables, workers)
            except LakeUnreadable as error:
                yield from (ExpiryOutcome(action, "failed", str(error)) for action in actions)
                return
            edits = [workers.submit(self._table(uuid, own, found, readers).run) for uuid, own in wanted.items()]
            try:
                for edit in as_completed(edits):
                    yield from edit.result()
            finally:
                workers.shutdown(cancel_futures=True)

    def _table(self, uuid: str, actions: Sequence[ExpiryAction], found: _Found, readers: Executor) -> TableExpiry:
        registered, readable = found.tables.get(uuid, {}), Readable(self.objects, readers)
        return TableExpiry(self.tables, self.read, self.policy, uuid, registered, found.unreadable, actions, readable)


@dataclass(frozen=True, slots=True)
class _Found:
    """Every table of the catalog by uuid, with its metadata's address, and the names of those that
    could not be read, with why.
    """

    tables: Mapping[str, Mapping[Identifier, str]]
    unreadable: Mapping[str, str]

    @classmethod
    def of(cls, tables: Tables, workers: Executor) -> _Found:
        def load(identifier: Identifier) -> CatalogTable | LakeUnreadable | None:
            try:
                return tables.load(identifier)
            except LakeUnreadable as error:
                return error

        found: dict[str, dict[Identifier, str]] = defaultdict(dict)
        unreadable: dict[str, str] = {}
        identifiers = tables.identifiers()
        for identifier, table in zip(identifiers, workers.map(load, identifiers), strict=True):
            if isinstance(table, LakeUnreadable):
                unreadable[".".join(identifier)] = str(table)
            elif table is not None:
                found[table.table_uuid][identifier] = table.metadata_location
        return cls(found, unreadable)
