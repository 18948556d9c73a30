"""The lake kind `lakefs`.

Its libraries are only imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.config.models import LakeConfig
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.kind import FileTraits, KindTable, LakeKind, MetadataPattern, TableRole
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS, LIFECYCLE_PATHS, POTENTIAL_COMMITS, UNCOMMITTED_OBJECTS
from gc_assets.state.schemas import CURRENT_RULES, LAKE_REFS, MANIFEST_ENTRIES

if TYPE_CHECKING:
    import pyarrow as pa

    from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
    from gc_assets.lakes.protocol import Lake


def _has_lifecycle(config: LakeConfig) -> bool:
    return config.has_lifecycle


def _has_commit_rules(config: LakeConfig) -> bool:
    return isinstance(config, LakeFsLakeConfig) and config.has_commit_rules


def _has_rules(config: LakeConfig) -> bool:
    return _has_lifecycle(config) or _has_commit_rules(config)


def _named_times(keys: pa.Array) -> pa.Array:
    from gc_assets.lakes.lakefs.xids import times_of_names

    return times_of_names(keys)


def _open(config: LakeFsLakeConfig, objects: EditableObjects, storages: Sequence[str]) -> Lake:
    from gc_assets.lakes.lakefs.lake import LakeFsLake

    return LakeFsLake(config, objects, storages)


def _discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    from gc_assets.lakes.lakefs.discovery import discover

    return discover(target)


# This directory directly contains ranges and metaranges. Their names are hashes.
_METADATA: Final = "_lakefs/"
_OBJECT_ID: Final = "[0-9a-f]{64}"
# The first character encodes a time between 2020 and 2045, even in partitions, which count down
# from the year 4000. The last character contains one of the 96 bits.
_XID: Final = "[b-h][0-9a-v]{18}[0g]"
_RETENTION: Final = """\
# By default, the repository's garbage collection rules on the server apply. Without rules, all
# commits are kept. With source: configured, the rules in this file apply, such as default: 90d.
retention:
  source: server
  # delete_idle: [{match: "tmp-.*", after: 30d}]   # deletes unused branches
"""

KIND: Final = LakeKind(
    name="lakefs",
    title="lakeFS",
    config=LakeFsLakeConfig,
    open=_open,
    modules=("lakefs_sdk", "google_crc32c"),
    discover=_discover,
    discovered_servers="a lakeFS server (/api/v1/healthcheck)",
    retention_yaml=_RETENTION,
    fails_alone=True,
    kind_tables=(
        KindTable(UNCOMMITTED_OBJECTS, after=(LAKE_REFS,)),
        KindTable(POTENTIAL_COMMITS, after=(CURRENT_RULES, MANIFEST_ENTRIES), when=_has_rules, before_live=True),
        KindTable(LIFECYCLE_OBJECTS, after=(POTENTIAL_COMMITS,), when=_has_lifecycle, before_live=True, role=TableRole.RELEASED_FILES),
        KindTable(LIFECYCLE_PATHS, after=(POTENTIAL_COMMITS,), when=_has_commit_rules, role=TableRole.PATH_EDITS),
    ),
    files=FileTraits(
        metadata_patterns=(MetadataPattern(r"(^|/)_lakefs/"),),
        uncollected_metadata=f"(^|/){_METADATA}{_OBJECT_ID}$",
        metadata_directory=_METADATA,
        metadata_names=_OBJECT_ID,
        never_committed="uncommitted",
        named_times=_named_times,
        # `data/PARTITION/OBJECT`, both of which are xids (lakeFS `pkg/upload/path_provider.go`).
        # For partitions, the length is a sufficient check. Parts of uploads to Google Cloud Storage
        # have further suffixes. `data/` itself may be the storage.
        own_paths=f"(^|(^|/)data/)({_XID}/[0-9a-z]{{20}}|{_XID})([,.][^/]*)?$|(^|/){_METADATA}{_OBJECT_ID}$",
    ),
)
