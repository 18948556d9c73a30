"""Check whether ranges and metaranges that no commit references can be collected.

Refs dumps reference ranges and metaranges, too. On a server that compacts staged objects, so do
branches (field `compacted_base_metarange_id`), but no API shows these references. The open-source
edition does not compact staged objects, because its branches do not have this field
(`graveler.proto`, BranchData, up to 1.84 at least).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.core.untrusted_input import parse_json
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.addresses import METADATA
from gc_assets.lakes.lakefs.client import RefsDump, RepositoryClient
from gc_assets.lakes.lakefs.metaranges import read_metarange
from gc_assets.lakes.lakefs.object_ids import is_object_id
from gc_assets.lakes.lakefs.refs_dump import BRANCH, COMMIT, TAG
from gc_assets.lakes.protocol import ContentRoot

OPEN_SOURCE: Final = "lakeFS"
MANIFEST: Final = "refs_manifest.json"
_FIELDS: Final = {"commits_meta_range_id": COMMIT, "branches_meta_range_id": BRANCH, "tags_meta_range_id": TAG}


def find_obstacle(client: RepositoryClient) -> str | None:
    """Return why the server may need ranges that no commit references, or None if it needs none."""
    try:
        edition = client.edition()
    except LakeUnreadable as error:
        return f"its edition cannot be read: {error}"
    if edition == OPEN_SOURCE:
        return None
    name = "an unknown edition; upgrade it" if edition is None else f"the edition {edition}"
    return f"it is {name}. Only the open-source edition is known to need no other ranges than those of commits"


def pin_dumps(objects: Objects, location: str, dump: RefsDump) -> tuple[ContentRoot, ...]:
    """Return the ranges and metaranges of two refs dumps, as files to keep if they exist.

    The dumps are the given one, and the one to which `refs_manifest.json` refers.

    Args:
        objects: Reads the objects.
        location: Location of the namespace, ending in `/`.
        dump: The refs dump read by this run.

    Raises:
        LakeUnreadable: If the manifest or one of the metaranges cannot be read.
    """
    ids = {dump.commits: COMMIT, dump.branches: BRANCH, dump.tags: TAG, **_read_manifest(objects, location)}
    kinds = dict[str, str]()
    for metarange_id, entity in ids.items():
        kinds[metarange_id] = Kind.METARANGE
        kinds |= dict.fromkeys(_read_range_ids(objects, location, metarange_id, entity), Kind.RANGE)
    return tuple(ContentRoot(f"{location}{METADATA}{name}", kind, is_container=False, must_exist=False) for name, kind in kinds.items())


def _read_manifest(objects: Objects, location: str) -> Mapping[str, str]:
    """Return the metarange ids in the namespace's `refs_manifest.json`, with their entities."""
    address = f"{location}{METADATA}{MANIFEST}"
    try:
        document = parse_json(objects.read(address))
        return {_require_id(document[field]): entity for field, entity in _FIELDS.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LakeUnreadable(f"the dump of the refs {address} cannot be read: {error}; dump them again, or remove the file") from error


def _require_id(name: object) -> str:
    if not isinstance(name, str) or not is_object_id(name):
        raise TypeError(f"expected a metarange id, found {name!r}")
    return name


def _read_range_ids(objects: Objects, location: str, metarange_id: str, entity: str) -> Iterator[str]:
    address = f"{location}{METADATA}{metarange_id}"
    where = f"metarange of the {entity} dump {address}"
    try:
        yield from (item.range_id for item in read_metarange(where, metarange_id, objects.read(address), entity))
    except (OSError, FormatError) as error:
        raise LakeUnreadable(
            f"{where} cannot be read: {error}; if {MANIFEST} in {location}{METADATA} lists it, dump the refs again, or remove that file"
        ) from error
