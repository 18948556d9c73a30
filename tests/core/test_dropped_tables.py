"""Dropped tables in random histories, compared with an oracle that keeps the whole history.

The oracle shares no code with the package: it reads the log of all events and runs, and decides by
definition whether a file may be collected.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gc_assets.core.dropped_tables import (
    ALL_TABLES,
    AdoptableFiles,
    DroppedPrefixes,
    DroppedTable,
    FormerFiles,
    LakeTables,
    RememberedTable,
    TableSelection,
    find_reason_to_wait,
    remember_tables,
    with_oldest_files,
)
from tests.depth import example_count

START = datetime(2026, 1, 1, tzinfo=UTC)
WAIT = timedelta(days=7)
LAKES = ("red", "blue")


@dataclass
class Run:
    """Tables that a run read."""

    at: datetime
    accepted: bool
    listed: dict[str, set[str]]  # uuids by lake
    unknown: dict[str, set[str]]  # names of unreadable tables that no run read, by lake
    down: set[str]


@dataclass
class World:
    """Two catalogs, the files of their tables, and the memory of the collector."""

    random: random.Random
    now: datetime = START
    catalogs: dict[str, dict[str, str]] = field(default_factory=lambda: {lake: {} for lake in LAKES})
    location: dict[str, str] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)
    files: dict[str, datetime] = field(default_factory=dict)
    last_name: dict[str, tuple[str, str]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    read_as: set[tuple[str, str, str]] = field(default_factory=set)
    memory: list[RememberedTable] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    planned_tables: set[str] = field(default_factory=set)
    count: int = 0

    def list_registrations(self) -> list[tuple[str, str, str]]:
        return [(lake, name, uuid) for lake, tables in self.catalogs.items() for name, uuid in tables.items()]

    def step(self) -> None:
        self.now += timedelta(hours=self.random.randint(1, 40))
        actions = [self.create, self.create, self.write, self.write, self.drop, self.rename, self.register, self.create_in_place]
        self.random.choice([*actions, self.clone, self.move, self.break_or_repair, self.hide, self.stop_catalog])()

    def _any(self, readable: bool = True) -> tuple[str, str, str] | None:
        found = [item for item in self.list_registrations() if not readable or item[2] not in self.unreadable | self.hidden]
        return self.random.choice(found) if found else None

    def create(self, location: str | None = None, lake: str | None = None, name: str | None = None) -> str:
        self.count += 1
        uuid, lake, name = f"u{self.count}", lake or self.random.choice(LAKES), name or f"t{self.count}"
        parents = [place for place in self.location.values() if place.count("/") == 1]
        nested = location is None and parents and self.random.random() < 0.2
        self.location[uuid] = location or (f"{self.random.choice(parents)}in{self.count}/" if nested else f"l{self.count}/")
        self.needs[uuid] = set()
        self.catalogs[lake][name] = uuid
        self.last_name[uuid] = (lake, name)
        self._write(uuid)
        return uuid

    def _write(self, uuid: str) -> None:
        self.count += 1
        key = f"{self.location[uuid]}f{self.count}"
        self.files[key] = self.now
        self.needs[uuid].add(key)

    def write(self) -> None:
        if (item := self._any()) is not None:
            self._write(item[2])

    def drop(self) -> None:
        if (item := self._any(readable=False)) is not None:
            del self.catalogs[item[0]][item[1]]

    def rename(self) -> None:
        if (item := self._any()) is not None:
            self.count += 1
            del self.catalogs[item[0]][item[1]]
            self.catalogs[item[0]][f"r{self.count}"] = item[2]

    def register(self) -> None:
        """Undrop a table of which no file was planned, in any catalog."""
        listed = {uuid for _, _, uuid in self.list_registrations()}
        lost = sorted(set(self.location) - listed - self.planned_tables)
        if lost:
            self.count += 1
            uuid = self.random.choice(lost)
            self.hidden.discard(uuid)
            self.catalogs[self.random.choice(LAKES)][f"again{self.count}"] = uuid

    def create_in_place(self) -> None:
        if (item := self._any()) is not None:
            lake, name, uuid = item
            del self.catalogs[lake][name]
            self.create(self.location[uuid], lake, name)

    def clone(self) -> None:
        if (item := self._any()) is not None:
            self.needs[self.create()] |= self.needs[item[2]]

    def move(self) -> None:
        if (item := self._any()) is not None:
            self.count += 1
            del self.catalogs[item[0]][item[1]]
            self.catalogs["blue" if item[0] == "red" else "red"][f"m{self.count}"] = item[2]

    def break_or_repair(self) -> None:
        self.unreadable = set() if self.unreadable else {item[2] for item in [self._any()] if item is not None}

    def hide(self) -> None:
        """Hide a table that the collector knows by its name, as a catalog does after a change of permissions."""
        known = {(item.lake, item.table_name, item.table_uuid) for item in self.memory}
        self.hidden = set() if self.hidden else {item[2] for item in [self._any()] if item is not None and item in known}

    def stop_catalog(self) -> None:
        self.down = set() if self.down else {self.random.choice(LAKES)}

    def observe(self, lake: str) -> LakeTables:
        if lake in self.down:
            return LakeTables(lake, lake, self.now, is_unreadable=True)
        shown = {name: uuid for name, uuid in self.catalogs[lake].items() if uuid not in self.hidden}
        broken = {(name, uuid) for name, uuid in shown.items() if uuid in self.unreadable}
        known = {uuid for name, uuid in broken if (lake, name, uuid) in self.read_as}
        readable = {name: uuid for name, uuid in shown.items() if uuid not in self.unreadable}
        self.read_as |= {(lake, name, uuid) for name, uuid in readable.items()}
        tables = tuple(RememberedTable(lake, uuid, name, lake, (self.location[uuid],), self.now) for name, uuid in readable.items())
        uuids = frozenset(readable.values()) | known
        oldest = {
            uuid: int(min(self.files.get(key, START) for key in self.needs[uuid]).timestamp() * 1000) for uuid in uuids if self.needs[uuid]
        }
        return LakeTables(
            lake, lake, self.now, tables, uuids, frozenset(known), readable, frozenset(name for name, _ in broken), oldest_ms=oldest
        )

    def run(self) -> tuple[Run, DroppedPrefixes, set[str]]:
        """Return what the run saw, the dropped tables, and the planned keys."""
        lakes = [self.observe(lake) for lake in LAKES]
        run = Run(
            self.now,
            self.random.random() < 0.8,
            {lake.lake: set(lake.uuids) for lake in lakes},
            {lake.lake: {name for name in lake.unreadable_names if self.catalogs[lake.lake][name] not in lake.uuids} for lake in lakes},
            set(self.down),
        )
        remembered = remember_tables(self.memory, lakes)
        visible = [uuid for _, _, uuid in self.list_registrations() if uuid not in self.hidden]
        present = frozenset(self.location[uuid] for uuid in visible)
        bare = DroppedPrefixes(tuple(DroppedTable(item) for item in remembered if item.gone_since is not None), present)
        unreadable = [uuid for uuid in visible if uuid in self.unreadable] + sorted(self.down)
        unreadable += [item.table.name for item in bare.tables if self.has(item.table)]  # an incomplete list
        decided = tuple(self.add_state(bare, item, unreadable) for item in bare.tables)
        found = DroppedPrefixes(decided, present)
        keys = sorted(self.files)
        index = found.find(pa.array(keys, pa.string()), pa.array([self.files[key] for key in keys], pa.timestamp("us", "UTC")))
        due = found.is_due(index).to_pylist()
        live = {key for uuid in visible for key in self.needs[uuid]}
        planned = {key for key, is_due in zip(keys, due, strict=True) if is_due and key not in live}
        if run.accepted:
            self.memory = remembered
        self.runs.append(run)
        return run, found, planned

    def add_state(self, found: DroppedPrefixes, item: DroppedTable, unreadable: list[str]) -> DroppedTable:
        (prefix,) = item.table.prefixes
        shared = found.is_shared(prefix)
        mine = [(at, key) for key, at in self.files.items() if not shared and found.find_prefix(key[: key.rfind("/") + 1]) == prefix]
        newest = max(mine, default=(None, None))
        if newest[0] is not None and newest[0] < found.explained_until(prefix):
            newest = None, None
        item = replace(item, former_files=FormerFiles(len(mine), 0, *newest), shares_location=shared)
        return find_reason_to_wait(item, self.now, WAIT, item.table.lake, unreadable)

    def has(self, table: RememberedTable) -> bool:
        """Ask the catalog for a table by its name."""
        return self.catalogs[table.lake].get(table.table_name or "") == table.table_uuid

    # --- the oracle ---

    def find_gone_since(self, uuid: str, lake: str, names: set[str]) -> tuple[datetime, datetime] | None:
        """Return when accepted runs last read a table and first missed it, by the log of all runs."""
        seen, gone = None, None
        for run in [*(run for run in self.runs[:-1] if run.accepted), self.runs[-1]]:
            if any(uuid in uuids for uuids in run.listed.values()) or run.unknown[lake] & names:
                gone = None
                seen = run.at if any(uuid in uuids for uuids in run.listed.values()) else seen
            elif gone is None and seen is not None and lake not in run.down:
                gone = run.at
        return None if seen is None or gone is None else (seen, gone)


@pytest.mark.parametrize("seed", range(example_count(200, 5_000)))
def test_random_histories_never_plan_needed_file(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(12):
        for _ in range(world.random.randint(1, 8)):
            world.step()
        run, found, planned = world.run()
        needed = {key for _, _, uuid in world.list_registrations() for key in world.needs[uuid]}
        assert not planned & needed, seed
        waiting = {item.table.table_uuid for item in found.tables if not item.is_due}
        for uuid in waiting:
            own = {key for key in world.needs[uuid] if key.startswith(world.location[uuid])}
            assert not planned & own, (seed, uuid)
        _check_planned(world, run, found, planned)
        world.planned_tables |= {item.table.table_uuid for item in found.tables if item.is_due}
        if run.accepted and world.random.random() < 0.5:  # the plan is applied
            for key in planned:
                del world.files[key]
            for keys in world.needs.values():
                keys -= planned


def _check_planned(world: World, run: Run, found: DroppedPrefixes, planned: set[str]) -> None:
    listed = set[str]().union(*run.listed.values())
    due: dict[str, tuple[datetime, datetime]] = {}
    for item in found.tables:
        table = item.table
        times = world.find_gone_since(table.table_uuid, table.lake, {table.table_name or ""})
        if item.is_due:
            assert times is not None
            assert table.table_uuid not in listed
            assert run.at - times[1] >= WAIT
            due[table.table_uuid] = times
    for key in planned:
        owners = [uuid for uuid in due if key.startswith(world.location[uuid])]
        assert any(world.files[key] < due[uuid][0] for uuid in owners), key
    quiet = not world.unreadable and not world.hidden and not world.down
    places = list(world.location.values())
    for uuid, (seen, _) in due.items() if quiet else ():
        place = world.location[uuid]
        if sum(other.startswith(place) or place.startswith(other) for other in places) == 1:
            needed = {key for _, _, other in world.list_registrations() for key in world.needs[other]}
            mine = {key for key, at in world.files.items() if key.startswith(place) and at < seen}
            assert mine - needed <= planned


def test_random_histories_plan_files_of_many_tables() -> None:
    """Random histories that plan no file would prove nothing."""
    tables = set[str]()
    for seed in range(40):
        world = World(random.Random(seed))
        for number in range(12):
            for _ in range(5):
                world.step()
            _, found, planned = world.run()
            if planned:
                tables |= {f"{seed} {number} {item.table.table_uuid}" for item in found.tables if item.is_due}
    assert len(tables) > 30


@pytest.mark.parametrize(
    "owns_from, owners, due",
    [
        # The second table may own any earlier file.
        (None, [1, 1, 1, 1, None], [False, False, False, False, False]),
        (START, [0, 1, 1, 1, None], [True, False, False, False, False]),
    ],
)
def test_files_in_shared_location_wait_for_each_possible_owner(
    owns_from: datetime | None, owners: list[int | None], due: list[bool]
) -> None:
    first = RememberedTable("red", "u1", "t", "red", ("t/",), START + timedelta(days=1), gone_since=START + timedelta(days=1))
    second = replace(first, table_uuid="u2", last_seen=START + timedelta(days=5), gone_since=START + timedelta(days=6), owns_from=owns_from)
    found = DroppedPrefixes((DroppedTable(first), DroppedTable(second, waits_for="its time")), frozenset({"t/"}))
    # The second table may have written a file after it was last seen, until it was dropped.
    times = [START + timedelta(days=days) for days in (-1, 0, 4, 5, 6)]
    index = found.find(pa.array([f"t/{number}" for number in range(5)]), pa.array(times, pa.timestamp("us", "UTC")))
    assert index.to_pylist() == owners
    assert found.is_due(index).to_pylist() == due


def test_files_older_than_last_run_without_table_have_another_owner() -> None:
    grace, hours = timedelta(days=1), timedelta(hours=1)

    def observe(at: datetime, *uuids: str) -> LakeTables:
        tables = tuple(RememberedTable("red", uuid, uuid, "c", ("t/",), at) for uuid in uuids)
        first = {"registered": START - 2 * grace, "new": START + hours}
        oldest_ms = {uuid: int(time.timestamp() * 1000) for uuid, time in first.items()} | {"truncated": 0}
        return LakeTables("red", "c", at, tables, frozenset(uuids), oldest_ms=oldest_ms, longest_write=grace)

    def owns_from(memory: list[RememberedTable]) -> dict[str, datetime | None]:
        return {item.table_uuid: item.owns_from for item in memory}

    memory = remember_tables([], [observe(START, "first")])
    assert owns_from(memory) == {"first": None}
    memory = remember_tables(memory, [observe(START + hours, "first", "new", "registered", "truncated", "empty")])
    expected = {"first": None, "new": START - grace, "registered": START - 3 * grace, "truncated": None, "empty": START - grace}
    assert owns_from(memory) == expected
    assert owns_from(remember_tables(memory, [observe(START + 9 * hours, "first", "new", "empty")])) == expected
    assert owns_from(remember_tables(memory, [observe(START + 2 * hours, "other")]))["other"] == START + hours - grace


def test_later_apply_for_another_table_does_not_count_as_run_without_table() -> None:
    known = RememberedTable("red", "u1", "a", "c", ("t/",), START + WAIT, last_run=START)
    new = RememberedTable("red", "u2", "b", "c", ("u/",), START + 2 * WAIT)
    (found,) = remember_tables([known], [LakeTables("red", "c", new.last_seen, (new,), frozenset({"u1", "u2"}), longest_write=WAIT)])
    assert found.owns_from == START - WAIT


def test_table_owns_older_files_added_by_its_commits() -> None:
    table = RememberedTable("red", "u1", "t", "red", ("t/",), START, owns_from=START)
    other = replace(table, table_uuid="u2", owns_from=None)
    oldest = {("red", "u1"): START - WAIT, ("red", "u2"): START - WAIT, ("blue", "u1"): START - 2 * WAIT}
    assert with_oldest_files([table, other], oldest) == [replace(table, owns_from=START - WAIT), other]
    assert with_oldest_files([table], {("red", "u1"): START + WAIT}) == [table]


def test_only_older_files_under_claims_of_listed_table_can_be_adopted() -> None:
    table = RememberedTable("red", "u1", "t", "red", ("t/", "shared/"), START, owns_from=START)
    later = replace(table, table_uuid="u2", prefixes=("shared/",), owns_from=START + WAIT)
    dropped = replace(table, table_uuid="u3", prefixes=("u/",), gone_since=START)
    of_any_age = replace(table, table_uuid="u4", prefixes=("v/", "t/inner/"), owns_from=None)
    files = {
        "t/inner/older": -1,
        "t/a/older": -1,
        "t/newer": 0,
        "shared/older": 3,
        "shared/newer": 7,
        "u/older": -1,
        "v/older": -1,
        "other": -1,
    }
    times = [*(START + timedelta(days=days) for days in files.values()), None]
    selected = AdoptableFiles.of([table, later, dropped, of_any_age]).select(
        pa.array([*files, "t/unknown"]), pa.array(times, pa.timestamp("us", "UTC"))
    )
    assert pa.array([*files, "t/unknown"]).filter(selected).to_pylist() == ["t/a/older", "shared/older"]
    assert not any(AdoptableFiles.of([]).select(pa.array(["t/a"]), pa.array([START], pa.timestamp("us", "UTC"))).to_pylist())


@pytest.mark.parametrize("sign", [{}, {"is_written": True}, {"former_files": FormerFiles(1, 1, START + 9 * WAIT, "t/newest")}])
def test_table_with_unread_commit_may_own_any_older_file(sign: dict[str, Any]) -> None:
    first = RememberedTable("red", "u1", "t", "red", ("t/",), START, gone_since=START)
    second = DroppedTable(replace(first, table_uuid="u2", last_seen=START + WAIT, owns_from=START), waits_for="its time", **sign)
    index = DroppedPrefixes((DroppedTable(first), second)).find(pa.array(["t/a"]), pa.array([START - WAIT], pa.timestamp("us", "UTC")))
    assert index.to_pylist() == [1 if sign else 0]


def test_files_outside_deepest_table_claims_count_as_adopted() -> None:
    """A claim inside of the table's location belongs to another table."""
    tables = [
        DroppedTable(RememberedTable("red", f"u{number}", None, "red", prefixes, START, gone_since=START))
        for number, prefixes in enumerate([("t/", "shared/"), ("u/", "t/x/", "shared/")])
    ]
    found = DroppedPrefixes(tuple(tables), frozenset({"t/y/", "shared/"}))
    names = {"t/a": (False, True), "t/x/a": (True, False), "t/y/a": (True, True), "u/a": (True, False), "shared/a": (False, False)}
    keys = pa.array(list(names))
    for index in (0, 1):
        assert found.is_outside(keys, np.full(len(names), index)).tolist() == [flags[index] for flags in names.values()]
    each = found.is_outside(pa.array([key for key in names for _ in (0, 1)]), np.tile([0, 1], len(names)))
    assert each.tolist() == [flag for flags in names.values() for flag in flags]
    nothing = pa.array([], pa.string())
    assert found.is_outside(nothing, np.empty(0, np.int64)).tolist() == []
    assert found.find_shared(keys).tolist() == [name == "shared/a" for name in names]
    assert found.find_shared(nothing).tolist() == []


