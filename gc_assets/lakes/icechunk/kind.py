"""What the collector knows of Icechunk lakes before it opens one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.kind import ForeignSign, LakeKind

if TYPE_CHECKING:
    from gc_assets.lakes.discovery import Found, Place
    from gc_assets.lakes.protocol import Lake

MAGIC: Final = "ICE🧊CHUNK".encode()


def _repository(raw: bytes) -> str | None:
    return "an Icechunk repository of spec v2" if raw.startswith(MAGIC) else None


def _open(config: IcechunkLakeConfig, objects: EditableObjects, storages: Sequence[str]) -> Lake:
    from gc_assets.lakes.icechunk.lake import IcechunkLake

    del storages
    return IcechunkLake(config, objects)


def _discover(place: Place) -> Iterator[Found]:
    from gc_assets.lakes.icechunk.discovery import discover

    return discover(place)


KIND: Final = LakeKind(
    name="icechunk",
    title="Icechunk",
    config=IcechunkLakeConfig,
    open=_open,
    modules=("zstandard",),
    edits_history=True,
    is_one_table=True,
    undoes_edits=True,
    rewritten_in_place=frozenset({Kind.SNAPSHOT}),  # expiry edits a snapshot's parent
    foreign_signs=(ForeignSign(r"(^|/)repo$", _repository), ForeignSign(r"(^|/)refs/(branch|tag)\.[^/]+/ref\.json$")),
    discover=_discover,
)
