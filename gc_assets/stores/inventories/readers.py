"""The readers of each kind of report."""

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
    """Reads the reports of one kind.

    Attributes:
        read_manifest: Reads the report in a folder of a location (both end in `/`). The last
            argument is the time in the folder's name. Raises `FileNotFoundError` if the report is
            not finished.
        normalize_rows: Converts the rows of a file.
        columns: The columns that `normalize_rows` needs.
    """

    read_manifest: Callable[[ReportFiles, str, str, datetime], Manifest]
    normalize_rows: RowNormalizer
    columns: Collection[str]


def _read_s3_manifest(report_files: ReportFiles, location: str, folder: str, scan: datetime) -> Manifest:
    name = f"{location}{folder}manifest.json"
    checksum = report_files.read(f"{location}{folder}manifest.checksum")
    content = report_files.read(name)
    require_checksum(content, checksum, name)
    return s3.parse_manifest(content, name, location, scan)


def _read_plain_manifest(report_files: ReportFiles, location: str, folder: str, scan: datetime) -> Manifest:
    name = f"{location}{folder}manifest.json"
    return plain.parse_manifest(report_files.read(name), name, f"{location}{folder}", scan)


S3_REPORTS: Final = ReportReader(_read_s3_manifest, s3.normalize_rows, s3.COLUMNS)
PLAIN_REPORTS: Final = ReportReader(_read_plain_manifest, plain.normalize_rows, plain.COLUMNS)
