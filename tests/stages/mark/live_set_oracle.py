"""Compute by brute force which files a lake of `lake_histories` needs, and why.

`LiveSetOracle` begins at the commits and follows the containers with plain sets. It shares no code with the walk. While a table is
unreadable, the files that it needed when it was last read stay live.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gc_assets.lakes.protocol import EXPIRED, RETAINED
from gc_assets.state.side_tables import DANGLING_SIDE, EXPIRED_SIDE, EXTERNAL_SIDE, LIFECYCLE_SIDE, ROUTED_SIDES
from tests.stages.mark.lake_histories import Row, World, is_file

# Why a commit needs a file, the strongest reason first. HISTORY is expired history that an edit has to remove first.
LIVE, HISTORY, RELEASED, DANGLING = range(4)
# Kinds whose history is edited, and kinds whose commits contain the contents of tables.
EDITED: Final = frozenset({"iceberg", "icechunk"})
CONTENTS: Final = frozenset({"nessie"})

SHARED: Final = "containers shared between tables"
UNREADABLE: Final = "unreadable tables"
RECOVERED: Final = "tables that are readable again"
KEPT: Final = "files kept for unreadable tables"
DELETED: Final = "files listed as deleted"
OPTIONAL: Final = "files that need not exist"
SIZES: Final = "files with different sizes in two live containers"
BOTH: Final = "files named directly and by containers"
PARTLY_RELEASED: Final = "released files of live ranges"
SITUATIONS: Final = (SHARED, UNREADABLE, RECOVERED, KEPT, DELETED, OPTIONAL, SIZES, BOTH)

Location = tuple[str | None, str]


class Root(NamedTuple):
    """A file that a commit references directly. `table` is None for a file of the current state."""

    table: str | None
    address: str
    is_container: bool
    location: Location
    reason: int


@dataclass
class LiveSetOracle:
    """The expected live set of each run.

    Attributes:
        known: Tables that an earlier run has read.
        last: The roots of the previous run.
        kept: The roots of tables that the previous run could not read.
        unreadable: The tables that the previous run could not read.
    """

    world: World
    kind: str
    known: set[str] = field(default_factory=set)
    last: list[Root] = field(default_factory=list)
    kept: list[Root] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)

    def expect(self, released: Collection[Location]) -> tuple[dict[str, set[Location]], Counter[str]]:
        """Return the locations of this run's files by route, and the number of each situation. Call it once per run."""
        entries, roots = self._entries(), self._roots()
        unreadable = self._unreadable_tables(entries, roots)
        own = self._of_tables(roots, unreadable)
        earlier = [root for root in self._of_tables(self.last, unreadable) if root.reason <= HISTORY]
        if unreadable and self.kind not in CONTENTS:
            earlier += [root for root in self.last if root.table is None]
        previous = [root for root in self.kept if self.kind in CONTENTS or root.table is None or root.table in unreadable]
        kept = [root._replace(reason=LIVE) for root in (*own, *earlier, *(previous if unreadable else ())) if root.reason <= HISTORY]
        reasons = find_reasons(entries, [*roots, *kept])
        routes = {route: set[Location]() for route in ("", *ROUTED_SIDES)}
        for location, reason in reasons.items():
            routes[_route(location, reason, released)].add(location)
        now = find_reasons(entries, [*roots, *(root._replace(reason=LIVE) for root in own if root.reason <= HISTORY)])
        events = count_situations(entries, [root for root in (*roots, *kept) if root.reason == LIVE], routes)
        events[UNREADABLE], events[RECOVERED] = len(unreadable), len(self.unreadable - unreadable)
        events[KEPT] = sum(now.get(location) != LIVE for location, reason in reasons.items() if reason == LIVE)
        self.known |= self.world.tables() - self.world.unread.keys()
        self.last, self.kept, self.unreadable = roots, kept, unreadable
        return routes, events

    def _entries(self) -> dict[str, list[Row]]:
        """Return what every decoded version of each container names."""
        found = defaultdict[str, list[Row]](list)
        for address, _, children in self.world.history:
            found[address] += children
        return found

    def _roots(self) -> list[Root]:
        commits = [commit for commit in self.world.commits.values() if commit.table not in self.world.unread]
        contents = {row["address"] for commit in commits if commit.state == RETAINED for row in commit.roots}
        found = [_root(row, None, LIVE) for row in self.world.pinned]
        for commit in commits:
            expired = commit.state == EXPIRED or commit.removed
            reason = LIVE if commit.state == RETAINED else (HISTORY if self.kind in EDITED else RELEASED) if expired else DANGLING
            for row in commit.roots:
                if self.kind in CONTENTS:
                    reason = LIVE if row["address"] in contents else max(reason, RELEASED)
                found.append(_root(row, commit.table, reason))
        return found

    def _unreadable_tables(self, entries: dict[str, list[Row]], roots: list[Root]) -> set[str]:
        parents = defaultdict[str, set[str]](set)
        for address, rows in entries.items():
            for row in rows:
                if row["is_container"]:
                    parents[row["address"]].add(address)
        torn = set(self.world.torn)
        pending = list(torn)
        while pending:
            new = parents[pending.pop()] - torn
            torn |= new
            pending += new
        needed = {root.table for root in roots if root.is_container and root.reason <= HISTORY and root.address in torn}
        return {table for table in needed if table is not None} | (self.world.unread.keys() & self.known)

    def _of_tables(self, roots: list[Root], tables: set[str]) -> list[Root]:
        """Return the roots of tables. A content of a server consists of the files that its retained commits reference."""
        if self.kind not in CONTENTS:
            return [root for root in roots if root.table in tables]
        addresses = {root.address for root in roots if root.table in tables and root.reason == LIVE}
        return [root for root in roots if root.address in addresses]


