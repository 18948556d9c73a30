"""The lake kind `icechunk`.

Its libraries are only imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.kind import FileTraits, HistoryEdits, LakeKind, MetadataPattern

if TYPE_CHECKING:
    from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
    from gc_assets.lakes.protocol import FrozenRefs, Lake

MAGIC: Final = "ICE🧊CHUNK".encode()
# An object id. An unfinished write to a disk leaves a file with a suffix such as `#1`.
_NAME_END: Final = "[0-9A-HJKMNP-TV-Z]{20}(#[0-9]+)?$"


def _classify_repo(raw: bytes) -> str | None:
    return "an Icechunk repository of spec version 2" if raw.startswith(MAGIC) else None


def _open(config: IcechunkLakeConfig, objects: EditableObjects, storages: Sequence[str]) -> Lake:
    from gc_assets.lakes.icechunk.lake import IcechunkLake

    del storages
    return IcechunkLake(config, objects)


def _describe_format(refs: FrozenRefs) -> str:
    from gc_assets.lakes.icechunk.repository_settings import RepositorySettings

    return str(RepositorySettings.of(refs.sources))


def _spellings(key: str) -> set[str]:
    from gc_assets.lakes.icechunk.virtual_locations import spellings

    return spellings(key)


def _discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    from gc_assets.lakes.icechunk.discovery import discover

    return discover(target)


_RETENTION: Final = """\
# Every snapshot that a branch or tag reaches is kept. If you set an age such as 90d, older
# snapshots expire, except those of tags. Snapshots that no ref reaches expire 7 days after their
# commit.
retention:
  default: forever
  tags: keep
  # dangling: 7d
  # delete_idle: [{match: "tmp-.*", after: 30d}]   # deletes unused branches
"""

KIND: Final = LakeKind(
    name="icechunk",
    title="Icechunk",
    config=IcechunkLakeConfig,
    open=_open,
    modules=("zstandard", "flatbuffers"),
    describe_format=_describe_format,
    discover=_discover,
    discovered_in_folders="Icechunk repositories",
    retention_yaml=_RETENTION,
    edits=HistoryEdits(),
    is_one_table=True,
    fails_alone=True,
    files=FileTraits(
        metadata_patterns=(MetadataPattern(r"(^|/)repo$", _classify_repo), MetadataPattern(r"(^|/)refs/(branch|tag)\.[^/]+/ref\.json$")),
        spellings=_spellings,
        rewritten_in_place=frozenset({Kind.SNAPSHOT}),  # Expiry changes the parent in a snapshot file.
        # The library's garbage collector ignores all other names, too (verified with 1.1.21 and
        # 2.3.0).
        own_paths=rf"(^|/)(snapshots|manifests|transactions|chunks)/{_NAME_END}|(^|/)overwritten/repo\.[0-9]{{14}}\.{_NAME_END}",
    ),
)
