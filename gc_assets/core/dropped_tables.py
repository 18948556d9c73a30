"""Keep a record of all tables, and decide when the files of a dropped table are garbage.

A table counts as dropped if an accepted run (one without a failed gate) has read it, but no
configured catalog lists it any more. Its files are collected after a waiting time. They are kept if
anything suggests that the table is still in use, or that its catalog omitted it by mistake. All
functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.claims import directories_of, upwards
from gc_assets.core.moments import to_micros
from gc_assets.core.printable import show

# Files that are written during a listing, or with the time of another time zone, are less than this
# ahead of the time of the listing.
MAX_LEAD: Final = timedelta(days=1)

# Records of dropped tables without files are removed after this time. Until then, their files in
# quarantine have a claim, so that they can be purged.
FORGET_AFTER = timedelta(days=365)
# The reason to wait ends with this text if a file is newer than the last run that read the table.
READ_BEFORE_WRITE = "was written after a run last read the table"
# The reason to wait ends with this text in the first run that finds the table missing.
IF_ACCEPTED = ", if this run is accepted"
TABLE, REPOSITORY = "table", "repository"
_MICROSECONDS = pa.timestamp("us", "UTC")
_NEVER = 2**63 - 1
_LAST_PART = re.compile(r"\.(`(?:[^`]|``)*`|[^.]*)$")


@dataclass(frozen=True, slots=True)
class RememberedTable:
    """The record of a table read by an accepted run, with its claims on one storage.

    Attributes:
        table_name: `namespace.table`, or None if unknown.
        last_seen: Time of the last run or apply that read the table.
        claims_by_uuid: True if claims belong to the table's UUID, False if they belong to the lake.
        metadata_location: Address of the newest known metadata file.
        newest_ms: Time of the newest known commit in milliseconds since 1970, or 0 if there is no
            commit.
        gone_since: Time of the first accepted run in which the table was missing. None if a catalog
            lists the table.
        lost_tables: Number of tables of the lake that went missing in the same run, or in earlier
            runs of the same date.
        known_tables: Number of tables of the lake that were listed before these runs.
        replaced: True if another table has the name now.
        last_writer: The program that made the newest known commit, if known.
        noun: `table`, or `repository` for a repository on a server. The metadata location of a
            repository is the address of its files.
        other_catalog_since: Time of the first accepted run in which the lake read another catalog
            than the one that listed the table. None if it still reads that catalog.
        owns_from: Files written before this time do not belong to the table. If the table adopted
            older files, for example with `add_files`, this is the time of its oldest file. None if
            its files may be of any age.
        last_run: Time at which the last run that read the table read the first ref of any lake.
            None if no run read it.
    """

    lake: str
    table_uuid: str
    table_name: str | None
    catalog: str
    prefixes: tuple[str, ...]
    last_seen: datetime
    claims_by_uuid: bool = True
    metadata_location: str | None = None
    newest_ms: int = 0
    gone_since: datetime | None = None
    lost_tables: int = 0
    known_tables: int = 0
    replaced: bool = False
    last_writer: str | None = None
    noun: str = TABLE
    other_catalog_since: datetime | None = None
    owns_from: datetime | None = None
    last_run: datetime | None = None

    @property
    def read_by_run_at(self) -> datetime:
        """The time of the last run that read the table. Unlike `last_seen`, it ignores applies."""
        return self.last_run or self.last_seen

    @property
    def read_by_run_from(self) -> datetime:
        """The earliest time at which the last run that read the table may have read its first ref.

        Records of earlier releases only contain `last_seen`, the time at which the run read the
        refs of the table's own lake. It may have read those of another lake shortly before.
        """
        return self.last_run or self.last_seen.replace(hour=0, minute=0, second=0, microsecond=0)

    @property
    def claim_table(self) -> str:
        """The identity that the table's claims record as their owner."""
        return self.table_uuid if self.claims_by_uuid else f"urn:uuid:{self.table_uuid}"

    @property
    def name(self) -> str:
        return f"{self.lake}: {self.table_name or self.table_uuid}"

    @property
    def is_missed(self) -> bool:
        """True if the lake no longer lists the table's name.

        If another table has taken the name, this is False. A repository is a whole lake, so it
        counts as missing even if it was created again.
        """
        return self.noun == REPOSITORY or not self.replaced

    @property
    def lost_amount(self) -> str:
        """Phrase for messages: how many of the lake's tables went missing on the same date."""
        if self.noun == REPOSITORY:
            return f"its repository {self.table_name}"
        return f"{self.lost_tables:,} of {self.known_tables:,} tables"

    @property
    def written_before(self) -> datetime:
        """The time before which all known files of the table were written.

        It is rounded down, because some stores report times in whole seconds. If the clock was set
        back, `last_seen` may be later than `gone_since`, so the earlier one is used.
        """
        seen = self.last_seen if self.gone_since is None else min(self.last_seen, self.gone_since)
        return seen.replace(microsecond=0)


