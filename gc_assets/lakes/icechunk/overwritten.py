"""Find the backup copies of the object `repo` in `overwritten/` that are still needed.

The library copies `repo` to `overwritten/` before each change and never deletes a copy (icechunk
issue 1852). As measured with 2.3.0, `ops_log()` first reads the copy that `repo_before_updates`
names, then the copy to which this copy refers, and so on. If one of them is missing, the operations
log ends there without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.moments import to_micros
from gc_assets.core.objects import Objects
from gc_assets.core.units import Cutoff
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.backup_names import BACKUP_FOLDER, backup_time_us
from gc_assets.lakes.icechunk.flatbuffers import FlatBuffer, TableReader
from gc_assets.lakes.icechunk.repo_info import BEFORE_UPDATES, IDENTIFIER, REPO_FIELDS, RepoInfo
from gc_assets.lakes.protocol import ContentRoot


@dataclass(frozen=True, slots=True)
class Backup:
    """Copy of `repo` in `overwritten/`.

    Attributes:
        made_us: Time in its name.
        written_us: The time in its name or the storage time, whichever is later.
    """

    name: str
    size_bytes: int
    made_us: int
    written_us: int


@dataclass(frozen=True, slots=True)
class NeededBackups:
    """Objects in `overwritten/` that have to be kept, and messages for the report."""

    files: tuple[ContentRoot, ...]
    notes: tuple[str, ...] = ()


def find_needed_backups(lake: str, objects: Objects, repository: str, info: RepoInfo, cutoff: Cutoff, as_of: datetime) -> NeededBackups:
    """Find the objects in `overwritten/` that have to be kept.

    These are the copies that `repo` references, copies that contain earlier parts of the operations
    log, copies within the cut-off, and all objects whose names are unknown.

    Args:
        lake: Name of the lake for messages.
        objects: Access to the store.
        repository: Address of the repository.
        info: Content of its `repo` object.
        cutoff: Value of `retention.overwritten`.
        as_of: Time at which the ages of copies are computed.

    Raises:
        LakeUnreadable: If the folder cannot be listed.
    """
    listed = _list_folder(lake, objects, repository)
    backups = {
        name: Backup(name, size, time, max(time, to_micros(modified)))
        for name, (size, modified) in listed.items()
        if (time := backup_time_us(name)) is not None
    }
    unknown = sorted(listed.keys() - backups)
    limit = cutoff.moment_micros(as_of) or 0
    needed = {*unknown, *info.backups, *(name for name, item in backups.items() if item.written_us >= limit)}
    log = _OperationsLog(objects, repository, backups)
    # Copies may be large, so the log is only followed if one of them could be garbage.
    problem = log.follow(info, needed) if backups.keys() - needed else None
    notes = [f"lake {lake}: the operations log cannot be read completely: {problem}"] if problem is not None else []
    if unknown:
        notes.append(
            f"lake {lake}: {len(unknown):,} objects in {BACKUP_FOLDER}/ do not have the name of a `repo` copy "
            f"(for example {unknown[0]!r}); they are kept"
        )
    return NeededBackups(tuple(_content_roots(f"{repository}/{BACKUP_FOLDER}/", listed, needed)), tuple(notes))


def _content_roots(prefix: str, listed: Mapping[str, tuple[int, datetime]], names: Iterable[str]) -> Iterator[ContentRoot]:
    for name in sorted(names):
        if name in listed:
            yield ContentRoot(prefix + name, Kind.REPO_INFO, is_container=False, size_bytes=listed[name][0], must_exist=False)


def _list_folder(lake: str, objects: Objects, repository: str) -> Mapping[str, tuple[int, datetime]]:
    prefix = f"{repository}/{BACKUP_FOLDER}/"
    try:
        return {address.removeprefix(prefix): (size, modified) for address, size, modified in objects.list(prefix)}
    except OSError as error:
        raise LakeUnreadable(f"lake {lake}: {prefix} cannot be listed: {error}") from error


@dataclass(frozen=True, slots=True)
class _OperationsLog:
    objects: Objects
    repository: str
    backups: Mapping[str, Backup]

    def follow(self, info: RepoInfo, needed: set[str]) -> str | None:
        """Add the backup copies that contain earlier parts of the operations log to `needed`.

        If a copy is damaged, the rest of the log is unknown, so all copies are added. If one
        is missing, the log continues in copies that were made before it. These are added, because
        the library reads them again once the missing copy is restored.

        Returns:
            Why the log could not be followed to its start, or None if it could.
        """
        name, visited = info.repo_before_updates, set[str]()
        while name is not None and name not in visited:
            visited.add(name)
            needed.add(name)
            address = f"{self.repository}/{BACKUP_FOLDER}/{name}"
            try:
                name = _parse_continuation(address, self.objects.read(address))
            except FileNotFoundError:
                made_us = backup_time_us(name)
                needed.update(other for other, item in self.backups.items() if made_us is None or item.made_us <= made_us)
                return f"{address} is missing, so the copies before it are kept; restore it, or delete them if the log is not needed"
            except (OSError, FormatError) as error:
                needed.update(self.backups)
                return f"{address} cannot be read, so all copies of `repo` are kept ({error})"
        return None


def _parse_continuation(source: str, raw: bytes) -> str | None:
    """Return the name of the copy in which the operations log continues, or None."""
    buffer = FlatBuffer(source, envelope.unwrap(source, raw, envelope.REPO_INFO, envelope.SPEC_V2))
    root = buffer.root(REPO_FIELDS, IDENTIFIER)
    return TableReader(buffer).string(root.at(BEFORE_UPDATES, "")) if root.has(BEFORE_UPDATES) else None
