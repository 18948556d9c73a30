"""Holds what every stage of one run date is given besides Spark: configuration, state, clock.

Plain values, so that they pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock, start_of
from gc_assets.core.errors import UsageError
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import Location, overlapping
from gc_assets.lakes.iceberg.tables import SNAPSHOT_HISTORY
from gc_assets.lakes.kind import LakeKind
from gc_assets.lakes.kinds import kind_of, open_lake
from gc_assets.lakes.protocol import ExpiringLake, Lake, expiring
from gc_assets.state.backend import VERIFICATION_MARKS
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import CURRENT_RULES, EXPIRY_LOG, MANIFEST_ENTRIES, POLICY_TABLE, Table
from gc_assets.stores.protocol import Lister, Store
from gc_assets.stores.store import open_lister, open_objects, open_store, two_names

if TYPE_CHECKING:
    from gc_assets.core.key_resolver import KeyResolver

FIRST_RUN_DATE = date(1998, 1, 1)
# Tables of a lake that a fresh mark shares with the night: it has none of its own.
SHARED_TABLES: Final = frozenset({POLICY_TABLE.name, CURRENT_RULES.name, SNAPSHOT_HISTORY.name, EXPIRY_LOG.name, MANIFEST_ENTRIES.name})


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run date.

    `unsafe` are the safety limits that the environment lowered. Every plan and report repeats them.

    `verification_id` names a fresh mark, which `apply` makes beside the night's own: a plan id with the
    token of its lease. A lake's tables then go below `_recheck/<verification_id>/`. The cache of decoded
    containers is shared.
    """

    config: Config
    clock: Clock
    run_date: date
    as_of: datetime
    unsafe: tuple[str, ...] = ()
    verification_id: str | None = None

    @classmethod
    def of(cls, config: Config, clock: Clock, run_date: date, as_of: datetime | None = None, unsafe: tuple[str, ...] = ()) -> RunContext:
        """Returns the night of a run date, as of the start of its day unless `as_of` says
        otherwise.

        Raises `UsageError` for a date outside the partitions, and for an `as_of` in the future.
        """
        if not FIRST_RUN_DATE <= run_date <= clock.today():
            raise UsageError(f"run date {run_date} is outside {FIRST_RUN_DATE} to {clock.today()} (today, UTC)")
        if as_of is not None and as_of > clock.now():
            raise UsageError(
                f"--as-of {as_of.isoformat()} is later than now, {clock.now().isoformat()}: ages count back from a moment that was"
            )
        return cls(config, clock, run_date, as_of or start_of(run_date), unsafe)

    @property
    def state(self) -> State:
        return State.of(self.config)

    def table(self, table: Table, owner: str) -> PublishedTable:
        """Returns the table of this night, or of its fresh mark, that belongs to a lake or storage.

        Raises `StateError` saying what to run where it was never published.
        """
        return self.state.require(self._group(table, owner), table.name, self.run_date)

    def find(self, table: Table, owner: str) -> PublishedTable | None:
        """As `table`, but returns null where it was never published."""
        return self.state.current(self._group(table, owner), table.name, self.run_date)

    def _group(self, table: Table, owner: str) -> str:
        return owner if table.scope == "storage" or table.name in SHARED_TABLES else self.group(owner)

    def group(self, lake_name: str) -> str:
        """Returns where the lake's tables of this run go in the state."""
        return lake_name if self.verification_id is None else f"{VERIFICATION_MARKS}/{self.verification_id}/{lake_name}"

    def resolver(self) -> KeyResolver:
        from gc_assets.core.key_resolver import KeyResolver  # loads Arrow, which a command that resolves nothing can do without

        return KeyResolver([(storage.name, storage.location) for storage in self.config.storages])

    def overlapping_storages(self, concerned: str | None = None) -> list[tuple[str, str]]:
        """Returns pairs of storages of which the first is, or contains, the second, and pairs of
        directories of storages that are one directory by the mounts of this machine.

        Symbolic links are resolved, so two names of one place are seen to be one. Directories that
        do not lie in the storage `concerned` are left out.
        """
        pairs = overlapping([(storage.name, str(Location.parse(storage.location).without_links())) for storage in self.config.storages])
        twice = [names for names in two_names(self.config.storages) if concerned in {None, names.storage, names.other_storage}]
        return pairs + [(f"{names.path} ({names.storage})", f"{names.other_path} ({names.other_storage})") for names in twice]

    def kind(self, name: str) -> LakeKind:
        """Returns the kind of a lake."""
        return kind_of(self.config.lake(name))

    def lake(self, name: str) -> Lake:
        return open_lake(self.config.lake(name), self.objects(), [storage.location for storage in self.config.storages])

    def expiring_lake(self, name: str) -> ExpiringLake:
        """Returns the lake with its edits. Raises `UsageError` where its history is never edited."""
        lake = self.lake(name)
        editable = expiring(lake)
        if editable is None:
            raise UsageError(f"lake {name} is of kind {lake.kind}, whose history gc-assets never edits")
        return editable

    def storage(self, name: str) -> StorageConfig:
        return self.config.storage(name)

    def store(self, storage_name: str) -> Store:
        """Returns the store of a storage.

        Raises `UsageError` where this release has none for its location.
        """
        return open_store(self.storage(storage_name).location, self.config.places())

    def lister(self, storage_name: str) -> Lister:
        """Returns what tells the objects of a storage: its own listing, or reports about it."""
        return open_lister(self.storage(storage_name), self.config.places())

    def objects(self) -> EditableObjects:
        """Returns what reads, and changes, the object of any address that a store reaches.

        The address need not lie in a configured storage.
        """
        return open_objects(self.config.places())

    def longest_grace(self) -> timedelta:
        """Returns the longest grace period of all storages.

        A lake may point into any storage, so the longest one protects its dangling commits.
        """
        return max(storage.grace for storage in self.config.storages)
