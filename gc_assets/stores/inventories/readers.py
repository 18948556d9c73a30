"""How the reports of each kind are read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gc_assets.stores.inventories import plain, s3
from gc_assets.stores.inventories.report import Manifest, RowNormalizer, require_checksum
from gc_assets.stores.protocol import ReportFiles


@dataclass(frozen=True, slots=True)
class ReportReader:
    """How the reports of a kind are read.

    `manifest` reads the report in a folder of a location (both end in `/`), whose name says when
    its scan began. It raises `FileNotFoundError` where the report is not finished. `rows` reads the
    rows of a file, of which it needs these `columns`.
    """

    manifest: Callable[[ReportFiles, str, str, datetime], Manifest]
    rows: RowNormalizer
    columns: Collection[str]


def _read_s3_manifest(report_files: ReportFiles, location: str, folder: str, scan: datetime) -> Manifest:
    name = f"{location}{folder}manifest.json"
    checksum = report_files.read(f"{location}{folder}manifest.checksum")
    content = report_files.read(name)
    require_checksum(content, checksum, name)
    return s3.manifest(content, name, location, scan)


def _read_plain_manifest(report_files: ReportFiles, location: str, folder: str, scan: datetime) -> Manifest:
    name = f"{location}{folder}manifest.json"
    return plain.manifest(report_files.read(name), name, f"{location}{folder}", scan)


S3_REPORTS: Final = ReportReader(_read_s3_manifest, s3.rows, s3.COLUMNS)
PLAIN_REPORTS: Final = ReportReader(_read_plain_manifest, plain.rows, plain.COLUMNS)
