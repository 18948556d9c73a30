"""Readers for all kinds of inventory reports."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gc_assets.stores.inventories import azure, gcs, plain, s3
from gc_assets.stores.inventories.report import Manifest, RowNormalizer, parse_scan_time, require_checksum
from gc_assets.stores.protocol import ReportFiles


@dataclass(frozen=True, slots=True)
class ReportReader:
    """The functions that read reports of one kind.

    Attributes:
        find_reports: Finds the reports in a location, which ends in `/`. Returns for each report
            the time of its scan, and the name of its folder or manifest.
        read_manifest: Reads a manifest, given the location, what `find_reports` has returned, and
            the expected bucket. Raises `FileNotFoundError` if the report is not finished.
        normalize_rows: Converts the rows of a file to the schema `ROWS`.
        columns: The columns that `normalize_rows` needs.
    """

    find_reports: Callable[[ReportFiles, str], list[tuple[datetime, str]]]
    read_manifest: Callable[[ReportFiles, str, str, datetime, str], Manifest]
    normalize_rows: RowNormalizer
    columns: Collection[str]


def _find_folders(report_files: ReportFiles, location: str) -> list[tuple[datetime, str]]:
    """Find folders that are named after a time."""
    folders = report_files.folders(location)
    return [(scan, folder) for folder in folders if (scan := parse_scan_time(folder)) is not None]


def _read_s3_manifest(report_files: ReportFiles, location: str, folder: str, scan: datetime, bucket: str) -> Manifest:
    del bucket
    name = f"{location}{folder}manifest.json"
    checksum = report_files.read(f"{location}{folder}manifest.checksum")
    content = report_files.read(name)
    require_checksum(content, checksum, name)
    return s3.parse_manifest(content, name, location, scan)


def _read_plain_manifest(report_files: ReportFiles, location: str, folder: str, scan: datetime, bucket: str) -> Manifest:
    del bucket
    name = f"{location}{folder}manifest.json"
    return plain.parse_manifest(report_files.read(name), name, f"{location}{folder}", scan)


def _read_azure_manifest(report_files: ReportFiles, location: str, manifest: str, scan: datetime, bucket: str) -> Manifest:
    del scan
    return azure.read_manifest(report_files, location, manifest, bucket)


def _read_gcs_manifest(report_files: ReportFiles, location: str, manifest: str, scan: datetime, bucket: str) -> Manifest:
    del scan
    return gcs.read_manifest(report_files, location, manifest, bucket)


S3_REPORTS: Final = ReportReader(_find_folders, _read_s3_manifest, s3.normalize_rows, s3.COLUMNS)
PLAIN_REPORTS: Final = ReportReader(_find_folders, _read_plain_manifest, plain.normalize_rows, plain.COLUMNS)
AZURE_REPORTS: Final = ReportReader(azure.find_reports, _read_azure_manifest, azure.normalize_rows, azure.COLUMNS)
GCS_REPORTS: Final = ReportReader(gcs.find_reports, _read_gcs_manifest, gcs.normalize_rows, gcs.COLUMNS)