def _root(row: Row, table: str | None, reason: int) -> Root:
    return Root(table, row["address"], row["is_container"], location_of(row), reason)


def location_of(row: Row) -> Location:
    return row["storage"], row["address"] if row["key"] is None else row["key"]


def find_containers(entries: dict[str, list[Row]], roots: Iterable[Root]) -> set[str]:
    """Return the addresses of all containers that roots reach."""
    pending = [root.address for root in roots if root.is_container]
    found = set(pending)
    while pending:
        new = {row["address"] for row in entries[pending.pop()] if row["is_container"]} - found
        found |= new
        pending += new
    return found


def find_reasons(entries: dict[str, list[Row]], roots: list[Root]) -> dict[Location, int]:
    """Return the strongest reason of each file that roots reach."""
    found: dict[Location, int] = {}
    for reason in (LIVE, HISTORY, RELEASED, DANGLING):
        mine = [root for root in roots if root.reason == reason]
        containers = find_containers(entries, mine)
        rows = (row for address in containers for row in entries[address] if row["is_container"] or is_file(row))
        for location in (*(root.location for root in mine), *map(location_of, rows)):
            found.setdefault(location, reason)
    return found


def _route(location: Location, reason: int, released: Collection[Location]) -> str:
    if location[0] is None:
        return EXTERNAL_SIDE
    if reason == LIVE:
        return LIFECYCLE_SIDE if location in released else ""
    return DANGLING_SIDE if reason == DANGLING else EXPIRED_SIDE


def count_situations(entries: dict[str, list[Row]], live: list[Root], routes: dict[str, set[Location]]) -> Counter[str]:
    """Count what makes a live set difficult."""
    of_table = {table: find_containers(entries, [root for root in live if root.table == table]) for table in {root.table for root in live}}
    users = Counter(address for table, containers in of_table.items() if table is not None for address in containers)
    containers = set().union(*of_table.values())
    sizes = defaultdict[Location, set[tuple[str, int]]](set)
    for address in containers:
        for row in _files(entries, address):
            if row["size_bytes"] is not None:
                sizes[location_of(row)].add((address, row["size_bytes"]))
    direct = {root.location for root in live if not root.is_container}
    named = {location_of(row) for address in containers for row in _files(entries, address)}
    ranges = [{location_of(row) for row in _files(entries, address)} for address in containers]
    return Counter(
        {
            SHARED: sum(count > 1 for count in users.values()),
            DELETED: sum(row.get("entry_status") == "deleted" for address in containers for row in entries[address]),
            OPTIONAL: sum(not row["must_exist"] for address in containers for row in _files(entries, address)),
            SIZES: sum(_differ(found) for found in sizes.values()),
            BOTH: len(direct & named),
            PARTLY_RELEASED: sum(bool(files & routes[LIFECYCLE_SIDE] and files & routes[""]) for files in ranges),
        }
    )


def _files(entries: dict[str, list[Row]], address: str) -> Iterator[Row]:
    return (row for row in entries[address] if is_file(row))


def _differ(sizes: set[tuple[str, int]]) -> bool:
    """Return True if two containers name a file with different sizes."""
    return len({address for address, _ in sizes}) > 1 and len({size for _, size in sizes}) > 1