def test_files_under_claim_are_kept_while_dropped_table_in_it_waits() -> None:
    due = DroppedTable(RememberedTable("red", "u0", None, "red", ("t/", "shared/"), START, gone_since=START))
    waiting = DroppedTable(replace(due.table, table_uuid="u1", prefixes=("u/", "shared/")), waits_for="its time")
    found = DroppedPrefixes((due, waiting), frozenset({"shared/", "u/x/"}))
    keys = {"t/a": False, "u/a": True, "u/x/a": False, "shared/a": True, "v/a": False}
    assert found.find_undecided(pa.array(list(keys))).tolist() == list(keys.values())


def test_table_selection_can_include_or_exclude_tables() -> None:
    names = [("red", "u1"), ("red", "u2"), ("blue", "u1"), ("blue", "u3")]
    lakes, uuids = zip(*names, strict=True)
    rows = pa.RecordBatch.from_pydict({"lake": lakes, "table_uuid": uuids})
    for tables in ([], [("red", "u1")], [("red", "u2"), ("blue", "u3"), ("green", "u1")]):
        mask = [name in tables for name in names]
        assert TableSelection(frozenset(tables)).find_rows(rows).to_pylist() == mask
        assert ALL_TABLES.without(tables).find_rows(rows).to_pylist() == [not is_named for is_named in mask]
        assert TableSelection(frozenset(names)).without(tables) == TableSelection(frozenset(names) - frozenset(tables))
    assert ALL_TABLES.find_rows(rows).to_pylist() == [True] * 4


