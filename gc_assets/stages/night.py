"""What every stage of one run date is given besides Spark: configuration, state, clock. Plain values, so that they pickle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from gc_assets.config import Config, StorageConfig
from gc_assets.core.clock import Clock, start_of
from gc_assets.core.errors import UsageError
from gc_assets.core.paths import KeyResolver, Location
from gc_assets.core.receipts import State
from gc_assets.lakes.protocol import ExpiringLake, Lake
from gc_assets.lakes.registry import open_lake
from gc_assets.stores.editing import EditableLocalObjects

FIRST_RUN_DATE = date(1998, 1, 1)
RECHECK = "_recheck"


@dataclass(frozen=True, slots=True)
class Night:
    """One run date. `unsafe` are the safety limits that the environment lowered; every plan and report repeats them.

    With `recheck` (a plan id) a lake's tables go below `_recheck/<plan id>/`: the fresh mark that `apply` makes beside the
    night's own. The cache of decoded containers is shared.
    """

    config: Config
    clock: Clock
    run_date: date
    as_of: datetime
    unsafe: tuple[str, ...] = ()
    recheck: str | None = None

    @classmethod
    def of(cls, config: Config, clock: Clock, run_date: date, as_of: datetime | None = None, unsafe: tuple[str, ...] = ()) -> Night:
        """Raises `UsageError` for a date outside the partitions."""
        if not FIRST_RUN_DATE <= run_date <= clock.today():
            raise UsageError(f"run date {run_date} is outside {FIRST_RUN_DATE} to {clock.today()} (today, UTC)")
        if as_of is not None and as_of > clock.now():
            raise UsageError(
                f"--as-of {as_of.isoformat()} is later than now, {clock.now().isoformat()}: ages count back from a moment that was"
            )
        return cls(config, clock, run_date, as_of or start_of(run_date), unsafe)

    @property
    def state(self) -> State:
        return State.at(self.config.state)

    def group(self, lake_name: str) -> str:
        """Where the lake's tables of this run go in the state."""
        return lake_name if self.recheck is None else f"{RECHECK}/{self.recheck}/{lake_name}"

    def resolver(self) -> KeyResolver:
        return KeyResolver([(storage.name, storage.location) for storage in self.config.storages])

    def real_locations(self) -> list[tuple[str, str]]:
        """Every storage's name and root with symbolic links resolved, so that two names of one place are seen to be one."""
        return [(storage.name, str(Location.parse(storage.location).without_links())) for storage in self.config.storages]

    def lake(self, name: str) -> Lake:
        return open_lake(self.config.lake(name), EditableLocalObjects(), [storage.location for storage in self.config.storages])

    def expiring_lake(self, name: str) -> ExpiringLake:
        """Raises `UsageError` for a lake whose history is never edited."""
        lake = self.lake(name)
        if not isinstance(lake, ExpiringLake):
            raise UsageError(f"lake {name} is of kind {lake.kind}, whose history gc-assets never edits")
        return lake

    def storage(self, name: str) -> StorageConfig:
        return self.config.storage(name)

    def longest_grace(self) -> timedelta:
        """A lake may point into any storage, so its dangling commits are protected by the longest grace of all."""
        return max(storage.grace for storage in self.config.storages)
