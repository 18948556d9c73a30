"""A metadata file is former if no current file continues its history, compared with brute force
over random histories.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from gc_assets.core.errors import FormatError
from gc_assets.lakes.lineage import UNREADABLE_LINEAGE, Lineage, ListedSnapshot
from gc_assets.lakes.pointers import MAX_LOGS, Histories, Pointer, Succession, group_pointers

READ_AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(READ_AT.timestamp() * 1000)


@dataclass
class Metadata:
    """Metadata files of one table. Each commit adds a snapshot, and logs list up to `log_length` predecessors."""

    log_length: int = 100
    parents: dict[str, str | None] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    expired: dict[str, int] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    error: type[Exception] = FormatError

    def commit(self, parent: str | None, *, keep: int = 1000) -> str:
        """Add a file that lists the `keep` newest snapshots of its history."""
        name = f"v{len(self.parents)}"
        self.parents[name], self.expired[name] = parent, keep
        return name

    def ancestors(self, name: str) -> list[str]:
        """Return all predecessors, the nearest first."""
        found, current = list[str](), self.parents[name]
        while current is not None:
            found.append(current)
            current = self.parents[current]
        return found

    def snapshots(self, name: str) -> list[str]:
        return [name, *self.ancestors(name)][: self.expired[name]]

    def read(self, address: str) -> Lineage:
        if address in self.missing:
            raise FileNotFoundError(address)
        if address in self.unreadable:
            raise self.error(f"{address}: damaged")
        log = tuple((name, self.times.get(name, NOW_MS)) for name in reversed(self.ancestors(address)[: self.log_length]))
        ids = self.snapshots(address)
        parents = {name: None if self.parents[name] is None else self.parents[name] for name in ids}
        return Lineage(log=log, snapshots=tuple(ListedSnapshot(name, parents[name], 0) for name in ids), head=ids[0])

    def point(self, name: str, address: str) -> Pointer:
        return Pointer("u", name, address, frozenset(self.snapshots(address)[:1]), READ_AT)

    def find_former(self, before: dict[str, str], now: dict[str, str]) -> set[str]:
        tables = group_pointers((self.point(*item) for item in before.items()), (self.point(*item) for item in now.items()))
        histories = Histories(self.read, lambda address: address)
        return {item.address for item in histories.find_former(tables["u"])}


@pytest.fixture
def table() -> Metadata:
    return Metadata()


def commit_many(table: Metadata, start: str | None, count: int, keep: int = 1000) -> str:
    for _ in range(count):
        start = table.commit(start, keep=keep)
    assert start is not None
    return start


def test_metadata_file_with_later_commits_is_not_former(table: Metadata) -> None:
    old = commit_many(table, None, 3)
    assert table.find_former({"t": old}, {"t": commit_many(table, old, 250)}) == set()


def test_metadata_file_lost_by_restored_catalog_is_former(table: Metadata) -> None:
    backup = commit_many(table, None, 3)
    lost = commit_many(table, backup, 3)
    assert table.find_former({"t": lost}, {"t": backup}) == {lost}
    assert table.find_former({"t": lost}, {"t": commit_many(table, backup, 250)}) == {lost}


def test_metadata_file_of_dropped_name_is_former_if_only_clone_lists_it(table: Metadata) -> None:
    first = commit_many(table, None, 3)
    clone = commit_many(table, first, 2)
    assert table.find_former({"t": first, "clone": clone}, {"clone": clone}) == {first}


def test_metadata_file_of_renamed_table_is_not_former(table: Metadata) -> None:
    first = commit_many(table, None, 3)
    assert table.find_former({"t": first, "other": first}, {"new": commit_many(table, first, 2), "other": first}) == set()


def test_metadata_file_is_former_if_new_name_has_another_history(table: Metadata) -> None:
    backup = commit_many(table, None, 3)
    lost = commit_many(table, backup, 3)
    assert table.find_former({"t": lost}, {"new": backup}) == {lost}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_metadata_file_is_not_former_if_deleted_or_its_heads_are_listed(is_deleted: bool) -> None:
    table = Metadata(log_length=2)
    old = commit_many(table, None, 3)
    new = commit_many(table, old, 10, keep=3 if is_deleted else 1000)
    table.missing = {name for name in table.ancestors(new)[2:] if is_deleted or name != old}
    assert table.find_former({"t": old}, {"t": new}) == set()


def test_existing_metadata_file_with_lost_heads_is_former_despite_short_logs() -> None:
    table = Metadata(log_length=2)
    backup = commit_many(table, None, 10)
    lost, new = commit_many(table, backup, 1), commit_many(table, backup, 10)
    table.missing = set(table.ancestors(new)[2:])
    assert table.find_former({"t": lost}, {"t": new}) == {lost}


@pytest.mark.parametrize("is_lost", [False, True])
def test_metadata_logs_are_followed_only_to_time_of_last_run(is_lost: bool) -> None:
    """Files of the table's first years were deleted. The file that was current at that time is known."""
    table = Metadata(log_length=2)
    backup = commit_many(table, None, 10)
    old = commit_many(table, backup, 1) if is_lost else backup
    new = commit_many(table, backup, 20)
    later = [name for name in reversed(table.ancestors(new)) if name not in table.ancestors(backup)]
    table.times = {name: NOW_MS + 60_000 * number for number, name in enumerate(later)} | {backup: NOW_MS - 90_000_000}
    table.missing = set(table.ancestors(backup))
    table.expired[new] = 1
    assert table.find_former({"t": old}, {"t": new}) == ({old} if is_lost else set())