@dataclass(frozen=True, slots=True)
class LakeTables:
    """The tables of a lake in one run.

    Attributes:
        seen_at: Time at which the run read the refs of the lake.
        tables: The readable tables of the lake that have claims on the storage.
        uuids: UUIDs of all tables, including unreadable ones.
        unreadable_uuids: UUIDs of unreadable tables.
        names: UUIDs of all tables by name.
        unreadable_names: Names of unreadable tables.
        is_unreadable: True if the list of tables is unknown.
        missed_at: When the waiting time begins for tables that are missing for the first time. None
            if it begins at `seen_at`. It may be later, because the host's clock may be behind the
            store's clock.
        oldest_ms: Time of each table's first commit, in milliseconds since 1970. 0 if the commit may
            be missing. Tables without commits are not included.
        longest_write: The longest possible time between the write of a file and its commit.
    """

    lake: str
    catalog: str
    seen_at: datetime
    tables: tuple[RememberedTable, ...] = ()
    uuids: frozenset[str] = frozenset()
    unreadable_uuids: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    unreadable_names: frozenset[str] = frozenset()
    is_unreadable: bool = False
    missed_at: datetime | None = None
    oldest_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    longest_write: timedelta = timedelta()

    @property
    def waits_from(self) -> datetime:
        return self.seen_at if self.missed_at is None else max(self.seen_at, self.missed_at)


def remember_tables(previous: Iterable[RememberedTable], lakes: Sequence[LakeTables]) -> list[RememberedTable]:
    """Update the records of tables after a run.

    A table is not dropped if any lake lists it. If the lake was removed from the configuration, or
    its list of tables is unknown, the record stays as it was. If the lake reads another catalog
    now, its tables wait until a user accepts them as dead, or the old catalog is read again.

    Args:
        previous: The records of the last accepted run.
    """
    by_lake = {lake.lake: lake for lake in lakes}
    listed = frozenset[str]().union(*(lake.uuids for lake in lakes))
    unreadable = frozenset[str]().union(*(lake.unreadable_uuids for lake in lakes))
    previous = list(previous)
    found = {(table.lake, table.table_uuid): _with_first_file(table, lake, previous) for lake in lakes for table in lake.tables}
    earlier = [item for item in previous if (item.lake, item.table_uuid) not in found]
    gone: list[RememberedTable] = []
    for item in earlier:
        if item.table_uuid in listed:
            if item.table_uuid in unreadable:
                found[item.lake, item.table_uuid] = as_listed(item)
        elif (kept := _keep_unlisted(item, by_lake.get(item.lake))) is not None:
            found[item.lake, item.table_uuid] = kept
        else:
            gone.append(item)
    lost = Counter(item.lake for item in gone if _is_missed_today(item, by_lake[item.lake]))
    losing = {item.lake for item in gone if item.gone_since is None}
    for item in gone:
        lake = by_lake[item.lake]
        missed = _as_missed(item, lake, lost[item.lake])
        found[item.lake, item.table_uuid] = _add_losses(missed, lake, lost[item.lake]) if item.lake in losing else missed
    return sorted(found.values(), key=lambda item: (item.lake, item.table_name or "", item.table_uuid))


