"""The lake kind `nessie`.

Its libraries are only imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.iceberg.file_names import DATA_NAMES, OWN_NAMES
from gc_assets.lakes.iceberg.kind import describe_decoder
from gc_assets.lakes.kind import FileTraits, LakeKind
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.state.schemas import LIVE_CONTENTS

if TYPE_CHECKING:
    from gc_assets.lakes.discovery import DiscoveredLake, DiscoveryTarget
    from gc_assets.lakes.protocol import Lake


def _open(config: NessieLakeConfig, objects: EditableObjects, storages: Sequence[str]) -> Lake:
    from gc_assets.lakes.nessie.lake import NessieLake

    del objects, storages
    return NessieLake(config)


def _discover(target: DiscoveryTarget) -> Iterator[DiscoveredLake]:
    from gc_assets.lakes.nessie.discovery import discover

    return discover(target)


# Contents refer to Iceberg metadata files. The Iceberg kind's pattern already recognizes these.
_RETENTION: Final = """\
# All commits that a branch or tag reaches are kept. If you set an age such as 90d, older commits
# expire, and files that only they need become garbage. The head of each ref is always kept.
retention:
  default: forever
  # delete_idle: [{match: "tmp-.*", after: 30d}]   # deletes unused branches
"""

KIND: Final = LakeKind(
    name="nessie",
    title="Nessie",
    config=NessieLakeConfig,
    open=_open,
    modules=("httpx", "tenacity", "fastavro"),
    describe_decoder=describe_decoder,
    discover=_discover,
    discovered_servers="a Nessie server (/api/v2/config)",
    retention_yaml=_RETENTION,
    optional_tables=(LIVE_CONTENTS,),
    files=FileTraits(own_names=OWN_NAMES, data_names=DATA_NAMES),
)
