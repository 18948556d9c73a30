"""The kinds of report that a store of this release can use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gc_assets.core.paths import S3
from gc_assets.stores.inventories import plain, s3
from gc_assets.stores.inventories.report import Manifest, Normalised, require_checksum
from gc_assets.stores.protocol import Delivery


@dataclass(frozen=True, slots=True)
class ReportKind:
    """A kind of report. `about` is the scheme of the storages that such reports are about.

    `manifest` reads the report in a folder of a location (both end in `/`), whose name says when
    its scan began. It raises `FileNotFoundError` where the report is not finished. `rows` reads the
    rows of a file, of which it needs these `columns`.
    """

    about: str
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


# By the names that they have in lakes.yaml.
KINDS: Final[dict[str, ReportKind]] = {
    "s3": ReportKind(S3, _of_s3, s3.rows, s3.COLUMNS),
    "plain": ReportKind(S3, _of_ones_own, plain.rows, plain.COLUMNS),
}
