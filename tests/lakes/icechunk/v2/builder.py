"""Repositories of spec version 2 with chosen histories and file ages, written by icechunk 2.x.

The library writes them. Afterwards only times are changed: `flushed_at` in `repo` and in snapshots, and the modification times of files.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from gc_assets.demo.icechunk_builder import DOCUMENT_COMMITS, DOCUMENT_FORKS, field_position, payload_of, set_file_time, with_payload
from gc_assets.lakes.icechunk.ids import spell_one
from tests.lakes.icechunk.v2.library import Library

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SNAPSHOTS_OF_REPO = 4
ID_OF_ENTRY, TIME_OF_ENTRY = 0, 2
TIME_OF_SNAPSHOT = 3

Write = dict[str, Any]


def numbers(array: str, values: Sequence[int | None], size: int = 8) -> Write:
    """Create or replace an array with one chunk of `size` bytes for each value that is not None."""
    return {"array": array, "values": list(values), "bytes": size}


def set_value(array: str, index: int, value: int, size: int = 8) -> Write:
    """Overwrite one chunk of an array."""
    return {"set": array, "index": index, "value": value, "bytes": size}


def virtual_chunk(array: str, index: int, location: str, offset: int = 0, length: int = 8) -> Write:
    return {"virtual": array, "index": index, "location": location, "offset": offset, "length": length}


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


@dataclass
class RepositoryBuilder:
    """Commits to a repository of spec version 2 at given times.

    Attributes:
        created: The files that the commit of each snapshot wrote, as paths relative to the repository.
        times: The time of each snapshot.
    """

    library: Library
    path: Path
    created: dict[str, list[str]] = field(default_factory=dict)
    times: dict[str, datetime] = field(default_factory=dict)

    @classmethod
    def create(cls, library: Library, path: Path, at: datetime, *, spec_version: int = 2, **settings: Any) -> Self:
        """Create an empty repository whose first snapshot has the time `at`. Each chunk is a file.

        Args:
            settings: `inline_below_bytes`, `split`, `compress_locations_from`, `updates_in_a_file`, `containers` (see `writer.py`).
        """
        builder = cls(library, path)
        builder._settle(library.call(path, "create", spec_version=spec_version, **settings), at)
        return builder

    @property
    def location(self) -> str:
        return f"file://{self.path}"

    def call(self, operation: str, **arguments: Any) -> Any:
        """Execute an operation of `writer.Target`."""
        return self.library.call(self.path, operation, **arguments)

    def head(self, branch: str = "main") -> str:
        return self.call("refs")["branches"][branch]

    def commit(self, branch: str, at: datetime, *writes: Write, how: str = "commit", message: str = "", **more: Any) -> str:
        """Commit changes by `commit`, `amend` or `flush` (a snapshot on no branch). Return the snapshot."""
        snapshot = self.call("commit", branch=branch, writes=writes, how=how, message=message or f"{how} on {branch}", **more)
        self._settle(snapshot, at)
        return snapshot

    def rewrite_manifests(self, branch: str, at: datetime, how: str = "new_commit") -> str:
        snapshot = self.call("rewrite_manifests", branch=branch, how=how)
        self._settle(snapshot, at)
        return snapshot

    def branch(self, name: str, snapshot: str) -> None:
        self.call("create_branch", name=name, snapshot=snapshot)

    def tag(self, name: str, snapshot: str) -> None:
        self.call("create_tag", name=name, snapshot=snapshot)

    def abandon_writer(self, branch: str, at: datetime, *writes: Write) -> list[Path]:
        """Write the chunks of a writer without a commit."""
        self.library.run(self.path, [("start_session", {"branch": branch}), ("write", {"writes": writes})])
        return [self.path / name for name in self._age_new_files(at)]

    def abandon_snapshot(self, branch: str, at: datetime, *writes: Write) -> str:
        """Write a snapshot that no ref reaches, because its branch is reset. It stays listed in `repo`."""
        previous = self.head(branch)
        snapshot = self.commit(branch, at, *writes, message="abandoned")
        self.call("reset_branch", name=branch, snapshot=previous)
        return snapshot

    def set_time(self, snapshot: str, at: datetime) -> None:
        """Change the time of a snapshot and of the files of its commit."""
        self.set_times({snapshot: at})

    def set_times(self, times: Mapping[str, datetime]) -> None:
        """Change the times of snapshots, in `repo` too, and of the files of their commits."""
        self.times.update(times)
        set_flushed_at(self.path, times)
        if not (self.path / "repo").exists():
            self.call("open")  # version 1 keeps snapshots in memory
        for snapshot, at in times.items():
            for name in self.created.get(snapshot, [f"snapshots/{snapshot}"]):
                if (self.path / name).exists():
                    set_file_time(self.path / name, at)

    def snapshot_file(self, snapshot: str) -> Path:
        return self.path / "snapshots" / snapshot

    def _settle(self, snapshot: str, at: datetime) -> None:
        self.created[snapshot] = self._age_new_files(at)
        self.set_time(snapshot, at)

    def _age_new_files(self, at: datetime) -> list[str]:
        new = self.call("new_files")
        for name in new:
            set_file_time(self.path / name, at)
        return new


def entry_positions(payload: bytes | bytearray) -> dict[str, int]:
    """Return the positions of the tables of `snapshots` in the payload of `repo`, by snapshot."""
    at = field_position(payload, SNAPSHOTS_OF_REPO)
    assert at is not None
    vector = at + struct.unpack_from("<I", payload, at)[0]
    slots = range(vector + 4, vector + 4 + 4 * struct.unpack_from("<I", payload, vector)[0], 4)
    tables = [slot + struct.unpack_from("<I", payload, slot)[0] for slot in slots]
    return {spell_one(bytes(payload[(start := position_in_table(payload, table, ID_OF_ENTRY)) : start + 12])): table for table in tables}


def position_in_table(payload: bytes | bytearray, table: int, number: int) -> int:
    """Return the position of a field that a table has."""
    vtable = table - struct.unpack_from("<i", payload, table)[0]
    return table + struct.unpack_from("<H", payload, vtable + 4 + 2 * number)[0]


def set_flushed_at(path: Path, times: Mapping[str, datetime]) -> None:
    """Set times in the files of snapshots, and in `repo` if it exists. Modification times of these files change."""
    for snapshot, at in times.items():
        file = path / "snapshots" / snapshot
        if file.exists():
            raw = file.read_bytes()
            payload = payload_of(raw)
            position = field_position(payload, TIME_OF_SNAPSHOT)
            assert position is not None
            struct.pack_into("<Q", payload, position, microseconds(at))
            file.write_bytes(with_payload(raw, payload))
            set_file_time(file, at)
    repo = path / "repo"
    if repo.exists():
        raw = repo.read_bytes()
        payload = payload_of(raw)
        for snapshot, table in entry_positions(payload).items():
            if snapshot in times:
                struct.pack_into("<Q", payload, position_in_table(payload, table, TIME_OF_ENTRY), microseconds(times[snapshot]))
        repo.write_bytes(with_payload(raw, payload))


@dataclass(frozen=True)
class DocumentTree:
    """The tree of the expiration document: `ids[n]` is snapshot n. Snapshots 1 to 7 are older than `cutoff`."""

    builder: RepositoryBuilder
    ids: Mapping[int, str]
    cutoff: datetime

    def numbers_of(self, snapshots: Sequence[str] | set[str]) -> set[int]:
        """Return the numbers of snapshots in the document."""
        number = {snapshot: n for n, snapshot in self.ids.items()}
        return {number[snapshot] for snapshot in snapshots}


def document_tree(
    library: Library, path: Path, start: datetime, step: timedelta = timedelta(days=1), *, spec_version: int = 2
) -> DocumentTree:
    """Build the history of the expiration document. Snapshot n has the time `start + n * step`.

    Each commit after the first overwrites one of eight chunks. With `spec_version=1`, call `upgrade` of the builder later.
    """
    builder = RepositoryBuilder.create(library, path, start, spec_version=spec_version)
    ids = {0: builder.head()}
    forks = dict(DOCUMENT_FORKS)
    for number, branch, tag in DOCUMENT_COMMITS:
        if branch in forks:
            builder.branch(branch, ids[forks.pop(branch)])
        write = numbers("values", range(8)) if number == 1 else set_value("values", number % 8, number)
        ids[number] = builder.commit(branch, start + number * step, write, message=f"snapshot {number}")
        if tag is not None:
            builder.tag(tag, ids[number])
    return DocumentTree(builder, ids, start + 8 * step)


@dataclass(frozen=True)
class RandomTree:
    """A random history with its expected parents and times."""

    builder: RepositoryBuilder
    parents: Mapping[str, str | None]
    times: Mapping[str, datetime]


def random_tree(library: Library, path: Path, seed: int, start: datetime, *, commits: int = 14, spec_version: int = 2) -> RandomTree:
    """Build branches, tags, resets and deleted refs. Times ascend from parent to child, as spec version 2 demands."""
    rnd = random.Random(seed)
    builder = RepositoryBuilder.create(library, path, start, spec_version=spec_version)
    root = builder.head()
    parents: dict[str, str | None] = {root: None}
    times, heads, tags = {root: start}, {"main": root}, []
    for step in range(rnd.randint(2, commits)):
        act, known = rnd.random(), list(parents)
        if act < 0.2 and len(heads) < 5:
            heads[f"branch{step}"] = rnd.choice(known)
            builder.branch(f"branch{step}", heads[f"branch{step}"])
        elif act < 0.35:
            tags.append(f"tag{step}")
            builder.tag(tags[-1], rnd.choice(known))
        else:
            branch = rnd.choice(list(heads))
            parent = heads[branch]
            at = times[parent] + timedelta(minutes=rnd.randint(1, 60))
            write = numbers("values", range(2)) if parent == root else set_value("values", step % 2, step)
            heads[branch] = builder.commit(branch, at, write)
            parents[heads[branch]], times[heads[branch]] = parent, at
    if rnd.random() < 0.3:
        builder.call("reset_branch", name=rnd.choice(list(heads)), snapshot=rnd.choice(list(parents)))
    if rnd.random() < 0.3 and len(heads) > 1:
        builder.call("delete_branch", name=list(heads)[-1])
    if rnd.random() < 0.3 and tags:
        builder.call("delete_tag", name=rnd.choice(tags))
    return RandomTree(builder, parents, times)
