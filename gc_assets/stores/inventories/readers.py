"""Readers for all kinds of inventory reports."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from gc_assets.stores.inventories import azure, gcs, plain, s3
from gc_assets.stores.inventories.report import FoundReport, Manifest, RowNormalizer, find_folders
from gc_assets.stores.protocol import ReportFiles


@dataclass(frozen=True, slots=True)
class ReportReader:
    """The functions that read inventory reports of one kind, such as S3 Inventory.

    Attributes:
        find_reports: Finds the reports in a location, which ends in `/`.
        read_manifest: Reads the manifest of a found report, given the location and the expected
            bucket. Raises `FileNotFoundError` if the report is not finished, and `FormatError` if
            it is not usable, for example because it is about another bucket.
        normalize_rows: Converts the rows of a report's file to the schema `ROWS`.
        columns: The columns that `normalize_rows` needs.
        normalizes_keys: Whether requests lose some components of a key, see `is_addressable`.
    """

    find_reports: Callable[[ReportFiles, str], list[FoundReport]]
    read_manifest: Callable[[ReportFiles, str, FoundReport, str], Manifest]
    normalize_rows: RowNormalizer
    columns: Collection[str]
    normalizes_keys: bool = False


READERS: Final = {
    "s3": ReportReader(find_folders, s3.read_manifest, s3.normalize_rows, s3.COLUMNS),
    "plain": ReportReader(find_folders, plain.read_manifest, plain.normalize_rows, plain.COLUMNS),
    "azure": ReportReader(azure.find_reports, azure.read_manifest, azure.normalize_rows, azure.COLUMNS, normalizes_keys=True),
    "gcs": ReportReader(gcs.find_reports, gcs.read_manifest, gcs.normalize_rows, gcs.COLUMNS),
}
