"""Remember the tables of catalogs, and decide when the files of a dropped table are garbage.

A table is dropped if an accepted run knew it and no configured catalog lists it any more. Its files
are collected after a waiting time, unless something indicates that the table is in use or that its
catalog did not list it by mistake. All functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.hashing import xxhash64
from gc_assets.core.printable import show
from gc_assets.core.sorted_hashes import sort_distinct

# A dropped table without files is forgotten after this time. Until then, its copies in quarantine
# have a claim, so that they can be purged.
FORGET_AFTER = timedelta(days=365)
# Suffix of the reason to wait if a file is newer than the last run that read the table.
READ_BEFORE_WRITE = "was written after a run last read the table"
# Suffix of the reason to wait in the first run that misses a table.
IF_ACCEPTED = ", if this run is accepted"
TABLE, REPOSITORY = "table", "repository"
_MICROSECONDS = pa.timestamp("us", "UTC")
_NEVER = 2**63 - 1
_LAST_PART = re.compile(r"\.(`(?:[^`]|``)*`|[^.]*)$")


@dataclass(frozen=True, slots=True)
class RememberedTable:
    """A table that an accepted run read, with its claims on one storage.

    Attributes:
        table_name: `namespace.table`, or None if it is unknown.
        last_seen: Time of the last run that read it.
        claims_by_uuid: True if its claims belong to its uuid, False if they belong to the lake.
        metadata_location: Address of its newest known metadata file.
        newest_ms: Time of its newest known commit in milliseconds since 1970, or 0 without commits.
        gone_since: Time of the first accepted run that missed it, or None if it is listed.
        lost_tables: Number of tables of the lake that the same run missed first, or runs of its date
            up to it.
        known_tables: Number of tables of the lake that were listed before these runs.
        replaced: True if its name now belongs to another table.
        last_writer: Program that made the newest known commit, if known.
        noun: `table`, or `repository` for a repository on a server. The metadata location of a
            repository is the address of its files.
        other_catalog_since: Time of the first accepted run in which its lake read another catalog,
            or None as long as the lake reads the catalog that knew the table.
        owns_from: Time from which its files were written, or None if they may be of any age. It is
            that of its oldest file if the table adopted older files, as with `add_files`.
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

    @property
    def claim_table(self) -> str:
        """Identity of the table, as used in its claims."""
        return self.table_uuid if self.claims_by_uuid else f"urn:uuid:{self.table_uuid}"

    @property
    def name(self) -> str:
        return f"{self.lake}: {self.table_name or self.table_uuid}"

    @property
    def is_missed(self) -> bool:
        """False if its name now belongs to another table, so that its lake still lists the name.

        A repository is a whole lake, so a recreated repository is also missed.
        """
        return self.noun == REPOSITORY or not self.replaced

    @property
    def lost_amount(self) -> str:
        """Share of the lake's tables first missed by runs of the same date, for messages."""
        if self.noun == REPOSITORY:
            return f"its repository {self.table_name}"
        return f"{self.lost_tables:,} of {self.known_tables:,} tables"

    @property
    def written_before(self) -> datetime:
        """Time before which its last known files were written.

        Stores with times in whole seconds report an earlier time than the write. If the clock went
        back, `last_seen` is later than `gone_since`.
        """
        seen = self.last_seen if self.gone_since is None else min(self.last_seen, self.gone_since)
        return seen.replace(microsecond=0)


