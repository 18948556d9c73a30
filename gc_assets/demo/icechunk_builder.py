"""Real Icechunk repositories on a local disk, with the history and the file ages that its caller
asks for.

Written by the official library; only times are set afterwards: `flushed_at` inside of snapshots (8
bytes) and the files' own.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import icechunk
import numpy as np
import zarr
import zstandard

from gc_assets.lakes.icechunk.envelope import HEADER_BYTES

FLUSHED_AT = 3
DATA_FOLDERS = ("snapshots", "manifests", "transactions", "chunks")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Write = Callable[[zarr.Group], None]


def payload_of(raw: bytes) -> bytearray:
    return bytearray(zstandard.ZstdDecompressor().decompressobj().decompress(raw[HEADER_BYTES:]))


def with_payload(raw: bytes, payload: bytes | bytearray) -> bytes:
    """The file with another payload, compressed as the library does it (a frame without content
    size).
    """
    frame = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return raw[:HEADER_BYTES] + frame.compress(bytes(payload)) + frame.flush()


def field_position(payload: bytes | bytearray, number: int) -> int | None:
    """Where a field of the root table is; null where it is absent."""
    table = struct.unpack_from("<I", payload, 0)[0]
    vtable = table - struct.unpack_from("<i", payload, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", payload, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", payload, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def set_file_time(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()))


def set_flushed_at(snapshot: Path, at: datetime) -> None:
    """Makes a snapshot say that it was written at `at`; its file keeps the name and gets the same
    time.
    """
    raw = snapshot.read_bytes()
    payload = payload_of(raw)
    position = field_position(payload, FLUSHED_AT)
    if position is None:
        raise ValueError(f"{snapshot}: expected a time in every snapshot, found one without flushed_at")
    struct.pack_into("<Q", payload, position, (at - EPOCH) // timedelta(microseconds=1))
    snapshot.write_bytes(with_payload(raw, payload))
    set_file_time(snapshot, at)


@dataclass
class RepositoryBuilder:
    """A repository that grows commit by commit. `created` maps each snapshot to the files that its
    commit wrote.
    """

    path: Path
    repo: icechunk.Repository
    created: dict[str, list[Path]] = field(default_factory=dict)
    known_files: set[Path] = field(default_factory=set)

    @classmethod
    def create(cls, path: Path, at: datetime) -> Self:
        """An empty repository whose first snapshot was written at `at`. Every chunk is a file of
        its own.
        """
        return cls._create(path, at, icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0))

    def head(self, branch: str) -> str:
        return self.repo.lookup_branch(branch)

    def commit(self, branch: str, at: datetime, write: Write, message: str = "") -> str:
        """The snapshot that a session on `branch` commits after `write` changed the root group."""
        session = self.repo.writable_session(branch)
        write(zarr.open_group(session.store, mode="a"))
        snapshot = session.commit(message or f"commit on {branch}")
        self._settle(snapshot, at)
        return snapshot

    def branch(self, name: str, snapshot: str) -> None:
        self.repo.create_branch(name, snapshot)

    def tag(self, name: str, snapshot: str) -> None:
        self.repo.create_tag(name, snapshot)

    def abandon_writer(self, branch: str, at: datetime, write: Write) -> list[Path]:
        """Chunks of a writer that never committed."""
        write(zarr.open_group(self.repo.writable_session(branch).store, mode="a"))
        return self._age_new_files(at)

    def abandon_snapshot(self, branch: str, at: datetime, write: Write) -> str:
        """A whole snapshot that no ref reaches: its branch was reset to where it stood before."""
        before = self.head(branch)
        snapshot = self.commit(branch, at, write, "abandoned")
        self.repo.reset_branch(branch, before)
        return snapshot

    def abandon_manifest(self, branch: str, at: datetime, write: Write) -> list[Path]:
        """Manifest and chunks of a writer that died before it wrote its snapshot."""
        snapshot = self.abandon_snapshot(branch, at, write)
        written = self.created.pop(snapshot)
        lost = [path for path in written if path.name == snapshot]
        for path in lost:
            path.unlink()
        self.known_files.difference_update(lost)
        return [path for path in written if path not in lost]

    def set_time(self, snapshot: str, at: datetime) -> None:
        """Gives a snapshot, and the files its commit wrote, another age."""
        set_flushed_at(self.snapshot_file(snapshot), at)
        for path in self.created[snapshot]:
            set_file_time(path, at)

    def snapshot_file(self, snapshot: str) -> Path:
        return self.path / "snapshots" / snapshot

    def files(self) -> set[Path]:
        """Every file in the four folders that a repository claims."""
        folders = (self.path / folder for folder in DATA_FOLDERS)
        return {path for folder in folders if folder.is_dir() for path in folder.iterdir()}

    @classmethod
    def _create(cls, path: Path, at: datetime, config: icechunk.RepositoryConfig, access: dict[str, Any] | None = None) -> Self:
        # The warning about concurrent commits on a local disk: one process writes here.
        icechunk.set_logs_filter("error")
        storage = icechunk.local_filesystem_storage(str(path))
        builder = cls(path, icechunk.Repository.create(storage, config=config, authorize_virtual_chunk_access=access))
        builder._settle(builder.head("main"), at)
        return builder

    def _settle(self, snapshot: str, at: datetime) -> None:
        self.created[snapshot] = self._age_new_files(at)
        self.set_time(snapshot, at)

    def _age_new_files(self, at: datetime) -> list[Path]:
        new = sorted(self.files() - self.known_files)
        self.known_files.update(new)
        for path in new:
            set_file_time(path, at)
        return new


def numbers(name: str, values: Sequence[int]) -> Write:
    """Writes an array of one chunk per value; an array of the name is overwritten."""

    def write(group: zarr.Group) -> None:
        array = group.create_array(name, shape=(len(values),), chunks=(1,), dtype="i8", compressors=None, fill_value=-1, overwrite=True)
        array[:] = np.asarray(values)

    return write


def set_value(name: str, index: int, value: int) -> Write:
    """Overwrites one chunk of an array."""

    def write(group: zarr.Group) -> None:
        group[name][index] = value  # type: ignore[index]  # zarr types a member as array or group

    return write


# (snapshot, branch, tag) in the order of the document's numbers; a branch named for the first time
# starts at the snapshot given below.
DOCUMENT_COMMITS = (
    (1, "main", None),
    (2, "main", None),
    (3, "develop", "tag1"),
    (4, "main", None),
    (5, "main", "tag2"),
    (6, "develop", None),
    (7, "test", None),
    (8, "qa", None),
    (9, "test", None),
    (10, "develop", None),
    (11, "develop", None),
    (12, "main", None),
    (13, "main", None),
    (14, "main", None),
)
DOCUMENT_FORKS = {"develop": 2, "test": 6, "qa": 7}


def document_history(builder: RepositoryBuilder, start: datetime, step: timedelta = timedelta(days=1)) -> dict[int, str]:
    """The 15 snapshots of icechunk's `design-docs/007-basic-expiration.md`, by their numbers there.

    Snapshot n is written at `start + n * step`. The first commit writes eight chunks, each later
    one overwrites one: every snapshot has a manifest and a chunk of its own.
    """
    ids = {0: builder.head("main")}
    for number, branch, tag in DOCUMENT_COMMITS:
        if branch not in {"main", *builder.repo.list_branches()}:
            builder.branch(branch, ids[DOCUMENT_FORKS[branch]])
        write = numbers("values", range(8)) if number == 1 else set_value("values", number % 8, number)
        ids[number] = builder.commit(branch, start + number * step, write, f"snapshot {number}")
        if tag is not None:
            builder.tag(tag, ids[number])
    return ids
