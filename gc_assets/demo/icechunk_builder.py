"""Build Icechunk repositories on a local disk, with chosen histories and file ages.

The official library writes them: icechunk 1 uses format version 1, and icechunk 2 uses version 2.
Only times are changed afterwards: `flushed_at` in snapshots (8 bytes) and in `repo`, and the
modification times of files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import icechunk
import numpy as np
import zarr
import zstandard

from gc_assets.core.moments import to_micros
from gc_assets.lakes.icechunk.envelope import HEADER_BYTES
from gc_assets.lakes.icechunk.repo_info import parse_repo
from gc_assets.lakes.icechunk.repo_writer import write_repo

FLUSHED_AT = 3
DATA_FOLDERS = ("snapshots", "manifests", "transactions", "chunks")

Write = Callable[[zarr.Group], None]


def payload_of(raw: bytes) -> bytearray:
    return bytearray(zstandard.ZstdDecompressor().decompressobj().decompress(raw[HEADER_BYTES:]))


def with_payload(raw: bytes, payload: bytes | bytearray) -> bytes:
    """Replace the payload of a file. It is compressed as in the library, without a content size."""
    frame = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return raw[:HEADER_BYTES] + frame.compress(bytes(payload)) + frame.flush()


def field_position(payload: bytes | bytearray, number: int) -> int | None:
    """Return the position of a field in the root table, or None if the field is absent."""
    table = struct.unpack_from("<I", payload, 0)[0]
    vtable = table - struct.unpack_from("<i", payload, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", payload, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", payload, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def set_file_time(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()))


def set_flushed_at(snapshot: Path, at: datetime) -> None:
    """Set the time that a snapshot contains, and the modification time of its file."""
    raw = snapshot.read_bytes()
    payload = payload_of(raw)
    position = field_position(payload, FLUSHED_AT)
    if position is None:
        raise ValueError(f"{snapshot} has no flushed_at, expected a time in every snapshot")
    struct.pack_into("<Q", payload, position, to_micros(at))
    snapshot.write_bytes(with_payload(raw, payload))
    set_file_time(snapshot, at)


def set_entry_time(repo: Path, snapshot: str, at: datetime) -> None:
    """Set the time of a snapshot in the `repo` file of spec version 2."""
    raw = repo.read_bytes()
    info = parse_repo(str(repo), raw)
    entry = replace(info.snapshots[snapshot], flushed_us=to_micros(at))
    repo.write_bytes(write_repo(str(repo), raw, replace(info, snapshots={**info.snapshots, snapshot: entry})))


@dataclass
class RepositoryBuilder:
    """Commits to a repository at chosen times.

    Attributes:
        created: The files written by the commit of each snapshot.
        known_files: All files from earlier commits.
    """

    path: Path
    repo: icechunk.Repository
    created: dict[str, list[Path]] = field(default_factory=dict)
    known_files: set[Path] = field(default_factory=set)

    @classmethod
    def create(cls, path: Path, at: datetime) -> Self:
        """Create an empty repository that stores every chunk in a file of its own.

        The time of the first snapshot is `at`.
        """
        return cls._create(path, at, icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0))

    def head(self, branch: str) -> str:
        return self.repo.lookup_branch(branch)

    def commit(self, branch: str, at: datetime, write: Write, message: str = "") -> str:
        """Commit the changes that `write` makes to the root group. Return the snapshot id."""
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
        """Write the chunks of a writer that failed before its commit, and return their files."""
        write(zarr.open_group(self.repo.writable_session(branch).store, mode="a"))
        return self._age_new_files(at)

    def abandon_snapshot(self, branch: str, at: datetime, write: Write) -> str:
        """Commit a snapshot, then reset the branch. No ref can then reach the snapshot."""
        previous = self.head(branch)
        snapshot = self.commit(branch, at, write, "abandoned")
        self.repo.reset_branch(branch, previous)
        return snapshot

    def abandon_manifest(self, branch: str, at: datetime, write: Write) -> list[Path]:
        """Write the manifest and chunks of a writer that failed before it wrote its snapshot."""
        snapshot = self.abandon_snapshot(branch, at, write)
        written = self.created.pop(snapshot)
        removed = [path for path in written if path.name == snapshot]
        for path in removed:
            path.unlink()
        self.known_files.difference_update(removed)
        return [path for path in written if path not in removed]

    def set_time(self, snapshot: str, at: datetime) -> None:
        """Change the time of a snapshot and of the files written by its commit."""
        set_flushed_at(self.snapshot_file(snapshot), at)
        if (self.path / "repo").exists():
            set_entry_time(self.path / "repo", snapshot, at)
        for path in self.created[snapshot]:
            set_file_time(path, at)

    def snapshot_file(self, snapshot: str) -> Path:
        return self.path / "snapshots" / snapshot

    def files(self) -> set[Path]:
        """Return all files in the four directories that a repository claims."""
        folders = (self.path / folder for folder in DATA_FOLDERS)
        return {path for folder in folders if folder.is_dir() for path in folder.iterdir()}

    @classmethod
    def _create(cls, path: Path, at: datetime, config: icechunk.RepositoryConfig, access: dict[str, Any] | None = None) -> Self:
        # The warning about concurrent commits on a local disk does not apply to a single writer.
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
    """Return a function that writes an array with one chunk per value, or overwrites the array."""

    def write(group: zarr.Group) -> None:
        array = group.create_array(name, shape=(len(values),), chunks=(1,), dtype="i8", compressors=None, fill_value=-1, overwrite=True)
        array[:] = np.asarray(values)

    return write


def set_value(name: str, index: int, value: int) -> Write:
    """Return a function that overwrites one chunk of an array."""

    def write(group: zarr.Group) -> None:
        group[name][index] = value  # type: ignore[index]  # zarr's type of a member is array or group

    return write


# (snapshot, branch, tag). The numbers are those of the document. A new branch starts at the
# snapshot in DOCUMENT_FORKS.
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
    """Commit the 15 snapshots of an example in icechunk's documents. Return their ids by number.

    The example is in `design-docs/007-basic-expiration.md`. Snapshot n is written at
    `start + n * step`. The first commit writes eight chunks, and every later commit overwrites one
    of them. Every snapshot therefore has a manifest and a chunk of its own.
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
