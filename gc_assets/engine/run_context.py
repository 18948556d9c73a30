"""The context that all stages of a run share, apart from Spark.

It can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock, start_of_day
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.errors import UsageError
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import Location, is_in_bucket, overlapping
from gc_assets.core.urls import overlapping_aliases
from gc_assets.lakes.kind import LakeKind, TableRole
from gc_assets.lakes.kinds import kind_of, open_lake, table_with
from gc_assets.lakes.protocol import ExpiringLake, Lake, as_expiring
from gc_assets.state.backend import VERIFICATION_MARKS
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import CURRENT_RULES, EXPIRY_LOG, MANIFEST_ENTRIES, POLICY_TABLE, Table
from gc_assets.stores.protocol import Lister, Store
from gc_assets.stores.store import find_path_aliases, open_lister, open_objects, open_store

if TYPE_CHECKING:
    from gc_assets.core.key_resolver import KeyResolver

FIRST_RUN_DATE = date(1998, 1, 1)
# If an apply computes the live files again, it uses these tables of the run instead of its own.
SHARED_TABLES: Final = frozenset(
    table.name for table in (POLICY_TABLE, CURRENT_RULES, table_with(TableRole.HISTORY), EXPIRY_LOG, MANIFEST_ENTRIES)
)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The configuration, clock and date of a run, with access to its tables, lakes and storages.

    Attributes:
        config: The configuration.
        state: The state.
        clock: The clock.
        run_date: The date of the run.
        as_of: Reference time for ages in the retention policy.
        unsafe: The safety limits that the environment lowers. All plans and reports mention them.
        verification_id: Plan id and fencing token of an apply that marks the lakes again before it
            acts, otherwise None. The tables of lakes are then published under
            `_recheck/<verification_id>/`, except `SHARED_TABLES`.
    """

    config: Config
    state: State
    clock: Clock
    run_date: date
    as_of: datetime
    unsafe: tuple[str, ...] = ()
    verification_id: str | None = None

    recheck = RenamedAttribute("verification_id")

    @classmethod
    def of(cls, config: Config, clock: Clock, run_date: date, as_of: datetime | None = None, unsafe: tuple[str, ...] = ()) -> RunContext:
        """Create the context for a run date.

        Args:
            config: The configuration.
            clock: The clock.
            run_date: The date of the run.
            as_of: Reference time for ages, by default the start of the run date (UTC).
            unsafe: The safety limits that the environment lowers.

        Raises:
            UsageError: If the date is outside the partitions, or if `as_of` is in the future.
        """
        if not FIRST_RUN_DATE <= run_date <= clock.today():
            raise UsageError(f"run date {run_date} is outside {FIRST_RUN_DATE} to {clock.today()} (today, UTC)")
        if as_of is not None and as_of > clock.now():
            raise UsageError(
                f"--as-of {as_of.isoformat()} is later than now, {clock.now().isoformat()}: ages are counted from a past moment"
            )
        return cls(config, State.of(config), clock, run_date, as_of or start_of_day(run_date), unsafe)

    def table(self, table: Table, owner: str) -> PublishedTable:
        """Open a table of a lake or storage.

        Raises:
            StateError: If it has not been published yet. The message suggests the command that
                publishes it.
        """
        return self.state.require(self._group(table, owner), table.name, self.run_date)

    def find(self, table: Table, owner: str) -> PublishedTable | None:
        """Open a table of a lake or storage, or return None if it has not been published yet."""
        return self.state.current(self._group(table, owner), table.name, self.run_date)

    def lake_tables(self, table: Table) -> list[PublishedTable]:
        """Open a table of every lake. Raises the errors of `table`."""
        return [self.table(table, lake.name) for lake in self.config.lakes]

    def find_lake_tables(self, table: Table) -> list[PublishedTable]:
        """Open a table of every lake that has already published it."""
        return [found for lake in self.config.lakes if (found := self.find(table, lake.name)) is not None]

    def _group(self, table: Table, owner: str) -> str:
        return owner if table.scope == "storage" or table.name in SHARED_TABLES else self.group(owner)

    def group(self, lake_name: str) -> str:
        """Return the directory in the state for the tables of a lake in this run."""
        return lake_name if self.verification_id is None else f"{VERIFICATION_MARKS}/{self.verification_id}/{lake_name}"

    def resolver(self) -> KeyResolver:
        from gc_assets.core.key_resolver import KeyResolver  # imports Arrow, which many commands do not need

        return KeyResolver([(storage.name, storage.location) for storage in self.config.storages], self.config.address_aliases())

    def overlapping_storages(self, concerned: str | None = None) -> list[tuple[str, str]]:
        """Find storages that overlap.

        Two storages overlap if the location or an alias of one contains the other. They also
        overlap if the same directory is mounted twice on this machine. Symbolic links are resolved.

        Args:
            concerned: If given, report directories with two paths only if one is in this storage.

        Returns:
            Pairs of storages or of directories.
        """
        storages = self.config.storages
        pairs = overlapping([(storage.name, str(Location.parse(storage.location).without_links())) for storage in storages])
        aliases = [(storage.name, alias) for storage in storages for alias in storage.aliases]
        pairs += overlapping_aliases([(storage.name, storage.location) for storage in storages], aliases)
        twice = [names for names in find_path_aliases(self.config.storages) if concerned in {None, names.storage, names.other_storage}]
        return pairs + [(f"{names.path} ({names.storage})", f"{names.other_path} ({names.other_storage})") for names in twice]

    def kind(self, name: str) -> LakeKind:
        """Return the kind of a lake."""
        return kind_of(self.config.lake(name))

    def lake(self, name: str) -> Lake:
        return open_lake(self.config.lake(name), self.objects(), [storage.location for storage in self.config.storages])

    def expiring_lake(self, name: str) -> ExpiringLake:
        """Open a lake whose history can be edited.

        Raises:
            UsageError: If gc-assets does not edit histories of this kind.
        """
        lake = self.lake(name)
        editable = as_expiring(lake)
        if editable is None:
            raise UsageError(f"lake {name} is of kind {lake.kind}; gc-assets never edits the history of this kind")
        return editable

    def storage(self, name: str) -> StorageConfig:
        return self.config.storage(name)

    def store(self, storage_name: str) -> Store:
        """Open the store of a storage.

        Raises:
            UsageError: If no store supports the location of the storage.
        """
        return open_store(self.storage(storage_name).location, self.config.connections())

    def lister(self, storage_name: str) -> Lister:
        """Return an object that lists a storage, directly or from its inventory reports."""
        return open_lister(self.storage(storage_name), self.config.connections())

    def objects(self) -> EditableObjects:
        """Return an accessor for objects at any supported address, not only in the storages."""
        aliased = any(storage.aliases or is_in_bucket(storage.location) for storage in self.config.storages)
        return open_objects(self.config.connections(), self.resolver() if aliased else None)

    def longest_grace(self) -> timedelta:
        """Return the longest grace period of all storages.

        This period applies to dangling commits, because the files of a lake may be in any storage.
        """
        return max(storage.grace for storage in self.config.storages)
