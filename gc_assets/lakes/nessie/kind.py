"""What the collector knows of Nessie lakes before it opens one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.kind import LakeKind
from gc_assets.lakes.nessie.config import NessieLakeConfig

if TYPE_CHECKING:
    from gc_assets.lakes.discovery import Found, Place
    from gc_assets.lakes.protocol import Lake


def _open(config: NessieLakeConfig, objects: EditableObjects, storages: Sequence[str]) -> Lake:
    from gc_assets.lakes.nessie.lake import NessieLake

    del objects, storages
    return NessieLake(config)


def _discover(place: Place) -> Iterator[Found]:
    from gc_assets.lakes.nessie.discovery import discover

    return discover(place)


# The metadata files that its contents name are Iceberg's, whose sign is told there.
KIND: Final = LakeKind(
    name="nessie",
    title="Nessie",
    config=NessieLakeConfig,
    open=_open,
    modules=("httpx", "tenacity", "fastavro"),
    shows_contents=True,
    discover=_discover,
)
