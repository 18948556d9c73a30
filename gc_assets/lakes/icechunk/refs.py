"""The refs of a spec v1 repository: one small JSON object per branch or tag, below `refs/`
(spec.md, "References").

This module only lists and reads. Whatever cannot be read raises. The official library takes a tag
that it cannot read for a deleted one, and its collector then destroys the tag's data (reproduced
with 1.1.21 for a truncated object, 403 and 503).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.core.untrusted_input import parse_json
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.ids import is_object_id
from gc_assets.lakes.protocol import ContentRoot, Ref, RefType

POINTER = "ref.json"
TOMBSTONE = f"{POINTER}.deleted"
# What a kill leaves of a branch whose making or removal was under way on a local disk. No object to
# the library either: it lists no name that ends so. Tags are never removed, so a tag that has
# nothing else is a loss.
_STAGED = re.compile(rf"{re.escape(POINTER)}#[0-9]+")
# How often the refs are read before it is an error that they are others each time.
_READINGS = 10
_TYPES: Mapping[str, RefType] = {"branch": "branch", "tag": "tag"}


@dataclass(frozen=True, slots=True)
class RefsRead:
    """The refs, tags before branches and by name, and the files that hold them. The files of
    deleted tags are among these.
    """

    refs: tuple[Ref, ...]
    files: tuple[ContentRoot, ...]


class _BranchGone(LakeUnreadable):
    """A branch was listed, and had no object any more when it was to be read."""


def read_refs(lake: str, objects: Objects, repository: str) -> RefsRead:
    """Returns every ref below `<repository>/refs/`. Raises `LakeUnreadable` naming the object that
    could not be read or understood.

    A directory without objects is no ref: deleting a branch leaves one on a local disk.

    No store lists and reads in one moment, and a branch that is renamed meanwhile may be in a
    listing under neither of its names. So refs count only once they are listed again afterwards,
    and are the same.
    """
    changed = LakeUnreadable(
        f"lake {lake}: refs came or went each of the {_READINGS} times that {repository}/refs/ was read; run again when less is written"
    )
    for _ in range(_READINGS):
        listed = _listed(lake, objects, repository)
        try:
            read = _read(lake, objects, repository, listed)
        except _BranchGone as error:
            changed = error
            continue
        if _of_refs(_listed(lake, objects, repository)) == _of_refs(listed):
            return read
    raise changed


def _listed(lake: str, objects: Objects, repository: str) -> dict[str, int]:
    prefix = f"{repository}/refs/"
    try:
        return {address: size for address, size, _ in objects.list(prefix)}
    except OSError as error:
        raise LakeUnreadable(f"lake {lake}: {prefix} cannot be listed: {error}") from error


def _of_refs(listed: Iterable[str]) -> set[str]:
    """Returns the addresses without those of writes under way."""
    return {address for address in listed if address.rpartition("/")[2] in {POINTER, TOMBSTONE}}


def _read(lake: str, objects: Objects, repository: str, listed: Mapping[str, int]) -> RefsRead:
    prefix = f"{repository}/refs/"
    names: dict[str, set[str]] = defaultdict(set)
    for address in listed:
        directory, _, name = address.removeprefix(prefix).rpartition("/")
        names[directory].add(name)
    refs: list[Ref] = []
    files: list[str] = []
    for directory, held in sorted(names.items()):
        at = f"{prefix}{directory}/"
        ref_type, _, ref_name = directory.partition(".")
        if ref_type not in _TYPES or not ref_name or "/" in ref_name:
            raise LakeUnreadable(
                f"lake {lake}: {at} is neither branch.<name> nor tag.<name>; "
                "it may be a ref of a format that this release does not know, so nothing is collected"
            )
        files += [at + name for name in sorted(held & {POINTER, TOMBSTONE})]
        if _TYPES[ref_type] == "tag" and TOMBSTONE in held:
            continue
        if _TYPES[ref_type] == "branch" and all(_STAGED.fullmatch(name) for name in held):
            continue
        if POINTER not in held:
            raise LakeUnreadable(
                f"lake {lake}: {ref_type} {ref_name!r} has no {at}{POINTER}, only {', '.join(sorted(held))}; "
                "restore it, or remove what is left of the ref"
            )
        head = _head(lake, objects, repository, _TYPES[ref_type], ref_name)
        refs.append(Ref(ref_name, _TYPES[ref_type], head))
    refs.sort(key=lambda ref: (ref.ref_type != "tag", ref.ref_name))
    return RefsRead(tuple(refs), tuple(_files(files, listed)))


def _head(lake: str, objects: Objects, repository: str, ref_type: RefType, ref_name: str) -> str:
    address = ref_address(repository, ref_type, ref_name)

    def unreadable(why: str, raised: type[LakeUnreadable] = LakeUnreadable) -> LakeUnreadable:
        named = f"lake {lake}: {ref_type} {ref_name!r} cannot be read: {why}"
        return raised(f"{named}; restore the file, or delete the ref with icechunk if it is not wanted")

    try:
        return parse_head(address, objects.read(address))
    except OSError as error:
        gone = isinstance(error, FileNotFoundError) and ref_type == "branch"
        raise unreadable(f"{address}: {error}", _BranchGone if gone else LakeUnreadable) from error
    except FormatError as error:
        raise unreadable(str(error)) from error


def parse_head(where: str, raw: bytes) -> str:
    """Returns the snapshot that a ref's object names. Raises `FormatError` naming `where`."""
    try:
        document: Any = parse_json(raw)
    except ValueError as error:
        raise FormatError(f"{where}: expected JSON, found {raw[:40]!r} ({error})") from error
    head = document.get("snapshot") if isinstance(document, dict) else None
    if not isinstance(head, str) or not is_object_id(head):
        raise FormatError(f'{where}: expected {{"snapshot": "<20 characters>"}}, found {raw[:80]!r}')
    return head


def head_document(snapshot_id: str) -> bytes:
    """Returns a ref's object as the library writes it."""
    return json.dumps({"snapshot": snapshot_id}, separators=(",", ":")).encode()


def ref_address(repository: str, ref_type: RefType, ref_name: str) -> str:
    return f"{repository}/refs/{ref_type}.{ref_name}/{POINTER}"


def tombstone_address(repository: str, tag_name: str) -> str:
    """Returns where an empty object says that a tag is deleted. The tag's own object stays, and its
    name is never free again.
    """
    return f"{repository}/refs/tag.{tag_name}/{TOMBSTONE}"


def _files(addresses: Iterable[str], sizes: Mapping[str, int]) -> Iterable[ContentRoot]:
    # A branch that is deleted during the night takes its file along, and a ref's file may be
    # rewritten at any moment.
    for address in addresses:
        yield ContentRoot(address, Kind.REF, is_container=False, size_bytes=sizes[address], must_exist=False)