@dataclass(frozen=True, slots=True)
class LakeTables:
    """The tables of a lake in one run.

    Attributes:
        seen_at: Time of the freeze.
        missed_at: Start of the waiting time for tables that this run is the first to miss, or None
            if it starts at the freeze. The host's clock may be behind that of the store.
        tables: The lake's readable tables with claims on the storage.
        uuids: Uuids of all tables of the lake, including unreadable ones.
        unreadable_uuids: Uuids of the unreadable tables.
        names: Uuid of the table with each name.
        unreadable_names: Names of the unreadable tables.
        is_unreadable: True if the list of tables is unknown.
        oldest_ms: Time of each table's first commit in milliseconds since 1970, or 0 if the commit
            may be missing. Tables without commits are not contained.
        longest_write: Longest time between the write of a file and its commit.
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
    """Return the tables to remember after a run.

    A table listed by any lake is not dropped. Tables stay unchanged if their lake was removed from
    the configuration, or has an unknown list of tables. If their lake reads another catalog, they
    wait until a user accepts them, or their own catalog is read again.

    Args:
        previous: The tables remembered by the last accepted run.
    """
    by_lake = {lake.lake: lake for lake in lakes}
    listed = frozenset[str]().union(*(lake.uuids for lake in lakes))
    unreadable = frozenset[str]().union(*(lake.unreadable_uuids for lake in lakes))
    previous = list(previous)
    found = {(table.lake, table.table_uuid): _with_first_file(table, lake, previous) for lake in lakes for table in lake.tables}
    earlier = [item for item in previous if (item.lake, item.table_uuid) not in found]
    gone: list[RememberedTable] = []
    for item in earlier:
        lake = by_lake.get(item.lake)
        key = item.lake, item.table_uuid
        if item.table_uuid in listed:
            if item.table_uuid in unreadable:
                found[key] = as_listed(item)
        elif lake is not None and lake.catalog != item.catalog:
            since = item.other_catalog_since or lake.waits_from
            # It waits for its own catalog, see `find_reason_to_wait`.
            found[key] = replace(item, gone_since=item.gone_since or lake.waits_from, other_catalog_since=since)
        elif lake is None or lake.is_unreadable:
            found[key] = item
        elif item.table_name in lake.unreadable_names:
            found[key] = as_listed(item)  # It may be the unreadable table.
        else:
            gone.append(item)
    lost = Counter(item.lake for item in gone if _is_missed_today(item, by_lake[item.lake]))
    losing = {item.lake for item in gone if item.gone_since is None}
    for item in gone:
        lake = by_lake[item.lake]
        missed = _as_missed(item, lake, lost[item.lake])
        found[item.lake, item.table_uuid] = _add_losses(missed, lake, lost[item.lake]) if item.lake in losing else missed
    return sorted(found.values(), key=lambda item: (item.lake, item.table_name or "", item.table_uuid))


def _with_first_file(table: RememberedTable, lake: LakeTables, previous: Sequence[RememberedTable]) -> RememberedTable:
    """Add the time of a listed table's first file.

    A new table was not in the last accepted run, so its files were written at most `longest_write`
    before that run or, if it was registered with older commits, before the first of these.
    """
    known = next((item for item in previous if (item.lake, item.table_uuid) == (table.lake, table.table_uuid)), None)
    if known is not None:
        return replace(table, owns_from=known.owns_from)
    runs = [item.last_seen for item in previous if (item.lake, item.catalog) == (table.lake, table.catalog)]
    if not runs or table.noun == REPOSITORY:
        return table
    without_it = max(runs).timestamp() * 1000
    first_ms = min(lake.oldest_ms.get(table.table_uuid, without_it), without_it)
    if first_ms <= 0:
        return table
    return replace(table, owns_from=datetime.fromtimestamp(first_ms / 1000, UTC) - lake.longest_write)


def with_oldest_files(tables: Iterable[RememberedTable], oldest: Mapping[tuple[str, str], datetime]) -> list[RememberedTable]:
    """Return the tables. Those that adopted older files own files from the oldest one on.

    Args:
        oldest: Time of the oldest file that each table's commits name, by lake and table uuid.
    """
    return [
        replace(table, owns_from=min(table.owns_from, oldest.get((table.lake, table.table_uuid), table.owns_from)))
        if table.owns_from is not None
        else table
        for table in tables
    ]


@dataclass(frozen=True)
class AdoptableFiles:
    """Selects the files under the claims of listed tables that are older than the table.

    If the table's commits name such a file, the table adopted it. Instances are picklable.

    Attributes:
        first: Time from which the files of a prefix cannot be adopted, in microseconds since 1970.
            The deepest prefix decides.
    """

    first: Mapping[str, int]

    @classmethod
    def of(cls, tables: Iterable[RememberedTable]) -> AdoptableFiles:
        """Index the prefixes of the listed tables. Tables with files of any age adopt no files."""
        first: dict[str, int] = {}
        for table in tables:
            if table.gone_since is None:
                limit = 0 if table.owns_from is None else _microseconds(table.owns_from)
                for prefix in table.prefixes:
                    first[prefix] = max(first.get(prefix, 0), limit)
        return cls(first if any(first.values()) else {})

    def select(self, keys: pa.Array, modified: pa.Array) -> pa.Array:
        """Return a mask of the files."""
        times = pc.fill_null(modified.cast(_MICROSECONDS).cast(pa.int64()), _NEVER)
        is_older = pc.less(times, max(self.first.values(), default=0))
        older = keys.filter(is_older)
        if not len(older):
            return is_older
        directories = pc.replace_substring_regex(older, "[^/]*$", "").dictionary_encode()
        first = [next((self.first[at] for at in upwards(name) if at in self.first), 0) for name in directories.dictionary.to_pylist()]
        is_adoptable = pc.less(times.filter(is_older), pa.array(first, pa.int64()).take(directories.indices))
        return pc.replace_with_mask(is_older, is_older, is_adoptable)


def _as_missed(table: RememberedTable, lake: LakeTables, lost: int) -> RememberedTable:
    """Mark a table as missing from its lake's list. `lost` is the number of tables missed today."""
    is_replaced = table.table_name is not None and table.table_name in lake.names
    missed_in_other_catalog = table.other_catalog_since is not None and table.gone_since == table.other_catalog_since
    if table.gone_since is None or missed_in_other_catalog:
        table = replace(table, gone_since=lake.waits_from, lost_tables=lost, known_tables=lost + len(lake.tables))
    return replace(table, replaced=is_replaced, other_catalog_since=None)