def _keep_unlisted(item: RememberedTable, lake: LakeTables | None) -> RememberedTable | None:
    """Return the record of an unlisted table that may still exist, or None if it is gone.

    Args:
        lake: The table's lake, or None if it was removed from the configuration.
    """
    if lake is not None and lake.catalog != item.catalog:
        since = item.other_catalog_since or lake.waits_from
        # The table waits for the catalog that listed it, see `find_reason_to_wait`.
        return replace(item, gone_since=item.gone_since or lake.waits_from, other_catalog_since=since)
    if lake is None or lake.is_unreadable:
        return item
    return as_listed(item) if item.table_name in lake.unreadable_names else None  # it may be the unreadable table


def _with_first_file(table: RememberedTable, lake: LakeTables, previous: Sequence[RememberedTable]) -> RememberedTable:
    """Record when the oldest files of a listed table may have been written.

    A new table was not listed in the last accepted run, so its files were written at most
    `longest_write` before that run. If the table was registered with older commits, its first
    commit takes the place of the run.
    """
    known = next((item for item in previous if (item.lake, item.table_uuid) == (table.lake, table.table_uuid)), None)
    if known is not None:
        return replace(table, owns_from=known.owns_from)
    runs = [item.read_by_run_at for item in previous if (item.lake, item.catalog) == (table.lake, table.catalog)]
    if not runs or table.noun == REPOSITORY:
        return table
    without_it = max(runs).timestamp() * 1000
    first_ms = min(lake.oldest_ms.get(table.table_uuid, without_it), without_it)
    if first_ms <= 0:
        return table
    return replace(table, owns_from=datetime.fromtimestamp(first_ms / 1000, UTC) - lake.longest_write)


def with_oldest_files(tables: Iterable[RememberedTable], oldest: Mapping[tuple[str, str], datetime]) -> list[RememberedTable]:
    """Adjust `owns_from` of tables that have adopted older files.

    Args:
        oldest: Time of the oldest file that commits of a table reference, keyed by lake and table
            UUID.
    """
    return [
        replace(table, owns_from=min(table.owns_from, oldest.get((table.lake, table.table_uuid), table.owns_from)))
        if table.owns_from is not None
        else table
        for table in tables
    ]


@dataclass(frozen=True)
class AdoptableFiles:
    """Selects files under the claims of listed tables that are older than the table itself.

    If a commit of the table references such a file, the table has adopted it. Instances are sent to
    Spark executors.

    Attributes:
        first: For each prefix, the time from which files do not count as adopted, in microseconds
            since 1970. For nested prefixes, the deepest one decides.
    """

    first: Mapping[str, int]

    @classmethod
    def of(cls, tables: Iterable[RememberedTable]) -> AdoptableFiles:
        """Index the prefixes of listed tables.

        If the files of a table may be of any age, none of them counts as adopted.
        """
        first: dict[str, int] = {}
        for table in tables:
            if table.gone_since is None:
                limit = 0 if table.owns_from is None else to_micros(table.owns_from)
                for prefix in table.prefixes:
                    first[prefix] = max(first.get(prefix, 0), limit)
        return cls(first if any(first.values()) else {})

    def select(self, keys: pa.Array, modified: pa.Array) -> pa.Array:
        """Return a mask that is true for files older than the table that claims them."""
        times = pc.fill_null(modified.cast(_MICROSECONDS).cast(pa.int64()), _NEVER)
        is_older = pc.less(times, max(self.first.values(), default=0))
        older = keys.filter(is_older)
        if not len(older):
            return is_older
        directories = directories_of(older).dictionary_encode()
        first = [next((self.first[at] for at in upwards(name) if at in self.first), 0) for name in directories.dictionary.to_pylist()]
        is_adoptable = pc.less(times.filter(is_older), pa.array(first, pa.int64()).take(directories.indices))
        return pc.replace_with_mask(is_older, is_older, is_adoptable)


