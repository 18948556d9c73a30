"""Parse lakeFS's refs dump: all branches and tags, and all commits, even unreachable ones.

Format: lakeFS `graveler.proto` and `POST …/dump`. Its ranges and metaranges have the same format as
those of a commit, plus the property `entity`. The server writes commits first, then branches, then
tags. The head of a branch or tag can therefore be newer than all commits in the same dump.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import pyarrow as pa

from gc_assets.core.errors import FormatError
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.addresses import METADATA
from gc_assets.lakes.lakefs.object_ids import is_object_id
from gc_assets.lakes.lakefs.ranges import timestamps
from gc_assets.lakes.lakefs.records import RANGES, Records, read_records
from gc_assets.lakes.lakefs.wire import scan_messages
from gc_assets.lakes.protocol import Commit, ContentRoot

BRANCH: Final = "branch"
TAG: Final = "tag"
COMMIT: Final = "commit"

_REF_ID, _REF_COMMIT = 1, 2
_REF_FIELDS: Final = {_REF_ID: "id:bytes", _REF_COMMIT: "commit_id:bytes"}
_ID, _MESSAGE, _CREATED, _METARANGE, _PARENTS, _VERSION = 1, 3, 4, 5, 7, 8
_COMMIT_FIELDS: Final = {
    _ID: "id:bytes",
    _MESSAGE: "message:bytes",
    _CREATED: "creation_date:bytes",
    _METARANGE: "meta_range_id:bytes",
    _PARENTS: "parents:bytes",
    _VERSION: "version",
}
# In commits before this version, the target branch of a merge is the last parent (graveler
# `CommitVersionParentSwitch`).
_PARENT_SWITCH: Final = 1


def read_refs(source: str, object_id: str, raw: bytes, entity: str) -> dict[str, str]:
    """Read the commit to which each ref in a range of the dump points.

    Raises:
        FormatError: If the range is damaged.
    """
    records = read_records(source, object_id, raw, RANGES, entity)
    count = len(records)
    fields = scan_messages(records.buffer, records.data_starts, records.data_sizes, _REF_FIELDS)
    names = records.buffer.strings(*fields[_REF_ID].spans(count), "a ref's name").to_pylist()
    commits = records.buffer.strings(*fields[_REF_COMMIT].spans(count), "a commit id").to_pylist()
    _verify_keys(source, records, names)
    for name, commit in zip(names, commits, strict=True):
        if not commit:
            raise FormatError(f"{source}: {entity} {name!r} does not point to a commit; expected its head")
    return dict(zip(names, commits, strict=True))


def read_commit_ids(source: str, object_id: str, raw: bytes) -> list[str]:
    """Read the commit ids in a range of the dump. Raises `FormatError` if the range is damaged."""
    records = read_records(source, object_id, raw, RANGES, COMMIT)
    return [key.decode(errors="backslashreplace") for key in records.keys.to_pylist()]


def read_commits(source: str, object_id: str, raw: bytes, location: str) -> Iterator[Commit]:
    """Yield the commits in a range of the dump. A commit's first parent is on the same branch.

    Args:
        source: Name of the range for error messages.
        object_id: Id of the range.
        raw: Content of the range.
        location: Location of the namespace, ending in `/`.
    """
    records = read_records(source, object_id, raw, RANGES, COMMIT)
    count, buffer = len(records), records.buffer
    fields = scan_messages(buffer, records.data_starts, records.data_sizes, _COMMIT_FIELDS)
    ids = buffer.strings(*fields[_ID].spans(count), "a commit id").to_pylist()
    _verify_keys(source, records, ids)
    messages = buffer.texts(*fields[_MESSAGE].spans(count)).to_pylist()
    metaranges = buffer.strings(*fields[_METARANGE].spans(count), "a metarange id").to_pylist()
    created: list[datetime] = timestamps(buffer, *fields[_CREATED].spans(count)).to_pylist()
    versions = fields[_VERSION].numbers(count).tolist()
    parents = _parents(records, fields[_PARENTS].messages.tolist(), fields[_PARENTS].values.tolist(), fields[_PARENTS].sizes.tolist())
    for row, commit_id in enumerate(ids):
        line = parents.get(row, [])
        yield Commit(
            commit_id=commit_id,
            parents=tuple(line if versions[row] >= _PARENT_SWITCH else reversed(line)),
            committed_at=created[row],
            content_roots=_roots(source, commit_id, metaranges[row], location),
            message=messages[row].decode(errors="backslashreplace"),
        )


def _parents(records: Records, rows: list[int], starts: list[int], sizes: list[int]) -> Mapping[int, list[str]]:
    """Return the parents of each commit, keyed by row, in the order that the commit records."""
    found: dict[int, list[str]] = {}
    data = records.buffer.data
    for row, start, size in zip(rows, starts, sizes, strict=True):
        found.setdefault(row, []).append(data[start : start + size].tobytes().decode(errors="backslashreplace"))
    return found


def _roots(source: str, commit_id: str, metarange_id: str, location: str) -> tuple[ContentRoot, ...]:
    """Return the metarange of a commit. A repository's first commit does not have one."""
    if not metarange_id:
        return ()
    if not is_object_id(metarange_id):
        raise FormatError(f"{source}: commit {commit_id} has the metarange id {metarange_id!r}; expected 64 hexadecimal digits")
    return (ContentRoot(f"{location}{METADATA}{metarange_id}", Kind.METARANGE, is_container=True),)


def _verify_keys(source: str, records: Records, names: list[str]) -> None:
    if not records.keys.equals(pa.array([name.encode() for name in names], pa.binary())):
        raise FormatError(f"{source}: the keys of its records differ from the names in them; restore the object from a backup")