@pytest.mark.parametrize("error", [FormatError, TimeoutError, RecursionError])
def test_metadata_file_is_former_if_current_file_is_unreadable(table: Metadata, error: type[Exception]) -> None:
    table.error = error
    old = commit_many(table, None, 3)
    new = commit_many(table, old, 2)
    table.unreadable = {new}
    assert table.find_former({"t": old}, {"t": new}) == {old}


def test_number_of_files_read_is_bounded() -> None:
    table, read = Metadata(log_length=1), list[str]()
    old = commit_many(table, None, 1)
    new = commit_many(table, old, 3 * MAX_LOGS)
    histories = Histories(lambda address: (read.append(address), table.read(address))[1], lambda address: address)
    succession = Succession([table.point("t", old)], [table.point("t", new)])
    assert histories.find_former(succession) == []  # the current file lists the head
    assert len(read) == MAX_LOGS


def test_table_found_by_only_one_run_is_not_compared(table: Metadata) -> None:
    pointer = table.point("t", commit_many(table, None, 1))
    assert group_pointers([pointer], []) == group_pointers([], [pointer]) == {}


@pytest.mark.parametrize("seed", range(200))
def test_former_metadata_of_random_histories_matches_brute_force(seed: int) -> None:
    """With complete logs, a file is former if and only if it is no ancestor of a current file."""
    chance = random.Random(seed)
    table = Metadata(log_length=chance.choice([1, 2, 100]))
    files = [table.commit(None)]
    for _ in range(chance.randint(2, 25)):
        files.append(table.commit(chance.choice(files[-3:])))
    names = ["a", "b", "c"]
    before = {name: chance.choice(files) for name in names if chance.random() < 0.8} or {"a": files[0]}
    now = {name: chance.choice(files) for name in [*names, "d"] if chance.random() < 0.7} or {"d": files[-1]}

    def continues(former: str, name: str) -> bool:
        return former in [now[name], *table.ancestors(now[name])]

    expected = set()
    for name, address in before.items():
        successors = [name] if name in now else [other for other in now if other not in before]
        if not any(continues(address, other) for other in successors):
            expected.add(address)
    assert table.find_former(before, now) == expected


def test_metadata_file_is_former_if_lineage_is_unknown() -> None:
    histories = Histories(lambda _: UNREADABLE_LINEAGE, lambda address: address)
    succession = Succession([Pointer("u", "t", "v1", frozenset({"1"}), READ_AT)], [Pointer("u", "t", "v2", frozenset({"2"}), READ_AT)])
    assert [item.address for item in histories.find_former(succession)] == ["v1"]
