"""How the reports of each kind are read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gc_assets.stores.inventories import plain, s3
from gc_assets.stores.inventories.report import Manifest, Normalised, require_checksum
from gc_assets.stores.protocol import Delivery


@dataclass(frozen=True, slots=True)
class Reading:
    """How the reports of a kind are read.

    `manifest` reads the report in a folder of a location (both end in `/`), whose name says when
    its scan began. It raises `FileNotFoundError` where the report is not finished. `rows` reads the
    rows of a file, of which it needs these `columns`.
    """

    manifest: Callable[[Delivery, str, str, datetime], Manifest]
    rows: Normalised
    columns: Collection[str]


def _of_s3(delivery: Delivery, location: str, folder: str, scan: datetime) -> Manifest:
    name = f"{location}{folder}manifest.json"
    checksum = delivery.read(f"{location}{folder}manifest.checksum")
    content = delivery.read(name)
    require_checksum(content, checksum, name)
    return s3.manifest(content, name, location, scan)


def _of_ones_own(delivery: Delivery, location: str, folder: str, scan: datetime) -> Manifest:
    name = f"{location}{folder}manifest.json"
    return plain.manifest(delivery.read(name), name, f"{location}{folder}", scan)


OF_S3: Final = Reading(_of_s3, s3.rows, s3.COLUMNS)
OF_ONES_OWN: Final = Reading(_of_ones_own, plain.rows, plain.COLUMNS)