def test_acceptance_of_one_table_does_not_hide_files_of_another() -> None:
    moved = RememberedTable("red", "u1", "t", "red", ("t/",), START, gone_since=START + timedelta(days=1))
    accepted = DroppedTable(replace(moved, table_uuid="u2"), accepted_at=START + timedelta(days=9))
    assert DroppedPrefixes((DroppedTable(moved), accepted)).explained_until("t/") == START


class Accepting(random.Random):
    """All runs are accepted."""

    def random(self) -> float:
        return 0.0


def test_files_of_a_table_that_was_replaced_daily_are_planned_after_its_drop() -> None:
    """The files of one generation do not prevent the collection of another."""
    world = World(Accepting(0))
    world.create("t/", "red", "t")
    world.run()
    for _ in range(5):
        world.now += timedelta(hours=21)
        del world.catalogs["red"]["t"]
        world.create("t/", "red", "t")
        world.now += timedelta(hours=3)
        world.run()
    world.now += timedelta(hours=21)
    del world.catalogs["red"]["t"]
    for _ in range(9):
        world.now += timedelta(days=1)
        _, _, planned = world.run()
    assert planned == set(world.files)


def test_files_in_deeper_claim_do_not_belong_to_dropped_table() -> None:
    outer = RememberedTable("red", "u1", "t", "red", ("t/",), START + timedelta(days=9))
    found = DroppedPrefixes((DroppedTable(outer),), frozenset({"t/inner/"}))
    index = found.find(pa.array(["t/x", "t/inner/x", "t/other/x", "u/x"]), pa.array([START] * 4, pa.timestamp("us", "UTC")))
    assert index.to_pylist() == [0, None, 0, None]


