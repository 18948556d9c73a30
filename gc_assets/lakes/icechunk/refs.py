"""Refs of a repository with spec version 1, which has one JSON object per branch or tag in `refs/`.

Format: Icechunk `spec.md`, "References". This module only lists and reads refs. It raises an error
for every unreadable object. The official library, in contrast, treats an unreadable tag as deleted,
so its garbage collector deletes the tag's data. We reproduced this with 1.1.21 for a truncated
object and for the statuses 403 and 503.
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
from gc_assets.lakes.icechunk.ref_names import read_name, stored_name
from gc_assets.lakes.protocol import ContentRoot, Ref, RefType

POINTER = "ref.json"
TOMBSTONE = f"{POINTER}.deleted"
# Property of a ref whose directory has another name than the library uses. The ref is read-only.
READ_ONLY = "read_only"
# When a process is killed while it creates or removes a branch on a local disk, such a file
# remains. The library does not list these names either. Tags are never removed, so a tag that has
# no other file is damaged.
_STAGED = re.compile(rf"{re.escape(POINTER)}#[0-9]+")
# How often to read the refs until they do not change in the meantime.
_MAX_READS = 10
_TYPES: Mapping[str, RefType] = {"branch": "branch", "tag": "tag"}


@dataclass(frozen=True, slots=True)
class RefListing:
    """Refs of a repository, and all files in `refs/`, including those of deleted tags.

    Tags precede branches. Each group is sorted by name.
    """

    refs: tuple[Ref, ...]
    files: tuple[ContentRoot, ...]


class _BranchDeleted(LakeUnreadable):
    """Raised if a branch was deleted between listing and reading."""


def read_refs(lake: str, objects: Objects, repository: str) -> RefListing:
    """Read all refs in `<repository>/refs/`.

    A directory without objects is not a ref. On a local disk, it remains after a branch is deleted.

    Listing and reading are not atomic. If a branch is renamed in the meantime, it may be missing
    under both names. The refs are therefore listed again, and only valid if nothing has changed.

    Raises:
        LakeUnreadable: If an object cannot be read or parsed, or the refs keep changing.
    """
    changed = LakeUnreadable(
        f"lake {lake}: refs in {repository}/refs/ changed during each of {_MAX_READS} attempts to read them; run again with fewer writes"
    )
    for _ in range(_MAX_READS):
        listed = _list_objects(lake, objects, repository)
        try:
            read = _parse_refs(lake, objects, repository, listed)
        except _BranchDeleted as error:
            changed = error
            continue
        if _ref_files(_list_objects(lake, objects, repository)) == _ref_files(listed):
            return read
    raise changed


def list_ref_files(lake: str, objects: Objects, repository: str) -> tuple[ContentRoot, ...]:
    """List all objects in `refs/`. Raises `LakeUnreadable` if that fails."""
    listed = _list_objects(lake, objects, repository)
    return tuple(_content_roots(sorted(listed), listed))


def _list_objects(lake: str, objects: Objects, repository: str) -> dict[str, int]:
    prefix = f"{repository}/refs/"
    try:
        # Consoles and copy programs write empty objects as directory markers.
        return {address: size for address, size, _ in objects.list(prefix) if size or not address.endswith("/")}
    except OSError as error:
        raise LakeUnreadable(f"lake {lake}: {prefix} cannot be listed: {error}") from error


def _ref_files(listed: Iterable[str]) -> set[str]:
    """Return the listed files without those that unfinished writes left behind."""
    return {address for address in listed if address.rpartition("/")[2] in {POINTER, TOMBSTONE}}


def _parse_refs(lake: str, objects: Objects, repository: str, listed: Mapping[str, int]) -> RefListing:
    prefix = f"{repository}/refs/"
    names: dict[str, set[str]] = defaultdict(set)
    for address in listed:
        directory, _, name = address.removeprefix(prefix).rpartition("/")
        names[directory].add(name)
    refs: list[Ref] = []
    files: list[str] = []
    for directory, present in sorted(names.items()):
        at = f"{prefix}{directory}/"
        ref_type, _, encoded_name = directory.partition(".")
        if ref_type not in _TYPES or not encoded_name or "/" in encoded_name:
            raise LakeUnreadable(
                f"lake {lake}: {at} is neither branch.<name> nor tag.<name>; it may be a ref of an unknown format, so nothing is collected"
            )
        ref_name, properties = read_name(repository, encoded_name)
        files += [at + name for name in sorted(present & {POINTER, TOMBSTONE})]
        if _TYPES[ref_type] == "tag" and TOMBSTONE in present:
            continue
        if _TYPES[ref_type] == "branch" and all(_STAGED.fullmatch(name) for name in present):
            continue
        if POINTER not in present:
            raise LakeUnreadable(
                f"lake {lake}: {ref_type} {ref_name!r} has no {at}{POINTER}, only {', '.join(sorted(present))}; restore the "
                "missing file, or remove the rest of the ref"
            )
        head = _read_head(lake, objects, at + POINTER, _TYPES[ref_type], ref_name)
        if at + POINTER != ref_address(repository, _TYPES[ref_type], ref_name):
            properties[READ_ONLY] = directory
        refs.append(Ref(ref_name, _TYPES[ref_type], head, properties=properties))
    refs.sort(key=lambda ref: (ref.ref_type != "tag", ref.ref_name))
    return RefListing(tuple(refs), tuple(_content_roots(files, listed)))


def _read_head(lake: str, objects: Objects, address: str, ref_type: RefType, ref_name: str) -> str:
    def unreadable(why: str, raised: type[LakeUnreadable] = LakeUnreadable) -> LakeUnreadable:
        named = f"lake {lake}: {ref_type} {ref_name!r} cannot be read: {why}"
        return raised(f"{named}; restore the file, or delete the ref with icechunk if it is not needed")

    try:
        return parse_head(address, objects.read(address))
    except OSError as error:
        gone = isinstance(error, FileNotFoundError) and ref_type == "branch"
        raise unreadable(f"{address}: {error}", _BranchDeleted if gone else LakeUnreadable) from error
    except FormatError as error:
        raise unreadable(str(error)) from error


def parse_head(source: str, raw: bytes) -> str:
    """Parse the snapshot id in a ref object. Raises `FormatError` if the object is invalid."""
    try:
        document: Any = parse_json(raw)
    except ValueError as error:
        raise FormatError(f"{source}: expected JSON, found {raw[:40]!r} ({error})") from error
    head = document.get("snapshot") if isinstance(document, dict) else None
    if not isinstance(head, str) or not is_object_id(head):
        raise FormatError(f'{source}: expected {{"snapshot": "<20 characters>"}}, found {raw[:80]!r}')
    return head


def head_document(snapshot_id: str) -> bytes:
    """Serialize a ref object exactly as the library does."""
    return json.dumps({"snapshot": snapshot_id}, separators=(",", ":")).encode()


def ref_address(repository: str, ref_type: RefType, ref_name: str) -> str:
    """Return the address to which the library writes a ref object in this store."""
    return f"{repository}/refs/{ref_type}.{stored_name(repository, ref_name)}/{POINTER}"


def tombstone_address(repository: str, tag_name: str) -> str:
    """Return the address of the empty object that marks a tag as deleted.

    The tag's own object remains, and its name can never be used again.
    """
    return f"{repository}/refs/tag.{stored_name(repository, tag_name)}/{TOMBSTONE}"


def _content_roots(addresses: Iterable[str], sizes: Mapping[str, int]) -> Iterable[ContentRoot]:
    # `must_exist` is false because a branch may be deleted during the run.
    for address in addresses:
        yield ContentRoot(address, Kind.REF, is_container=False, size_bytes=sizes[address], must_exist=False)