def _as_missed(table: RememberedTable, lake: LakeTables, lost: int) -> RememberedTable:
    """Record that a lake no longer lists a table.

    Args:
        lost: Number of the lake's tables that have gone missing on this date.
    """
    is_replaced = table.table_name is not None and table.table_name in lake.names
    missed_in_other_catalog = table.other_catalog_since is not None and table.gone_since == table.other_catalog_since
    if table.gone_since is None or missed_in_other_catalog:
        table = replace(table, gone_since=lake.waits_from, lost_tables=lost, known_tables=lost + len(lake.tables))
    return replace(table, replaced=is_replaced, other_catalog_since=None)


def _is_missed_today(table: RememberedTable, lake: LakeTables) -> bool:
    """Return True if the table went missing in this run or in another run of the same date."""
    return table.gone_since is None or table.gone_since.date() == lake.waits_from.date()


def _add_losses(table: RememberedTable, lake: LakeTables, lost: int) -> RememberedTable:
    """Update how many of the lake's tables went missing on the same date, if their share has grown."""
    known = lost + len(lake.tables)
    is_larger = _is_missed_today(table, lake) and lost * table.known_tables > table.lost_tables * known
    return replace(table, lost_tables=lost, known_tables=known) if is_larger else table


def as_listed(table: RememberedTable) -> RememberedTable:
    """Record that a catalog lists a table, so that its waiting time starts again if it is dropped."""
    return replace(table, gone_since=None, lost_tables=0, known_tables=0, replaced=False, other_catalog_since=None)


@dataclass(frozen=True, slots=True)
class FormerFiles:
    """Number and time of the listed files under the claims of a dropped table.

    Attributes:
        count: Number of files that were written before the table was last read.
        bytes: Total size of these files.
        newest: Time of the newest file that was written later, or None. Files are ignored if a
            listed table claims them, or if another dropped table may have written them.
        newest_key: Key of this newest file.
    """

    count: int = 0
    bytes: int = 0
    newest: datetime | None = None
    newest_key: str | None = None


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """The state of a dropped table in a run.

    Attributes:
        former_files: The files under its claims.
        waits_for: Why the table's files are not collected yet, or None if they are.
        due_at: When the table's waiting time ends, or None if its files are kept.
        accepted_at: When a user accepted the table as dead, or None.
        shares_location: True if another table or lake claims the location now.
        is_written: True if the table may be written through another catalog, so that any file under
            its claims may be in use.
    """

    table: RememberedTable
    former_files: FormerFiles = FormerFiles()
    waits_for: str | None = None
    due_at: datetime | None = None
    accepted_at: datetime | None = None
    shares_location: bool = False
    is_written: bool = False

    @property
    def is_due(self) -> bool:
        return self.waits_for is None

    @property
    def before(self) -> datetime:
        """The time before which all files certainly belonging to the table were written."""
        if self.accepted_at is None or self.shares_location:
            return self.table.written_before
        return max(self.accepted_at, self.table.written_before)

    @property
    def owns_until(self) -> datetime:
        """The time before which files are assigned to the table.

        While the table waits, this includes files written up to the time at which it went missing.
        """
        gone_since = self.table.gone_since
        return self.before if self.is_due or gone_since is None else max(self.before, gone_since)

    @property
    def has_newer_file(self) -> bool:
        """True if a file under the table's claims was written after a run last read the table."""
        return self.former_files.newest is not None and self.former_files.newest >= self.before

    @property
    def may_have_adopted(self) -> bool:
        """True if commits that no run has read may have added files that are older than the table."""
        return self.is_written or self.has_newer_file


def find_reason_to_wait(
    dropped: DroppedTable,
    now: datetime,
    wait: timedelta | None,
    catalog: str | None,
    unreadable: Sequence[str] = (),
    listed: str | None = None,
    *,
    is_new: bool = False,
) -> DroppedTable:
    """Decide whether the files of a dropped table can be collected, or why they have to wait.

    Args:
        now: Time of the storage's listing, or time at which the refs were read, whichever is
            earlier.
        wait: The waiting time after the table went missing, or None to keep its files.
        catalog: Identity of the lake's current catalog, or None if the lake is not configured.
        unreadable: Names of unreadable tables that may use the files.
        listed: Why the catalog does not confirm that the table no longer exists, or None.
        is_new: True if the table is missing for the first time in this run. If the run is refused,
            the waiting time does not begin.
    """
    table, accepted = dropped.table, dropped.accepted_at
    if table.gone_since is None:
        raise ValueError(f"table {table.name} is listed")
    due_at = None if wait is None else table.gone_since + wait
    reason = _find_reason(dropped, now, due_at, catalog, unreadable, listed, accepted, is_new)
    return replace(dropped, due_at=due_at, waits_for=reason)