def test_all_files_under_lake_claim_belong_to_lake() -> None:
    table = RememberedTable("red", "u1", "t", "red", ("wh/t/",), START + timedelta(days=9))
    found = DroppedPrefixes((DroppedTable(table),), frozenset({"wh/"}), frozenset({"wh/"}))
    assert found.find(pa.array(["wh/t/x"]), pa.array([START], pa.timestamp("us", "UTC"))).to_pylist() == [None]


def test_earlier_time_is_used_if_clock_went_back() -> None:
    table = RememberedTable("red", "u1", "t", "red", ("t/",), START + timedelta(days=30), gone_since=START)
    assert table.written_before == START


def test_tables_dropped_in_several_runs_of_one_date_add_up() -> None:
    def run(memory: list[RememberedTable], at: datetime, *listed: str) -> list[RememberedTable]:
        tables = tuple(RememberedTable("red", uuid, uuid, "c", (f"{uuid}/",), at) for uuid in listed)
        return remember_tables(memory, [LakeTables("red", "c", at, tables, frozenset(listed))])

    def shares(memory: list[RememberedTable]) -> dict[str, tuple[int, int]]:
        return {item.table_uuid: (item.lost_tables, item.known_tables) for item in memory if item.gone_since is not None}

    memory = run([], START, *"abcdefg")
    memory = run(memory, START + timedelta(hours=1), *"abcde")
    assert shares(memory) == dict.fromkeys("fg", (2, 7))
    memory = run(memory, START + timedelta(hours=2), *"abc")
    assert shares(memory) == dict.fromkeys("defg", (4, 7)), "most tables, although neither run missed most of them"
    assert shares(run(memory, START + timedelta(hours=3), *"abc")) == dict.fromkeys("defg", (4, 7))
    later = run(memory, START + timedelta(days=1), *"ab")
    assert shares(later) == {"c": (1, 3), **dict.fromkeys("defg", (4, 7))}