def _is_missed_today(table: RememberedTable, lake: LakeTables) -> bool:
    """Return True if this run, or one of the same date, missed the table first."""
    return table.gone_since is None or table.gone_since.date() == lake.waits_from.date()


def _add_losses(table: RememberedTable, lake: LakeTables, lost: int) -> RememberedTable:
    """Return a missed table, with the share of tables that the runs of its date missed."""
    known = lost + len(lake.tables)
    is_larger = _is_missed_today(table, lake) and lost * table.known_tables > table.lost_tables * known
    return replace(table, lost_tables=lost, known_tables=known) if is_larger else table


def as_listed(table: RememberedTable) -> RememberedTable:
    """Mark a table as listed by a catalog. If it is missed later, its waiting time starts again."""
    return replace(table, gone_since=None, lost_tables=0, known_tables=0, replaced=False, other_catalog_since=None)


@dataclass(frozen=True, slots=True)
class FormerFiles:
    """Files that are listed under the claims of a dropped table.

    Attributes:
        count: Number of files that were written before the table was last seen.
        newest: Time of the newest file that neither a listed table claims nor a dropped table
            explains, or None.
    """

    count: int = 0
    bytes: int = 0
    newest: datetime | None = None
    newest_key: str | None = None


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A dropped table, as found in a run.

    Attributes:
        former_files: Files listed under its claims.
        waits_for: Reason why its files are not collected, or None if they are.
        due_at: Time at which its waiting time ends, or None if its files are kept.
        accepted_at: Time at which a user accepted it as dead, or None.
        shares_location: True if another table or lake claims its location now.
        is_written: True if another catalog may write the table, so that any file under its claims
            may be in use.
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
        """Time before which the table's own files were written."""
        if self.accepted_at is None or self.shares_location:
            return self.table.written_before
        return max(self.accepted_at, self.table.written_before)

    @property
    def owns_until(self) -> datetime:
        """Time before which its files were written. If it waits, this is the time of its drop at the
        latest.
        """
        gone_since = self.table.gone_since
        return self.before if self.is_due or gone_since is None else max(self.before, gone_since)

    @property
    def has_newer_file(self) -> bool:
        """True if a file under its claims was written since a run last read it."""
        return self.former_files.newest is not None and self.former_files.newest >= self.before

    @property
    def may_have_adopted(self) -> bool:
        """True if a commit that no run read may name files that are older than the table."""
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
    """Return the dropped table, with the reason why its files are not collected, if there is any.

    Args:
        now: Time of the listing or of the freeze, whichever is earlier.
        wait: Waiting time since the table was first missed, or None to keep its files.
        catalog: Identity of the lake's current catalog, or None if the lake is not configured.
        unreadable: Names of unreadable tables that may use the files.
        listed: Reason why the catalog does not confirm that the table no longer exists, or None.
        is_new: True if the current run is the first to miss the table. A refused run does not start
            the waiting time.
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
    if dropped.has_newer_file and former.newest_key is not None:
        return f"{show(former.newest_key)} {_describe_last_use(dropped)}"
    if accepted is None and due_at is not None and now < due_at:
        return f"its waiting time ends at {due_at:%Y-%m-%d %H:%M} UTC{IF_ACCEPTED if is_new else ''}"
    return None


def _is_accepted_since(table: RememberedTable, accepted: datetime | None) -> bool:
    """Return True if a user accepted a table as dead after its lake began to read another catalog.

    An earlier acceptance, or the acceptance of a repository, concerns the catalog that knew the
    table.
    """
    since = table.other_catalog_since
    return accepted is not None and since is not None and accepted >= since and table.noun != REPOSITORY


@dataclass(frozen=True, slots=True)
class GoneNamespace:
    """A namespace in which no table is listed any more.

    Attributes:
        tables: Number of its dropped tables whose files are collected.
    """

    lake: str
    name: str
    tables: int


def find_gone_namespaces(tables: Iterable[DroppedTable], lakes: Iterable[LakeTables]) -> list[GoneNamespace]:
    """Return the namespaces of dropped tables that contain no listed table.

    A catalog may hide a whole namespace. Tables accepted by a user are not counted.
    """
    listed = {(lake.lake, _namespace_of(name)) for lake in lakes for name in {*lake.names, *lake.unreadable_names}}
    counts: Counter[tuple[str, str]] = Counter()
    for item in tables:
        if item.is_due and item.accepted_at is None and item.former_files.count and item.table.table_name is not None:
            counts[item.table.lake, _namespace_of(item.table.table_name)] += 1
    return [GoneNamespace(lake, name, count) for (lake, name), count in sorted(counts.items()) if name and (lake, name) not in listed]


def _namespace_of(table: str) -> str:
    """Return the namespace in a table name. The last part may be quoted with backticks."""
    return _LAST_PART.sub("", table) if "." in table else ""


def find_later_use(dropped: DroppedTable, records: Iterable[DroppedTable]) -> str | None:
    """Return the reason why, according to other sweeps, a dropped table may be in use, or None.

    Args:
        dropped: A table with files that would be collected.
        records: Tables in the newest sweep of each storage, including listed ones.
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
    """Finds the dropped table to which a file belongs. Instances are picklable.

    A file may belong to each dropped table that claimed its deepest prefix when the file was
    written. If one of them waits, the file belongs to the earliest of those that wait, otherwise to
    the earliest. A deeper claim of a listed table has priority.

    Attributes:
        present: Prefixes claimed by the current tables and lakes.
        of_lakes: The subset that lakes claim for themselves. Everything in these prefixes belongs
            to the lake.
    """

    tables: tuple[DroppedTable, ...]
    present: frozenset[str] = frozenset()
    of_lakes: frozenset[str] = frozenset()

    @cached_property
    def by_prefix(self) -> Mapping[str, Sequence[int]]:
        """Indices of the tables by prefix, ordered by the time of the tables' last files."""
        found: dict[str, list[int]] = {}
        for index, item in enumerate(self.tables):
            for prefix in item.table.prefixes:
                # A repository that was recreated in place has the claim of the earlier one.
                is_same = item.table.noun == REPOSITORY and prefix in self.of_lakes
                if is_same or not self._is_of_lake(prefix):
                    found.setdefault(prefix, []).append(index)
        return {prefix: sorted(indices, key=lambda index: self.tables[index].before) for prefix, indices in found.items()}

    @property
    def has_several_owners(self) -> bool:
        """True if several dropped tables claimed a prefix, of which one waits."""
        shared = (indices for indices in self.by_prefix.values() if len(indices) > 1)
        return any(not self.tables[index].is_due for indices in shared for index in indices)

    def _is_of_lake(self, prefix: str) -> bool:
        return any(at in self.of_lakes for at in upwards(prefix))

    def is_shared(self, prefix: str) -> bool:
        """Return True if a current table claims this prefix or one that contains it."""
        return any(at in self.present for at in upwards(prefix))

    def find_prefix(self, directory: str) -> str | None:
        """Return the deepest claim of a dropped table on a directory, or None."""
        for at in upwards(directory):
            if at in self.by_prefix:
                return at
            if at in self.present:
                return None
        return None

    def find(self, keys: pa.Array, modified: pa.Array) -> pa.Array:
        """Return for each file the index of the table to which it belongs, or None."""
        directories = pc.replace_substring_regex(keys, "[^/]*$", "").dictionary_encode()
        prefixes = [self.find_prefix(name) for name in directories.dictionary.to_pylist()]
        claimed = pa.array(prefixes, pa.string()).take(directories.indices).dictionary_encode()
        claims = pc.fill_null(claimed.indices, -1).to_numpy(zero_copy_only=False)
        times = pc.fill_null(modified.cast(_MICROSECONDS).cast(pa.int64()), _NEVER).to_numpy(zero_copy_only=False)
        found = np.full(len(keys), -1, np.int32)
        order = np.argsort(claims, kind="stable")
        bounds = np.searchsorted(claims[order], np.arange(len(claimed.dictionary) + 1))
        for number, prefix in enumerate(claimed.dictionary.to_pylist()):
            rows = order[bounds[number] : bounds[number + 1]]
            # The last one takes precedence: the earliest of the tables that wait, then of the others.
            items = [(index, self.tables[index]) for index in reversed(self.by_prefix[prefix])]
            for index, item in sorted(items, key=lambda pair: not pair[1].is_due):
                is_own = times[rows] < _microseconds(item.owns_until)
                if item.table.owns_from is not None and not item.may_have_adopted:
                    is_own &= times[rows] >= _microseconds(item.table.owns_from)
                found[rows[is_own]] = index
        return pa.array(found, pa.int32(), mask=found < 0)

    def is_outside(self, keys: pa.Array, tables: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the files that are outside the claims of the table that names each.

        Args:
            tables: Index of the dropped table that names each file.
        """
        directories = pc.replace_substring_regex(keys, "[^/]*$", "").dictionary_encode()
        prefixes = [self.find_prefix(name) for name in directories.dictionary.to_pylist()]
        directory = directories.indices.to_numpy(zero_copy_only=False)
        found = np.ones(len(keys), bool)
        for index in np.unique(tables).tolist():
            own, rows = set(self.tables[index].table.prefixes), tables == index
            found[rows] = np.array([prefix not in own for prefix in prefixes], bool)[directory[rows]]
        return found

    def explained_until(self, prefix: str) -> datetime:
        """Return the time before which the files of a prefix may be those of its dropped tables.

        A file that one of them may have written is no evidence that another one is in use. An
        acceptance explains no file, because it concerns one table only.
        """
        return max(self.tables[index].table.written_before for index in self.by_prefix[prefix])

    def is_written(self, prefix: str) -> bool:
        """Return True if another catalog may write a dropped table that claimed this prefix."""
        return any(self.tables[index].is_written for index in self.by_prefix[prefix])

    def is_due(self, indices: pa.Array) -> pa.Array:
        """Return True for files that belong to tables with collected files."""
        due = pa.array([item.is_due for item in self.tables], pa.bool_())
        return pc.fill_null(due.take(indices), False)


@dataclass(frozen=True)
class AdoptedFiles:
    """Files outside the claims of dropped tables that the tables' commits named.

    Such a file waits until all of these tables are due. A table that may be listed again, such as
    one that cannot be read, is not due.

    Attributes:
        rows: The files, with the columns lake, table_uuid and key_hash.
    """

    rows: pa.Table

    def select(self, tables: Iterable[tuple[str, str]]) -> AdoptedFiles:
        """Return the files of these tables (lake and uuid)."""
        return AdoptedFiles(self.rows.filter(self._find_rows(tables)))

    def _find_rows(self, tables: Iterable[tuple[str, str]]) -> pa.Array:
        """Return a mask of the rows of these tables."""
        by_lake: dict[str, list[str]] = {}
        for lake, uuid in tables:
            by_lake.setdefault(lake, []).append(uuid)
        is_selected = pa.repeat(False, self.rows.num_rows)
        for lake, uuids in by_lake.items():
            is_named = pc.is_in(self.rows.column("table_uuid"), pa.array(uuids, pa.string()))
            is_selected = pc.or_(is_selected, pc.and_(pc.equal(self.rows.column("lake"), lake), is_named))
        return is_selected

    def find_waiting(self, tables: Iterable[DroppedTable]) -> NDArray[np.int64]:
        """Return the sorted distinct hashes of the files that wait.

        Args:
            tables: The dropped tables. Files of all other tables wait.
        """
        if not self.rows.num_rows:
            return np.empty(0, np.int64)
        is_due = self._find_rows((item.table.lake, item.table.table_uuid) for item in tables if item.is_due)
        return sort_distinct(self.rows.filter(pc.invert(is_due)).column("key_hash").to_numpy())

    def find_owner(self, key: str, tables: Iterable[DroppedTable]) -> DroppedTable | None:
        """Return the first of these tables that waits and names a file, or None."""
        rows = self.rows.filter(pc.equal(self.rows.column("key_hash"), xxhash64(pa.array([key]))[0]))
        owners = set(zip(rows.column("lake").to_pylist(), rows.column("table_uuid").to_pylist(), strict=True))
        return next((item for item in tables if not item.is_due and (item.table.lake, item.table.table_uuid) in owners), None)


def _microseconds(time: datetime) -> int:
    return pa.scalar(time, _MICROSECONDS).cast(pa.int64()).as_py()


def upwards(directory: str) -> Iterator[str]:
    """Yield a directory, its ancestors, and finally the whole storage."""
    while directory:
        yield directory
        directory = directory[: directory[:-1].rfind("/") + 1]
    yield ""


def select_due(tables: Iterable[DroppedTable], present: Collection[str]) -> list[tuple[str, DroppedTable]]:
    """Return the claims of the dropped tables with collected files, excluding claimed prefixes."""
    return [(prefix, item) for item in tables if item.is_due for prefix in item.table.prefixes if prefix not in present]