def _find_reason(
    dropped: DroppedTable,
    now: datetime,
    due_at: datetime | None,
    catalog: str | None,
    unreadable: Sequence[str],
    listed: str | None,
    accepted: datetime | None,
    is_new: bool,
) -> str | None:
    table, former = dropped.table, dropped.former_files
    if catalog is None:
        return f"lake {table.lake} is not in lakes.yaml"
    if catalog != table.catalog and not _is_accepted_since(table, accepted):
        return f"lake {table.lake} reads another catalog than the run that knew the table"
    if unreadable:
        names = ", ".join(unreadable[:3]) + (f" and {len(unreadable) - 3:,} more" if len(unreadable) > 3 else "")
        return f"{names} cannot be read and may use its files"
    if listed is not None:
        return listed
    if accepted is None and due_at is None:
        return "`retention.dropped` is keep"
    if dropped.has_newer_file and former.newest is not None and former.newest_key is not None:
        if former.newest > now + MAX_LEAD:
            return (
                f"{show(former.newest_key)} has a time in the future, {former.newest:%Y-%m-%d %H:%M} UTC, so it is unknown when it was "
                "written. Set its time to the current one, for example with `touch`, then accept the table"
            )
        return f"{show(former.newest_key)} {_describe_last_use(dropped)}"
    if accepted is None and due_at is not None and now < due_at:
        return f"its waiting time ends at {due_at:%Y-%m-%d %H:%M} UTC{IF_ACCEPTED if is_new else ''}"
    return None


def _is_accepted_since(table: RememberedTable, accepted: datetime | None) -> bool:
    """Return True if a user accepted a table as dead after its lake began to read another catalog.

    An earlier acceptance only refers to the catalog that listed the table. An acceptance of a
    repository always refers to the server that listed the repository.
    """
    since = table.other_catalog_since
    return accepted is not None and since is not None and accepted >= since and table.noun != REPOSITORY


@dataclass(frozen=True, slots=True)
class GoneNamespace:
    """A namespace of a catalog whose tables are all missing from the catalog's list.

    Attributes:
        tables: Number of dropped tables in the namespace whose files are collected.
    """

    lake: str
    name: str
    tables: int


def find_gone_namespaces(tables: Iterable[DroppedTable], lakes: Iterable[LakeTables]) -> list[GoneNamespace]:
    """Find namespaces that had dropped tables and do not contain a listed table any more.

    The catalog may hide the whole namespace. Tables that a user has accepted as dead are not
    counted.
    """
    listed = {(lake.lake, _namespace_of(name)) for lake in lakes for name in {*lake.names, *lake.unreadable_names}}
    counts: Counter[tuple[str, str]] = Counter()
    for item in tables:
        if item.is_due and item.accepted_at is None and item.former_files.count and item.table.table_name is not None:
            counts[item.table.lake, _namespace_of(item.table.table_name)] += 1
    return [GoneNamespace(lake, name, count) for (lake, name), count in sorted(counts.items()) if name and (lake, name) not in listed]


def _namespace_of(table: str) -> str:
    """Return a table name without its last part, which may be quoted with backticks."""
    return _LAST_PART.sub("", table) if "." in table else ""


def find_later_use(dropped: DroppedTable, records: Iterable[DroppedTable]) -> str | None:
    """Find out from sweeps of all storages whether a dropped table may be in use.

    Args:
        dropped: A dropped table whose files would be collected.
        records: Tables in the records of the newest sweep of each storage, including listed tables.

    Returns:
        The reason why it may be in use, or None.
    """
    table = dropped.table
    known = max(time for time in (table.last_seen, table.gone_since, dropped.accepted_at) if time is not None)
    for other in records:
        if other.table.table_uuid != table.table_uuid:
            continue
        if other.table.last_seen > known:
            return f"the run of {other.table.last_seen:%Y-%m-%d %H:%M} UTC read it again"
        newest, key = other.former_files.newest, other.former_files.newest_key
        if newest is not None and key is not None and newest >= max(dropped.before, other.before):
            return f"{show(key)} {_describe_last_use(dropped)}"
    return None