@pytest.mark.parametrize("accepted_at", [None, START + 3 * WAIT])
@pytest.mark.parametrize("newest, reason", [(4 * WAIT, "was written after"), (400 * WAIT, "has a time in the future, 2")])
def test_file_with_a_time_in_the_future_is_named_with_the_way_out(accepted_at: datetime | None, newest: timedelta, reason: str) -> None:
    """An acceptance has no effect before that time, and a message without it recommended to accept the table again."""
    table = RememberedTable("red", "t", "db.t", "c1", ("db/t/",), START, gone_since=START + WAIT)
    dropped = DroppedTable(table, FormerFiles(1, 1, START + newest, "db/t/a"), accepted_at=accepted_at)
    waits_for = find_reason_to_wait(dropped, START + 4 * WAIT, WAIT, "c1").waits_for
    assert waits_for is not None
    assert waits_for.startswith(f"db/t/a {reason}")
    assert ("touch" in waits_for) == (reason != "was written after")


def test_wait_for_former_catalog_table_starts_when_catalog_is_read_again() -> None:
    days = [START + timedelta(days=number) for number in range(40)]
    table = RememberedTable("red", "t", "db.t", "c1", ("db/t/",), days[0])
    in_other = remember_tables([table], [LakeTables("red", "c2", days[1])])
    in_other = remember_tables(in_other, [LakeTables("red", "c2", days[2])])
    assert in_other == [replace(table, gone_since=days[1], other_catalog_since=days[1])]
    waiting = find_reason_to_wait(DroppedTable(in_other[0]), days[39], WAIT, "c2")
    assert waiting.waits_for == "lake red reads another catalog than the run that knew the table"
    back = remember_tables(in_other, [LakeTables("red", "c1", days[9])])
    assert [(item.gone_since, item.other_catalog_since) for item in back] == [(days[9], None)]
    gone = replace(table, gone_since=days[1])
    for catalog in ("c2", "c1"):
        (gone,) = remember_tables([gone], [LakeTables("red", catalog, days[5])])
    assert (gone.gone_since, gone.other_catalog_since) == (days[1], None)