def _describe_last_use(dropped: DroppedTable) -> str:
    return "was written after it was accepted as dead" if dropped.accepted_at is not None else READ_BEFORE_WRITE


@dataclass(frozen=True)
class DroppedPrefixes:
    """Assigns files to dropped tables. Instances are pickled and sent to Spark executors.

    Of all claimed prefixes that contain a file, the longest one counts. The file may belong to any
    dropped table that claimed this prefix when the file was written. If some of these tables wait,
    the file is assigned to the earliest of them, otherwise to the earliest of all. If a listed
    table has a deeper claim, the file is not assigned.

    Attributes:
        tables: The dropped tables.
        present: Prefixes that existing tables and lakes claim.
        of_lakes: Those of the `present` prefixes that belong to a whole lake and not to a table.
    """

    tables: tuple[DroppedTable, ...]
    present: frozenset[str] = frozenset()
    of_lakes: frozenset[str] = frozenset()

    @cached_property
    def by_prefix(self) -> Mapping[str, Sequence[int]]:
        """For each prefix, the indices of tables that claimed it, ordered by `DroppedTable.before`."""
        found: dict[str, list[int]] = {}
        for index, item in enumerate(self.tables):
            for prefix in item.table.prefixes:
                # If a repository was created again in the same place, it has the same claim.
                is_same = item.table.noun == REPOSITORY and prefix in self.of_lakes
                if is_same or not self._is_of_lake(prefix):
                    found.setdefault(prefix, []).append(index)
        return {prefix: sorted(indices, key=lambda index: self.tables[index].before) for prefix, indices in found.items()}

    @property
    def has_several_owners(self) -> bool:
        """True if several dropped tables claimed one prefix, and at least one of them has to wait."""
        shared = (indices for indices in self.by_prefix.values() if len(indices) > 1)
        return any(not self.tables[index].is_due for indices in shared for index in indices)

    def _is_of_lake(self, prefix: str) -> bool:
        return any(at in self.of_lakes for at in upwards(prefix))

    def is_shared(self, prefix: str) -> bool:
        """Return True if an existing table or lake claims the prefix, or a prefix that contains it."""
        return any(at in self.present for at in upwards(prefix))

    def find_prefix(self, directory: str) -> str | None:
        """Return the deepest prefix of a dropped table that contains a directory, or None."""
        for at in upwards(directory):
            if at in self.by_prefix:
                return at
            if at in self.present:
                return None
        return None

    def find(self, keys: pa.Array, modified: pa.Array) -> pa.Array:
        """Return a column with the index of the dropped table to which each file belongs, or null."""
        directories = directories_of(keys).dictionary_encode()
        prefixes = [self.find_prefix(name) for name in directories.dictionary.to_pylist()]
        claimed = pa.array(prefixes, pa.string()).take(directories.indices).dictionary_encode()
        claims = pc.fill_null(claimed.indices, -1).to_numpy(zero_copy_only=False)
        times = pc.fill_null(modified.cast(_MICROSECONDS).cast(pa.int64()), _NEVER).to_numpy(zero_copy_only=False)
        found = np.full(len(keys), -1, np.int32)
        order = np.argsort(claims, kind="stable")
        bounds = np.searchsorted(claims[order], np.arange(len(claimed.dictionary) + 1))
        for number, prefix in enumerate(claimed.dictionary.to_pylist()):
            rows = order[bounds[number] : bounds[number + 1]]
            # Later assignments take precedence, so end with the earliest of the tables that wait.
            items = [(index, self.tables[index]) for index in reversed(self.by_prefix[prefix])]
            for index, item in sorted(items, key=lambda pair: not pair[1].is_due):
                is_own = times[rows] < to_micros(item.owns_until)
                if item.table.owns_from is not None and not item.may_have_adopted:
                    is_own &= times[rows] >= to_micros(item.table.owns_from)
                found[rows[is_own]] = index
        return pa.array(found, pa.int32(), mask=found < 0)

    def is_outside(self, keys: pa.Array, tables: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask that is true for files outside the claims of a given table.

        Args:
            tables: For each file, the index of the dropped table whose commits reference it.
        """
        directories = directories_of(keys).dictionary_encode()
        prefixes = [self.find_prefix(name) for name in directories.dictionary.to_pylist()]
        directory = directories.indices.to_numpy(zero_copy_only=False)
        found = np.ones(len(keys), bool)
        for index in np.unique(tables).tolist():
            own, rows = set(self.tables[index].table.prefixes), tables == index
            found[rows] = np.array([prefix not in own for prefix in prefixes], bool)[directory[rows]]
        return found

    def find_shared(self, keys: pa.Array) -> NDArray[np.bool_]:
        """Return a mask of files whose prefix an existing table claims now, too."""
        return self._find_claimed(keys, self.is_shared)

    def find_undecided(self, keys: pa.Array) -> NDArray[np.bool_]:
        """Return a mask of files in a prefix claimed by a dropped table that has to wait."""
        return self._find_claimed(keys, lambda prefix: any(not self.tables[index].is_due for index in self.by_prefix[prefix]))

    def _find_claimed(self, keys: pa.Array, is_wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return a mask of the files whose longest prefix of dropped tables meets a condition."""
        directories = directories_of(keys).dictionary_encode()
        prefixes = map(self.find_prefix, directories.dictionary.to_pylist())
        wanted = np.array([prefix is not None and is_wanted(prefix) for prefix in prefixes], bool)
        return wanted[directories.indices.to_numpy(zero_copy_only=False)]

    def explained_until(self, prefix: str) -> datetime:
        """Return the time before which dropped tables may have written the files of a prefix.

        If one of these tables may have written a file, the file is no evidence that another one is
        in use. Acceptances by users are ignored here, because each concerns only one table.
        """
        return max(self.tables[index].table.written_before for index in self.by_prefix[prefix])

    def is_written(self, prefix: str) -> bool:
        """Return True if a dropped table with this prefix may be written through another catalog."""
        return any(self.tables[index].is_written for index in self.by_prefix[prefix])

    def is_due(self, indices: pa.Array) -> pa.Array:
        """Return a mask that is true for files assigned to a table whose files are collected."""
        due = pa.array([item.is_due for item in self.tables], pa.bool_())
        return pc.fill_null(due.take(indices), False)


@dataclass(frozen=True)
class TableSelection:
    """Selects Arrow rows that belong to certain tables, by their columns `lake` and `table_uuid`.

    Attributes:
        tables: Pairs of the lake and the UUID of each table.
        are_excluded: True to select the rows of all other tables.
    """

    tables: frozenset[tuple[str, str]] = frozenset()
    are_excluded: bool = False

    def without(self, tables: Iterable[tuple[str, str]]) -> TableSelection:
        """Return a selection without the rows of the given tables."""
        removed = frozenset(tables)
        return replace(self, tables=self.tables | removed if self.are_excluded else self.tables - removed)

    def find_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a mask of the selected rows."""
        by_lake: dict[str, list[str]] = {}
        for lake, uuid in self.tables:
            by_lake.setdefault(lake, []).append(uuid)
        is_named = pa.repeat(False, rows.num_rows)
        for lake, uuids in by_lake.items():
            is_one = pc.is_in(rows.column("table_uuid"), pa.array(uuids, pa.string()))
            is_named = pc.or_(is_named, pc.and_(pc.equal(rows.column("lake"), lake), is_one))
        return pc.invert(is_named) if self.are_excluded else is_named


ALL_TABLES: Final = TableSelection(are_excluded=True)


def select_due(tables: Iterable[DroppedTable], present: Collection[str]) -> list[tuple[str, DroppedTable]]:
    """Return the prefixes of dropped tables whose files are collected, without those in `present`."""
    return [(prefix, item) for item in tables if item.is_due for prefix in item.table.prefixes if prefix not in present]
